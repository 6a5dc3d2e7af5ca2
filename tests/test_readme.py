"""Commands, flags, names, messages and links in README and docs are those of the program, and every command works in
a clone after those that its page has before it.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path

import pytest
from checkout import copy_checkout, runtime_library, why_no_crate, write_program
from tiny_runs import ROOT

from gnn_training import contract, settings
from gnn_training.__main__ import COMMANDS, parse
from gnn_training.data.families import FAMILIES, RECIPES
from gnn_training.data.formats import FORMATS
from gnn_training.data.packed import PER_GRAPH, RAGGED

LOG = "docs/LOG.md"  # tells the past: its commands and flags may be gone
PAGES = sorted(str(path.relative_to(ROOT)) for folder in ("", "docs", "models", "training_data", "benchmarks")
               for path in (ROOT / folder).glob("*.md"))  # fmt: skip
NOW = [page for page in PAGES if page not in (LOG, "CHANGELOG.md")]
HOSTS = {"github.com", "keepachangelog.com", "semver.org", "api.runpod.io", "docs.runpod.io", "127.0.0.1"}
WITHOUT_VALUE = ("import", "evaluate", "color", "push")  # a page may name these commands without what they need


@cache
def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@cache
def program_text() -> str:
    """The program without comments and without breaks in strings."""
    sources = [*(ROOT / "gnn_training").rglob("*.py"), *(ROOT / "scripts").glob("*.sh"), *ROOT.glob("*.sh")]
    joined = re.sub(r"(^|\s)#.*", "", "\n".join(path.read_text() for path in sources), flags=re.MULTILINE)
    return re.sub(r'"\s*\\?\n\s*f?"', "", joined)


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and code of the fenced blocks."""
    return re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", text(page), re.MULTILINE | re.DOTALL)


def lines(code: str) -> list[str]:
    """The commands of a block without comments; one that goes on in the next line is one command."""
    joined = re.sub(r" *\\\n *|(?<=\|)\n *", " ", code)
    return [line for line in (re.sub(r"(^| +)# .*", "", line).strip() for line in joined.splitlines()) if line]


def fenced() -> set[str]:
    """All commands in blocks of the pages."""
    return {line for page in NOW for language, code in blocks(page) if language == "sh" for line in lines(code)}


def commands() -> list[str]:
    """Every command of this project in the code of the pages."""
    inline = {code for page in NOW for code in re.findall(r"`([^`\n]+)`", text(page))}
    ours = re.compile(r"\./\w+\.sh|scripts/\w+\.sh|(\.venv/bin/)?coloring-gnn [a-z]|python -m gnn_training [a-z]")
    return sorted({re.split(r" +[#|<>]", line)[0].strip() for line in fenced() | inline if ours.match(line)})


@pytest.mark.parametrize("command", commands())
def test_command_of_the_pages_exists_and_takes_these_flags(command: str):
    program, *words = shlex.split(re.sub(r"^(\S*coloring-gnn|python -m gnn_training) ", "", command))
    if "/" in program:
        assert os.access(ROOT / program, os.X_OK)
        if "/run" not in program:
            return
        words = words[words[:1] == ["2"] :]  # the number of processes of run_multigpu.sh
        program = "run"
    assert program in COMMANDS
    if "--help" not in words and "..." not in words and (words or program not in WITHOUT_VALUE):
        parse(program, words)


@pytest.mark.parametrize("page", NOW)
def test_flags_of_the_pages_are_flags_of_a_command(page: str):
    fields = {name for command in COMMANDS.values() for name in getattr(settings, command.settings).model_fields}
    known = {f"--{name}".replace("_", "-") for name in fields}
    sources = ("build_and_push.sh", "test.sh", "scripts/lock.sh", "clients/rust/src/main.rs")
    scripts = " ".join((ROOT / name).read_text() for name in sources)
    known |= {*re.findall(r"--[a-z-]+", scripts), "--help", "--dry-run", "--version", "--settings"}
    known |= {"--secret", "--shm-size", "--group-add", "--example"}  # of docker and cargo
    known |= {"--docker-args"}  # of runpodctl
    known |= {"--run-folder"}  # another name of --run
    named = re.findall(r"`(--[a-z][a-z-]+)", text(page))
    assert [flag for flag in named if flag not in known] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str):
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", text(page)) + re.findall(r'src="([^"]+)"', text(page))
    for link in links:
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings], link


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_no_other_host_and_no_path_of_a_machine(page: str):
    assert set(re.findall(r"https?://([\w.-]+)", text(page))) <= HOSTS
    assert not re.findall(r"(?<![\w./>*)<])/(?:home|root|work|tmp|Users)/\S+", text(page))


@pytest.mark.parametrize("page", NOW)
def test_messages_that_a_page_explains_are_in_the_program(page: str):
    """Rows of tables whose first column is called message."""
    tables = re.findall(r"^\| message \|.*\n\|[-|]+\n((?:\|.*\n)*)", text(page), re.MULTILINE)
    messages = re.findall(r"^\| `([^`]+)`", "".join(tables), re.MULTILINE)
    assert [message for message in messages if message not in program_text()] == []


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("docs/TRAINING.md", COMMANDS),
        ("docs/ONNX.md", (*contract.INPUTS, *contract.OPTIONAL_INPUTS, *contract.OUTPUTS, *contract.GRAPH_TYPES)),
        ("docs/DATA.md", (*FAMILIES, *RECIPES, *FORMATS, *PER_GRAPH, *RAGGED, *(name for name, _ in RAGGED.values()))),
        ("docs/DATA.md", {f"{form.limit // 10**6} MB" for form in FORMATS.values()}),  # limits of readers
    ],
)
def test_page_names_everything_there_is(page: str, names: Iterable[str]):
    assert [name for name in names if not re.search(rf"(?<![\w.-]){re.escape(name)}(?!\.?[\w-])", text(page))] == []


def test_the_table_of_presets_has_their_values():
    table = re.search(r"^\| `--run` \|.*\n(?:\|.*\n)*", text("docs/TRAINING.md"), re.MULTILINE)[0]
    for name, *cells in re.findall(r"^\| `?(?:--)?([a-z-]+).*? \|" + 4 * r" (.*) \|" + "$", table, re.MULTILINE):
        for preset, cell in zip(settings.PRESETS, cells, strict=True):
            values = settings.from_preset(settings.RunSettings, preset)
            searches = 2 * values.steps * values.batch_size or values.searches or settings.SEARCHES
            minutes = f"`--games {values.games}`" if values.games else f"{values.self_play:g}"
            known = vars(values) | {"searches": f"{searches:,}", "self_play": minutes}
            assert re.split(",? (?=[a-z])", cell)[0] == str(known[name.replace("-", "_")]), (preset, name)


def test_the_report_says_of_public_graphs_what_its_table_has():
    section = text("models/REPORT.md").partition("\n## 44 public")[2].partition("\n## ")[0]
    row = r"^\| ([\w.]+) \| \d+ \|" + 5 * r" (\d+) \|" + r" [\d.]+ \| (\d+) \|$"
    colors = {name: [*map(int, numbers)] for name, *numbers in re.findall(row, section, re.MULTILINE)}
    best, *methods = zip(*colors.values(), strict=True)
    gaps = [[found - fewest for found, fewest in zip(method, best, strict=True)] for method in methods]
    dsatur, rlf, tabucol, call, search = [(f"{sum(gap) / 44:.2f}", str(44 - sum(map(bool, gap)))) for gap in gaps]
    means = section.partition("In the table")[0], text("README.md")
    told, in_short = (re.findall(r" \| \**([\d.]+)\** \| (\d+)(?: of 44)? \|$", each, re.MULTILINE) for each in means)
    assert told == [dsatur, rlf, call, search, tabucol] and {call, search, tabucol} <= set(in_short)
    hardest = [colors[name][5] for name in ("DSJC1000.5", "flat1000_76_0")]
    assert "`color` finds {} and {} in ten seconds".format(*hardest) in text("models/REPORT.md")


def test_readme_is_short():
    assert text("README.md").count("\n") <= 150


# What a reader brings along: commands before those of the page. $MADE: what a job of ./run.sh makes.
GIVEN = {
    "README.md": "mkdir my_graphs && cp examples/*.col my_graphs",
    "docs/COLOR.md": "pip install uv",
    "docs/DATA.md": "mkdir my_graphs && cp examples/*.col my_graphs && echo '1 2' | tee a.edgelist b.edgelist && "
    "tar -czf more_graphs.tar.gz a.edgelist",
    "docs/PODS.md": "export RUNPOD_API_KEY=key && cp $MADE/models/trained_model.tar.gz .",
    "docs/TRAINING.md": "mkdir my_graphs && cp examples/*.col my_graphs && cp examples/queen8_8.col graph.col",
}
CARGO_TEST = "cargo test --manifest-path clients/rust/Cargo.toml"
# Of commands that take long: the beginnings and what the test adds, whole commands and parts and what it runs instead.
# All others run as they stand.
ADDED = {
    "coloring-gnn color examples": "--seconds 1",
    "coloring-gnn color graph.col -o": "--seconds 0.1",
    "coloring-gnn evaluate my_graphs": "--seconds 0.1",
    "coloring-gnn evaluate FOLDER --suite": "--seconds 0.1",
    "coloring-gnn evaluate --suite": "--limit 1 --seconds 0.1",
    "coloring-gnn push": "--dry-run",
    "coloring-gnn generate": "--recipe smoke --graphs 8",
    "coloring-gnn generate --recipe full": "--dry-run",
    "python3 -m venv try && try/bin/pip install onnxruntime": "--no-deps",
    "coloring-gnn train --data training_data/cpu-0 --seed 2": "--steps 1 --warmup-steps 0 --rounds 10 "
    "--validation-rounds 10 --self-play 0 --ranks 1",
    "tensorboard": "--inspect",
    "pip install '.[hub]'": "--no-deps --dry-run",
    "pip install wandb": "--dry-run",
    "cargo run --manifest-path clients/rust/Cargo.toml --release --no-default-features": "--seconds 1",
    "uvx": "--help",  # the test of README.md colors after an installation
    **dict.fromkeys(  # the second seed, and tests of the image and of the loggers, train
        ["./run.sh --", "./run_multigpu.sh", "coloring-gnn train --data training_data/cpu-0 --run",
         "coloring-gnn train --data training_data/cpu-0 --seed 1", "coloring-gnn export runs/multi"], "--dry-run",
    ),
}  # fmt: skip
REPLACED = {
    "./run.sh": "./run.sh --dry-run && cp -r $MADE/. .",
    "npm ci --prefix clients/web": "ln -s $MODULES clients/web/node_modules",
    "coloring-gnn serve": "timeout --foreground --signal INT --preserve-status 5 coloring-gnn serve --port 0",
    CARGO_TEST: f"{CARGO_TEST} --lib -- --list",  # tests/test_rust.py runs its tests
}
PARTS = {"FOLDER": "examples", " --release": "", "onnx 20 ": "onnx 2 ", " --tests": " --test model"}
# The beginnings of commands that no test runs, and why.
NOT_RUN = {
    "./test.sh": "starts this test",
    "FUZZ_SEED=7 FUZZ_RESULTS=/tmp ./test.sh": "starts this test",
    "cc ": "needs a header; the test of the program in C looks for it",
    "docker run": "needs a GPU and the image",
    "python -m benchmarks.gpu": "needs a GPU; tests/test_gpu.py has a pretended one",
    "python -m benchmarks.libraries": "tests/test_benchmarks.py runs every benchmark",
    "coloring-gnn evaluate FOLDER --limit": "tests/test_evaluate.py has --tabucol on a folder",
    "torchrun": "needs two machines; tests/test_ranks.py trains under a torchrun on one",
    "docker login": "needs an account of a registry",
    "./build_and_push.sh": "needs a container engine; tests/test_image.py has one, and a registry on loopback",
    "runpodctl": "rents a pod",
    "aws": "needs a network volume of RunPod",
    "ssh": "needs a pod",
    "coloring-gnn color graph.col --model hf://": "needs the Hub; tests/test_hub.py has one on loopback",
    "coloring-gnn evaluate training_data/cpu-0 --model hf://": "the same",
}
PROGRAMS = {
    "python": "python - <<'END'\n{}END",
    "js": "cat >clients/web/ring.mjs <<'END'\n{}END\nnode clients/web/ring.mjs",
}


def script(page: str) -> list[str]:
    """What a test runs of a page: commands and whole programs, in their order."""
    found = [GIVEN.get(page, ":")]
    for language, code in blocks(page):
        if language in PROGRAMS:
            found.append(PROGRAMS[language].format(code))
        elif language == "sh":
            found += [in_short(line) for line in lines(code) if not line.startswith(tuple(NOT_RUN))]
    return list(dict.fromkeys(found))  # each once


def in_short(line: str) -> str:
    """What the tables make of a command."""
    line = REPLACED.get(line, " ".join([line, *(flags for start, flags in ADDED.items() if line.startswith(start))]))
    for part, other in PARTS.items():
        line = line.replace(part, other)
    return line


RUN_PAGES = [page for page in NOW if len(script(page)) > 1]


def test_every_entry_of_the_tables_is_a_command_of_the_pages():
    assert REPLACED.keys() <= fenced()
    assert [start for start in (*ADDED, *NOT_RUN) if not any(line.startswith(start) for line in fenced())] == []
    assert [part for part in PARTS if not any(part in line for line in fenced())] == []
    other = {"sh", "c", "rust", "toml", "mermaid", ""}  # cargo runs the blocks of Rust
    assert {language for page in NOW for language, _ in blocks(page)} <= {*PROGRAMS, *other}


@pytest.fixture
def clone(tmp_path: Path, compiled: None) -> Path:
    """The files of this checkout that git keeps, and the compiled loops, whose times numba compares."""
    copy_checkout(tmp_path / "clone")
    cache = Path("gnn_training/search/__pycache__")
    shutil.copytree(ROOT / cache, tmp_path / "clone" / cache)
    return tmp_path / "clone"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", RUN_PAGES)
def test_commands_of_a_page_work_one_after_the_other(page: str, clone: Path, tmp_path: Path, request):
    program = "\n".join(["set -euo pipefail", *(f"echo {shlex.quote(f'$ {line}')}\n{line}" for line in script(page))])
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables |= {"GNN_VENV": sys.prefix, "PIP_NO_COMPILE": "1"}
    if "$MADE" in program:
        variables["MADE"] = str(tmp_path / "made")
        shutil.copytree(request.getfixturevalue("archive").parent, tmp_path / "made/models")
        shutil.copytree(request.getfixturevalue("trained"), tmp_path / "made/runs/cpu")
        shutil.copytree(request.getfixturevalue("tiny_data"), tmp_path / "made/training_data/cpu-0")
    if "$MODULES" in program:
        variables["MODULES"] = str(request.getfixturevalue("modules"))
    if "cargo " in program:
        if reason := why_no_crate():
            pytest.skip(reason)
        # In this checkout, not in the clone: there is what tests/test_rust.py builds.
        write_program(tmp_path / "bin/cargo", f'#!/bin/sh\ncd {ROOT} && exec {shutil.which("cargo")} "$@"\n')
    python = f"PYTHONPATH={clone} exec {sys.executable}"  # of the clone; tests/test_runpod.py sees what curl is given
    for name, line in (("python", python), ("coloring-gnn", f"{python} -P -m gnn_training"), ("curl", "cat; echo")):
        write_program(tmp_path / "bin" / name, f'#!/bin/sh\n{line} "$@"\n')
    variables["PATH"] = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    with open(tmp_path / "said.txt", "w") as file:  # to look at while it runs
        streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
        done = subprocess.run(["bash", "-c", program], cwd=clone, env=variables, **streams)
    said = (tmp_path / "said.txt").read_text()
    assert done.returncode == 0, said[-3000:]
    if page == "README.md":
        check_installation(clone / "try", variables, said)
    if page == "docs/ONNX.md":
        check_ring(said)


def test_the_program_in_c_colors_a_ring(tmp_path: Path):
    """ONNXRUNTIME_HEADERS names the folder of the headers."""
    places = [os.environ.get("ONNXRUNTIME_HEADERS", ""), "/usr/include/onnxruntime", "/usr/local/include/onnxruntime"]
    headers = [place for place in places if Path(place, "onnxruntime_c_api.h").exists()]
    if not headers or not shutil.which("cc"):
        pytest.skip("no C compiler, or no onnxruntime_c_api.h: name the folder of one in ONNXRUNTIME_HEADERS")
    [(_, code)] = [block for block in blocks("docs/ONNX.md") if block[0] == "c"]
    assert code.count("\n") <= 60
    (tmp_path / "color.c").write_text(code)
    (tmp_path / "libonnxruntime.so.1").symlink_to(runtime_library())
    for language in ("c", "c++"):
        flags = ["-Wall", "-Wextra", "-Werror", f"-I{headers[0]}", f"-Wl,-rpath,{tmp_path}", "-o", tmp_path / "color"]
        sources = ["-x", language, tmp_path / "color.c", "-x", "none", tmp_path / "libonnxruntime.so.1"]
        subprocess.run(["cc", *flags, *sources], check=True)
        done = subprocess.run([tmp_path / "color"], cwd=ROOT, capture_output=True, text=True, check=True)
        check_ring(done.stdout)


def check_ring(said: str) -> None:
    """A line has the colors of a ring of five nodes, three of them."""
    [line] = re.findall(r"^\d(?: \d){4}(?=\s*$)", said, re.MULTILINE)
    colors = line.split()
    assert all(colors[node] != colors[node - 1] for node in range(5)) and set(colors) == {"0", "1", "2"}


def check_installation(venv: Path, variables: dict[str, str], said: str) -> None:
    """It has no torch, colors, and says what the page for browsers needs."""
    assert "9 colors by" in said
    assert not list(venv.glob("lib/python*/site-packages/torch"))
    run = partial(subprocess.run, cwd=venv, env=variables, capture_output=True, text=True, timeout=60)
    program = "import gnn_training, networkx as nx; print(gnn_training.color(nx.path_graph(2)))"
    done = run([venv / "bin/python", "-c", program])
    assert done.stdout == "{0: 0, 1: 1}\n", done
    page = next(venv.glob("lib/python*/site-packages/gnn_training/web"))
    done = run([venv / "bin/coloring-gnn", "serve"])
    assert done.returncode == 2 and f"install it once with `npm ci --prefix {page}`" in done.stderr, done
    assert (page / "package-lock.json").exists() and not (page / "node_modules").exists()
