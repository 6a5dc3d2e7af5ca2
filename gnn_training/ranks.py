"""Start the ranks of a training: one process for each GPU of this machine, or for each core."""

import json
import logging
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gnn_training import machine, processes
from gnn_training.console import set_up_logging
from gnn_training.errors import MachineError, TrainingError, UserError
from gnn_training.settings import TrainSettings

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig

Argument = TypeVar("Argument")
Result = TypeVar("Result")
ERRORS: list[type[UserError]] = [UserError, *UserError.__subclasses__()]
MAX_CPU_RANKS = 8  # more ranks make the global batch larger, not the job shorter


def num_ranks(settings: TrainSettings) -> int:
    """The number of ranks on this machine: as requested, or (0) one per GPU, or one per core if there are no GPUs.
    MachineError if the settings ask for a GPU and there is none, or if torch can use fewer GPUs than expected.
    UserError if there are more ranks than GPUs.
    """
    requested, count = settings.ranks, 0 if settings.device == "cpu" else machine.num_gpus()
    is_for_gpus = settings.device == "cuda" or settings.gpus or settings.preset in ("single", "multi")
    if not count and is_for_gpus and settings.device != "cpu":
        raise MachineError(machine.why_no_gpu())
    if count and not 0 < requested <= count:
        if count < (expected := machine.num_expected_gpus()):
            ways = f"take another host, correct {machine.VISIBLE}, or go on with --ranks {count}"
            raise MachineError(f"there are {expected} GPUs and torch can use {count}: {ways}")
        if requested:
            message = f"ranks ({requested}) must not exceed the GPUs ({count}): lower it or take --device cpu"
            raise UserError(message)
    return requested or count or min(machine.num_cores(), MAX_CPU_RANKS)


def uses_gpus(settings: TrainSettings) -> bool:
    """Whether the ranks would run on GPUs here."""
    return settings.device != "cpu" and machine.num_gpus() > 0


def launch(function: Callable[[Argument], Result], argument: Argument, num_ranks: int) -> Result:
    """Call function(argument) in `num_ranks` processes of this machine; return the result of the first.

    A single rank runs in this process. Several ranks get the variables of torchrun (RANK, WORLD_SIZE, ...), so that
    torch.distributed can join the group. Signals to stop reach them, too. A UserError of a rank is raised here.
    TrainingError if a rank died or raised another error, whose traceback is printed. SystemExit if a signal has ended
    the ranks.
    """
    import torch

    if num_ranks == 1:
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(machine.num_cores())
        return function(argument)
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as in __main__, for callers from Python
    os.environ.setdefault("OMP_NUM_THREADS", str(machine.threads_per_rank(num_ranks)))
    with tempfile.TemporaryDirectory() as folder:
        start = elastic_launch(_config(num_ranks, folder), _run_rank)
        try:
            return start(os.getpid(), pickle.dumps((function, argument)))[0]
        except SignalException as error:
            raise SystemExit(128 + error.sigval) from None
        except ChildFailedError as error:
            raise _cause(error, Path(folder)) from None


def _run_rank(parent: int, call: bytes) -> object:
    processes.die_with_parent(parent)
    set_up_logging()
    function, argument = pickle.loads(call)
    return function(argument)


def _config(num_ranks: int, folder: str) -> "LaunchConfig":
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.utils.distributed import get_free_port
    from torch.distributed.launcher.api import LaunchConfig

    for name in ("torch.distributed.elastic", "torch.multiprocessing"):  # _cause tells in one sentence what they log
        logging.getLogger(name).propagate = False
        logging.getLogger(name).addHandler(logging.NullHandler())
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id="coloring-gnn",
        rdzv_backend="static",
        rdzv_endpoint=f"127.0.0.1:{get_free_port()}",
        rdzv_configs={"rank": 0},
        max_restarts=0,
        monitor_interval=0.05,
        logs_specs=DefaultLogsSpecs(log_dir=folder),
    )


def _cause(error: "ChildFailedError", folder: Path) -> UserError:
    """Return what ended the ranks: a UserError that one of them raised, otherwise how the first of them died."""
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
    return TrainingError(f"rank {rank} failed: {message['message'].splitlines()[0]}")
