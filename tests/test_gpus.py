"""GPUs as nvidia-smi and torch list them, and what a job makes of machines with and without."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from checkout import write_program
from fake_gpus import TOO_OLD, no_gpus, nvidia_smi, torch_finds
from tiny_runs import ROOT

from gnn_training import machine
from gnn_training.errors import MachineError, UserError
from gnn_training.jobs import run
from gnn_training.ranks import MAX_CPU_RANKS, num_ranks
from gnn_training.settings import RunSettings, TrainSettings, from_preset

SINGLE, MULTI = (from_preset(RunSettings, name) for name in ("single", "multi"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without GPUs; an nvidia-smi in the folder is on its PATH."""
    no_gpus(monkeypatch, tmp_path)
    return tmp_path


def test_machine_without_gpus_costs_no_time_and_no_torch(here: Path):
    code = (
        "import sys, pathlib; from gnn_training import machine; "
        "machine.DEVICES = (pathlib.Path('nowhere'),); "
        "print(machine.num_gpus(), 'torch' in sys.modules)"
    )
    environment = {"PATH": str(here), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "0 False\n", done.stderr


@pytest.mark.parametrize("node", ["nvidiactl", "kfd"])
def test_device_node_is_enough_to_ask_torch(here: Path, monkeypatch, node: str):
    (here / node).touch()
    torch_finds(monkeypatch, 2)
    assert (machine.num_gpus(), machine.num_expected_gpus(), machine.gpu_driver()) == (2, 0, "")


def test_gpus_that_a_driver_too_old_only_counts_are_not_usable(here: Path, monkeypatch):
    nvidia_smi(here, gpus=2, driver="535.104.05")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)  # NVML's count, which needs no CUDA
    assert machine.num_gpus() == 0


def test_driver_that_hangs_is_not_waited_for(here: Path, monkeypatch):
    monkeypatch.setattr(machine, "SMI_SECONDS", 0.3)
    write_program(here / "nvidia-smi", f"#!/bin/sh\nexec {shutil.which('sleep', path=os.defpath)} 60\n")
    started = time.monotonic()
    with pytest.raises(MachineError, match="nvidia-smi has not answered in 0.3 s, so the driver hangs: take another"):
        machine.num_gpus()
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("error", [TOO_OLD, "Torch not compiled with CUDA enabled"])
def test_what_torch_says_becomes_a_sentence(here: Path, monkeypatch, error: str):
    nvidia_smi(here, gpus=8)
    torch_finds(monkeypatch, 0, error)
    assert f'cannot use the GPU ("{error}"): correct CUDA_VISIBLE_DEVICES, install torch for' in machine.why_no_gpu()


@pytest.mark.parametrize(
    ("usable", "visible", "expected"),
    [(8, None, None), (7, None, 8), (2, "0,1", None), (2, "0, 1,9", 3), (1, "", None)],
)
def test_gpus_that_torch_cannot_use_are_refused_unless_fewer_are_asked_for(
    here: Path, monkeypatch, usable: int, visible: str | None, expected: int | None
):
    nvidia_smi(here, gpus=8, slices=7)  # slices (MIG) are not counted: torch sees one of them
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    torch_finds(monkeypatch, usable)
    assert num_ranks(RunSettings(ranks=usable)) == usable
    if expected is None:
        assert num_ranks(RunSettings()) == usable
        return
    for ranks in (0, usable + 1):
        with pytest.raises(MachineError, match=f"there are {expected} GPUs and torch can use {usable}: take another"):
            num_ranks(RunSettings(ranks=ranks))


def test_selected_gpus_are_counted_as_nvidia_smi_does_or_are_out_of_those_that_are_visible(monkeypatch, caplog):
    assert machine.select_gpus(None) == {}
    chosen = machine.select_gpus("0,1,4")
    assert chosen == {"CUDA_VISIBLE_DEVICES": "0,1,4", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert chosen.items() <= os.environ.items()  # which children get
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,GPU-5d5ba0d6")
    caplog.set_level("INFO")
    with pytest.raises(MachineError, match=r"gpus \(0,3\) are counted from 0 in CUDA_VISIBLE_DEVICES \(4,5,.*: name"):
        machine.select_gpus("0,3")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5,GPU-5d5ba0d6"
    assert machine.select_gpus("0,2") == {"CUDA_VISIBLE_DEVICES": "4,GPU-5d5ba0d6"}
    assert "GPUs 0,2 of 4,5,GPU-5d5ba0d6 (CUDA_VISIBLE_DEVICES): 4,GPU-5d5ba0d6" in caplog.text


def test_gpu_that_does_not_compute_is_named(monkeypatch):
    busy = "CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCUDA kernel errors might be"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (70 * 2**30, 80 * 2**30))
    monkeypatch.setattr(torch, "ones", lambda *_, **__: SimpleNamespace(sum=lambda: torch.zeros(())))
    assert machine.describe_gpu(3) == "NVIDIA H100, 80 GiB, 70 free"
    monkeypatch.setattr(torch, "ones", Mock(side_effect=RuntimeError(busy)))
    with pytest.raises(MachineError, match=r'GPU 3 does not compute \("CUDA error: .* unavailable"\): leave it out'):
        machine.describe_gpu(3)


def test_there_is_one_rank_per_gpu_or_per_core_unless_told_otherwise(here: Path, monkeypatch):
    monkeypatch.setattr(machine, "num_cores", lambda: 64)
    assert [num_ranks(RunSettings(ranks=asked)) for asked in (0, 16)] == [MAX_CPU_RANKS, 16]
    nvidia_smi(here, gpus=4)
    torch_finds(monkeypatch, 4)
    assert [num_ranks(RunSettings(ranks=asked)) for asked in (0, 2)] == [4, 2]
    assert num_ranks(RunSettings(device="cpu")) == MAX_CPU_RANKS
    assert num_ranks(TrainSettings()) == 4
    with pytest.raises(UserError, match=r"ranks \(5\) must not exceed the GPUs \(4\)"):
        num_ranks(RunSettings(ranks=5))


def test_settings_made_for_gpus_are_refused_without_one_and_told_why():
    cuda = {"device": "cuda"}
    for settings in (RunSettings(**cuda), RunSettings(gpus="0"), TrainSettings(**cuda), SINGLE, MULTI):
        with pytest.raises(MachineError, match="^there is no GPU: start a container with --gpus all"):
            num_ranks(settings)
    assert num_ranks(SINGLE.model_copy(update={"device": "cpu", "ranks": 1})) == 1


def test_a_job_for_gpus_can_be_planned_without_one_but_makes_no_graphs(here: Path, monkeypatch, capsys):
    monkeypatch.chdir(here)
    with pytest.raises(MachineError, match="^there is no GPU"):
        run.run(MULTI)
    run.dry_run(MULTI)
    assert "# ranks on this machine: one for each GPU; here is none" in capsys.readouterr().out
    assert not (here / "training_data").exists()
