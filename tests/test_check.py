"""The check before a start: what it finds on this machine, and what it says of machines that would not do."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fake_gpus import nvidia_smi

from gnn_training.console import duration
from gnn_training.data.dataset import sample
from gnn_training.data.recipes import SMOKE
from gnn_training.errors import MachineError, StorageError, UserError
from gnn_training.jobs import check as job
from gnn_training.launch import gpus
from gnn_training.settings import CheckSettings, of_preset


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own, on a machine without GPUs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpus, "DEVICE", tmp_path / "nvidiactl")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
    smi = gpus._smi
    smi.cache_clear()
    yield tmp_path
    smi.cache_clear()


def settings(preset: str = "smoke", **changes) -> CheckSettings:
    return of_preset(CheckSettings, preset).model_copy(update=changes)


def found(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    """The table: what was found, and the verdict."""
    rows = re.findall(r"^\| (\S.*?) +\| (.*?) +\| (ok|PROBLEM) +\|$", capsys.readouterr().out, re.MULTILINE)
    return {what: (value, verdict) for what, value, verdict in rows}


def test_job_would_start_without_gpu_and_before_its_data_is_there(capsys):
    job.check(settings(processes=2))
    table = found(capsys)
    assert {verdict for _, verdict in table.values()} == {"ok"}
    assert table["graphs"][0] == "200 of recipe smoke, generated first"
    assert re.match(r"2, each on \d+ of the cores", table["ranks"][0])
    assert re.match(r"about \d+\.\d GiB of", table["memory"][0])
    assert re.match(r"about \S+ s per epoch of \d+ steps, \S+ s for all 40,", table["time"][0])


def test_packed_graphs_are_opened_and_counted(here: Path, capsys):
    sample(SMOKE, 32, 0, here / "mine")
    job.check(settings(data=Path("mine")))
    assert found(capsys)["graphs"][0] == "mine: 32 to train on, 0 for validation"


def test_damaged_graphs_are_a_problem(here: Path):
    sample(SMOKE, 32, 0, here / "mine")
    with open(here / "mine/graphs.safetensors", "r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    with pytest.raises(UserError, match="would not start: .*graphs.safetensors: differs from its manifest"):
        job.check(settings(data=Path("mine")))


def test_data_that_is_not_there_is_a_problem():
    with pytest.raises(UserError, match="nowhere does not exist"):
        job.check(settings(data=Path("nowhere")))


def test_every_problem_is_named_at_once_and_the_first_gives_the_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(job.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**29))
    with pytest.raises(MachineError) as refused:
        job.check(settings(device="cuda", data=Path("nowhere")))
    for words in ("there is no GPU", "0.5 GiB free and 2 may be needed", "nowhere does not exist"):
        assert words in str(refused.value)
    table = found(capsys)
    assert [table[row][1] for row in ("ranks", "models/", "graphs")] == ["PROBLEM"] * 3
    with pytest.raises(StorageError):
        job.check(settings(data=Path("nowhere")))


def test_folder_that_cannot_be_written_is_a_problem(here: Path):
    (here / "file").touch()
    with pytest.raises(StorageError, match=r"file cannot be written \(not a directory\)"):
        job.check(settings(run=Path("file/run")))


def test_image_without_a_volume_is_a_problem(here: Path, monkeypatch, capsys):
    monkeypatch.setattr(job.volume, "problem", lambda folders: f"{len(folders)} folders would be lost")
    with pytest.raises(StorageError, match="3 folders would be lost"):
        job.check(settings())
    assert found(capsys)["volume"][1] == "PROBLEM"


def test_port_of_tensorboard_is_a_problem_where_it_is_taken(capsys):
    with (
        socket.create_server(("", 0)) as server,
        pytest.raises(MachineError, match="name another one in --tensorboard"),
    ):
        job.check(settings(tensorboard=server.getsockname()[1]))
    assert found(capsys)["TensorBoard"][1] == "PROBLEM"


def test_preset_for_gpus_wants_one():
    with pytest.raises(MachineError, match="there is no GPU: start a container with --gpus all"):
        job.check(settings("single"))


def test_driver_is_shown_where_torch_cannot_use_the_gpus(here: Path, monkeypatch, capsys):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    nvidia_smi(here, gpus=1, driver="550.54.15")
    with pytest.raises(MachineError, match=r"driver 550.54.15 is too old for CUDA 13.0"):
        job.check(settings(device="cuda"))
    assert found(capsys)["driver"] == ("550.54.15", "ok")
    job.check(settings())  # which does not need one


def test_gpus_that_do_not_exist_cannot_be_checked(here: Path):
    nvidia_smi(here, gpus=2)
    with pytest.raises(MachineError, match="there is no GPU 7"):
        job.check(settings(gpus="0,7"))


def test_driver_that_hangs_is_a_problem_only_to_jobs_that_would_use_it(here: Path, monkeypatch):
    def hangs(*_: str) -> str:
        raise MachineError("the driver hangs")

    gpus.DEVICE.touch()
    monkeypatch.setattr(gpus, "_smi", hangs)
    assert [finding.problem for finding in job._gpus(settings(device="cpu"))] == [None]
    [finding] = job._gpus(settings())
    assert str(finding.problem) == "the driver hangs"


def test_gpus_are_listed_with_their_memory_unless_they_do_not_compute(here: Path, monkeypatch):
    def describe(number: int) -> str:
        if number == 1:
            raise MachineError("GPU 1 does not compute")
        return "NVIDIA H100, 80 GiB, 70 free"

    nvidia_smi(here, gpus=2)
    fakes = {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "nccl": SimpleNamespace(version=lambda: (2, 29, 7)),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(gpus, "describe", describe)
    rows = {finding.what: finding for finding in job._gpus(settings())}
    assert (rows["driver"].found, rows["NCCL"].found) == ("580.65.06", "2.29.7")
    assert (rows["GPU 0"].found, rows["GPU 0"].problem) == ("NVIDIA H100, 80 GiB, 70 free", None)
    assert str(rows["GPU 1"].problem) == "GPU 1 does not compute"
    assert rows["ranks"].found == "2, each on a GPU"


def test_too_little_memory_is_a_problem(monkeypatch):
    monkeypatch.setattr(job, "available_bytes", lambda: 2**29)
    with pytest.raises(MachineError, match="a rank needs about .* GiB and 0.2 are free: lower --batch-size"):
        job.check(settings(processes=2))


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.04, "0.0 s"), (9.96, "10.0 s"), (75, "75 s"), (150, "2 min 30 s"), (9000, "2 h 30 min")]
)
def test_duration_is_told_as_people_say_it(seconds: float, words: str):
    assert duration(seconds) == words
