"""The benchmark times rounds alone, of the same search in all forms, and writes its page."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import training_speed

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("call", "each"), [(5.0, 0.01), (0.0, 1e-6), (0.1, 2.0)])
def test_what_a_call_costs_besides_its_rounds_does_not_count(monkeypatch, call: float, each: float):
    clock = [0.0]
    monkeypatch.setattr(training_speed.time, "perf_counter", lambda: clock[0])

    def run(rounds: int) -> None:
        clock[0] += call + each * rounds

    assert training_speed.rounds_per_second(run, seconds=3.0) == pytest.approx(1 / each)


def test_compiled_loops_and_tensors_search_the_same_graph_from_the_same_coloring():
    forms = training_speed.forms(40)
    for rounds in (1, 30, 60):
        _, _, conflicts, *_ = forms["compiled, one thread"](rounds)
        assert forms["tensors"](rounds) == [conflicts] == forms["tensors, 16 graphs"](rounds)[:1]
    assert len(set(forms["tensors, 16 graphs"](60))) > 1


@pytest.mark.slow
@pytest.mark.nightly  # three processes compile everything at once
def test_benchmark_replaces_the_last_section_of_its_page(tiny_data: Path, tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(f"# Speed\n\n{training_speed.HEADING}\nold numbers\n")
    flags = ["--data", tiny_data, "--seconds", "1", "--sizes", "80", "--page", page]
    subprocess.run([sys.executable, "-m", "benchmarks.training_speed", *flags], cwd=ROOT, check=True)
    head, _, section = page.read_text().partition(training_speed.HEADING)
    assert head == "# Speed\n\n" and "old numbers" not in section
    assert re.search(r"^\| 80 \|( [\d,]+ \|){4}$", section, re.MULTILINE)
    assert re.search(r"^\| 2 \| [\d.]+ \| [\d.]+ \|\n\| 1 \| [\d.]+ \| 1.00 \|$", section, re.MULTILINE)
