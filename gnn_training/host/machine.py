"""What this machine offers, as far as this process may use it: cores, ranks, ports."""

import os
import socket
from pathlib import Path

from gnn_training.atomic import reason
from gnn_training.errors import MachineError, UserError
from gnn_training.host import gpus
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
    """GPUs that torch can use.

    Raises:
        MachineError: the driver hangs.
    """
    return gpus.usable()


def num_ranks(settings: RunSettings) -> int:
    """Processes to train with: as asked, or (0) one per GPU, or one per core without GPUs.

    Raises:
        MachineError: no GPU where device or preset want one, or fewer than are named or paid for; why.
        UserError: more processes than GPUs.
    """
    count = 0 if settings.device == "cpu" else num_gpus()
    if not count and needs_gpu(settings):
        raise MachineError(gpus.why_none())
    wanted = settings.processes
    if count and not 0 < wanted <= count:
        if why := gpus.why_fewer(count):
            raise MachineError(why)
        if wanted:
            raise UserError(f"processes ({wanted}) must not exceed the GPUs ({count}): lower it or take --device cpu")
    return wanted or count or min(num_cores(), MAX_CPU_RANKS)


def uses_gpus(settings: RunSettings) -> bool:
    """Whether training would run on GPUs here."""
    return settings.device != "cpu" and num_gpus() > 0


def threads_per_rank(ranks: int) -> int:
    """The cores shared out among the ranks of this machine."""
    return max(1, num_cores() // ranks)


def needs_gpu(settings: RunSettings) -> bool:
    """Whether training without a GPU is not what the user wants: asked for, or implied by the preset."""
    return settings.device == "cuda" or (settings.device == "auto" and settings.preset in ("single", "multi"))


def require_port(port: int) -> None:
    """Make sure that TensorBoard can listen there.

    Raises:
        MachineError: it cannot.
    """
    try:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
            listener.bind(("", port))
    except OSError as error:
        why = f"port {port} cannot be opened ({reason(error)})"
        raise MachineError(f"{why}: name another one in --tensorboard") from error
