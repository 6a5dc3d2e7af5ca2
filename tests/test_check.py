"""The check before a start: what it finds on this machine, and what it says of machines that would not do."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gnn_training.data.recipes import SMOKE
from gnn_training.data.sample import sample
from gnn_training.errors import UserError
from gnn_training.jobs import check as job
from gnn_training.settings import CheckSettings, of_preset
from gnn_training.words import duration


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, on a machine without GPUs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def driver(folder: Path, version: str) -> None:
    """Put an nvidia-smi with one GPU on PATH."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)


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
    assert table["would run"][0].startswith("preset smoke: 40 steps; ranks: 2, each on")
    assert re.match(r"about \d+\.\d GiB of", table["memory"][0])
    assert re.match(r"about \S+ s per epoch of \d+ steps", table["time"][0])


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


def test_every_problem_is_named_at_once(monkeypatch, capsys):
    monkeypatch.setattr(job.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**29))
    with pytest.raises(UserError) as refused:
        job.check(settings(device="cuda", data=Path("nowhere")))
    for words in ("there is no GPU", "0.5 GiB free and 2 may be needed", "nowhere does not exist"):
        assert words in str(refused.value)
    assert found(capsys)["GPU"][1] == "PROBLEM"


def test_folder_that_cannot_be_written_is_a_problem(here: Path):
    (here / "file").touch()
    with pytest.raises(UserError, match=r"file cannot be written \(not a directory\)"):
        job.check(settings(run=Path("file/run")))


def test_preset_for_gpus_wants_one():
    with pytest.raises(UserError, match="there is no GPU: take --preset cpu"):
        job.check(settings("single"))


def test_old_driver_is_told_from_one_that_torch_cannot_use(here: Path, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    driver(here, "550.54.15")
    with pytest.raises(UserError, match=r"driver 550.54.15 is too old for CUDA 13.0, which needs 580"):
        job.check(settings(device="cuda"))
    driver(here, "580.65.06")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match=r"torch cannot use the GPU: .* CUDA_VISIBLE_DEVICES \(\)"):
        job.check(settings(device="cuda"))


def test_torch_for_cpus_on_a_gpu_machine_is_a_problem(here: Path, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    driver(here, "580.65.06")
    with pytest.raises(UserError, match="torch is a build for CPUs: .* without TORCH_INDEX_URL"):
        job.check(settings("multi"))


def test_gpus_are_listed_with_their_memory(here: Path, monkeypatch):
    driver(here, "580.65.06")
    fakes = {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "mem_get_info": lambda *_: (70 * 2**30, 80 * 2**30),
        "get_device_name": lambda _: "NVIDIA H100",
        "nccl": SimpleNamespace(version=lambda: (2, 29, 7)),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    rows = {finding.what: finding.found for finding in job._gpus(settings())}
    assert rows["driver"] == "580.65.06"
    assert rows["GPU 0"] == rows["GPU 1"] == "NVIDIA H100, 80 GiB, 70 free"
    assert rows["NCCL"] == "2.29.7"


def test_too_little_memory_is_a_problem(monkeypatch):
    monkeypatch.setattr(job, "available_bytes", lambda: 2**29)
    with pytest.raises(UserError, match="a rank needs about .* GiB and 0.2 are free: lower --batch-cells"):
        job.check(settings(processes=2))


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.04, "0.0 s"), (9.96, "10.0 s"), (75, "75 s"), (150, "2 min 30 s"), (9000, "2 h 30 min")]
)
def test_duration_is_told_as_people_say_it(seconds: float, words: str):
    assert duration(seconds) == words
