"""What this machine offers: cores and GPUs, as far as this process may use them. Memory is in memory.py."""

import os
import shutil
from pathlib import Path

from gnn_training.errors import UserError
from gnn_training.settings import RunSettings

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


def num_ranks(settings: RunSettings) -> int:
    """Processes to train with: as asked, or (0) one per GPU, or one per core without GPUs.

    Raises:
        UserError: more processes than GPUs, or none where device or preset want one.
    """
    gpus = 0 if settings.device == "cpu" else num_gpus()
    if not gpus and needs_gpu(settings):
        raise UserError(
            f"preset {settings.preset} on device {settings.device} needs a GPU and torch finds none: "
            f"see python -m gnn_training check, or take --preset cpu or --device cpu"
        )
    if gpus and settings.processes > gpus:
        raise UserError(
            f"processes ({settings.processes}) must not exceed the GPUs ({gpus}): lower it or take --device cpu"
        )
    return settings.processes or gpus or min(num_cores(), MAX_CPU_RANKS)


def needs_gpu(settings: RunSettings) -> bool:
    """Whether training without a GPU is not what the user wants: asked for, or implied by the preset."""
    return settings.device == "cuda" or (settings.device == "auto" and settings.preset in ("single", "multi"))
