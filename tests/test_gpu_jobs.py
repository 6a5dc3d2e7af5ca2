"""Trainings on pretended GPUs: every rank on its own. test_first_gpu.py stops and continues a whole job there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_runs
from fake_cuda import FakeCuda
from tiny_runs import status

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # several processes that load torch and compile for a GPU
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", 2)


def train(gpus: FakeCuda, data: Path, number: int, launcher: tuple = (), precision: str = "fp32", **options) -> dict:
    """Train on so many GPUs; what each rank says about itself."""
    values = {"device": "cuda", "processes": 0, "rounds": 20, "steps": 5, "precision": precision}
    file = gpus.folder / "train.json"
    file.write_text(tiny_runs.settings(data, gpus.folder / "run", **values).model_dump_json())
    command = map(str, (sys.executable, *launcher, "-m", "gnn_training", "train", "--settings", file))
    done = subprocess.run([*command], env=gpus.environment(number, **options), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return status(gpus.folder / "run")["self_check"]


@pytest.mark.parametrize(("number", "launcher"), [(2, TORCHRUN), pytest.param(8, (), marks=pytest.mark.nightly)])
def test_gpus_train_together_each_rank_on_its_own(gpus: FakeCuda, tiny_data: Path, number: int, launcher: tuple):
    """Also where ranks of torchrun see all of them."""
    checks = train(gpus, tiny_data, number, launcher)
    ranks = [re.match(r"rank (\d)\ndevice (\d) launches \d+ peak \d+\n$", text) for text in gpus.logs()]
    assert all(ranks), gpus.logs()
    assert sorted(each.groups() for each in ranks) == [(str(rank), str(rank)) for rank in range(number)]
    assert [check["rank"] for check in checks] == list(range(number)) and all(check["peak_gib"] > 0 for check in checks)


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "precision"), [("T4", "float16"), ("B200", "bfloat16")])
def test_an_old_gpu_without_bf16_takes_fp16_and_a_new_one_bf16(gpus: FakeCuda, tiny_data: Path, kind, precision):
    assert [check["precision"] for check in train(gpus, tiny_data, 1, precision="auto", kind=kind)] == [precision]
