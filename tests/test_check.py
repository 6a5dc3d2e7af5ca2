"""The check before a start: what it finds on this machine, and on machines where the job would not start."""

import gc
import re
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import tiny_runs
import torch
from checkout import flip_last_byte
from fake_gpus import no_gpus, nvidia_smi, torch_finds
from torch.nn.parallel import DistributedDataParallel

from gnn_training.data import packed
from gnn_training.errors import MachineError, StorageError, TrainingError, UserError
from gnn_training.jobs import check as job
from gnn_training.jobs.train import train_rank
from gnn_training.settings import CheckSettings, from_preset
from gnn_training.training import checkpoint
from gnn_training.training.loader import GraphLoader

MEASURED = job.Measurement(peak_bytes=2**30, num_steps=40, seconds_per_step=0.5, waiting=0.04)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, on a machine without GPUs, where trainings need not be measured."""
    monkeypatch.chdir(tmp_path)
    no_gpus(monkeypatch, tmp_path)
    monkeypatch.delenv("GNN_WORKSPACE", raising=False)
    monkeypatch.setattr(job, "launch", lambda *_: MEASURED)
    return tmp_path


def settings(preset: str = "smoke", **changes) -> CheckSettings:
    return from_preset(CheckSettings, preset, **changes)


def found(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    """The table: what was found, and the verdict."""
    rows = re.findall(r"^\| (\S.*?) +\| (.*?) +\| (ok|PROBLEM) +\|$", capsys.readouterr().out, re.MULTILINE)
    return {what: (value, verdict) for what, value, verdict in rows}


def test_a_job_on_another_machine_is_estimated_without_gpus(capsys):
    job.check(settings("multi", assume="h200x8", price_per_hour=30.0))
    said = capsys.readouterr().out
    searching = (1500 * 1_638_400 + 3000 * 1000 * 12) / job.ROUNDS_PER_SECOND["h200"] / 60  # minutes of one GPU
    for gpus in (1, 2, 4, 8):
        minutes = searching / gpus + 3 + job.OTHER_MINUTES  # 3 of self-play
        efficiency = (searching + 3 + job.OTHER_MINUTES) / (gpus * minutes)
        numbers = searching / gpus, minutes, efficiency, minutes / 2 * gpus / 8  # the last one: what it costs
        row = [f"{gpus} x H200", str(3200 // gpus), *(f"{number:.2f}" for number in numbers)]
        row.append("measured" if gpus == 1 else "estimated")
        assert re.search(r"^\| " + r" +\| +".join(map(re.escape, row)) + r" +\|$", said, re.MULTILINE), (row, said)
    assert said.strip().splitlines()[-1].startswith("This job is worth 2 x H200. More would be used for less than half")


def test_the_estimate_is_of_the_searches_that_the_job_makes(capsys):
    job.check(settings("cpu", assume="h200x1", seed=3))
    assert "12800, of 1500 rounds" in capsys.readouterr().out


@pytest.mark.parametrize(("machine", "advice"), [("b200x1", "worth 1 x B200."), ("h100x2", "worth 2 x H100.")])
def test_a_job_that_is_worth_every_gpu_is_told_so(capsys, machine: str, advice: str):
    job.check(settings("multi", assume=machine))
    said = capsys.readouterr().out
    assert said.strip().endswith(advice) and "cost" not in said


def test_job_would_start_without_gpu_and_before_its_data_is_there(capsys):
    job.check(settings(ranks=2))
    table = found(capsys)
    assert {verdict for _, verdict in table.values()} == {"ok"}
    new = "none in training_data, so 208 of recipe smoke are generated; name yours with --data"
    assert table["graphs"][0] == f"{new}; time and memory are known after that"
    assert re.match(r"2, each on \d+ of the cores", table["ranks"][0])
    assert "training" not in table


def test_time_and_memory_follow_from_what_was_measured(tiny_data: Path, capsys):
    job.check(settings(data=tiny_data, ranks=2))
    table = found(capsys)
    assert table["graphs"][0] == f"{tiny_data} (packed): 19 to train on, 5 for validation"
    assert re.match(r"about 1.0 GiB of \S+ free per rank", table["memory"][0])
    assert table["balance"][0] == "ranks wait for the slowest for 4% of the time"
    assert table["training"][0] == "about 20 s for 40 steps and self-play, and the evaluations"


def test_measured_time_is_of_the_order_of_what_the_training_then_takes(tiny_data: Path, tmp_path: Path):
    training = tiny_runs.settings(tiny_data, tmp_path / "run", steps=100, evaluate_every=100)
    peak, steps, seconds, _ = job.measure_steps(training)
    assert 2**28 < peak < 2**32  # torch alone takes some hundred MiB
    assert steps == 100
    train_rank(training)
    assert 0.25 < 100 * seconds / tiny_runs.status(training.run)["step_seconds"] < 4  # tests share the cores


def test_the_time_of_a_training_counts_the_loader_and_what_comes_between(tiny_data: Path, tmp_path: Path, monkeypatch):
    load, save = GraphLoader.starting_at, checkpoint.save_step

    def slow_load(self, step):
        for batch in load(self, step):
            time.sleep(0.05)  # as on a GPU, which works meanwhile
            yield batch

    def slow_save(*state):
        time.sleep(0.05)
        save(*state)

    monkeypatch.setattr(GraphLoader, "starting_at", slow_load)
    monkeypatch.setattr(checkpoint, "save_step", slow_save)
    train_rank(tiny_runs.settings(tiny_data, tmp_path / "run", steps=6, evaluate_every=6, rounds=5))
    status = tiny_runs.status(tmp_path / "run")
    assert status["step_seconds"] >= 6 * 0.05 and status["seconds"] >= status["step_seconds"] + 5 * 0.05


@pytest.mark.parametrize("rank", [job.measure_steps, train_rank])
def test_no_network_outlives_its_process_group(tiny_data: Path, tmp_path: Path, monkeypatch, rank):
    def networks() -> set[int]:
        return {id(each) for each in gc.get_objects() if isinstance(each, DistributedDataParallel)}

    def destroy() -> None:
        left.append(networks() - before)
        real()

    before, left, real = networks(), [], torch.distributed.destroy_process_group
    monkeypatch.setattr(torch.distributed, "destroy_process_group", destroy)
    rank(tiny_runs.settings(tiny_data, tmp_path / "run", steps=3))
    assert left == [set()], "torch's Reducer may wait for ever for a thread of gloo that waits for Python"


def test_damaged_graphs_and_none_to_train_on_are_a_problem(here: Path):
    data = tiny_runs.write_data(here / "mine", graphs=3)
    packed.write(data.folder, data.tensors | {"split": np.ones(3, np.uint8)}, data.families, {})
    with pytest.raises(UserError, match="would not start: .*mine has no graphs to train on: name another --data"):
        job.check(settings(data=Path("mine")))
    flip_last_byte(here / "mine/graphs.safetensors")
    with pytest.raises(UserError, match="would not start: .*graphs.safetensors: differs from its manifest"):
        job.check(settings(data=Path("mine")))


def test_every_problem_is_named_at_once_and_the_first_gives_the_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(job.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**29))
    with pytest.raises(MachineError) as refused:
        job.check(settings(device="cuda", data=Path("nowhere")))
    for words in ("there is no GPU", "0.5 GiB free and 2 may be needed", "nowhere does not exist"):
        assert words in str(refused.value)
    table = found(capsys)
    assert [table[row] for row in ("ranks", "models/", "graphs")] == [("-", "PROBLEM")] * 3
    with pytest.raises(StorageError):
        job.check(settings(data=Path("nowhere")))


def test_a_container_without_a_volume_is_no_problem_and_the_table_says_how_to_fetch_results(monkeypatch, capsys):
    monkeypatch.setattr(job.machine, "require_storage", lambda folders: f"no volume: fetch {folders[-1]}")
    job.check(settings())
    assert found(capsys)["volume"] == ("no volume: fetch models", "ok")


def test_port_of_tensorboard_is_a_problem_where_it_is_taken(capsys):
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(MachineError, match=rf"port {port} of 127.0.0.1 cannot be opened .* another one in --tens"):
            job.check(settings(tensorboard=port))
    assert found(capsys)[f"TensorBoard, port {port}"][1] == "PROBLEM"
    job.check(settings(tensorboard=port))


def test_driver_is_shown_where_torch_cannot_use_the_gpus(here: Path, monkeypatch, capsys):
    nvidia_smi(here, gpus=1, driver="550.54.15")
    with pytest.raises(MachineError, match="cannot use the GPU"):
        job.check(settings(device="cuda"))
    assert found(capsys)["driver"] == ("550.54.15", "ok")
    job.check(settings())  # which does not need one


def test_driver_that_hangs_is_a_problem_only_to_jobs_that_would_use_it(monkeypatch, capsys):
    monkeypatch.setattr(job.machine, "num_gpus", Mock(side_effect=MachineError("the driver hangs")))
    job.check(settings(device="cpu"))
    assert "driver" not in found(capsys)
    with pytest.raises(MachineError, match="would not start: the driver hangs"):
        job.check(settings())


def test_gpus_are_listed_with_their_memory_unless_they_do_not_compute(here: Path, monkeypatch, capsys):
    nvidia_smi(here, gpus=2)
    torch_finds(monkeypatch, 2)
    monkeypatch.setattr(torch.cuda, "nccl", SimpleNamespace(version=lambda: (2, 29, 7)))
    found_there = ["NVIDIA H100, 80 GiB, 70 free", MachineError("GPU 1 does not compute")]
    monkeypatch.setattr(job.machine, "describe_gpu", Mock(side_effect=found_there))
    with pytest.raises(MachineError, match="would not start: GPU 1 does not compute"):
        job.check(settings())
    table = found(capsys)
    assert (table["driver"][0], table["NCCL"][0]) == ("580.65.06", "2.29.7")
    assert (table["GPU 0"], table["GPU 1"]) == (("NVIDIA H100, 80 GiB, 70 free", "ok"), ("-", "PROBLEM"))
    assert table["ranks"][0] == "2, each on a GPU"


def test_too_little_memory_is_a_problem(monkeypatch, tiny_data: Path):
    monkeypatch.setattr(job.machine, "available_bytes", lambda: 2**29)
    with pytest.raises(MachineError, match="a rank needs about 1.0 GiB and 0.2 are free: lower --batch-size"):
        job.check(settings(data=tiny_data, ranks=2))


def test_a_measurement_that_fails_is_a_problem_in_the_table(monkeypatch, tiny_data: Path, capsys):
    monkeypatch.setattr(job, "launch", Mock(side_effect=TrainingError("rank 1 was killed by signal 9")))
    with pytest.raises(TrainingError, match="would not start: rank 1 was killed by signal 9"):
        job.check(settings(data=tiny_data, ranks=2))
    table = found(capsys)
    assert table["graphs"][1] == "ok" and table["memory"] == ("-", "PROBLEM") and "training" not in table
