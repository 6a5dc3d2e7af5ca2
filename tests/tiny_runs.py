"""Trainings of a second or two, in processes that are real but have torch loaded before they begin."""

import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist

from gnn_training.data import packed
from gnn_training.data.families import FAMILIES, draw
from gnn_training.data.label import label, long_search
from gnn_training.data.labelling import split
from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime
from gnn_training.errors import UserError
from gnn_training.graph import Instance
from gnn_training.jobs.train import train
from gnn_training.network.network import ColoringNetwork
from gnn_training.settings import Settings, TrainSettings
from gnn_training.training import checkpoint
from gnn_training.training.logbook import read_metrics

ROOT = Path(__file__).parents[1]
# A server that has loaded everything once forks in a tenth of a second; python -m gnn_training loads for four.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["gnn_training.jobs.train", "torch.utils.tensorboard", __name__])


def write_data(folder: Path, graphs: int = 24) -> PackedGraphs:
    """Labelled graphs: half of them random, where DSATUR takes too many colors, the others small ones of many families,
    most of them easy. Of 24, 19 are for training, 11 of them not easy, and 5 for validation, 2 of them not easy.
    """
    names = tuple(FAMILIES)
    easy = [draw(0, names[i % len(names)], i, 6 + i % 13) for i in range(graphs // 2)]
    hard = [draw(1, "er_dense", i, 36 + i) for i in range(graphs - len(easy))]
    return pack(folder, [*hard, *easy])


def pack(folder: Path, instances: Sequence[Instance]) -> PackedGraphs:
    """Labelled after a short search, each with a long search by an untrained rule."""
    torch.manual_seed(0)
    rule, rows, families = ColoringNetwork().rule.detach().numpy(), [], (*FAMILIES, "imported")
    for instance in instances:
        known = long_search(label(instance, 1000, 1.0, seed=0), instance.graph, rule, seed=0)
        rows.append(packed.row(instance, known, families))
    tensors = packed.join(rows)
    tensors["split"] = split(tensors["num_nodes"], tensors["family"], seed=0)
    folder.mkdir(parents=True, exist_ok=True)
    return packed.write(folder, tensors, families, {"made by": __name__})


def poisoned(data: Path) -> PackedGraphs:
    """These graphs with labels that make every loss NaN."""
    graphs = PackedGraphs.open(data)
    graphs.reached = graphs.tensors["reached"] = np.full_like(graphs.reached, -2)  # whose logarithm is NaN
    return graphs


def settings(data: Path, run: Path, **changes) -> TrainSettings:
    """Forty steps, three to an epoch, a checkpoint after each, an evaluation after every seventh and the last."""
    values = {
        "steps": 40, "precision": "fp32", "warmup_steps": 2, "learning_rate": 2e-3, "rounds": 100, "batch_size": 4,
        "evaluate_every": 7, "validation_rounds": 50, "checkpoint_every": 1, "log_every": 1, "ranks": 1,
        "weights": None, "self_play": 0.0,
    }  # fmt: skip
    return TrainSettings(data=data, run=run, **({"device": "cpu"} | values | changes))


def git(folder: Path, *arguments: str) -> str:
    """What git prints, for a user of no machine."""
    who = ["-c", "user.name=me", "-c", "user.email=me@localhost", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", folder, *who, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def status(run: Path) -> dict:
    """What a training says about itself at its end."""
    return json.loads((run / "status.json").read_text())


def metrics(run: Path, kind: str = "") -> list[dict]:
    """Records of a training so far, all or those of one kind."""
    return [record for record in read_metrics(run / "metrics.jsonl") if kind in ("", record["kind"])]


def records(run: Path) -> list[dict]:
    """Records of a training without what a clock decides."""
    clock = ("graphs_per_second", "seconds_left", "search_share", "gradient_share", "waiting_share")
    return [{k: v for k, v in line.items() if k not in clock} for line in metrics(run)]


def newest(run: Path) -> dict:
    return checkpoint.load_newest(run / "checkpoints")


def assert_same_run(run: Path, reference: Path) -> None:
    """Final state, best weights and every record are the same, bit for bit, but for clocks, paths and when to stop."""
    other = ("/run", "/data", "seconds", "minutes", "patience", "checkpoint_every", "keep", "_from")
    for a, b in ((newest(run), newest(reference)), (checkpoint.load(run), checkpoint.load(reference))):
        assert [name for name in differences(a, b) if not name.endswith(other)] == []
    assert records(run) == records(reference)
    assert status(run)["status"] == "done"


def last_step(run: Path) -> int:
    return max((record["step"] for record in metrics(run)), default=0)


def reached(run: Path, step: int, seconds: float = 0.0) -> bool:
    """Whether a step is recorded, told some time later."""
    if last_step(run) < step:
        return False
    time.sleep(seconds)
    return True


def start_command(command: str, settings: Settings, launcher: Sequence[str] = (), **options) -> subprocess.Popen:
    """Start `python -m gnn_training COMMAND` with these settings; launcher: such as torchrun, in front of it."""
    file = os.memfd_create("settings")  # in memory, so that nothing is left in a folder
    os.write(file, settings.model_dump_json().encode())
    path = f"/proc/{os.getpid()}/fd/{file}"
    arguments = [sys.executable, *(launcher or ["-m", "gnn_training"]), command, "--settings", path]
    return subprocess.Popen(arguments, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, **options)


def fork(function: Callable, *args) -> BaseProcess:
    """Start `function` in a process of its own."""
    process = FORKS.Process(target=function, args=args, daemon=True)
    process.start()
    return process


def marked(mark: str) -> dict[int, str]:
    """Command lines of the processes that have this in their environment."""
    name, value = mark.split("=")
    found = psutil.process_iter(["cmdline", "environ"])
    return {p.pid: " ".join(p.info["cmdline"]) for p in found if (p.info["environ"] or {}).get(name) == value}


def assert_end(pids: Sequence[int]) -> None:
    """These processes end soon; one whose parent does not ask for its exit code stays as a zombie."""

    def lives(pid: int) -> bool:
        with suppress(FileNotFoundError, ProcessLookupError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        return False

    wait_for(lambda: not any(map(lives, pids)), seconds=30)


def wait_for(
    condition: Callable[[], object], process: subprocess.Popen | BaseProcess | None = None, seconds: float = 250
) -> None:
    """Until it holds. A process that has to live until then does."""
    deadline = time.monotonic() + seconds
    while not condition():
        ended = process.poll() if isinstance(process, subprocess.Popen) else process and process.exitcode
        assert ended is None and time.monotonic() < deadline, ended
        time.sleep(0.002)


def interrupt(settings: TrainSettings, number: int, moment: Callable[[], bool], function: Callable = train) -> int:
    """Train and send it a signal at the moment; its exit code."""
    process = fork(function, settings)
    wait_for(moment, process)
    os.kill(process.pid, number)
    process.join()
    return process.exitcode


def finish(function: Callable, *args) -> int:
    """Run `function` in a process of its own; its exit code."""
    process = fork(function, *args)
    process.join()
    return process.exitcode


def refusal(settings: TrainSettings) -> str:
    """The UserError of a training."""
    with pytest.raises(UserError) as refused:
        train(settings)
    return str(refused.value)


def in_group(size: int, function: Callable, *args) -> list:
    """What function(rt, *args) returns on every rank of a gloo group, each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(size, FORKS) as pool:
        members = [pool.submit(_member, f"{folder}/store", rank, size, function, args) for rank in range(size)]
        return [member.result() for member in members]


def _member(store: str, rank: int, size: int, function: Callable, args: tuple) -> object:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    result = function(Runtime(rank, size, torch.device("cpu")), *args)
    dist.destroy_process_group()
    return result


def assert_same_steps(a: torch.Tensor, b: torch.Tensor, first: torch.Tensor) -> None:
    """Weights after the same steps. By the norm: where a gradient is near 0, Adam makes a step of its last bits."""
    assert (a - b).norm() < 1e-3 * (b - first).norm()


def differences(a: object, b: object, name: str = "") -> list[str]:
    """Names of all that is not bit for bit the same in two states."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [found for key in a for found in differences(a[key], b[key], f"{name}/{key}")]
    same = torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b
    return [] if same else [name]


@contextmanager
def full_disk(size: int = 1000) -> Iterator[None]:
    """No file can be longer than so many bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def interrupted(seconds: float) -> Iterator[None]:
    """A signal comes after so many seconds, and ends the block as Ctrl-C does."""
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGALRM, previous)
