"""What this machine offers to this process: cores, memory, ports, packages, and folders that outlive the container."""

import importlib.util
import os
import re
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gnn_training.errors import MachineError, StorageError, UserError
from gnn_training.files import reason

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
MOUNTS = Path("/proc/self/mountinfo")  # proc_pid_mountinfo(5)
# Limit and use of the container, cgroup version 2 and 1. A machine without a limit has neither, or a huge number.
CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def num_cores() -> int:
    """Return the cores within this process's affinity and the container's quota, at least 1."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = CPU_QUOTA.read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max": no quota
        return cores


def threads_per_rank(num_ranks: int) -> int:
    """Return the share of the cores that each rank of this machine gets."""
    return max(1, num_cores() // num_ranks)


def available_bytes() -> int:
    """Return the free memory of the machine or of the container, whichever is less."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    for limit, used in CGROUPS:
        try:
            free.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):  # no such file, or "max": no limit
            continue
    return max(0, min(free))


def require_port(port: int, host: str) -> None:
    """Raise MachineError if TensorBoard cannot listen on a port of an address of this machine."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        message = f"port {port} of {host} cannot be opened ({reason(error)}): name another one in --tensorboard"
        raise MachineError(message) from error


def require_package(package: str, user: str, install: str) -> None:
    """Raise UserError if a package that only `user` needs is not installed. install: what pip installs."""
    if importlib.util.find_spec(package) is None:
        raise UserError(f"{user} needs {package}: pip install {install}")


def require_storage(folders: Sequence[Path]) -> None:
    """Raise StorageError if files in these folders, which may be missing, cannot be written or would not last."""
    for check in (_why_lost, _why_unwritable):
        for problem in filter(None, map(check, folders)):
            raise StorageError(problem)


def require_numba() -> None:
    """Raise UserError if a variable of the environment keeps numba from loading or from saving what it compiles."""
    threads = os.environ.get("NUMBA_NUM_THREADS", "1")
    if not re.fullmatch("0*[1-9][0-9]{0,3}", threads):
        raise UserError(f"NUMBA_NUM_THREADS ({threads}) must be a number from 1 to 9999: correct it, or unset it")
    if (folder := os.environ.get("NUMBA_CACHE_DIR")) and (problem := _why_unwritable(Path(folder))):
        raise StorageError(f"NUMBA_CACHE_DIR ({folder}): {problem}")


def existing_parent(folder: Path) -> Path:
    """Return `folder`, or the first of its parents that exists. (Path.exists raises where searching is forbidden.)"""
    return next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))


def _why_unwritable(folder: Path) -> str | None:
    there = existing_parent(folder)
    try:
        with tempfile.TemporaryFile(dir=there):
            return None
    except OSError as error:
        owner, us = there.stat(), os.geteuid()
        whose = f"{reason(error)}: user {owner.st_uid} owns it, mode {owner.st_mode & 0o777:o}, and we are user {us}"
        user = f"start the container with --user {owner.st_uid}:{owner.st_gid}"
        return f"{there} cannot be written ({whose}): chown it, {user}, make room, or name another folder"


def _why_lost(folder: Path) -> str | None:
    """Why files in `folder` would be lost with a container of the image."""
    workspace = os.environ.get("GNN_WORKSPACE")
    if not workspace or os.environ.get("GNN_NO_VOLUME") == "1":
        return None
    point, kind, place = Path("/"), "", folder.resolve()
    for line in MOUNTS.read_text(errors="surrogateescape").splitlines():
        mount, _, source = line.partition(" - ")
        mounted = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), mount.split()[4]))
        # The innermost mount counts, and of two on one point the later one, which hides the other.
        if place.is_relative_to(mounted) and mounted.is_relative_to(point):
            point, kind = mounted, source.split()[0]
    if point != Path("/") and kind != "tmpfs":
        return None
    return (
        f'{folder} would be lost with the container, no volume is mounted there: start with -v "$PWD":{workspace}, '
        f"or with -e GNN_NO_VOLUME=1 for a trial whose results may be lost"
    )
