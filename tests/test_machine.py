"""What the machine offers: cores, ports, and folders that can be written and outlive the container."""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnn_training import machine
from gnn_training.errors import MachineError, StorageError

OVERLAY = "600 500 0:50 / / rw,relatime master:1 - overlay overlay rw,lowerdir=/var/lib/docker/x"
PROC = "601 600 0:51 / /proc rw,nosuid - proc proc rw"
BIND = "610 600 254:0 /home/me/results {} rw,relatime - ext4 /dev/vda rw"
TMPFS = "611 600 0:60 / {} rw,nosuid shared:7 - tmpfs tmpfs rw,size=65536k"


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 6), ("250000 100000", 2), ("50000 100000", 1), (None, 6)])
def test_cores_stay_within_the_quota_of_the_container(tmp_path: Path, monkeypatch, quota: str | None, cores: int):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(machine, "CPU_QUOTA", tmp_path / "cpu.max")
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota + "\n")
    assert machine.num_cores() == cores
    assert machine.threads_per_rank(2) == max(1, cores // 2)


def test_memory_stays_within_the_limit_of_the_container(tmp_path: Path, monkeypatch):
    (tmp_path / "max").write_text("3000\n")
    (tmp_path / "current").write_text("1000\n")
    monkeypatch.setattr(machine, "CGROUPS", (("/not/there", "/not/there"), (tmp_path / "max", tmp_path / "current")))
    assert machine.available_bytes() == 2000
    (tmp_path / "max").write_text("max\n")
    assert machine.available_bytes() > 2**20


def test_port_that_is_taken_is_named_with_its_flag():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            MachineError, match=rf"port {port} of 127.0.0.1 cannot be opened .* name another one in --tens"
        ):
            machine.require_port(port, "127.0.0.1")
    machine.require_port(port, "127.0.0.1")


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of the volume in a container of the image."""
    monkeypatch.setenv("GNN_WORKSPACE", str(tmp_path))
    monkeypatch.delenv("GNN_NO_VOLUME", raising=False)
    return tmp_path


def problem(folders: list[Path], mounts: Path) -> str | None:
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(machine, "MOUNTS", mounts)
            machine.require_storage(folders)
    except StorageError as error:
        return str(error)
    return None


def found(folder: Path, *mounts: str) -> str | None:
    """The problem of `folder` in a container with these mounts besides its root."""
    with tempfile.NamedTemporaryFile("w", suffix=".mountinfo") as file:
        file.write("\n".join([OVERLAY, PROC, *mounts]) + "\n")
        file.flush()
        return problem([folder], Path(file.name))


def test_without_a_volume_the_image_refuses_and_says_how_to_start_it(workspace: Path):
    said = str(found(workspace / "runs" / "multi"))
    assert f"{workspace}/runs/multi would be lost with the container" in said
    assert f'-v "$PWD":{workspace}' in said and "GNN_NO_VOLUME=1" in said


def test_every_folder_needs_a_volume_of_its_own(workspace: Path, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    mounts = tmp_path_factory.mktemp("proc") / "mountinfo"
    mounts.write_text(f"{OVERLAY}\n{BIND.format(workspace)}\n")
    assert problem([workspace / "runs", workspace / "models"], mounts) is None
    assert f"{elsewhere} would be lost" in str(problem([workspace, elsewhere], mounts))


def test_a_mounted_folder_keeps_its_files(workspace: Path):
    assert found(workspace / "runs" / "multi", BIND.format(workspace)) is None
    assert found(workspace, BIND.format(workspace)) is None


def test_a_mount_beside_the_folder_does_not_help(workspace: Path):
    assert found(workspace / "runs", BIND.format(f"{workspace}/run")) is not None
    assert found(workspace / "runs", BIND.format(f"{workspace}/runs/multi")) is not None


def test_memory_is_no_volume(workspace: Path):
    assert found(workspace, TMPFS.format(workspace)) is not None
    assert found(workspace / "runs", TMPFS.format(workspace), BIND.format(f"{workspace}/runs")) is None
    assert found(workspace / "runs", BIND.format(workspace), TMPFS.format(f"{workspace}/runs")) is not None


def test_of_two_mounts_on_one_point_the_later_counts(workspace: Path):
    assert found(workspace, BIND.format(workspace), TMPFS.format(workspace)) is not None
    assert found(workspace, TMPFS.format(workspace), BIND.format(workspace)) is None


def test_mount_points_with_spaces_are_understood(workspace: Path):
    folder = workspace / "my results"
    assert found(folder, BIND.format(f"{workspace}/my\\040results")) is None


def test_a_link_out_of_the_volume_leaves_it(workspace: Path, tmp_path_factory):
    (workspace / "runs").symlink_to(tmp_path_factory.mktemp("elsewhere"))
    assert found(workspace / "runs" / "multi", BIND.format(workspace)) is not None


def test_a_trial_may_go_without_a_volume(workspace: Path, monkeypatch):
    monkeypatch.setenv("GNN_NO_VOLUME", "1")
    assert found(workspace) is None


def test_outside_of_the_image_nobody_needs_a_volume(workspace: Path, monkeypatch):
    monkeypatch.delenv("GNN_WORKSPACE")
    assert found(workspace) is None
    machine.require_storage([workspace, workspace / "not" / "there" / "yet"])
    assert list(workspace.iterdir()) == []


@pytest.fixture
def foreign() -> Iterator[tuple[Path, str]]:
    """A folder that this process may not write, and how its owner is described."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o555)
        owner = os.geteuid()
        if owner == 0:
            os.seteuid(65534)
        try:
            yield Path(folder), f"user {owner} owns it, mode 555, and we are user {os.geteuid()}"
        finally:
            os.seteuid(owner)


@pytest.mark.parametrize("below", ["", "runs/multi"])
def test_a_folder_of_somebody_else_is_named_with_both_users(foreign: tuple[Path, str], below: str, monkeypatch):
    monkeypatch.delenv("GNN_WORKSPACE", raising=False)
    folder, whose = foreign
    with pytest.raises(StorageError) as refused:
        machine.require_storage([folder / below])
    assert f"{folder} cannot be written (permission denied: {whose})" in str(refused.value)
    assert "chown it, start the container with --user" in str(refused.value)


def test_a_file_in_the_way_is_named(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("GNN_WORKSPACE", raising=False)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file cannot be written \(not a directory: user"):
        machine.require_storage([tmp_path, tmp_path / "file" / "runs"])
