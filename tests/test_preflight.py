"""The all-reduce before a training, with real ranks, and the ladder of NCCL's variables, with pretended failures."""

import logging
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_environment import ROOT

from gnn_training.distributed import Runtime
from gnn_training.errors import MachineError
from gnn_training.jobs.preflight import preflight
from gnn_training.launch import nccl
from gnn_training.launch.nccl import FALLBACKS, working_environment
from gnn_training.processes import TIMED_OUT, Supervisor
from gnn_training.settings import PreflightSettings

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
DOOR = ["-m", "--", "gnn_training", "preflight", "--device", "cpu", "--mebibytes", "4"]
NVLS = (
    "[rank1]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, unhandled cuda error\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\n"
    "Last error:\n"
    "Cuda failure 1 'invalid argument'\n"
)
WRONG_ON_RANK_1 = """
import sys
from gnn_training import runtime
from gnn_training.__main__ import main

right = runtime.Runtime.total
runtime.Runtime.total = lambda rt, x: right(rt, x).add_(rt.rank)
sys.exit(main(sys.argv[1:]))
"""
HANGS_WITH_NVLS = """
import os, sys, time
from gnn_training import processes
from gnn_training.__main__ import main

processes.die_with_parent_if_supervised()
if os.environ["RANK"] == "1" and os.environ.get("NCCL_NVLS_ENABLE") != "0":
    time.sleep(1000)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """None of the variables is set, and what is logged can be read."""
    for name in FALLBACKS[-1]:
        monkeypatch.delenv(name, raising=False)
    caplog.set_level(logging.INFO)


def torchrun(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *TORCHRUN, *command], cwd=ROOT, capture_output=True, text=True, timeout=200,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_two_ranks_add_up_and_rank_0_tells_the_bandwidth():
    done = torchrun(*DOOR)
    assert done.returncode == 0, done
    [line] = done.stdout.splitlines()
    rate = re.search(r"all-reduce of 4 MiB over 2 ranks: (\d+\.\d) GB/s of bus bandwidth$", line)
    assert float(rate[1]) > 0


def test_one_rank_alone_adds_up_too(caplog):
    preflight(PreflightSettings(device="cpu", mebibytes=1))
    assert "over 1 ranks: 0.0 GB/s" in caplog.text


def test_sum_that_is_wrong_on_one_rank_ends_all_of_them_in_one_sentence(tmp_path: Path):
    (tmp_path / "wrong.py").write_text(WRONG_ON_RANK_1)
    done = torchrun("--", str(tmp_path / "wrong.py"), *DOOR[3:])
    assert done.returncode == 1 and done.stdout == ""
    sentences = re.findall(r"^gnn_training: .*", done.stderr, re.MULTILINE)
    assert sentences == ["gnn_training: the ranks add up wrongly over 2 ranks: take another host"] * 2


@pytest.mark.slow
def test_ranks_that_hang_are_cut_and_the_next_rung_is_climbed(tmp_path: Path, caplog):
    (tmp_path / "hang.py").write_text(HANGS_WITH_NVLS)
    errors = tmp_path / "preflight.log"

    def attempt(variables: dict[str, str]) -> tuple[int, str]:
        command = [*TORCHRUN, "--", str(tmp_path / "hang.py"), *DOOR[3:]]
        environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}
        code = supervisor.run(command, errors, 150 if variables else 4, **environment)
        return code, errors.read_text()

    started = time.monotonic()
    with Supervisor() as supervisor:
        assert working_environment(attempt) == {"NCCL_NVLS_ENABLE": "0"}
    assert time.monotonic() - started < 154
    assert "all-reduce fails with no variables: no answer in time" in caplog.text
    assert "NCCL_NVLS_ENABLE=0 works and is kept for training" in caplog.text
    assert not _processes_with(str(tmp_path / "hang.py"))


def _processes_with(word: str) -> list[str]:
    """Command lines of the processes that hold it."""
    lines = [path.read_bytes().replace(b"\0", b" ").decode() for path in Path("/proc").glob("[0-9]*/cmdline")]
    return [line for line in lines if word in line]


class Machine:
    """A machine on which the preflight works with some variables only, and what was tried on it."""

    def __init__(self, needs: dict[str, str] | None, said: str = NVLS, code: int = 1):
        self.needs, self.failure, self.tried = needs, (code, said), []

    def attempt(self, variables: dict[str, str]) -> tuple[int, str]:
        self.tried.append(variables)
        works = self.needs is not None and self.needs.items() <= (os.environ | variables).items()
        return (0, "") if works else self.failure


@pytest.mark.parametrize("fallback", range(3))
def test_first_rung_that_works_is_kept(fallback: int, caplog):
    machine = Machine(needs=FALLBACKS[fallback])
    assert working_environment(machine.attempt) == FALLBACKS[fallback]
    assert machine.tried == list(FALLBACKS[: fallback + 1])
    assert ("SLOW" in caplog.text) == (fallback == 2)
    assert caplog.text.count("Cuda failure 1 'invalid argument'") == fallback


@pytest.mark.parametrize(
    ("variables", "fallbacks"),
    [
        ({"NCCL_NVLS_ENABLE": "0"}, [{}, {"NCCL_P2P_DISABLE": "1"}]),
        ({"NCCL_NVLS_ENABLE": "1"}, [{}, {"NCCL_P2P_DISABLE": "1"}]),
        ({"NCCL_P2P_DISABLE": "0"}, [{}, {"NCCL_NVLS_ENABLE": "0"}]),
        ({"NCCL_NVLS_ENABLE": "0", "NCCL_P2P_DISABLE": "1"}, [{}]),
    ],
)
def test_what_the_user_has_set_stays_and_no_rung_is_tried_twice(monkeypatch, variables, fallbacks):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    machine = Machine(needs=None)
    with pytest.raises(MachineError):
        working_environment(machine.attempt)
    assert machine.tried == fallbacks


@pytest.mark.parametrize(
    ("code", "said", "cause"),
    [
        (1, NVLS, "Cuda failure 1 'invalid argument'"),
        (TIMED_OUT, "", "no answer in time"),
        (1, "[rank0]:[E1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1", "no answer in time"),
        (1, "Last error:\nCuda failure 2 'out of memory'\n", "Cuda failure 2 'out of memory'"),  # NVLS too may say so
        (1, "[rank0]: RuntimeError: Connection closed by peer\n", "RuntimeError: Connection closed by peer"),
        (1, "gnn_training: the ranks add up wrongly over 8 ranks: take another host\n", "the ranks add up wrongly"),
        (139, "", "exit code 139"),
    ],
)
def test_machine_on_which_nothing_helps_is_refused_with_the_last_reason(code: int, said: str, cause: str):
    machine = Machine(needs=None, said=said, code=code)
    with pytest.raises(
        MachineError, match=rf"^the GPUs do not reach each other \({cause}.*\): take another host, or one"
    ):
        working_environment(machine.attempt)
    assert machine.tried == list(FALLBACKS)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
         "the fabric manager of this host does not run"),
        ("Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 18000\n",
         "two processes were given one GPU"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB", "another program uses a GPU"),
        ("torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
         "torch has no code for this kind of GPU"),
        ("gnn_training: rank 1 has no GPU: there are 1, lower --processes\n", "rank 1 has no GPU: there are 1"),
    ],
)  # fmt: skip
def test_ladder_is_not_climbed_where_no_variable_helps(said: str, sentence: str):
    machine = Machine(needs=None, said=said)
    with pytest.raises(MachineError, match=f"^{sentence}"):
        working_environment(machine.attempt)
    assert machine.tried == [{}]


def test_links_that_carry_nothing_are_not_taken_for_right(monkeypatch):
    monkeypatch.setattr(Runtime, "total", lambda rt, x: x.zero_())
    with pytest.raises(MachineError, match=nccl.WRONG_SUM):
        preflight(PreflightSettings(device="cpu", mebibytes=1))
