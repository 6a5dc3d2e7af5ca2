"""A step whose write fails, or that is killed in a write, says one sentence; done again, it gives the same."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KINDS = ("disk full", "I/O error", "kill -9", "kill -9 at any time", "clock jumps")  # those without a mount
TRIALS = 3  # of the thousands that `python tests/faults.py` can draw


@pytest.mark.slow  # trainings in processes of their own
@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_a_training_with_a_fault_in_a_write_says_one_sentence_and_gives_the_same_afterwards(tmp_path: Path):
    command = [sys.executable, ROOT / "tests/faults.py", tmp_path / "results.json", str(TRIALS), "train"]
    variables = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "FAULT_KINDS": ",".join(KINDS)}
    subprocess.run(command, env=os.environ | variables, check=True)
    trials = json.loads((tmp_path / "results.json").read_text())["trials"]
    assert len(trials) == TRIALS and [trial for trial in trials if trial["problem"]] == []
