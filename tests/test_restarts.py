"""A container that keeps failing pauses ever longer; one that gets on, ends well or is told to stop does not."""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnn_training.errors import StorageError, UserError
from gnn_training.host import restarts
from gnn_training.host.restarts import Restarts

ROOT = Path(__file__).parents[1]
PAUSING = """
import sys
from pathlib import Path
from gnn_training.processes import Supervisor
from gnn_training.host.restarts import Restarts
with Supervisor() as supervisor:
    print("started", flush=True)
    with Restarts(Path(sys.argv[1]), lambda: 0, supervisor.signals):
        print("went on")
"""


class Clock:
    """Stands for the module time: sleeping takes none."""

    def __init__(self):
        self.now, self.slept = 1e9, 0.0

    def time(self) -> float:
        return self.now

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """In the image, with a clock of its own."""
    clock = Clock()
    monkeypatch.setenv("GNN_WORKSPACE", "/workspace")
    monkeypatch.setattr(restarts, "time", clock)
    return clock


def fail(run: Path, progress: int = 0, error: BaseException | None = None) -> None:
    """One start that ends with `error`."""
    error = error or UserError("no GPU today")
    with pytest.raises(type(error)), Restarts(run, lambda: progress, []):
        raise error


def pause(clock: Clock, run: Path) -> float:
    """Seconds that a start waits, which then changes nothing."""
    before = clock.slept
    with pytest.raises(SystemExit), Restarts(run, lambda: 0, []):
        raise SystemExit(143)
    return clock.slept - before


def test_the_first_start_does_not_wait(tmp_path: Path, clock: Clock):
    assert pause(clock, tmp_path) == 0
    assert list(tmp_path.iterdir()) == []


def test_the_pause_doubles_up_to_ten_minutes(tmp_path: Path, clock: Clock):
    pauses = []
    for _ in range(9):
        before = clock.slept
        fail(tmp_path)
        pauses.append(clock.slept - before)
    assert pauses == pytest.approx([0, 10, 20, 40, 80, 160, 320, 600, 600], abs=2 * restarts.NAP)


def test_two_weeks_of_failures_are_ten_minutes_too(tmp_path: Path, clock: Clock):
    for _ in range(2000):
        fail(tmp_path)
        clock.now += 601
    fail(tmp_path)
    assert pause(clock, tmp_path) == pytest.approx(600, abs=2 * restarts.NAP)


def test_the_pause_is_told_with_count_and_reason(tmp_path: Path, clock: Clock, caplog):
    for _ in range(3):
        fail(tmp_path)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        pause(clock, tmp_path)
    assert caplog.messages == [
        "this container failed 3 times in a row; trying again in 40 s; last reason: no GPU today"
    ]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(SystemExit(4), "exit code 4"), (ZeroDivisionError("a fault of ours"), "a fault of ours"), (OSError(), "OSError")],
)
def test_whatever_ends_the_job_is_the_reason(tmp_path: Path, clock: Clock, caplog, error, reason: str):
    fail(tmp_path, error=error)
    with caplog.at_level(logging.WARNING):
        assert pause(clock, tmp_path) == pytest.approx(10, abs=2 * restarts.NAP)
    assert f"failed once; trying again in 10 s; last reason: {reason}" in caplog.text


def test_a_failure_after_more_steps_is_the_first_again(tmp_path: Path, clock: Clock):
    for _ in range(4):
        fail(tmp_path, progress=1)
    fail(tmp_path, progress=2)
    assert pause(clock, tmp_path) == pytest.approx(10, abs=2 * restarts.NAP)
    fail(tmp_path, progress=2)
    assert pause(clock, tmp_path) == pytest.approx(20, abs=2 * restarts.NAP)


def test_a_failure_after_a_newer_checkpoint_is_the_first_again(tmp_path: Path, clock: Clock):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-00000100.pt").touch()
    for _ in range(3):
        fail(tmp_path)
    (tmp_path / "checkpoints" / "step-00000200.pt").touch()
    fail(tmp_path)
    assert pause(clock, tmp_path) == pytest.approx(10, abs=2 * restarts.NAP)


def test_success_forgets_all_failures(tmp_path: Path, clock: Clock):
    fail(tmp_path)
    fail(tmp_path)
    with Restarts(tmp_path, lambda: 0, []):
        pass
    assert list(tmp_path.iterdir()) == []
    assert pause(clock, tmp_path) == 0


def test_leaving_with_code_zero_is_success(tmp_path: Path, clock: Clock):
    fail(tmp_path)
    fail(tmp_path, error=SystemExit(0))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [SystemExit(143), SystemExit(130), KeyboardInterrupt()])
def test_being_told_to_stop_is_no_failure(tmp_path: Path, clock: Clock, error: BaseException):
    fail(tmp_path, error=error)
    assert list(tmp_path.iterdir()) == []


def test_whatever_follows_a_signal_is_no_failure(tmp_path: Path, clock: Clock):
    signals: list[int] = []
    with pytest.raises(UserError), Restarts(tmp_path, lambda: 0, signals):
        signals.append(signal.SIGTERM)
        raise UserError("the ranks went away")
    assert list(tmp_path.iterdir()) == []


def test_time_that_passed_anyway_is_not_waited_again(tmp_path: Path, clock: Clock):
    fail(tmp_path)
    fail(tmp_path)
    clock.now += 15
    assert pause(clock, tmp_path) == pytest.approx(5, abs=2 * restarts.NAP)
    clock.now += 3600
    assert pause(clock, tmp_path) == 0


def test_a_clock_that_was_set_back_prolongs_nothing(tmp_path: Path, clock: Clock):
    fail(tmp_path)
    clock.now -= 1e6
    assert pause(clock, tmp_path) == pytest.approx(10, abs=2 * restarts.NAP)


def test_a_new_container_starts_at_once(tmp_path: Path, clock: Clock, monkeypatch):
    fail(tmp_path)
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert pause(clock, tmp_path) == 0


def test_outside_of_the_image_nothing_is_remembered(tmp_path: Path, clock: Clock, monkeypatch):
    monkeypatch.delenv("GNN_WORKSPACE")
    fail(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_note_is_none(tmp_path: Path, clock: Clock):
    fail(tmp_path)
    (note,) = tmp_path.iterdir()
    note.write_text("{")
    assert pause(clock, tmp_path) == 0


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A hostname that is nobody's, and nothing in /tmp afterwards."""
    name = f"test-{uuid.uuid4()}"
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    yield name
    Path(f"/tmp/restarts.{name}.json").unlink(missing_ok=True)


def test_a_run_folder_that_cannot_be_written_is_a_failure_too(tmp_path: Path, clock: Clock, container: str):
    (tmp_path / "file").touch()
    run = tmp_path / "file" / "run"
    fail(run, error=StorageError("cannot be written"))
    assert pause(clock, run) == pytest.approx(10, abs=2 * restarts.NAP)


def test_a_full_disk_does_not_hide_why_the_job_failed(tmp_path: Path, clock: Clock, monkeypatch, caplog):
    def full(_: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with caplog.at_level(logging.WARNING):
        fail(tmp_path)
    assert "(no space left on device)" in caplog.text
    assert "the next start will not know that this one failed" in caplog.text


def test_a_signal_ends_the_pause_with_its_exit_code(tmp_path: Path):
    environment = {**os.environ, "GNN_WORKSPACE": "/workspace"}
    with pytest.MonkeyPatch.context() as image:
        image.setenv("GNN_WORKSPACE", "/workspace")
        fail(tmp_path)
    command = [sys.executable, "-c", PAUSING, str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "started\n"
    time.sleep(0.3)
    begun = time.monotonic()
    process.terminate()
    output, _ = process.communicate(timeout=5)
    assert (process.returncode, output) == (143, "")
    assert time.monotonic() - begun < 2
    assert len(list(tmp_path.iterdir())) == 1  # the failure is still known
