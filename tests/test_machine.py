"""What the machine offers, and how many ranks that makes."""

import os
import socket
from pathlib import Path

import pytest
import torch

from gnn_training import machine
from gnn_training.errors import MachineError, UserError
from gnn_training.launch import gpus
from gnn_training.settings import RunSettings, multi, single
from gnn_training.training.estimate import Kept


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch):
    def pretend(count: int) -> None:
        monkeypatch.setattr(machine, "num_gpus", lambda: count)
        monkeypatch.setattr(machine.gpus, "why_fewer", lambda _: None)

    return pretend


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 6), ("250000 100000", 2), ("50000 100000", 1), (None, 6)])
def test_cores_stay_within_the_quota_of_the_container(tmp_path: Path, monkeypatch, quota: str | None, cores: int):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(machine, "CPU_QUOTA", tmp_path / "cpu.max")
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota + "\n")
    assert machine.num_cores() == cores


def test_there_is_one_rank_per_gpu_or_per_core_unless_told_otherwise(gpus, monkeypatch):
    monkeypatch.setattr(machine, "num_cores", lambda: 64)
    gpus(4)
    assert [gpus.num_ranks(RunSettings(processes=asked)) for asked in (0, 2)] == [4, 2]
    assert gpus.num_ranks(RunSettings(device="cpu")) == gpus.MAX_CPU_RANKS
    gpus(0)
    assert [gpus.num_ranks(RunSettings(processes=asked)) for asked in (0, 16)] == [8, 16]


def test_more_ranks_than_gpus_are_refused(gpus):
    gpus(2)
    with pytest.raises(UserError, match=r"processes \(3\) must not exceed the GPUs \(2\)"):
        gpus.num_ranks(RunSettings(processes=3))


def test_settings_made_for_gpus_are_refused_without_one_and_told_why(gpus, monkeypatch):
    gpus(0)
    monkeypatch.setattr(machine.gpus, "why_none", lambda: "they were stolen")
    for settings in (RunSettings(device="cuda"), single(), multi()):
        with pytest.raises(MachineError, match="^they were stolen$"):
            gpus.num_ranks(settings)
    assert gpus.num_ranks(single().model_copy(update={"device": "cpu", "processes": 1})) == 1


def test_idle_gpus_are_refused_unless_fewer_are_asked_for(gpus, monkeypatch):
    gpus(7)
    monkeypatch.setattr(machine.gpus, "why_fewer", lambda count: f"only {count} of 8")
    for processes in (0, 8):
        with pytest.raises(MachineError, match="^only 7 of 8$"):
            gpus.num_ranks(RunSettings(processes=processes))
    assert gpus.num_ranks(RunSettings(processes=7)) == 7


def test_port_that_is_taken_is_named_with_its_flag():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(MachineError, match=rf"port {port} cannot be opened .* name another one in --tensorboard"):
            machine.require_port(port)
    machine.require_port(port)


def test_memory_of_a_step_is_what_the_backward_pass_keeps_counted_once():
    x, kept = torch.ones(1000, requires_grad=True), Kept()
    for _ in range(2):
        with kept:
            (x * x).sum().backward()
    assert kept.bytes == 2 * 4 * 1000
