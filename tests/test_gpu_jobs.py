"""Trainings on pretended GPUs: every rank on its own, no waiting, few launches."""

import json
import re
import subprocess
import sys
from pathlib import Path

import fake_cuda
import pytest
import tiny_runs
from fake_cuda import FakeCuda
from tiny_runs import status

from gnn_training.errors import MachineError
from gnn_training.processes import STOPPED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # several processes that load torch and compile for a GPU
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", 2)
LAUNCHES = {"step": 750, "evaluation": 200}  # at most


def command(gpus: FakeCuda, data: Path, **changes) -> list[str]:
    """Arguments of the Python that trains on GPUs."""
    values = {"device": "cuda", "ranks": 0, "rounds": 20, **changes}
    file, settings = gpus.folder / "train.json", tiny_runs.settings(data, gpus.folder / "run", **values)
    file.write_text(settings.model_dump_json())
    return ["-m", "gnn_training", "train", "--settings", str(file)]


def train(gpus: FakeCuda, data: Path, number: int, launcher: tuple = (), precision: str = "fp32", **options) -> dict:
    """Train on so many GPUs; what each rank says about itself."""
    gpus.run(*launcher, *command(gpus, data, steps=5, precision=precision), gpus=number, **options)
    return status(gpus.folder / "run")["self_check"]


@pytest.mark.parametrize(("number", "launcher"), [(2, TORCHRUN), pytest.param(8, (), marks=pytest.mark.nightly)])
def test_gpus_train_together_each_rank_on_its_own(gpus: FakeCuda, tmp_path: Path, number: int, launcher: tuple):
    """Also where ranks of torchrun see all of them. Every rank has several states to evaluate: for one, torch's cumsum
    asks the pretended library for more than it has.
    """
    data = tiny_runs.write_data(tmp_path / "data", graphs=15 * number)
    checks = train(gpus, data.folder, number, launcher)
    ranks = [re.match(r"rank (\d)\ndevice (\d) launches \d+ peak \d+\n$", text) for text in gpus.logs()]
    assert all(ranks), gpus.logs()
    assert sorted(each.groups() for each in ranks) == [(str(rank), str(rank)) for rank in range(number)]
    assert [check["rank"] for check in checks] == list(range(number)) and all(check["peak_gib"] > 0 for check in checks)
    record = tiny_runs.metrics(gpus.folder / "run", "train")[-1]
    for rank in range(number):  # what the driver says of the GPU of every rank
        found = [record[f"gpu{rank}_{name}"] for name in ("busy", "memory_gib", "watts", "celsius")]
        assert found == pytest.approx([0.5 + rank / 10, rank + 3, rank + 300, rank + 60])


def test_games_are_played_on_the_gpu_and_what_it_returns_is_checked(gpus: FakeCuda, tiny_data: Path):
    """The pretended GPU returns zeros: colorings of one color, which have more than no conflict."""
    play = [sys.executable, *command(gpus, tiny_data, rounds=100, self_play=1.0, games=4)]
    done = subprocess.run(play, env=gpus.environment(1), capture_output=True, text=True, timeout=280)
    expected = r"self-play on cuda:0: it returns a coloring with [1-9]\d* conflicts and counts 0: report it; "
    assert done.returncode == MachineError.exit_code and re.search(expected, done.stderr)


@pytest.mark.nightly
def test_a_training_on_a_gpu_that_is_stopped_goes_on_to_its_end(gpus: FakeCuda, tiny_data: Path):
    run, training = gpus.folder / "run", command(gpus, tiny_data)
    process = subprocess.Popen([sys.executable, *training], env=gpus.environment(1), cwd=tiny_runs.ROOT)
    tiny_runs.wait_for(lambda: (run / "metrics.jsonl").exists() and tiny_runs.metrics(run, "train"), process)
    process.terminate()
    assert process.wait(60) == STOPPED and 0 < (stopped := status(run))["step"] < 40 and stopped["status"] == "stopped"
    assert f"resuming at step {stopped['step']}" in gpus.run(*training) and status(run)["step"] == 40


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "precision"), [("T4", "float16"), ("B200", "bfloat16")])
def test_an_old_gpu_without_bf16_takes_fp16_and_a_new_one_bf16(gpus: FakeCuda, tiny_data: Path, kind, precision):
    assert [check["precision"] for check in train(gpus, tiny_data, 1, precision="auto", kind=kind)] == [precision]


def test_steps_and_evaluations_launch_few_kernels_without_waiting_and_pairs_are_crossed(gpus: FakeCuda, tiny_data):
    found = json.loads(gpus.run(fake_cuda.HERE / "steps.py", tiny_data, 100).splitlines()[-1])
    for part, limit in LAUNCHES.items():
        for name in ("syncs", "reads", "pageable copies", "problems"):
            assert found[part][name] == 0, (part, name)
        assert found[part]["launches"] <= limit and found[part]["searches"] == 1, part
    assert found["step"]["allocations"] == 0 and found["step"]["all-reduces"] == 1
    assert found["evaluation"]["streams"] == 2  # that of the host, and that of a launch
    assert found["children"] == [2, 5, 4]


def test_the_pretended_gpu_tells_what_reads_or_overwrites_memory_too_early(gpus: FakeCuda):
    said = gpus.run("-c", """if True:
        import torch
        host, back = torch.ones(1000).pin_memory(), torch.empty(8).pin_memory()
        there = host.to("cuda", non_blocking=True)
        back.copy_(there[:8], non_blocking=True)
        print(back.isnan().all().item())
        torch.cuda.synchronize()
        print(back.sum().item())
        host.to("cuda", non_blocking=True)
        host.zero_()
        torch.cuda.synchronize()
    """)  # fmt: skip
    assert said.split() == ["True", "8.0"]
    assert [log for log in gpus.logs() if "problem 1 times: memory was overwritten before it was copied" in log]
