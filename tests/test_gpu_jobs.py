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
from fake_cuda import FakeCuda, status
from tiny_runs import ROOT

pytestmark = pytest.mark.slow  # several processes that load torch and compile for a GPU


def start(gpus: FakeCuda, command: str, settings, number: int = 2, **options) -> subprocess.Popen[str]:
    """Start a command on so many GPUs."""
    file = gpus.folder / f"{command}.json"
    file.write_text(settings.model_dump_json())
    arguments = [sys.executable, "-m", "gnn_training", command, "--settings", str(file)]
    environment = gpus.environment(number, **options)
    return subprocess.Popen(arguments, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def settings(data: Path, folder: Path, **changes):
    values = {"device": "cuda", "processes": 0, "rounds": 50, "checkpoint_every": 10, "log_every": 10}
    return tiny_runs.settings(**{"data": data, "run": folder / "run"} | values | changes)


def train(gpus: FakeCuda, data: Path, number: int, code: int = 0, options: dict | None = None, **changes) -> str:
    """Train on so many GPUs; return what was said."""
    process = start(gpus, "train", settings(data, gpus.folder, **changes), number, **(options or {}))
    said = process.communicate(timeout=280)[0]
    assert process.returncode == code, said
    return said


def used(gpus: FakeCuda) -> list[tuple[str, str]]:
    """Every rank and its only device."""
    ranks = [re.match(r"rank (\d)\ndevice (\d) launches \d+ peak \d+\n$", text) for text in gpus.logs()]
    assert all(ranks), gpus.logs()
    return sorted(each.groups() for each in ranks)


def test_an_old_gpu_without_bf16_takes_fp16_and_a_new_one_bf16(gpus: FakeCuda, tiny_data: Path):
    for kind, precision in ("T4", "float16"), ("B200", "bfloat16"):
        run = gpus.folder / kind
        train(gpus, tiny_data, 1, options={"kind": kind}, run=run, precision="auto", steps=5)
        assert [rank["precision"] for rank in status(run)["self_check"]] == [precision]


def test_a_rank_that_dies_ends_the_others_within_a_minute(gpus: FakeCuda, tiny_data: Path):
    job = start(gpus, "train", settings(tiny_data, gpus.folder, steps=10**6))
    metrics = gpus.folder / "run" / "metrics.jsonl"
    while not metrics.exists() or not metrics.read_text():
        assert job.poll() is None, job.communicate()[0]
        time.sleep(0.2)
    ranks = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True).stdout.split()
    victim = [pid for pid in ranks if "RANK=1" in Path(f"/proc/{pid}/environ").read_text().split("\0")]
    os.kill(int((victim or ranks[-1:])[0]), signal.SIGKILL)
    said = job.communicate(timeout=60)[0]
    assert job.returncode not in (0, 143)
    assert "was killed by signal 9" in said


def run_until(gpus: FakeCuda, number: int, sign: str, data: Path) -> tuple[int, str]:
    """Start run_multigpu.sh on so many GPUs and stop it when it says `sign`. Its exit code and what it said."""
    command = [
        ROOT / "run_multigpu.sh", "--preset", "smoke", "--steps", "50", "--data", data, "--log-every", "1",
        "--rounds", "20", "--validation-rounds", "20", "--run", gpus.folder / "run", "--models",
        gpus.folder / "models", "--no-oldest-runtime",
    ]  # fmt: skip
    environment = gpus.environment(number, GNN_VENV=sys.prefix)
    job = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = []
    for line in job.stdout:
        said.append(line)
        if sign in line:
            job.send_signal(signal.SIGTERM)
    return job.wait(), "".join(said)


@pytest.mark.nightly  # twelve processes that load torch; test_run.py does the whole job on a CPU
@pytest.mark.timeout(600)
def test_the_whole_job_up_to_the_export_can_be_stopped_and_continued(gpus: FakeCuda, tiny_data: Path):
    code, said = run_until(gpus, 2, "step 3/50", tiny_data)
    assert code == 143 and 3 <= status(gpus.folder / "run")["step"] < 50, said
    code, said = run_until(gpus, 2, "4/7 export ...", tiny_data)  # which needs no GPU
    assert code == 143 and "resuming at step" in said, said
    trained = status(gpus.folder / "run")
    assert (trained["status"], trained["step"], trained["ranks"]) == ("done", 50, 2)
    logs = gpus.logs()
    assert len(logs) >= 4 and not [text for text in logs if "problem" in text]


def test_eight_gpus_train_together_each_rank_on_its_own(gpus: FakeCuda, tiny_data: Path):
    train(gpus, tiny_data, 8, rounds=20, steps=5)
    assert used(gpus) == [(str(rank), str(rank)) for rank in range(8)]
    checks = status(gpus.folder / "run")["self_check"]
    assert [check["rank"] for check in checks] == list(range(8)) and all(check["peak_gib"] > 0 for check in checks)


def test_ranks_of_torchrun_that_see_all_gpus_take_one_each(gpus: FakeCuda, tiny_data: Path):
    file = gpus.folder / "train.json"
    file.write_text(settings(tiny_data, gpus.folder, steps=5).model_dump_json())
    result = gpus.run("-m", "torch.distributed.run", "--nproc-per-node", 2, "-m", "gnn_training", "train",
                      "--settings", file, "--run-folder", gpus.folder / "run", gpus=2)  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    assert used(gpus) == [("0", "0"), ("1", "1")]
