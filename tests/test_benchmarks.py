"""Every benchmark runs as a command, with its smallest sizes; tests/test_gpu.py has that of GPUs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import ROOT

from benchmarks import search_speed

NUMBER, MEAN = r" *-?[\d,.]+%? *", r" *-?[\d.]+ ± [\d.]+ *"
SECTION = r"# Page\n\n## Measured\n\n"  # to be replaced
SMALL = "--sizes 60 80"
LONG = "crossover_quality"  # in three processes
# Arguments, and a pattern of what is printed and of the page. A part of `crossover_quality` reads what others wrote.
COMMANDS = {
    "families": {"--graphs 1 --sizes 40 60": rf"\| sudoku *\|{MEAN}\|{MEAN}\|\n(.*\n)+\| mean of others *\|{MEAN}\|"},
    "libraries": {"examples --seconds 0.1": r"\| gcol HEA *\|(.*\n)+\| color, 0.1 s *\| *\d"},
    "crossover_quality": {
        f"colors --seconds 0.05 {SMALL} --graphs 1": r"1 \+0.000 ± 0.000 [+-]\d",
        f"graphs --out graphs.pkl --seed 0 --kinds 'G(n,0.9)' {SMALL} --seconds 0.01": r"G\(n,0.9\): 1 of 1 graphs",
        "measure --graphs graphs.pkl --searches 1": rf"\| all *\| *1 *\| \d.*? *\|{MEAN}\|{MEAN}\|",
    },
    "search_speed": {
        "--seconds 0.02 --sizes 80 --page page.md": rf"{SECTION}.* cores, .*\n\n\|(.*\n)+\| *80 \|({NUMBER}\|){{4}}\n\Z"
    },
}  # fmt: skip


def test_this_file_or_that_of_gpus_has_every_benchmark():
    names = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert names == COMMANDS.keys() | {"gpu"}


@pytest.mark.slow  # processes that load torch
@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.nightly] * (x == LONG)) for x in COMMANDS])
def test_every_benchmark_runs_as_a_command(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n## Measured\n\nold numbers\n")
    for arguments, pattern in COMMANDS[name].items():
        command = [sys.executable, "-m", f"benchmarks.{name}", *shlex.split(arguments)]
        run = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
        assert re.search(pattern, run.stdout + page.read_text()), run.stdout


def test_what_a_call_costs_besides_its_rounds_does_not_count(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(search_speed.time, "perf_counter", lambda: clock[0])

    def run(rounds: int) -> None:
        clock[0] += 5 + 0.01 * rounds

    assert search_speed.rounds_per_second(run, seconds=3.0) == pytest.approx(100)
