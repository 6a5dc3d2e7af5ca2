"""GPUs that are not there: an nvidia-smi that prints what the real one prints, and what torch says."""

import shlex
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from checkout import write_program

from gnn_training import machine

SMI = """#!/bin/sh
case "$*" in
  -L) printf '%s\\n' {listing} ;;
  '--query-gpu=driver_version --format=csv,noheader') printf '%s\\n' {drivers} ;;
  *) echo "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help."; exit 1 ;;
esac
"""
TOO_OLD = "The NVIDIA driver on your system is too old (found version 12040). Please update your GPU driver"
NONE_VISIBLE = "No CUDA GPUs are available"


def listing(gpus: int, slices: int = 0) -> list[str]:
    """What `nvidia-smi -L` prints for so many GPUs, each cut into so many MIG slices."""
    lines = []
    for gpu in range(gpus):
        lines.append(f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a{gpu:02})")
        for i in range(slices):
            lines.append(f"  MIG 1g.10gb     Device  {i}: (UUID: MIG-feb88891-0321-5fef-9c87-d4af3b54{gpu:02}{i:02})")
    return lines or ["No devices found."]


def nvidia_smi(folder: Path, gpus: int = 0, driver: str = "580.65.06", slices: int = 0) -> None:
    """Put an nvidia-smi for a machine like that into `folder`."""
    drivers = shlex.join([driver] * gpus or ["No devices were found"])
    write_program(folder / "nvidia-smi", SMI.format(listing=shlex.join(listing(gpus, slices)), drivers=drivers))


def no_gpus(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have no GPUs here, whatever the real machine has; an nvidia-smi in the folder is on the PATH."""
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.setenv(name, "")  # so that what the program sets is undone, too
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(machine, "DEVICES", (folder / "nvidiactl", folder / "kfd"))
    torch_finds(monkeypatch, 0)
    monkeypatch.setattr(machine, "output_of", machine.output_of.__wrapped__)


def torch_finds(monkeypatch: pytest.MonkeyPatch, count: int, error: str = NONE_VISIBLE) -> None:
    """Have torch find so many GPUs; what it says if there are none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "init", Mock(side_effect=RuntimeError(error)))
