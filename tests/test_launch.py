"""Ranks, real ones: what a launch returns, how it fails and stops, several machines, and the all-reduce before."""

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import tiny_runs
from ranks import rank
from tiny_runs import ROOT, assert_end, wait_for

import gnn_training.jobs.run as job
from gnn_training import processes
from gnn_training.distributed import Runtime
from gnn_training.errors import MachineError, TrainingError, UserError
from gnn_training.jobs.check import add_up, preflight
from gnn_training.jobs.train import train_rank
from gnn_training.processes import TIMED_OUT
from gnn_training.ranks import Nodes, launch, prepare_network
from gnn_training.settings import RankSettings, smoke

GROUP = {"NNODES": "3", "NODE_RANK": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "12345"}
WAITED = "^rank 0 has waited 2 s for another rank, which hangs or is stopped; look"
LAUNCHER = """
import sys
from gnn_training.ranks import launch
from ranks import rank
if __name__ == "__main__":
    print(launch(rank, sys.argv[1], 2))
"""
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    """The environment has these of the four, and no others."""
    for name in GROUP:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("variables", "nodes"),
    [
        (GROUP, Nodes(3, 2, "node0", 12345)),
        (GROUP | {"NODE_RANK": "0", "MASTER_PORT": ""}, Nodes(3, 0, "node0", 29500)),
        ({}, Nodes()),
        ({"NNODES": "1", "MASTER_PORT": "x", "NODE_RANK": "", "WORLD_SIZE": "8"}, Nodes()),
    ],
)
@pytest.mark.usefixtures("environ")
def test_four_variables_tell_which_machines_train_together(nodes: Nodes):
    assert Nodes.from_environment() == nodes


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        (GROUP | {"NODE_RANK": "3"}, "NODE_RANK (3) must be below NNODES (3)"),
        (GROUP | {"NODE_RANK": "-1"}, "NODE_RANK (-1) must be below NNODES (3)"),
        (GROUP | {"NODE_RANK": ""}, "one is missing or no number"),
        (GROUP | {"MASTER_PORT": "65536"}, "MASTER_PORT (65536) must be a number in 1..65535"),
        (GROUP | {"NNODES": "2:4"}, "'2:4'"),
        ({"NNODES": "3", "NODE_RANK": "0"}, "one is missing or no number: 'MASTER_ADDR'"),
    ],
)
@pytest.mark.usefixtures("environ")
def test_contradiction_is_refused_with_the_name_of_the_variable(words: str):
    with pytest.raises(UserError, match=re.escape(words)):
        Nodes.from_environment()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"NCCL_SOCKET_IFNAME": "ens1"}, "ens1"),
        ({"NCCL_SOCKET_IFNAME": "^lo,docker"}, None),
        ({"NCCL_SOCKET_IFNAME": "ens1", "GLOO_SOCKET_IFNAME": "eth0"}, "eth0"),
        ({}, None),
    ],
)
def test_gloo_takes_the_network_of_nccl(monkeypatch, given: dict[str, str], expected: str | None):
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_NVLS_ENABLE"):
        monkeypatch.setenv(name, "")  # so that what is set is undone
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    prepare_network()
    assert os.environ.get("GLOO_SOCKET_IFNAME") == expected and os.environ["NCCL_NVLS_ENABLE"] == "0"


@pytest.mark.slow
def test_launch_returns_the_first_result_and_shares_the_cores_out(monkeypatch):
    """Also where no GPU is visible."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "")  # so that what the launch sets is undone, too
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    assert launch(rank, "place", 2) == (0, "2", "3")


def test_single_rank_is_this_process():
    assert launch(lambda argument: (argument, os.getpid()), "x", 1) == ("x", os.getpid())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "error", "sentence"),
    [
        ("refuse", MachineError, "^no: not here$"),
        ("die", TrainingError, "^rank 1 was killed by signal 9, perhaps out of memory$"),
        ("come too late", TrainingError, WAITED),
        ("wait too long", TrainingError, WAITED),
        pytest.param("freeze", TrainingError, WAITED, marks=pytest.mark.nightly),  # elastic waits for it for 30 s
        ("fail", TrainingError, "^rank 1 failed: no link$"),
    ],
)
def test_rank_that_fails_ends_all_with_one_sentence_and_only_a_mistake_shows_its_traceback(
    capfd, what: str, error: type[UserError], sentence: str
):
    with pytest.raises(error, match=sentence):
        launch(rank, what, 2)
    out, err = capfd.readouterr()
    assert not out and err.count("Traceback") == err.count("ValueError: NCCL error") == (what == "fail")
    assert what in ("fail", "come too late") or not err  # torch warns of a socket


def start(folder: Path, what: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A launcher whose ranks do this, and the ranks' process numbers."""
    (folder / "launcher.py").write_text(LAUNCHER)
    launcher = subprocess.Popen(
        [sys.executable, folder / "launcher.py", what], env=ENVIRONMENT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, process_group=0,
    )  # fmt: skip
    assert launcher.stdout is not None
    return launcher, [int(launcher.stdout.readline().split()[1]) for _ in range(2)]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_signal_that_a_library_has_dropped_is_not_lost(monkeypatch, tiny_data: Path, num_ranks: int):
    monkeypatch.setattr(processes, "interrupts", [signal.SIGHUP])
    with pytest.raises(KeyboardInterrupt):
        launch(train_rank, tiny_runs.settings(tiny_data, Path("nowhere")), num_ranks)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["wait", "be frozen"])
def test_signal_reaches_the_ranks_and_their_result_is_returned_at_once(tmp_path: Path, what: str):
    launcher, ranks = start(tmp_path, what)
    if what == "be frozen":  # a signal that comes before a rank freezes would not wake it
        wait_for(lambda: any(") T " in Path(f"/proc/{pid}/stat").read_text() for pid in ranks))
    begun = time.monotonic()
    os.killpg(launcher.pid, signal.SIGINT)  # as a terminal sends it; test_ranks.py sends SIGTERM
    assert launcher.communicate(timeout=60) == ("stopped\n", "")
    assert launcher.returncode == 0 and time.monotonic() - begun < 25  # elastic would wait for 30 s
    assert_end(ranks)


@pytest.mark.slow
@pytest.mark.parametrize(("what", "signals", "code"), [("hang", [15, 15], 143), ("wait", [9], -9)])
def test_no_rank_outlives_a_second_signal_or_a_launcher_that_is_killed(tmp_path: Path, what, signals, code: int):
    launcher, ranks = start(tmp_path, what)
    for number in signals:
        launcher.send_signal(number)
        time.sleep(0.2)
    assert launcher.wait(timeout=60) == code
    assert_end(ranks)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_second_machine_trains_along_and_the_first_does_the_rest(tiny_data: Path, tmp_path: Path):
    """Two machines, which here are one, and a volume that they share."""
    values = tiny_runs.settings(tiny_data, tmp_path / "run", steps=4, batch_size=1).model_dump()
    settings = smoke().model_copy(update=values | {"models": tmp_path / "models", "oldest_runtime": False})
    (tmp_path / "settings.json").write_text(settings.model_dump_json())
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    group = {"NNODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    base = os.environ | group | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "gnn_training", "run", "--settings", tmp_path / "settings.json"]
    machines = []
    for number in ("1", "0"):  # the one that has to wait starts first
        with open(tmp_path / f"machine{number}.log", "w") as log:
            options = {"env": base | {"NODE_RANK": number}, "cwd": tmp_path, "stdout": log, "stderr": log}
            machines.append(subprocess.Popen(command, **options))
    second, first = machines

    def said(number: int) -> str:
        return (tmp_path / f"machine{number}.log").read_text()

    try:
        assert second.wait(timeout=400) == 0, said(0) + said(1)
        wait_for(lambda: "export ..." in said(0), first)  # which takes long, and is the same on one machine
        first.terminate()
        assert first.wait(timeout=60) == 143
    finally:
        for machine in machines:
            machine.kill()
    assert "machine 2 of 2: waiting for the graphs" in said(1) and "3/7 train: done after" in said(1)
    assert "3/7 train: done after" in said(0) and "4/7 export: stopped" in said(0)
    status = tiny_runs.status(tmp_path / "run")
    assert (status["status"], status["ranks"], status["step"]) == ("done", 2, 4)


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


@pytest.mark.parametrize(
    ("before", "results", "after", "cause"),
    [
        (None, [(0, "")], None, None),
        (None, [DEFAULT_FAILS, (0, "")], "0", None),
        ("1", [DEFAULT_FAILS], "1", "rank 1 failed: Cuda failure 1"),
        (None, [DEFAULT_FAILS] * 2, None, "rank 1 failed: Cuda failure 1"),
        (None, [(TIMED_OUT, "")] * 2, None, "no answer in time"),
        (None, [(3, "coloring-gnn: the sums are wrong\n")] * 2, None, "the sums are wrong"),
        (None, [(139, "")] * 2, None, "exit code 139"),
    ],
)
def test_nvls_is_switched_off_only_where_that_helps_and_nobody_has_set_it(
    before: str | None, results: list, after: str | None, cause: str | None, tmp_path: Path, monkeypatch, caplog
):
    tried: list[dict[str, str]] = []

    def run_python(_: list[str], errors: Path, variables: dict[str, str], limit: float) -> int:
        code, stderr = results[len(tried)]
        tried.append(variables)
        errors.write_text(stderr)
        return code

    monkeypatch.setenv("NCCL_NVLS_ENABLE", before or "")  # so that what the job sets is undone, too
    if not before:
        monkeypatch.delenv("NCCL_NVLS_ENABLE")
    for name in ("num_gpus", "num_expected_gpus"):
        monkeypatch.setattr(job.machine, name, lambda: 2)
    monkeypatch.setattr(job.processes, "run_python", run_python)
    (tmp_path / job.SETTINGS).mkdir()
    refused = rf"^the GPUs do not reach each other \({cause}\): take another host, .* NCCL_P2P_DISABLE=1, which"
    with pytest.raises(MachineError, match=refused) if cause else nullcontext():
        job._find_nccl_variables(smoke().model_copy(update={"run": tmp_path}), Nodes())
    assert tried == [{}, job.NVLS_OFF][: len(results)] and os.environ.get("NCCL_NVLS_ENABLE") == after
    assert ("NCCL: all-reduce fails: rank 1 failed: Cuda failure 1" in caplog.messages) == (results[0] == DEFAULT_FAILS)
