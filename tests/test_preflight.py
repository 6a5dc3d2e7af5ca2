"""The all-reduce before a training, with real ranks, and the NCCL fallbacks, with pretended failures."""

import logging
import os
import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gnn_training.distributed import Runtime
from gnn_training.errors import MachineError
from gnn_training.jobs.preflight import add_up, preflight
from gnn_training.launch import nccl
from gnn_training.launch.nccl import FALLBACKS, working_variables
from gnn_training.launch.ranks import launch
from gnn_training.processes import TIMED_OUT, run_python
from gnn_training.settings import RankSettings

ROOT = Path(__file__).parents[1]
NVLS = (
    "Traceback (most recent call last):\n"
    "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, unhandled cuda error\n"
    "Last error:\n"
    "Cuda failure 1 'invalid argument'\n"
    "coloring-gnn: rank 1 failed: Cuda failure 1 'invalid argument'\n"
)
HANGS_WITH_NVLS = """
import os, time
from test_preflight import add_up
from gnn_training.launch.ranks import launch

def hang(device):
    if os.environ["RANK"] == "1" and os.environ.get("NCCL_NVLS_ENABLE") != "0":
        time.sleep(1000)
    return add_up(device)

if __name__ == "__main__":
    launch(hang, "cpu", 2)
"""


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """None of the variables is set, shared memory is large, and what is logged can be read."""
    for name in FALLBACKS[-1]:
        monkeypatch.delenv(name, raising=False)
    set_shm(monkeypatch, 1024)
    caplog.set_level(logging.INFO)


def set_shm(monkeypatch: pytest.MonkeyPatch, mib: int) -> None:
    """Have /dev/shm so many MiB."""
    monkeypatch.setattr(shutil, "disk_usage", {"/dev/shm": SimpleNamespace(total=mib * 2**20)}.__getitem__)


@pytest.mark.slow
def test_two_ranks_add_up_and_the_bandwidth_is_logged(caplog):
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


def test_sum_that_is_zero_is_wrong(monkeypatch):
    monkeypatch.setattr(Runtime, "total", lambda rt, x: x.zero_())
    with pytest.raises(MachineError, match=nccl.WRONG_SUM):
        add_up("cpu")


def test_one_rank_alone_adds_up_too():
    assert add_up("cpu") > 0
    assert not torch.distributed.is_initialized()


@pytest.mark.slow
def test_ranks_that_hang_are_killed_and_the_next_fallback_is_tried(tmp_path: Path, caplog, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests'}")
    (tmp_path / "hang.py").write_text(HANGS_WITH_NVLS)
    errors = tmp_path / "preflight.log"

    def attempt(variables: dict[str, str]) -> tuple[int, str]:
        code = run_python([str(tmp_path / "hang.py")], errors, variables, limit=150 if variables else 10)
        return code, errors.read_text()

    started = time.monotonic()
    assert working_variables(attempt) == {"NCCL_NVLS_ENABLE": "0"}
    assert time.monotonic() - started < 160
    assert "all-reduce fails with no variables: no answer in time" in caplog.text
    assert "works only with NCCL_NVLS_ENABLE=0" in caplog.text
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert not [line for line in lines if str(tmp_path).encode() in line]


class Machine:
    """A machine on which the preflight works with some variables only, and what was tried on it."""

    def __init__(self, needs: dict[str, str] | None, stderr: str = NVLS, code: int = 5):
        self.needs, self.failure, self.tried = needs, (code, stderr), []

    def attempt(self, variables: dict[str, str]) -> tuple[int, str]:
        self.tried.append(variables)
        works = self.needs is not None and self.needs.items() <= (os.environ | variables).items()
        return (0, "") if works else self.failure


@pytest.mark.parametrize("fallback", range(4))
def test_first_fallback_that_works_is_kept(fallback: int, caplog):
    machine = Machine(needs=FALLBACKS[fallback])
    assert working_variables(machine.attempt) == FALLBACKS[fallback]
    assert machine.tried == list(FALLBACKS[: fallback + 1])
    assert ("through the CPU, SLOW: take another host" in caplog.text) == (fallback == 2)
    assert ("through the network, SLOW: take another host" in caplog.text) == (fallback == 3)
    assert caplog.text.count("rank 1 failed: Cuda failure 1 'invalid argument'") == fallback


def test_small_shared_memory_is_named_where_nccl_works_only_without_it(monkeypatch, caplog):
    set_shm(monkeypatch, 64)
    working_variables(Machine(needs=FALLBACKS[2]).attempt)
    assert "shm" not in caplog.text
    working_variables(Machine(needs=FALLBACKS[3]).attempt)
    assert "SLOW: start the container with --shm-size=1g (/dev/shm has 64 MiB), or take another host" in caplog.text


def test_small_shared_memory_is_named_where_nothing_helps(monkeypatch):
    set_shm(monkeypatch, 64)
    with pytest.raises(
        MachineError, match=r": start the container with --shm-size=1g \(/dev/shm has 64 MiB\), or take"
    ):
        working_variables(Machine(needs=None).attempt)


@pytest.mark.parametrize(
    ("variables", "fallbacks"),
    [
        ({"NCCL_NVLS_ENABLE": "0", "NCCL_SHM_DISABLE": "0"}, [{}, {"NCCL_P2P_DISABLE": "1"}]),
        ({"NCCL_NVLS_ENABLE": "1", "NCCL_SHM_DISABLE": "0"}, [{}, {"NCCL_P2P_DISABLE": "1"}]),
        ({"NCCL_P2P_DISABLE": "0", "NCCL_SHM_DISABLE": "0"}, [{}, {"NCCL_NVLS_ENABLE": "0"}]),
        ({"NCCL_NVLS_ENABLE": "0", "NCCL_P2P_DISABLE": "1"}, [{}, {"NCCL_SHM_DISABLE": "1"}]),
        (FALLBACKS[-1], [{}]),
    ],
)
def test_what_the_user_has_set_stays_and_no_fallback_is_tried_twice(monkeypatch, variables, fallbacks):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    machine = Machine(needs=None)
    with pytest.raises(MachineError):
        working_variables(machine.attempt)
    assert machine.tried == fallbacks


@pytest.mark.parametrize(
    ("code", "stderr", "cause"),
    [
        (5, NVLS, "rank 1 failed: Cuda failure 1 'invalid argument'"),
        (TIMED_OUT, "", "no answer in time"),
        (5, "[rank0]:[E1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1", "no answer in time"),
        (5, "coloring-gnn: rank 0 failed: Cuda failure 2 'out of memory'\n", "rank 0 failed: Cuda failure 2 'out of"),
        (3, "coloring-gnn: the ranks add up wrongly over 8 ranks: take another host\n", "the ranks add up wrongly"),
        (139, "", "exit code 139"),
    ],
)
def test_machine_on_which_nothing_helps_is_refused_with_the_last_cause(code: int, stderr: str, cause: str):
    machine = Machine(needs=None, stderr=stderr, code=code)
    refused = rf"^the GPUs do not reach each other \({re.escape(cause)}.*\): take another host, or one"
    with pytest.raises(MachineError, match=refused):
        working_variables(machine.attempt)
    assert machine.tried == list(FALLBACKS)


@pytest.mark.parametrize(
    ("code", "stderr", "sentence"),
    [
        (5, "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
         "the fabric manager of this host does not run"),
        (5, "Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 18000\n",
         "two processes were given one GPU"),
        (5, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB", "another program uses a GPU"),
        (5, "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 64.00 MiB", "another program uses a GPU"),
        (5, "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
         "torch has no code for this kind of GPU"),
        (5, "torch.AcceleratorError: HIP error: invalid device function", "torch has no code for this kind of GPU"),
        (3, "coloring-gnn: rank 1 has no GPU: there are 1, lower --processes\n", "rank 1 has no GPU: there are 1"),
    ],
)  # fmt: skip
def test_fallbacks_are_not_tried_if_no_variable_helps(code: int, stderr: str, sentence: str):
    machine = Machine(needs=None, stderr=stderr, code=code)
    with pytest.raises(MachineError, match=f"^{sentence}"):
        working_variables(machine.attempt)
    assert machine.tried == [{}]
