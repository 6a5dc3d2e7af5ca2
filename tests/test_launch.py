"""Ranks, real ones: what a launch returns, how it fails and how it stops."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from children import rank
from tiny_runs import ROOT, assert_end

from gnn_training.errors import MachineError, TrainingError, UserError
from gnn_training.ranks import launch

WAITED = "^rank 0 has waited 2 s for another rank, which hangs or is stopped; look"
LAUNCHER = """
import sys
from gnn_training.ranks import launch
from children import rank
if __name__ == "__main__":
    print(launch(rank, sys.argv[1], 2))
"""
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}


@pytest.mark.slow
def test_launch_returns_the_first_result_and_shares_the_cores_out(monkeypatch):
    """Also where no GPU is visible."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that what the launch sets is undone, too
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    assert launch(rank, "place", 2) == (0, "2", "3", "passive")


def test_single_rank_is_this_process():
    assert launch(lambda argument: (argument, os.getpid()), "x", 1) == ("x", os.getpid())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "error", "sentence"),
    [
        ("refuse", MachineError, "^no: not here$"),
        ("die", TrainingError, "^rank 1 was killed by signal 9, perhaps out of memory$"),
        ("come too late", TrainingError, WAITED),
        ("wait too long", TrainingError, WAITED),
        pytest.param("freeze", TrainingError, WAITED, marks=pytest.mark.nightly),  # elastic waits for it for 30 s
        ("fail", TrainingError, "^rank 1 failed: ValueError: NCCL error$"),
    ],
)
def test_rank_that_fails_ends_all_with_one_sentence_and_only_a_mistake_shows_its_traceback(
    capfd, what: str, error: type[UserError], sentence: str
):
    with pytest.raises(error, match=sentence):
        launch(rank, what, 2)
    out, err = capfd.readouterr()
    assert not out and err.count("Traceback") == err.count("ValueError: NCCL error") == (what == "fail")
    assert what in ("fail", "come too late") or not err  # torch warns of a socket


@pytest.mark.slow
@pytest.mark.parametrize(
    ("send", "number", "code"),
    [(os.killpg, signal.SIGINT, 130), (os.kill, signal.SIGKILL, -9)],  # a terminal sends one to the whole group
)
def test_no_rank_outlives_a_launcher_that_is_interrupted_or_killed(tmp_path: Path, send, number: int, code: int):
    """test_ranks.py sends SIGTERM."""
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    command, pipe = [sys.executable, tmp_path / "launcher.py", "wait"], subprocess.PIPE
    launcher = subprocess.Popen(command, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True, process_group=0)
    ranks = [int(launcher.stdout.readline().split()[1]) for _ in range(2)]
    send(launcher.pid, number)
    assert launcher.wait(timeout=60) == code
    assert_end(ranks)
