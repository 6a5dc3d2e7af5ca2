"""Searches on GPUs, beside those on the cores."""

import logging
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec

from gnn_training import machine
from gnn_training.errors import MachineError, UserError
from gnn_training.files import reason
from gnn_training.search.engine import ExtraWorker, Worker

log = logging.getLogger(__name__)
ROUNDS = 1_500  # rounds of a child: many islands that exchange parents need fewer than one island, see docs/LOG.md
GROUPS = 2  # groups of islands on a GPU, each with a thread: the GPU searches for one while the other thread works


def chosen_gpus(which: str) -> tuple[int, ...]:
    """Compile the kernels for the GPUs that `which` names (`all`, `none`, or numbers such as 0,1), and return their
    numbers. UserError or MachineError if there are no such GPUs, or if they cannot be used.
    """
    if which == "none":
        return ()
    if which != "all" and not all(number.isdecimal() for number in which.split(",")):
        raise UserError(f"gpus ({which}) must be all, none, or numbers of GPUs such as 0,1")
    if not machine.may_have_gpus():
        raise UserError("there is no GPU here: leave out --gpus")
    if not find_spec("numba_cuda"):
        raise UserError("--gpus needs the package numba-cuda: pip install numba-cuda, or leave out --gpus")
    if not (count := machine.num_gpus()):
        raise MachineError(f"{machine.why_no_gpu()}, or leave out --gpus")
    import torch

    if torch.version.hip:
        raise UserError("--gpus needs GPUs of NVIDIA: leave it out, and the cores color")
    numbers = range(count) if which == "all" else sorted({int(number) for number in which.split(",")})
    if max(numbers) >= count:
        raise UserError(f"gpus ({which}) are counted from 0, and there are {count}: name lower ones")
    from gnn_training.search.gpu_islands import compile_children

    log.info("GPUs %s: their first use compiles the search, which takes a minute", ", ".join(map(str, numbers)))
    for gpu in numbers:
        compile_children(torch.device("cuda", gpu))
    return tuple(numbers)


def on_gpus(gpus: Sequence[int]) -> list[ExtraWorker]:
    """The groups of islands on these GPUs, each as a search for a thread."""
    failed = set[int]()
    return [partial(_color, gpu=gpu, failed=failed) for gpu in gpus for _ in range(GROUPS)]


def _color(worker: Worker, gpu: int, failed: set[int]) -> None:
    """Run a group of islands until the search is over. failed: GPUs with a logged error; the cores go on."""
    import torch

    from gnn_training.search.gpu_islands import IslandBatch

    worker.method, device = f"crossover search on GPU {gpu}", torch.device("cuda", gpu)
    try:
        with IslandBatch.on_stream([worker.lists], worker.search.trained.crossover, device) as batch:
            count = batch.capacity([int(worker.search.best.max())])
            batch.search([(0, worker)], count, count, ROUNDS)
    except Exception as error:  # whatever torch, numba and the driver raise
        if gpu not in failed:
            failed.add(gpu)
            log.warning("GPU %d colors no more, the cores go on: %s", gpu, reason(error))
