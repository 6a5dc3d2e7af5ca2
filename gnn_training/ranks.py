"""Start the ranks of a training: spawned processes on this machine, and together with those of other machines."""

import json
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gnn_training import machine, processes
from gnn_training.console import set_up_logging
from gnn_training.errors import MachineError, TrainingError, UserError
from gnn_training.settings import RankSettings

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig

Argument = TypeVar("Argument")
Result = TypeVar("Result")
ERRORS: list[type[UserError]] = [UserError, *UserError.__subclasses__()]
MAX_CPU_RANKS = 8  # more ranks make the global batch larger, not the job shorter


@dataclass(frozen=True)
class Nodes:
    """The machines that train together, and the place of this one among them. The first one has rank 0."""

    count: int = 1
    rank: int = 0
    address: str = "127.0.0.1"
    port: int = 29500

    @classmethod
    def from_environment(cls) -> "Nodes":
        """Read NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT; without NNODES, this machine is alone. Raises UserError:
        torchrun has started this process; or a variable is missing or does not fit.
        """
        for name in {"RANK", "LOCAL_RANK"} & os.environ.keys():
            raise UserError(f"{name} is set: start this once per machine and without torchrun")
        if os.environ.get("NNODES", "1") in ("", "1"):
            return ALONE
        try:
            count, rank = int(os.environ["NNODES"]), int(os.environ["NODE_RANK"])
            nodes = cls(count, rank, os.environ["MASTER_ADDR"], int(os.environ.get("MASTER_PORT") or cls.port))
        except (KeyError, ValueError) as error:
            names = "NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT"
            raise UserError(f"several machines need {names}, and one is missing or no number: {error}") from error
        if not 0 <= rank < count:
            raise UserError(f"NODE_RANK ({rank}) must be below NNODES ({count}): number the machines from 0")
        if not 0 < nodes.port < 2**16:
            raise UserError(f"MASTER_PORT ({nodes.port}) must be a number in 1..65535: name a free port")
        return nodes


ALONE = Nodes()


def num_ranks(settings: RankSettings) -> int:
    """Return the number of ranks on this machine: as asked, or (0) one per GPU, or one per core if there are no GPUs.
    Raises MachineError: there is no GPU where device or preset ask for one, or torch can use fewer than were named or
    are here. UserError: more processes than GPUs.
    """
    requested, count = settings.processes, 0 if settings.device == "cpu" else machine.num_gpus()
    is_for_gpus = settings.device == "cuda" or settings.gpus or getattr(settings, "preset", "") in ("single", "multi")
    if not count and is_for_gpus and settings.device != "cpu":
        raise MachineError(machine.why_no_gpu())
    if count and not 0 < requested <= count:
        if count < (expected := machine.num_expected_gpus()):
            ways = f"take another host, correct {machine.VISIBLE}, or go on with --processes {count}"
            raise MachineError(f"there are {expected} GPUs and torch can use {count}: {ways}")
        if requested:
            message = f"processes ({requested}) must not exceed the GPUs ({count}): lower it or take --device cpu"
            raise UserError(message)
    return requested or count or min(machine.num_cores(), MAX_CPU_RANKS)


def on_gpus(settings: RankSettings) -> bool:
    """Return whether the ranks would run on GPUs here."""
    return settings.device != "cpu" and machine.num_gpus() > 0


def launch(function: Callable[[Argument], Result], argument: Argument, num_ranks: int, nodes: Nodes = ALONE) -> Result:
    """Call function(argument) in `num_ranks` processes here and on the other nodes; return the first result from here.

    A single rank runs in this process. Others have the variables that torchrun sets (RANK, WORLD_SIZE, ...), so that
    torch.distributed can join the group; a signal to stop reaches them as SIGTERM, and a second signal kills them.

    Raises UserError: what a rank raised. TrainingError: a rank died or raised something else, whose traceback is
    printed. SystemExit: a signal ended the ranks before they could handle it.
    """
    import torch

    if num_ranks * nodes.count == 1:
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(machine.num_cores())
        return function(argument)
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    os.environ.setdefault("OMP_NUM_THREADS", str(machine.threads_per_rank(num_ranks)))
    if nodes.count > 1:
        prepare_network()
    with tempfile.TemporaryDirectory() as folder:
        start = elastic_launch(_config(num_ranks, nodes, folder), _run_rank)

        def start_ranks() -> dict[int, Result]:
            with processes.blocks_signals(signal.SIGINT):  # which reaches the whole process group in a terminal
                return start(os.getpid(), pickle.dumps((function, argument)))

        # The main thread handles signals.
        with _forwarded_signals() as received, ThreadPoolExecutor(1) as pool:
            try:
                results = pool.submit(start_ranks).result()
            except ChildFailedError as error:
                if received:
                    raise SystemExit(128 + received[0]) from None
                raise _cause(error, Path(folder)) from None
            except DistError as error:
                place = f"{nodes.address}:{nodes.port}"
                raise MachineError(f"the {nodes.count} machines did not meet at {place} ({error})") from None
    return results[min(results)]


def prepare_network() -> None:
    """Set the variables that several machines need, unless they are set."""
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # if only some of the machines can do it, all wait forever
    if (interface := os.environ.get("NCCL_SOCKET_IFNAME", "")).isalnum():  # gloo knows no lists and patterns
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def _run_rank(parent: int, call: bytes) -> object:
    processes.die_with_parent(parent)
    set_up_logging()
    function, argument = pickle.loads(call)
    return function(argument)


def _config(num_ranks: int, nodes: Nodes, folder: str) -> "LaunchConfig":
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    for name in ("torch.distributed.elastic", "torch.multiprocessing"):  # they log what _cause tells in one sentence
        logging.getLogger(name).propagate = False
        logging.getLogger(name).addHandler(logging.NullHandler())
    return LaunchConfig(
        min_nodes=nodes.count,
        max_nodes=nodes.count,
        nproc_per_node=num_ranks,
        run_id="coloring-gnn",
        rdzv_backend="static",
        rdzv_endpoint=f"{nodes.address}:{nodes.port if nodes.count > 1 else _free_port()}",
        rdzv_configs={"rank": nodes.rank},
        max_restarts=0,
        monitor_interval=0.05,
        logs_specs=DefaultLogsSpecs(log_dir=folder),
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextmanager
def _forwarded_signals() -> Iterator[list[int]]:
    """Pass signals to stop on to the ranks as SIGTERM, later ones as SIGKILL; the body gets a list of them."""
    received: list[int] = []

    def forward(number: int, _frame: object) -> None:
        received.append(number)
        ranks = [rank.pid for rank in multiprocessing.active_children() if rank.pid]
        if not ranks:  # this machine still waits for the others
            os._exit(128 + number)
        # A rank that is frozen gets nothing before it continues.
        for each in (signal.SIGTERM, signal.SIGCONT) if len(received) == 1 else (signal.SIGKILL,):
            for rank in ranks:
                with suppress(ProcessLookupError):
                    os.kill(rank, each)

    before = processes.handle_stop_signals(forward)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _cause(error: "ChildFailedError", folder: Path) -> UserError:
    """What ended the ranks: what one of them raised for the user, otherwise how the first of them died."""
    messages = [json.loads(file.read_text())["message"]["message"] for file in folder.rglob("error.json")]
    for kind in ERRORS:
        for message in messages:
            if message.startswith(f"{kind.__name__}: "):
                return kind(message.partition(": ")[2])
    rank, failure = error.get_first_failure()
    if failure.exitcode < 0:
        return TrainingError(f"rank {rank} was killed by signal {-failure.exitcode}, perhaps out of memory")
    message = failure.error_file_data["message"]
    if not isinstance(message, dict):
        return TrainingError(f"rank {rank} ended with exit code {failure.exitcode}")
    sys.stderr.write(message["extraInfo"]["py_callstack"])
    before, _, last = message["message"].partition("Last error:\n")  # NCCL puts the cause last
    return TrainingError(f"rank {rank} failed: {(last or before).splitlines()[0]}")
