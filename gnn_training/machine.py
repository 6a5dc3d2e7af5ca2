"""What this machine offers: cores and GPUs, as far as this process may use them. Memory is in memory.py."""

import os
import shutil
from pathlib import Path

from gnn_training.errors import UserError

MAX_CPU_RANKS = 8  # more ranks make the global batch larger, not the job shorter
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def num_cores() -> int:
    """Cores within this process's affinity and the container's quota, at least 1."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = CPU_QUOTA.read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max": no quota
        return cores


def num_gpus() -> int:
    """GPUs that torch can use. Torch takes a second to load, so it is asked only where there may be one."""
    if not (Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi")):
        return 0
    import torch

    return torch.cuda.device_count()


def num_ranks(processes: int, device: str) -> int:
    """Processes to train with: as asked, or (0) one per GPU, or one per core without GPUs.

    Raises:
        UserError: more processes than GPUs, or CUDA without any.
    """
    gpus = 0 if device == "cpu" else num_gpus()
    if device == "cuda" and not gpus:
        raise UserError("device is cuda but torch finds no GPU: check the driver with nvidia-smi or take --device cpu")
    if gpus and processes > gpus:
        raise UserError(f"processes ({processes}) must not exceed the GPUs ({gpus}): lower it or take --device cpu")
    return processes or gpus or min(num_cores(), MAX_CPU_RANKS)
