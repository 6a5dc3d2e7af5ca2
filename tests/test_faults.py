"""A step whose write fails, or that is killed in a write, says one sentence; done again, it gives the same."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import ROOT

# Steps to draw from, and trials, of the thousands that `python tests/faults.py` can draw.
DRAWS = [(("train",), 3), pytest.param((), 40, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)], id="all")]
MOUNTED = {"volume too small", "volume gone"}  # which needs root


@pytest.mark.slow  # trainings in processes of their own
@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
@pytest.mark.parametrize(("steps", "trials"), DRAWS)
def test_a_step_with_a_fault_says_one_sentence_and_gives_the_same_afterwards(tmp_path: Path, steps, trials: int):
    from faults import KINDS

    kinds = [kind for kind in KINDS if kind not in MOUNTED or not steps and os.geteuid() == 0]
    command = [sys.executable, ROOT / "tests/faults.py", tmp_path / "results.json", str(trials), *steps]
    variables = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "FAULT_KINDS": ",".join(kinds)}
    subprocess.run(command, env=os.environ | variables, check=True)
    done = json.loads((tmp_path / "results.json").read_text())["trials"]
    assert len(done) == trials and [trial for trial in done if trial["problem"]] == []
    hits = [trial["hit"] for trial in done if KINDS[trial["kind"]]["FAULT_ERROR"]]
    assert any(hits) or not hits, "no fault was injected"
