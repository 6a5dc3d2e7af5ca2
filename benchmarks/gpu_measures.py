"""What benchmarks/first_gpu.py measures on a GPU, each part in a process of its own.

python -m benchmarks.gpu_measures PART SETTINGS.json  # settings of `train`; the last line of the output is JSON
"""

import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path

import torch
from torch import Tensor
from torch._dynamo.utils import calculate_time_spent

from gnn_training import machine
from gnn_training.__main__ import PROGRAM
from gnn_training.console import set_up_logging
from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime, join
from gnn_training.errors import MachineError, UserError
from gnn_training.launch import gpus
from gnn_training.launch.ranks import launch
from gnn_training.settings import TrainSettings
from gnn_training.training.learner import Learner
from gnn_training.training.loader import GraphLoader, StepBatch
from gnn_training.training.loss import Batch
from gnn_training.training.searcher import GpuSearcher
from gnn_training.training.self_check import largest_step, self_check

GIB = 2**30
COPIES = 20  # of a GiB if there is room, to measure the bandwidth
PLANNED = 4  # steps that are repeated: their graphs are prepared once
WARM_UP = 11  # steps: in its first ten, DistributedDataParallel waits for the GPU
TIMED_SECONDS = 10.0  # of steps
BYTES_PER_PAIR = 12  # a round at least reads and writes `counts` and reads `until`, each float32


def describe(settings: TrainSettings) -> dict:
    """The machine, and how fast the GPU copies its own memory. Raises MachineError: there is no GPU."""
    if not gpus.num_gpus():
        raise MachineError(gpus.why_none())
    size = min(GIB, torch.cuda.mem_get_info()[0] // 4)
    source = torch.empty(size, dtype=torch.uint8, device="cuda")
    target, times = torch.empty_like(source), []
    for _ in range(COPIES):
        torch.cuda.synchronize()
        started = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return {
        "gpu": torch.cuda.get_device_name(),
        "gpus": gpus.num_gpus(),
        "listed": gpus.listing(),
        "driver": gpus.driver(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or torch.version.hip,
        "gpu_gib": torch.cuda.mem_get_info()[1] / GIB,
        "cores": machine.num_cores(),
        "memory_gib": machine.available_bytes() / GIB,
        "copied_gb_per_second": 2e-9 * size / min(times),  # read and written
    }


def compare(settings: TrainSettings) -> dict:
    """Loss terms of the same uncompiled steps on CPU and GPU, and the share of searches that end as on the CPU."""
    rows: list[dict] = []
    expected: list[Tensor] = []
    for device, precision in (("cpu", "fp32"), ("cuda", "fp32"), ("cuda", "bf16")):
        started = time.monotonic()
        terms, found = _learn(settings.model_copy(update={"device": device, "precision": precision}))
        expected = expected or found
        same = [(a == b).all(0).float().mean().item() for a, b in zip(found, expected, strict=True)]
        rows.append({"device": f"{device} {precision}", **terms, "same_in_first_step": same[0],
                     "same_in_all_steps": statistics.fmean(same), "seconds": time.monotonic() - started})  # fmt: skip
    return {"steps": settings.steps, "searches": sum(x.shape[1] for x in expected), "rows": rows}


def _learn(settings: TrainSettings) -> tuple[dict[str, float], list[Tensor]]:
    """Mean loss terms, and for every step the colors and conflicts (2, R) of its searches."""
    found = []
    with join(settings.device) as rt:
        loader, learner = _start(settings, rt)
        search = learner.search

        def note(weights: Tensor, batch: Batch, rounds: int) -> tuple[Tensor, Tensor]:
            result = search(weights, batch, rounds)
            is_graph = torch.tensor([len(lists.neighbours) > 0 for lists in batch.lists])  # no empty place
            found.append(torch.stack(result).cpu()[:, :, is_graph].flatten(1))
            return result

        learner.search = note
        for batch in islice(loader.starting_at(0), settings.steps):
            learner.update(batch)
        return learner.reduce(), found


def modes(settings: TrainSettings) -> dict:
    """What the self-check finds, and the seconds that it takes, of which torch's compiler takes some."""
    with join(settings.device) as rt:
        loader, learner = _start(settings, rt)
        started = time.monotonic()
        (check,) = self_check(learner, loader, rt)
        compilation = calculate_time_spent()["total_wall_time"]
        return {"seconds": time.monotonic() - started, "compilation": compilation, **check}


def steps(settings: TrainSettings) -> dict:
    """Speed and memory of steps."""
    try:
        return {"batch_size": settings.batch_size, **_speed(settings)}
    except MachineError as error:  # too little memory
        return {"batch_size": settings.batch_size, "problem": str(error)}


def _speed(settings: TrainSettings) -> dict:
    with join(settings.device) as rt:
        loader, learner = _start(settings, rt)
        assert isinstance(learner.search, GpuSearcher)
        learner.search.mode = "compiled" if settings.compile else "eager"
        planned, gaps = list(islice(loader.sampler, PLANNED)), []
        for number, step in enumerate(islice(cycle(planned), WARM_UP)):
            started = time.perf_counter()
            learner.update(loader.load(step, number))
            gaps.append(learner.reduce()["gap"])  # waits for the GPU
        one = time.perf_counter() - started
        timed = list(islice(cycle(planned), max(2, min(settings.steps, int(TIMED_SECONDS / one)))))
        loading, started = 0.0, time.perf_counter()
        for number, step in enumerate(timed, WARM_UP):
            before = time.perf_counter()
            batch = loader.load(step, number)
            loading += time.perf_counter() - before
            learner.update(batch)
        learner.reduce()
        seconds = time.perf_counter() - started
        shapes = [step.shape for step in timed]
        pairs = 2 * settings.rounds * sum(shape.graphs * shape.nodes * shape.colors for shape in shapes)
        costs = sum(bucket.steps * bucket.shape.cost for bucket in loader.sampler.buckets)
        return {
            "steps": len(timed),
            "graphs_per_step": statistics.fmean(step.num_graphs for step in timed),
            "ms_per_step": 1000 * seconds / len(timed),
            "ms_of_it_loading": 1000 * loading / len(timed),
            "searches_per_second": 2 * sum(step.num_graphs for step in timed) / seconds,
            "billion_pairs_per_second": 1e-9 * pairs / seconds,
            "gb_per_second": 1e-9 * BYTES_PER_PAIR * pairs / seconds,
            "peak_gib": torch.cuda.max_memory_reserved() / GIB,
            "gap": statistics.fmean(gaps),
            "steps_per_epoch": len(loader.sampler),
            "epoch_seconds": seconds * costs / sum(shape.cost for shape in shapes),
        }


def memory(settings: TrainSettings) -> dict:
    """What happens to the largest step if only a share of the memory that it takes is free."""
    return {"rows": [{"share_of_memory_free": share, "outcome": _outcome(settings, share)} for share in (0.7, 0.1)]}


def _outcome(settings: TrainSettings, share: float) -> str:
    gc.collect()  # an error before may still hold tensors
    torch.cuda.empty_cache()
    try:
        with join(settings.device) as rt:
            loader, learner = _start(settings, rt)
            step = loader.load(largest_step(loader), 0)
            _take(learner, step)  # loads kernels, whose memory stays
            need = _take(learner, step)
            torch.cuda.empty_cache()
            filled = math.ceil(torch.cuda.mem_get_info()[0] - share * need)
            ballast = torch.empty(filled, dtype=torch.uint8, device=rt.device)
            _take(learner, step)
            del ballast
            return "searched as before"
    except MachineError as error:
        return str(error)


def _take(learner: Learner, step: StepBatch) -> int:
    """Take a step; bytes that it needed besides what stays."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    learner.update(step)
    learner.reduce()
    return torch.cuda.max_memory_reserved() - before


def _start(settings: TrainSettings, rt: Runtime) -> tuple[GraphLoader, Learner]:
    return GraphLoader(settings, PackedGraphs.open(settings.data), rt), Learner(settings, rt)


PARTS: dict[str, Callable[[TrainSettings], dict]] = {
    part.__name__: part for part in (describe, compare, modes, steps, memory)
}

if __name__ == "__main__":
    set_up_logging()
    part, file = sys.argv[1:]
    try:
        print(json.dumps(launch(PARTS[part], TrainSettings(**json.loads(Path(file).read_text())), 1)))
    except UserError as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        sys.exit(error.exit_code)
