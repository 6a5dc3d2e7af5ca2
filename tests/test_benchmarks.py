"""Every benchmark runs as a command, with its smallest sizes, that of GPUs on pretended ones."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_runs
from tiny_runs import ROOT

from benchmarks import gpu, search_speed
from benchmarks.gpu import PARTS, Options, measure_part
from gnn_training.errors import UserError

NUMBER, MEAN = r" *-?[\d,.]+%? *", r" *-?[\d.]+ ± [\d.]+ *"
SECTION = r"# Page\n\n## Measured\n\n"  # to be replaced
SMALL = "--sizes 60 80"
# Arguments, and a pattern of what is printed and of the page. A part of `recombination` reads what those before wrote.
COMMANDS = {
    "families": {"--graphs 1 --sizes 40 60": rf"\| sudoku *\|{MEAN}\|{MEAN}\|\n(.*\n)+\| mean of others *\|{MEAN}\|"},
    "libraries": {"examples --seconds 0.1": r"\| gcol HEA *\|(.*\n)+\| color, 0.1 s *\| *\d"},
    "portfolio": {
        "--record searches --seconds 0.1 --shown 0.1 --bounds 60 80 --graphs 1": r"\| 60 to 80 *\| *1 \| [+-]"
    },
    "predictions": {
        f"--folder . --graphs 12 --test-graphs 12 {SMALL} --parts 1 --widths 8 --seeds 0 --steps 2":
        r"\n\| *12 \| *8 \|( -?[\d.]+ \(.*?\) *\|){6}"
    },
    "recombination": {
        f"colors --seconds 0.05 {SMALL} --graphs 1": r"1 \+0.000 ± 0.000 [+-]\d",
        "target --seconds 0.1 --sizes 150 200 --graphs 1 --least 0 --searches 1": rf"1{MEAN}",
        f"graphs --out graphs.pkl --seed 0 --kinds 'G(n,0.9)' {SMALL} --seconds 0.01": r"G\(n,0.9\): 1 of 1 graphs",
        "measure --graphs graphs.pkl --searches 1": rf"\| all *\| *1 *\| \d.*? *\|{MEAN}\|{MEAN}\|",
    },
    "scaling": {
        "--folder . --train --multiples 1 --seeds 1 --sizes 120 --rounds 1 --graphs 24 --test-graphs 2 --page page.md":
        rf"step 0/.*training saves 0.00 ± 0.00 (.*\n)+{SECTION}.*\n\n\|(.*\n)+"
        r"\| 6,400 *\| 1 *\| 1 *\| none *\| -?[\d.]+, -?[\d.]+ \(1\) *\|"
    },
    "search_speed": {
        "--seconds 0.02 --sizes 80 --page page.md": rf"{SECTION}.* cores, .*\n\n\|(.*\n)+\| *80 \|({NUMBER}\|){{4}}\n\Z"
    },
}  # fmt: skip
LONG = ("predictions", "recombination")  # a minute, in seven processes


def test_this_file_has_every_benchmark():
    names = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert names == COMMANDS.keys() | {"gpu"}


@pytest.mark.slow  # processes that load torch
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name in LONG)) for name in COMMANDS]
)
def test_every_benchmark_runs_as_a_command(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n## Measured\n\nold numbers\n")
    for arguments, pattern in COMMANDS[name].items():
        command = [sys.executable, "-m", f"benchmarks.{name}", *shlex.split(arguments)]
        run = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
        assert re.search(pattern, run.stdout + page.read_text()), run.stdout


@pytest.mark.parametrize(("call", "each"), [(5.0, 0.01), (0.0, 1e-6), (0.1, 2.0)])
def test_what_a_call_costs_besides_its_rounds_does_not_count(monkeypatch, call: float, each: float):
    clock = [0.0]
    monkeypatch.setattr(search_speed.time, "perf_counter", lambda: clock[0])

    def run(rounds: int) -> None:
        clock[0] += call + each * rounds

    assert search_speed.rounds_per_second(run, seconds=3.0) == pytest.approx(1 / each)


def test_compiled_loops_and_tensors_search_the_same_graph_from_the_same_coloring():
    forms = search_speed.forms(40)
    for rounds in (1, 30, 60):
        _, _, conflicts, *_ = forms["compiled, one thread"](rounds)
        assert forms["tensors"](rounds) == [conflicts] == forms["tensors, 16 graphs"](rounds)[:1]
    assert len(set(forms["tensors, 16 graphs"](60))) > 1


def start(data: Path, out: Path, environment: dict[str, str], *flags: object) -> tuple[str, str, dict]:
    """Measure in small; stderr, the page and the numbers."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--preset", "smoke", "--seconds", "0.2", "--data", data]
    command = [*map(str, [*command, "--out", out, *flags])]
    done = subprocess.run(command, env=environment, cwd=out.parent, capture_output=True, text=True, timeout=500)
    page = (out / "gpu.md").read_text()
    assert done.returncode == 1 and page in done.stdout, done.stdout + done.stderr
    return done.stderr, page, json.loads((out / "gpu.json").read_text())


@pytest.mark.nightly  # ten processes that load torch
@pytest.mark.timeout(600)
def test_on_pretended_gpus_all_is_measured_and_a_gap_unlike_that_of_the_cpu_is_told(
    gpus, tiny_data: Path, tmp_path: Path
):
    """They compute nothing, so the gap is another one."""
    said, page, found = start(tiny_data, tmp_path / "out", gpus.environment(2))
    problems = (
        r"agreement: the mean gap is \S+ on the GPU and \S+ on the CPU: report it",
        r"children: only \d+% .*: report it",
    )
    assert re.fullmatch(f"gpu: {'; '.join(problems)}\n", said), said
    assert list(found) == list(PARTS)
    assert [row["device"] for row in found["agreement"]["rows"]] == ["cpu fp32", "cuda fp32", "cuda bf16"]
    assert len(found["rounds"]["rows"]) == 5 and all(row["GPU"] > 0 < row["cores"] for row in found["rounds"]["rows"])
    assert [row["batch size"] for row in found["step"]["rows"]] == [1, 4, 8, 32]
    assert [(row["ranks"], row["batch size"]) for row in found["ranks"]["rows"]] == [(1, 16), (2, 8)]
    assert all(row["peak GiB"] > 0 and row["busy"] > 0 for row in found["ranks"]["rows"])
    for name, part in found.items():  # what the page explains is there
        columns = {*part["rows"][0], *(row.get("") for row in part["rows"])}
        named = re.findall(r"\*(\w[\w -]+)\*", " ".join(PARTS[name].__doc__.split()))
        assert named and columns.issuperset(named) and all(f"| {column} " in page for column in named), name
    assert not [log for log in gpus.logs() if "problem" in log]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_without_a_gpu_a_part_says_so_and_cores_are_measured_by_the_one_file_of_the_image(tiny_data, tmp_path: Path):
    (tmp_path / "benchmarks").mkdir()
    shutil.copy(ROOT / "benchmarks/gpu.py", tmp_path / "benchmarks")
    (tmp_path / "gnn_training").symlink_to(ROOT / "gnn_training")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    flags = ("--parts", "rounds", "ranks", "--ranks", 1, 2, "--slowdown", 4, "--price-per-hour", 3)
    said, page, found = start(tiny_data, tmp_path / "out", environment, *flags)
    assert said.startswith("gpu: rounds: ") and said.count("\n") == 1 and said[len("gpu: rounds: ") : -1] in page
    alone, both = found["ranks"]["rows"]
    assert alone["efficiency"] == 1 == 2 * both["efficiency"] / both["speed-up"]
    assert alone["steps"] == both["steps"] and alone["waiting"] == 0 < both["waiting"]
    assert both["cost"] == pytest.approx(both["seconds"] * 3 / 3600) and alone["cost"] < alone["seconds"] * 3 / 3600


def test_results_are_not_overwritten_and_parts_are_those_there_are(tiny_data: Path, tmp_path: Path):
    with pytest.raises(UserError, match="--parts step2: the parts are machine, agreement"):
        gpu.main(Options(tiny_data, tmp_path, ("machine", "step2")))
    (tmp_path / "gpu.json").touch()
    with pytest.raises(UserError, match="name another folder with --out"):
        gpu.main(Options(tiny_data, tmp_path))


def measure(out: Path, end: str) -> None:
    def part(options: Options) -> Iterator[dict]:
        """Two of *a*."""
        yield {"a": 1}
        yield {"a": 12345.6}
        exec(end)

    PARTS["step"] = part
    gpu.note(out, "step", failed="it was interrupted")
    measure_part("step", Options(out, out), os.getppid())


@pytest.mark.parametrize(
    ("end", "code", "failed"),
    [("os.kill(os.getpid(), 9)", -9, "it was interrupted"), ("raise UserError('no GPU')", 0, "no GPU"),
     ("raise ValueError('a mistake')", 0, "ValueError: a mistake"), ("pass", 0, "")],
)  # fmt: skip
def test_what_was_measured_before_the_end_is_kept(tmp_path: Path, end: str, code: int, failed: str):
    assert tiny_runs.finish(measure, tmp_path, end) == code
    found, page = json.loads((tmp_path / "gpu.json").read_text()), (tmp_path / "gpu.md").read_text()
    assert found["step"] == {"rows": [{"a": 1}, {"a": 12345.6}], "failed": failed}
    assert "| a      |\n|--------|\n| 1      |\n| 12,346 |\n" in page
    assert (f"**It failed: {failed}**" in page) == bool(failed)


def test_a_part_that_takes_too_long_ends(tiny_data: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"^machine: 0 minutes are over: --minutes allows more$"):
        gpu.main(Options(tiny_data, tmp_path, ("machine",), minutes=0.0))
