"""What the machine offers: cores, ports, and folders that can be written and outlive the container."""

import os
import socket
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from pathlib import Path

import pytest

from gnn_training import machine
from gnn_training.errors import StorageError

OVERLAY = "600 500 0:50 / / rw,relatime master:1 - overlay overlay rw,lowerdir=/var/lib/docker/x"
PROC = "601 600 0:51 / /proc rw,nosuid - proc proc rw"
BIND = "610 600 254:0 /home/me/results {} rw,relatime - ext4 /dev/vda rw"
LASTS, WARNED, REFUSED = "lasts", "is warned of", "is refused"
TMPFS = "611 600 0:60 / {} rw,nosuid shared:7 - tmpfs tmpfs rw,size=65536k"


@pytest.mark.parametrize(
    ("group", "files", "cores"),
    [
        ("0::/", {"cpu.max": "max 100000"}, 6),
        ("0::/", {"cpu.max": "250000 100000"}, 2),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/", {}, 6),
        ("0::/slice/job", {"slice/cpu.max": "300000 100000", "slice/job/cpu.max": "max 100000"}, 3),
        ("0::/of/the/host", {"cpu.max": "200000 100000"}, 2),
        ("4:cpu,cpuacct:/docker/x", {"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ("4:cpu,cpuacct:/x", {"cpu/x/cpu.cfs_quota_us": "100000", "cpu/x/cpu.cfs_period_us": "100000"}, 1),
        ("4:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 6),
    ],
    ids=count(),
)
def test_cores_stay_within_the_quotas_of_control_groups(tmp_path: Path, monkeypatch, caplog, group, files, cores: int):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(machine, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "own")
    (tmp_path / "own").write_text(f"5:memory:/y\n{group}\n")
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    assert machine.num_cores() == cores and machine.threads_per_rank(2) == max(1, cores // 2)
    assert (machine.usable_threads(1), machine.usable_threads(100)) == (1, cores)
    assert caplog.messages == [f"{cores} of 100 threads are used: this process has no more cores"]


@pytest.mark.parametrize(
    ("group", "folder", "names"),
    [
        ("0::/", ".", ("max", "current", "inactive_file")),
        ("0::/job/step", "job", ("max", "current", "inactive_file")),
        ("9:memory:/job", "memory/job", ("limit_in_bytes", "usage_in_bytes", "total_inactive_file")),
    ],
)
def test_memory_stays_within_the_limits_of_control_groups(tmp_path: Path, monkeypatch, group, folder, names):
    limit, used, cache = names
    monkeypatch.setattr(machine, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "own")
    (tmp_path / "own").write_text(f"4:cpu:/x\n{group}\n")
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for name, content in ((limit, "3000"), (used, "1000"), ("stat", f"anon 600\n{cache} 400")):
        (tmp_path / folder / f"memory.{name}").write_text(content + "\n")
    assert machine.available_bytes() == 2400  # files that were read do not count
    (tmp_path / folder / f"memory.{limit}").write_text("max\n")
    assert machine.available_bytes() > 2**20


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of the volume in a container of the image."""
    monkeypatch.setenv("GNN_WORKSPACE", str(tmp_path))
    for name in ("GNN_NO_VOLUME", *machine.PODS):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def mount(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """mount(*lines): the container has these mounts besides its root."""
    file = tmp_path_factory.mktemp("proc") / "mountinfo"
    monkeypatch.setattr(machine, "MOUNTS", file)

    def mount(*lines: str) -> None:
        file.write_text("\n".join([OVERLAY, PROC, *lines]) + "\n")

    mount()
    return mount


@pytest.mark.parametrize("pod", machine.PODS)
def test_without_a_volume_a_pod_refuses_and_says_how_to_start_it(workspace: Path, mount, monkeypatch, pod: str):
    monkeypatch.setenv(pod, "x")
    with pytest.raises(StorageError) as refused:
        machine.require_storage([workspace / "runs" / "multi"])
    assert f"{workspace}/runs/multi would be lost with the container" in str(refused.value)
    assert f'-v "$PWD":{workspace}' in str(refused.value) and "GNN_NO_VOLUME=1" in str(refused.value)


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ([f"700 600 8:1 /var/lib/docker/containers/{64 * 'a'}/hostname /etc/hostname rw - ext4 /dev/vda rw"], 12 * "a"),
        ([f"700 600 0:25 /overlay-containers/{64 * 'b'}/userdata/hostname /etc/hostname rw - tmpfs tmpfs rw"],
         12 * "b"),
        ([], socket.gethostname()),
    ],
)  # fmt: skip
def test_without_a_volume_a_container_at_home_warns_and_says_how_to_fetch_results(workspace, mount, lines, name):
    mount(*lines)
    warning = machine.require_storage([workspace / "runs/multi", workspace / "models"])
    kept = "no volume: results stay in this container, and --rm would delete them"
    assert warning and warning.startswith(f'{kept}; start with -v "$PWD":{workspace}')
    assert warning.endswith(f"docker cp {name}:{workspace}/models .")
    assert machine.copy_command(workspace / "my models") == f"docker cp '{name}:{workspace}/my models' ."


@pytest.mark.parametrize(
    ("folder", "mounts", "how_long"),
    [
        ("runs/multi", [(BIND, "")], LASTS),
        ("", [(BIND, "")], LASTS),
        ("runs", [(BIND, "/run")], WARNED),
        ("runs", [(BIND, "/runs/multi")], WARNED),
        ("", [(TMPFS, "")], REFUSED),
        ("runs", [(TMPFS, ""), (BIND, "/runs")], LASTS),
        ("runs", [(BIND, ""), (TMPFS, "/runs")], REFUSED),
        ("", [(BIND, ""), (TMPFS, "")], REFUSED),  # the later one of two on a point hides the other
        ("", [(TMPFS, ""), (BIND, "")], LASTS),
        ("my results", [(BIND, "/my\\040results")], LASTS),
        ("link/multi", [(BIND, "")], WARNED),
    ],
)
def test_files_last_below_the_mount_of_a_volume(workspace: Path, mount, tmp_path_factory, folder, mounts, how_long):
    """And nobody can copy them out of a tmpfs."""
    (workspace / "link").symlink_to(tmp_path_factory.mktemp("elsewhere"))
    mount(*(line.format(f"{workspace}{place}") for line, place in mounts))
    with pytest.raises(StorageError, match="would be lost") if how_long == REFUSED else nullcontext():
        assert bool(machine.require_storage([workspace / folder])) == (how_long == WARNED)
    assert bool(machine.copy_command(workspace / folder)) == (how_long == WARNED)


def test_every_folder_needs_a_volume_unless_it_is_a_trial_or_not_in_the_image(workspace: Path, mount, monkeypatch):
    elsewhere = workspace.parent / "elsewhere"
    mount(BIND.format(workspace), TMPFS.format(elsewhere))
    with pytest.raises(StorageError, match=f"{elsewhere} would be lost"):
        machine.require_storage([workspace, elsewhere])
    monkeypatch.setenv("GNN_NO_VOLUME", "1")
    machine.require_storage([workspace, elsewhere])
    monkeypatch.delenv("GNN_NO_VOLUME")
    monkeypatch.delenv("GNN_WORKSPACE")
    machine.require_storage([workspace, elsewhere / "not" / "there" / "yet"])
    assert list(workspace.iterdir()) == [] and not elsewhere.exists()
