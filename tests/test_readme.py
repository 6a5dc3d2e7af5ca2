"""Commands, flags, names, messages and links in README and docs are those of the program."""

import itertools
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from gnn_training import __version__, contract, settings
from gnn_training.__main__ import COMMANDS, main, parse
from gnn_training.data.families import FAMILIES, RECIPES
from gnn_training.data.formats import FORMATS
from gnn_training.data.packed import PER_GRAPH, RAGGED

ROOT = Path(__file__).parents[1]
LOG = "docs/LOG.md"  # tells the past: its commands and flags may be gone
PAGES = sorted(str(path.relative_to(ROOT)) for folder in ("", "docs", "models", "training_data", "benchmarks")
               for path in (ROOT / folder).glob("*.md"))  # fmt: skip
NOW = [page for page in PAGES if page not in (LOG, "CHANGELOG.md")]
HOSTS = {"github.com", "keepachangelog.com", "semver.org", "api.runpod.io", "docs.runpod.io", "127.0.0.1"}
WITHOUT_VALUE = ("import", "evaluate", "color", "push")  # a page may name these commands without what they need


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def commands() -> list[str]:
    """Every command of this project in the code of the pages."""
    fenced = [re.findall(r"^```sh\n(.*?)^```", text(page), re.MULTILINE | re.DOTALL) for page in NOW]
    lines = "\n".join(itertools.chain(*fenced)).replace("\\\n", "").splitlines()
    inline = itertools.chain(*(re.findall(r"`([^`\n]+)`", text(page)) for page in NOW))
    ours = re.compile(r"\./\w+\.sh|scripts/\w+\.sh|(\.venv/bin/)?coloring-gnn [a-z]|python -m gnn_training [a-z]")
    return sorted({re.split(r" +[#|<>]", line)[0].strip() for line in [*lines, *inline] if ours.match(line)})


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
    known = {f"--{no}{name}".replace("_", "-") for name in fields for no in ("", "no-")}
    scripts = " ".join(
        (ROOT / name).read_text()
        for name in ("build_and_push.sh", "test.sh", "scripts/lock.sh", "clients/rust/src/main.rs")
    )
    known |= {*re.findall(r"--[a-z-]+", scripts), "--help", "--dry-run", "--version", "--settings"}
    known |= {"--secret", "--shm-size", "--group-add", "--example"}  # of docker and cargo
    known |= {"--docker-args"}  # of runpodctl
    known |= {"--run-folder"}  # another name of --run
    named = re.findall(r"`(--[a-z][a-z-]+)", text(page))
    assert [flag for flag in named if flag not in known] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str):
    links = re.findall(r"\]\(([^)]+)\)", text(page)) + re.findall(r'src="([^"]+)"', text(page))
    for link in links:
        if host := re.match(r"https?://([^/]+)", link):
            assert host[1] in HOSTS, link
            continue
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
    sources = [*(ROOT / "gnn_training").rglob("*.py"), *(ROOT / "scripts").glob("*.sh"), *ROOT.glob("*.sh")]
    code = re.sub(r'"\s*\\?\n\s*f?"', "", "\n".join(path.read_text() for path in sources))
    tables = re.findall(r"^\| message \|.*\n\|[-|]+\n((?:\|.*\n)*)", text(page), re.MULTILINE)
    messages = re.findall(r"^\| `([^`]+)`", "".join(tables), re.MULTILINE)
    assert [message for message in messages if message not in code] == []


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("README.md", COMMANDS),
        ("docs/ONNX.md", (*contract.INPUTS, *contract.OPTIONAL_INPUTS, *contract.OUTPUTS, *contract.GRAPH_TYPES)),
        ("docs/DATA.md", (*FAMILIES, *RECIPES, *FORMATS, *PER_GRAPH, *RAGGED)),
    ],
)
def test_page_names_everything_there_is(page: str, names: tuple[str, ...]):
    words = set(re.findall(r"[\w.-]+", text(page)))
    assert [name for name in names if name not in words] == []


def test_the_first_commands_of_the_readme_work_one_after_the_other(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", "examples")
    fenced = "".join(re.findall(r"^```sh\n(.*?)^```", text("README.md"), re.MULTILINE | re.DOTALL))
    found = re.findall(r"coloring-gnn (color examples.*)", fenced)
    assert [main([*shlex.split(command), "--seconds", "0"]) for command in found] == [0, 0]


def test_readme_is_short():
    assert text("README.md").count("\n") <= 220


def test_changelog_has_this_version():
    assert f"## [{__version__}]" in text("CHANGELOG.md")
