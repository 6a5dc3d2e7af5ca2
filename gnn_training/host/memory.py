"""How much memory this process may still take."""

from pathlib import Path

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
