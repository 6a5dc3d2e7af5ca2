"""The sign of life: young while there is progress, gone when the work ends, never in the way."""

import logging
import os
import socket
import time
from pathlib import Path

import pytest

from gnn_training import processes


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that is watched; nothing was touched so far."""
    monkeypatch.setattr(heartbeat, "_due", 0.0)
    monkeypatch.setenv(processes.HEARTBEAT_VARIABLE, str(tmp_path / "beat"))
    return tmp_path / f"beat.{socket.gethostname()}"


def test_a_beat_makes_the_file_young(file: Path, monkeypatch):
    processes.beat()
    os.utime(file, (0, 0))
    monkeypatch.setattr(heartbeat, "_due", 0.0)  # as if time had passed
    processes.beat()
    assert time.time() - file.stat().st_mtime < 60


def test_beats_close_together_touch_once(file: Path):
    processes.beat()
    os.utime(file, (0, 0))
    processes.beat()
    assert file.stat().st_mtime == 0


def test_the_file_is_touched_again_when_the_seconds_are_over(file: Path, monkeypatch):
    monkeypatch.setattr(heartbeat, "SECONDS", 0.05)
    processes.beat()
    os.utime(file, (0, 0))
    time.sleep(0.06)
    processes.beat()
    assert file.stat().st_mtime > 0


def test_a_beat_costs_less_than_ten_microseconds(file: Path):
    begun = time.perf_counter()
    for _ in range(20_000):
        processes.beat()
    assert time.perf_counter() - begun < 0.2


def test_nobody_watches_without_the_variable(file: Path, monkeypatch):
    monkeypatch.delenv(processes.HEARTBEAT_VARIABLE)
    processes.beat()
    processes.rest()
    assert list(file.parent.iterdir()) == []


def test_rest_leaves_no_file_and_needs_none(file: Path):
    processes.beat()
    processes.rest()
    assert not file.exists()
    processes.rest()


def test_a_file_that_cannot_be_written_is_said_once_and_stops_nothing(file: Path, monkeypatch, caplog):
    file.parent.joinpath("in the way").touch()
    monkeypatch.setenv(processes.HEARTBEAT_VARIABLE, str(file.parent / "in the way" / "beat"))
    monkeypatch.setattr(heartbeat, "SECONDS", 0.0)
    with caplog.at_level(logging.WARNING):
        processes.beat()
        processes.beat()
        processes.rest()
    assert len(caplog.records) == 1 and "GNN_HEARTBEAT names a file that cannot be written" in caplog.text
