"""The all-reduce before a training, with real ranks, and what is tried if it fails."""

import logging
import os
import re
from pathlib import Path

import pytest

import gnn_training.jobs.run as job
from gnn_training.distributed import Runtime
from gnn_training.errors import MachineError
from gnn_training.jobs.preflight import add_up, preflight
from gnn_training.launch.ranks import Nodes, launch
from gnn_training.processes import TIMED_OUT
from gnn_training.settings import RankSettings, smoke

DEFAULT_FAILS = (5, "Traceback ...\nCuda failure 1 'invalid argument'\ncoloring-gnn: rank 1 failed: Cuda failure 1\n")


@pytest.mark.slow
def test_two_ranks_add_up_and_the_bandwidth_is_logged(caplog):
    caplog.set_level(logging.INFO)
    preflight(RankSettings(device="cpu", processes=2))
    [rate] = re.findall(r"all-reduce of 64 MiB over 2 ranks: (\d+\.\d) GB/s of bus bandwidth", caplog.text)
    assert float(rate) > 0


def add_up_wrongly(device: str) -> float:
    """As one of two ranks, get other sums on rank 1."""
    right = Runtime.total
    Runtime.total = lambda rt, x: right(rt, x).add_(rt.rank)
    return add_up(device)


@pytest.mark.slow
def test_sum_that_is_wrong_on_one_rank_ends_all_of_them_in_one_sentence(capfd):
    with pytest.raises(MachineError, match="^the ranks add up wrongly over 2 ranks: take another host$"):
        launch(add_up_wrongly, "cpu", 2)
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def gpu_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """gpu_machine(results): two GPUs whose preflights end like these, one after the other; what was tried."""
    monkeypatch.setattr(job.gpus, "num_gpus", lambda: 2)
    monkeypatch.setattr(job.gpus, "num_expected", lambda: 2)
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "")  # so that what the job sets is undone, too
    monkeypatch.delenv("NCCL_NVLS_ENABLE")

    (tmp_path / job.SETTINGS).mkdir()

    def gpu_machine(*results: tuple[int, str]) -> list[dict[str, str]]:
        tried: list[dict[str, str]] = []

        def run_python(_: list[str], errors: Path, variables: dict[str, str], limit: float) -> int:
            code, stderr = results[len(tried)]
            tried.append(variables)
            errors.write_text(stderr)
            return code

        monkeypatch.setattr(job.processes, "run_python", run_python)
        return tried

    return gpu_machine


def find_nccl_variables(folder: Path) -> None:
    job._find_nccl_variables(smoke().model_copy(update={"run": folder}), Nodes())


def test_nvls_is_switched_off_only_where_the_gpus_do_not_reach_each_other_with_it(gpu_machine, tmp_path: Path, caplog):
    tried = gpu_machine((0, ""))
    find_nccl_variables(tmp_path)
    assert tried == [{}] and "NCCL_NVLS_ENABLE" not in os.environ
    tried = gpu_machine(DEFAULT_FAILS, (0, ""))
    find_nccl_variables(tmp_path)
    assert tried == [{}, job.NVLS_OFF] and os.environ["NCCL_NVLS_ENABLE"] == "0"
    assert "NCCL: all-reduce fails: rank 1 failed: Cuda failure 1" in caplog.text


def test_what_the_user_has_set_stays(gpu_machine, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    tried = gpu_machine(DEFAULT_FAILS)
    with pytest.raises(MachineError):
        find_nccl_variables(tmp_path)
    assert tried == [{}] and os.environ["NCCL_NVLS_ENABLE"] == "1"


@pytest.mark.parametrize(
    ("result", "cause"),
    [
        (DEFAULT_FAILS, "rank 1 failed: Cuda failure 1"),
        ((TIMED_OUT, ""), "no answer in time"),
        ((3, "coloring-gnn: the ranks add up wrongly over 8 ranks: take another host\n"), "the ranks add up wrongly"),
        ((139, ""), "exit code 139"),
    ],
)
def test_machine_whose_gpus_do_not_reach_each_other_is_refused_with_the_cause_and_what_to_set(
    gpu_machine, tmp_path: Path, result: tuple[int, str], cause: str
):
    gpu_machine(result, result)
    refused = rf"^the GPUs do not reach each other \({cause}.*\): take another host, .* NCCL_P2P_DISABLE=1, which"
    with pytest.raises(MachineError, match=refused):
        find_nccl_variables(tmp_path)
