"""Whole jobs on pretended GPUs: every rank on its own, all alike, and one sentence for whatever fails."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_runs
from fake_cuda import FakeCuda
from tiny_runs import ROOT, metrics, status

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # several processes that load torch and compile for a GPU
nightly = pytest.mark.nightly  # what one GPU and two ranks of torchrun do is tested in CI, and the rest there on a CPU


def start(gpus: FakeCuda, *launcher: object, number: int, options: dict | None = None) -> subprocess.Popen[str]:
    """Start a program on so many GPUs."""
    pipes = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen([*map(str, launcher)], env=gpus.environment(number, **(options or {})), **pipes)


def train(
    gpus: FakeCuda, data: Path, number: int, launcher: tuple = (), options: dict | None = None, **changes
) -> subprocess.Popen[str]:
    """Start a training on so many GPUs."""
    values = {"device": "cuda", "processes": 0, "rounds": 20, "checkpoint_every": 10, "log_every": 10, "steps": 5}
    settings = tiny_runs.settings(**{"data": data, "run": gpus.folder / "run"} | values | changes)
    file = gpus.folder / "train.json"
    file.write_text(settings.model_dump_json())
    command = (sys.executable, *launcher, "-m", "gnn_training", "train", "--settings", file)
    return start(gpus, *command, number=number, options=options)


def finish(job: subprocess.Popen[str]) -> None:
    said = job.communicate(timeout=280)[0]
    assert job.returncode == 0, said


def assert_each_on_its_own(gpus: FakeCuda, number: int) -> None:
    """Every rank used the device of its number, and no other."""
    ranks = [re.match(r"rank (\d)\ndevice (\d) launches \d+ peak \d+\n$", text) for text in gpus.logs()]
    assert all(ranks), gpus.logs()
    assert sorted(each.groups() for each in ranks) == [(str(rank), str(rank)) for rank in range(number)]


def test_ranks_of_torchrun_that_see_all_gpus_take_one_each(gpus: FakeCuda, tiny_data: Path):
    finish(train(gpus, tiny_data, 2, ("-m", "torch.distributed.run", "--nproc-per-node", 2)))
    assert_each_on_its_own(gpus, 2)


@nightly
def test_eight_gpus_train_together_each_rank_on_its_own(gpus: FakeCuda, tiny_data: Path):
    finish(train(gpus, tiny_data, 8))
    assert_each_on_its_own(gpus, 8)
    checks = status(gpus.folder / "run")["self_check"]
    assert [check["rank"] for check in checks] == list(range(8)) and all(check["peak_gib"] > 0 for check in checks)


@nightly
@pytest.mark.parametrize(("kind", "precision"), [("T4", "float16"), ("B200", "bfloat16")])
def test_an_old_gpu_without_bf16_takes_fp16_and_a_new_one_bf16(gpus: FakeCuda, tiny_data: Path, kind, precision):
    finish(train(gpus, tiny_data, 1, options={"kind": kind}, precision="auto"))
    assert [rank["precision"] for rank in status(gpus.folder / "run")["self_check"]] == [precision]


@nightly
def test_a_rank_that_dies_ends_the_others_within_a_minute(gpus: FakeCuda, tiny_data: Path):
    job = train(gpus, tiny_data, 2, steps=10**6)
    while not metrics(gpus.folder / "run"):
        assert job.poll() is None, job.communicate()[0]
        time.sleep(0.2)
    ranks = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True).stdout.split()
    victim = [pid for pid in ranks if "RANK=1" in Path(f"/proc/{pid}/environ").read_text().split("\0")]
    os.kill(int((victim or ranks[-1:])[0]), signal.SIGKILL)
    said = job.communicate(timeout=60)[0]
    assert job.returncode not in (0, 143) and "was killed by signal 9" in said


@nightly
def test_the_whole_job_up_to_the_export_can_be_stopped_and_continued(gpus: FakeCuda, tiny_data: Path):
    run, said = gpus.folder / "run", ""
    flags = ("--preset", "smoke", "--steps", 50, "--data", tiny_data, "--log-every", 1, "--rounds", 20)
    flags += ("--validation-rounds", 20, "--run", run, "--models", gpus.folder / "models", "--no-oldest-runtime")
    for sign in ("step 3/50", "4/7 export ..."):  # the export needs no GPU
        job = start(gpus, ROOT / "run_multigpu.sh", *flags, number=2, options={"GNN_VENV": sys.prefix})
        for line in job.stdout:
            said += line
            if sign in line:
                job.send_signal(signal.SIGTERM)
        assert job.wait() == 143, said
    assert "resuming at step" in said
    trained = status(run)
    assert (trained["status"], trained["step"], trained["ranks"]) == ("done", 50, 2)
    assert len(gpus.logs()) >= 4 and not [text for text in gpus.logs() if "problem" in text]
