"""What benchmarks/first_gpu.py measures on a GPU, each part in a process of its own; and the speed of steps anywhere.

python -m benchmarks.gpu_measures PART SETTINGS.json  # settings of `train`; the last line of the output is JSON
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gnn_training import machine
from gnn_training.__main__ import PROGRAM
from gnn_training.console import set_up_logging
from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime, in_group
from gnn_training.errors import MachineError, UserError
from gnn_training.ranks import launch
from gnn_training.search.batches import Searcher, search_on_cpu, searcher_for
from gnn_training.settings import TrainSettings
from gnn_training.training.learner import Learner
from gnn_training.training.loader import GraphBatch, GraphLoader
from gnn_training.training.monitor import Monitor
from gnn_training.training.self_check import self_check

GIB = 2**30
COPIES = 20  # of a GiB if there is room, to measure the bandwidth
WARM_UP = 11  # steps: in its first ten, DistributedDataParallel waits for the GPU
TIMED_SECONDS, MOST_STEPS = 10.0, 10**6  # of steps
SIZES = 5  # of graphs, from the smallest to the largest
GPU_SEARCHES, CORE_SEARCHES = 528, 8  # at the same time on a GPU, and for each core


def describe(settings: TrainSettings) -> dict:
    """The machine, and how fast the GPU copies its own memory. Raises MachineError: there is no GPU."""
    if not machine.num_gpus():
        raise MachineError(machine.why_no_gpu())
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
        "gpus": machine.num_gpus(),
        "listed": machine.output_of("nvidia-smi", "-L"),
        "driver": machine.gpu_driver(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or torch.version.hip,
        "gpu_gib": torch.cuda.mem_get_info()[1] / GIB,
        "cores": machine.num_cores(),
        "memory_gib": machine.available_bytes() / GIB,
        "copied_gb_per_second": 2e-9 * size / min(times),  # read and written
    }


def compare(settings: TrainSettings) -> dict:
    """Loss terms of the same steps on CPU and GPU, and the share of searches that end as on the CPU."""
    rows: list[dict] = []
    expected: list[Tensor] = []
    for device, precision in (("cpu", "fp32"), ("cuda", "fp32"), ("cuda", "bf16")):
        started = time.monotonic()
        terms, results = _learn(settings.model_copy(update={"device": device, "precision": precision}))
        expected = expected or results
        same = [(a == b).all(0).float().mean().item() for a, b in zip(results, expected, strict=True)]
        rows.append({"device": f"{device} {precision}", **terms, "same_in_first_step": same[0],
                     "same_in_all_steps": statistics.fmean(same), "seconds": time.monotonic() - started})  # fmt: skip
    return {"steps": settings.steps, "searches": sum(x.shape[1] for x in expected), "rows": rows}


@in_group
def _learn(settings: TrainSettings, rt: Runtime) -> tuple[dict[str, float], list[Tensor]]:
    """Mean loss terms, and for every step the colors and conflicts (2, R) of its searches."""
    results = []
    loader, learner = _start(settings, rt)
    search = learner.search

    def note(weights: Tensor, batch: GraphBatch, rounds: int) -> tuple[Tensor, Tensor]:
        result = search(weights, batch, rounds)
        results.append(torch.stack(result).cpu().flatten(1))
        return result

    learner.search = note
    for batch in islice(loader.starting_at(0), settings.steps):
        learner.update(batch)
    return learner.reduce(), results


@in_group
def rounds(settings: TrainSettings, rt: Runtime) -> dict:
    """The self-check, and rounds per second of the GPU and of the cores of this machine on graphs of five sizes."""
    loader, learner = _start(settings, rt)
    started, rows = time.perf_counter(), []
    (check,) = self_check(learner, loader, rt)
    results = {"seconds_of_self_check": time.perf_counter() - started, **check, "cores": machine.num_cores()}
    torch.set_num_threads(machine.num_cores())
    data, ids = loader.dataset.data, loader.sampler.indices
    by_size = ids[np.argsort(data.num_nodes[ids], kind="stable")]
    for i in by_size[np.linspace(0, len(ids) - 1, SIZES).astype(int)]:
        row = {"nodes": int(data.num_nodes[i]), "colors_of_dsatur": int(data.dsatur_colors[i])}
        for name, search, count in (("gpu", learner.search, GPU_SEARCHES), ("cores", search_on_cpu, CORE_SEARCHES)):
            graphs = count * (1 if name == "gpu" else machine.num_cores()) // 2
            batch = loader.dataset.batch(np.full(graphs, i), graphs)
            batch = replace(batch, lower=torch.ones_like(batch.lower))  # so that no search ends early
            weights = learner.network.rule.detach().expand(2, graphs, -1).contiguous()
            search(weights, batch, 1)[0].tolist()
            started = time.perf_counter()
            search(weights, batch, settings.rounds)[0].tolist()  # waits for the GPU
            row[f"{name}_rounds_per_second"] = 2 * graphs * settings.rounds / (time.perf_counter() - started)
        rows.append(row)
    return results | {"rows": rows}


@in_group
def steps(settings: TrainSettings, rt: Runtime, seconds: float = TIMED_SECONDS, slowdown: float = 1.0) -> dict:
    """Speed and memory of `settings.steps`, or of as many as take so many seconds if these are fewer or it is 0.
    slowdown: times as long as it would take rank 0 to search.
    """
    if rt.device.type == "cpu":
        torch.set_num_threads(1)  # a rank is a core, as where there are as many ranks as cores
    loader, learner = _start(settings, rt)
    monitor = Monitor(slowed(learner.search, slowdown) if rt.is_main else learner.search, rt)
    learner.search = monitor.search
    batches = loader.starting_at(0)
    for batch in islice(batches, len(loader.sampler) + WARM_UP):  # an epoch first: every graph is prepared once
        started = time.perf_counter()
        learner.update(batch)
        learner.reduce()  # waits for the GPU
    one = time.perf_counter() - started
    if rt.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    count = rt.broadcast(max(2, min(settings.steps or MOST_STEPS, int(seconds / one))))
    monitor.restart()
    graphs, started = 0, time.perf_counter()
    for batch in islice(batches, count):
        learner.update(batch)
        graphs += batch.num_graphs
    learner.reduce()
    taken = time.perf_counter() - started
    return {
        "batch_size": settings.batch_size,
        "seconds": taken,
        "waiting": monitor.report(taken)["waiting_share"],
        "steps": count,
        "ms_per_step": 1000 * taken / count,
        "searches_per_second": 2 * graphs / taken,
        "peak_gib": torch.cuda.max_memory_reserved() / GIB if rt.device.type == "cuda" else 0.0,
    }


def slowed(search: Searcher, factor: float) -> Searcher:
    """The same searches, in `factor` times the time."""

    def slow(weights: Tensor, batch: GraphBatch, rounds: int) -> tuple[Tensor, Tensor]:
        started = time.monotonic()
        results = search(weights, batch, rounds)
        time.sleep((factor - 1) * (time.monotonic() - started))
        return results

    return search if factor == 1 else slow


def speed_by_ranks(
    settings: TrainSettings, ranks: Sequence[int], seconds: float, slowdown: float = 1.0, price_per_hour: float = 0.0
) -> list[dict]:
    """Speed of the same steps, on the same graphs, on each number of ranks: the most ranks have batches of
    `settings.batch_size` graphs and take so many seconds. slowdown: of rank 0 where there are several;
    price_per_hour: of a machine with as many GPUs as the most ranks.
    """
    most, rows = max(ranks), list[dict]()
    for count in sorted(ranks, reverse=True):
        batches = {name: getattr(settings, name) * most // count for name in ("batch_size", "batch_states")}
        limits = {"steps": rows[0]["steps"], "warmup_steps": 1} if rows else {}
        measure = partial(steps, seconds=1e6 if rows else seconds, slowdown=slowdown if count > 1 else 1.0)
        rows.append({"ranks": count, **launch(measure, settings.model_copy(update=batches | limits), count)})
    fewest = rows[-1]
    for row in rows:
        row["speed_up"] = row["searches_per_second"] / fewest["searches_per_second"]
        row["efficiency"] = row["speed_up"] * fewest["ranks"] / row["ranks"]
        row["cost"] = row["seconds"] / 3600 * price_per_hour * row["ranks"] / most
    return rows[::-1]


def ranks(settings: TrainSettings) -> dict:
    """The speed of 1, 2, 4 .. ranks, one on every GPU of this machine."""
    counts = [count for count in (1, 2, 4, 8) if count <= machine.num_gpus()]
    return {"rows": speed_by_ranks(settings, counts, TIMED_SECONDS)}


def _start(settings: TrainSettings, rt: Runtime) -> tuple[GraphLoader, Learner]:
    data = PackedGraphs.open(settings.data)
    loader, search = GraphLoader(settings, data, rt), searcher_for(data, rt.device)
    return loader, Learner(settings, search, rt, settings.num_steps(loader.sampler.graphs_per_step))


PARTS: dict[str, Callable[[TrainSettings], dict]] = {
    part.__name__: partial(launch, part, num_ranks=1) for part in (describe, compare, rounds, steps)
} | {"ranks": ranks}

if __name__ == "__main__":
    set_up_logging()
    part, file = sys.argv[1:]
    try:
        print(json.dumps(PARTS[part](TrainSettings(**json.loads(Path(file).read_text())))))
    except UserError as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        sys.exit(error.exit_code)
