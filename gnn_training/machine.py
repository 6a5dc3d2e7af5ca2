"""What this machine offers, as far as this process may use it: cores, ranks, ports."""
# DOC How much memory this process may still take.
# DOC Whether results have a place that outlives this process and, in a container, the container.

import os
import re
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path

from gnn_training.errors import MachineError, StorageError
from gnn_training.files import reason

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def num_cores() -> int:
    """Cores within this process's affinity and the container's quota, at least 1."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = CPU_QUOTA.read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max": no quota
        return cores


def threads_per_rank(ranks: int) -> int:
    """The cores shared out among the ranks of this machine."""
    return max(1, num_cores() // ranks)


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


# Limit and use of the container, cgroup version 2 and 1; a machine without limit has neither, or a huge number.
CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_bytes() -> int:
    """What the machine has left or the container's limit leaves, whichever is less."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    left = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    for limit, used in CGROUPS:
        try:
            left.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):  # no such file, or "max": no limit
            continue
    return max(0, min(left))


MOUNTS = Path("/proc/self/mountinfo")  # proc_pid_mountinfo(5)


def require_storage(folders: Iterable[Path]) -> None:
    """Refuse folders whose files could not be written, or would be lost with the container.

    Raises:
        StorageError: what is wrong with the first of them, and the way out.
    """
    if found := storage_problem(folders):
        raise StorageError(found)


def storage_problem(folders: Iterable[Path], mounts: Path = MOUNTS) -> str | None:
    """What `require_storage` would refuse; None if nothing. The folders need not exist yet."""
    folders = list(folders)
    findings = [*(_ephemeral(folder, mounts) for folder in folders), *map(unwritable, folders)]
    return next(filter(None, findings), None)


def nearest(folder: Path) -> Path:
    """`folder`, or the first of its parents that is there."""
    # Path.exists would raise where a folder may not be searched.
    return next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))


def unwritable(folder: Path) -> str | None:
    """Why no file can be made in `folder`, or in the first of its parents that is there; None if one can."""
    there = nearest(folder)
    try:
        with tempfile.TemporaryFile(dir=there):
            return None
    except PermissionError as error:
        owner, us = there.stat(), os.geteuid()
        return (
            f"{there} cannot be written ({reason(error)}: user {owner.st_uid} owns it, mode {owner.st_mode & 0o777:o}, "
            f"and we are user {us}): chown it to {us}, start the container with --user {owner.st_uid}:{owner.st_gid}, "
            f"or name another folder"
        )
    except OSError as error:
        return f"{there} cannot be written ({reason(error)}): mount it writable, make room, or name another folder"


def _ephemeral(folder: Path, mounts: Path) -> str | None:
    """In the image: why what is written to `folder` would be lost."""
    workspace = os.environ.get("GNN_WORKSPACE")
    if not workspace or os.environ.get("GNN_NO_VOLUME") == "1":
        return None
    point, kind = _mount(folder, mounts)
    if point != Path("/") and kind != "tmpfs":
        return None
    return (
        f'{folder} would be lost with the container, no volume is mounted there: start with -v "$PWD":{workspace}, '
        f"or with -e GNN_NO_VOLUME=1 for a trial whose results may be lost"
    )


def _mount(folder: Path, mounts: Path) -> tuple[Path, str]:
    """Mount point and file system type of what `folder` lies on."""
    found, place = (Path("/"), "unknown"), folder.resolve()
    for line in mounts.read_text(errors="surrogateescape").splitlines():
        mount, _, source = line.partition(" - ")
        point = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), mount.split()[4]))
        # The innermost counts, and of two on one point the later, which hides the other.
        if place.is_relative_to(point) and point.is_relative_to(found[0]):
            found = point, source.split()[0]
    return found
