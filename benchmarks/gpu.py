"""Measure the GPUs of this machine, part by part; the last two parts measure the cores where there is no GPU.

    python -m benchmarks.gpu --data FOLDER --out runs/gpu

Every part runs in a process of its own: one that fails says why, and the others go on. The folder --out gets the page
gpu.md and the numbers gpu.json, both written after every row, so that a killed command keeps what it has measured.
"""

import inspect
import json
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from torch.utils.benchmark import Timer

from gnn_training import files, machine
from gnn_training.console import as_text, markdown_table, set_up_logging
from gnn_training.contract import SHIPPED_MODEL
from gnn_training.data.packed import PackedGraphs, evenly_spaced
from gnn_training.distributed import Runtime, in_group
from gnn_training.errors import MachineError, UserError
from gnn_training.network.network import initial_rule
from gnn_training.onnx_program.session import Model
from gnn_training.processes import die_with_parent
from gnn_training.ranks import launch
from gnn_training.search.crossover import GENERATION
from gnn_training.search.search_kernel import search_child
from gnn_training.settings import PresetName, TrainSettings, from_preset
from gnn_training.training.loader import DeviceDataset
from gnn_training.training.self_check import MIN_AGREEMENT, self_check
from gnn_training.training.trainer import prepare, searcher_for

log = logging.getLogger("gnn_training")
GIB = 2**30
COPIES = 20  # copies, of a GiB if there is room, to measure the bandwidth
COMPARED_CHILDREN = 64  # most children of a generation that are compared
COMPARED = {"steps": 20, "rounds": 500, "batch_size": 24, "warmup_steps": 1}  # seconds of a few cores
MAX_DIFFERENCE = 0.1  # between the mean gaps on GPU and CPU
NUM_SIZES = 5  # sizes of graphs, from the smallest to the largest
GPU_SEARCHES, CORE_SEARCHES = 528, 8  # at the same time on a GPU, and for each core
BATCHES = 1 / 8, 1 / 2, 1, 4  # sizes of batches, as multiples of the preset's
WARM_UP = 11  # steps: in its first ten, DistributedDataParallel waits for the GPU
Row = dict[str, Any]  # column: number or text


@dataclass(frozen=True)
class Options:
    """What to measure, and where to leave it."""

    data: Path
    """Folder of packed graphs, such as `coloring-gnn generate --recipe cpu` writes."""
    out: Path = Path("runs/gpu")
    """Folder for the page and the numbers, without results of an earlier measurement."""
    parts: tuple[str, ...] = ("machine", "agreement", "rounds", "children", "step", "ranks")
    """Parts to measure, in this order."""
    preset: PresetName | None = None
    """Settings of the training; None takes single, or cpu where there is no GPU."""
    seconds: float = 10.0
    """Time of the steps of one measurement."""
    minutes: float = 10.0
    """Longest time of a part."""
    ranks: tuple[int, ...] = (1, 2, 4, 8)
    """Numbers of ranks in `ranks`, as far as there are so many GPUs, or else cores."""
    price_per_hour: float = 0.0
    """Price of a machine with as many GPUs as the most ranks."""

    def training(self, **changes: Any) -> TrainSettings:
        """Settings of the preset."""
        preset = self.preset or ("single" if machine.num_gpus() else "cpu")
        return from_preset(TrainSettings, preset, data=self.data).model_copy(update=changes)


def require_gpu() -> None:
    """Raise MachineError if there is no GPU."""
    if not machine.num_gpus():
        raise MachineError(machine.why_no_gpu())


def describe(options: Options) -> Iterator[Row]:
    """Hardware and versions. *copied GB per second* is the bandwidth of the GPU's memory: the best of 20 copies of a
    GiB, read and written.
    """
    require_gpu()
    size = min(GIB, torch.cuda.mem_get_info()[0] // 4)
    source = torch.empty(size, dtype=torch.uint8, device="cuda")
    copy = Timer("target.copy_(source)", globals={"source": source, "target": torch.empty_like(source)})
    facts = {
        "GPU": torch.cuda.get_device_name(),
        "GPUs": machine.num_gpus(),
        "GiB of a GPU": torch.cuda.mem_get_info()[1] / GIB,
        "copied GB per second": 2e-9 * size / min(copy.timeit(1).mean for _ in range(COPIES)),
        "driver": machine.gpu_driver(),
        "CUDA or ROCm": torch.version.cuda or torch.version.hip,
        "torch": torch.__version__,
        "cores": machine.num_cores(),
        "GiB of memory free": machine.available_bytes() / GIB,
    }
    yield from ({"": name, "found": value} for name, value in facts.items())


def compare(options: Options) -> Iterator[Row]:
    """Whether the GPU searches and learns as the CPU does. *same searches* is the share of 128 searches of 200 rounds
    that end with the colors and conflicts of the CPU; below 98% the part fails. The other columns are means of the same
    20 steps: *gap*, colors above the best known, which may differ by 0.1 in fp32 because rounding may send a search
    another way; the other terms of the loss; and norms of the gradients.
    """
    gaps = []
    for device, precision in (("cpu", "fp32"), ("cuda", "fp32"), ("cuda", "bf16")):
        terms = _learn(options.training(**COMPARED, device=device, precision=precision))
        gaps.append(terms["gap"])
        yield {"device": f"{device} {precision}", **terms}
    if not abs(gaps[1] - gaps[0]) <= MAX_DIFFERENCE:  # nor NaN
        raise MachineError(f"the mean gap is {gaps[1]:.2f} on the GPU and {gaps[0]:.2f} on the CPU: report it")


@in_group
def _learn(settings: TrainSettings, rt: Runtime) -> Row:
    """The self-check, and mean loss terms of the steps."""
    loader, _, learner = prepare(settings, PackedGraphs.open(settings.data), rt)
    checks = self_check(learner, loader, rt)
    for batch in islice(loader.starting_at(0), settings.steps):
        learner.update(*batch)
    return {"same searches": checks[0]["agreement"] if checks else None, **learner.means()}


def rounds_by_size(options: Options) -> Iterator[Row]:
    """Rounds of searches per second on graphs of five sizes: of one GPU that searches one graph 528 times at once, and
    of all cores together. *colors* are those of DSATUR; *cores replaced* is how many cores search as fast as the GPU.
    """
    require_gpu()
    data, rounds, cores = PackedGraphs.open(options.data), options.training().rounds, machine.num_cores()
    torch.set_num_threads(cores)
    ways = [(device, DeviceDataset(data, device), searcher_for(data, device), searches) for device, searches in
            ((torch.device("cuda"), GPU_SEARCHES), (torch.device("cpu"), CORE_SEARCHES * cores))]  # fmt: skip
    for i in graphs_of_sizes(data):
        speeds = []
        for device, dataset, search, searches in ways:
            batch = dataset.graphs(np.full(searches, i), searches)
            batch = replace(batch, lower=torch.ones_like(batch.lower))  # so that no search ends early
            weights = initial_rule().expand(1, searches, -1).contiguous().to(device)
            search(weights, batch, 1)[0].tolist()  # compiles
            started = time.perf_counter()
            search(weights, batch, rounds)[0].tolist()  # waits for the GPU
            speeds.append(searches * rounds / (time.perf_counter() - started))
        yield {"nodes": int(data.num_nodes[i]), "edges": int(data.num_edges[i]), "colors": int(data.dsatur_colors[i]),
               "GPU": speeds[0], "cores": speeds[1], "cores replaced": cores * speeds[0] / speeds[1]}  # fmt: skip


def children_by_size(options: Options) -> Iterator[Row]:
    """Generations of `color --gpus` on graphs of the same five sizes, from nothing, with four fifths of the *colors* of
    DSATUR. *same children* is the share of a generation of 500 rounds that the CPU makes, too: below 98% the part
    fails. *children per second* is of whole generations, *crossed per second* of pairs of them.
    """
    require_gpu()
    from gnn_training.search.gpu_crossover import BatchedCrossover
    from gnn_training.search.gpu_searches import ChildSearcher

    model, device, rng = Model(SHIPPED_MODEL, 1), torch.device("cuda", 0), np.random.default_rng(0)
    data = PackedGraphs.open(options.data)
    for i in graphs_of_sizes(data):
        lists, n, k = data.graph(i).csr(), int(data.num_nodes[i]), max(2, 4 * int(data.dsatur_colors[i]) // 5)
        searcher = ChildSearcher([lists], device)
        crossover = BatchedCrossover(searcher, [lists], model.trained.crossover)
        count = max(2, searcher.capacity([k]) // 2 * 2)
        graph, ks, starts = np.zeros(count, int), np.full(count, k), np.full((count, n), -1)
        seeds, rules = rng.integers(2**31, size=count), np.tile(model.rule, (count, 1))
        generation = partial(searcher, graph, ks, starts, seeds, rules)
        rows = generation(COMPARED["rounds"]).colors.cpu().numpy()  # compiles
        same = np.mean(
            [np.array_equal(row, search_child(lists, starts[0], k, model.rule, COMPARED["rounds"], seed)[0])
             for row, seed in zip(rows[:COMPARED_CHILDREN], seeds, strict=False)]
        )  # fmt: skip
        started = time.perf_counter()
        children = [each.long().view(-1, 2, n) for each in generation(GENERATION)[1:]]
        torch.cuda.synchronize()
        middle = time.perf_counter()
        zeros = torch.zeros(count // 2, dtype=torch.long, device=device)
        crossover(zeros, zeros + k, *children, torch.ones(count // 2, 2, dtype=torch.bool, device=device)).cpu()
        yield {"nodes": n, "colors": k, "same children": float(same),
               "children per second": count / (middle - started),
               "crossed per second": count / 2 / (time.perf_counter() - middle)}  # fmt: skip
        if same < MIN_AGREEMENT:
            raise MachineError(f"only {same:.0%} of the children of graph {i} are those of the CPU: report it")


def graphs_of_sizes(data: PackedGraphs) -> list[int]:
    """Places of training graphs of five sizes."""
    ids = data.indices("train")
    ids = ids[np.argsort(data.num_nodes[ids], kind="stable")]
    return ids[evenly_spaced(len(ids), NUM_SIZES)].tolist()


def step_by_batch(options: Options) -> Iterator[Row]:
    """Whole training steps of one GPU, or core, with four sizes of batches, which few graphs do not fill. *rounds per
    second* are those of all searches in the whole time; *search* is the share of it that searches take, *busy* the
    share in which the driver says that the GPU runs; *peak GiB* is what torch has reserved. Train with the
    `--batch-size` that has the most searches per second.
    """
    for factor in BATCHES:
        size = max(1, int(factor * options.training().batch_size))
        measure = partial(timed_steps, seconds=options.seconds)
        yield {"batch size": size, **launch(measure, options.training(batch_size=size), 1)}


def steps_by_ranks(options: Options) -> Iterator[Row]:
    """The same steps on the same graphs on 1 to N ranks, each on a GPU, or else on a core. *batch size* is that of a
    rank; *waiting* is the mean share of the time in which ranks wait for the slowest; *speed-up* is against the fewest
    ranks, *efficiency* its share of the ideal, *cost* that of these steps at `--price-per-hour`.
    """
    counts = sorted(count for count in options.ranks if count <= (machine.num_gpus() or machine.num_cores()))
    first: Row = {}
    for count in counts:
        settings = options.training()
        sizes = {name: getattr(settings, name) * counts[-1] // count for name in ("batch_size", "batch_states")}
        limits = {"steps": first["steps"], "warmup_steps": 1} if first else {}
        seconds = 1e6 if first else options.seconds * counts[-1] / count  # the most ranks take about options.seconds
        measure = partial(timed_steps, seconds=seconds)
        row = launch(measure, settings.model_copy(update=sizes | limits), count)
        first = first or {**row, "ranks": count}
        speed_up = row["searches per second"] / first["searches per second"]
        cost = row["seconds"] / 3600 * options.price_per_hour * count / counts[-1] if options.price_per_hour else None
        yield {"ranks": count, "batch size": sizes["batch_size"], **row, "speed-up": speed_up,
               "efficiency": speed_up * first["ranks"] / count, "cost": cost}  # fmt: skip


@in_group
def timed_steps(settings: TrainSettings, rt: Runtime, seconds: float) -> Row:
    """Speed and memory of `settings.steps` steps, or of those that fit into the seconds if fewer or if it is 0."""
    if rt.device.type == "cpu":
        torch.set_num_threads(1)  # a rank takes one core, as if there were a rank for every core
    loader, monitor, learner = prepare(settings, PackedGraphs.open(settings.data), rt)
    batches = loader.starting_at(0)
    for batch in islice(batches, len(loader.sampler) + WARM_UP):  # an epoch first: every graph is prepared once
        started = time.perf_counter()
        learner.update(*batch)
        learner.reduce()  # waits for the GPU
    one = time.perf_counter() - started
    if rt.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    count = rt.broadcast(max(2, min(settings.steps or sys.maxsize, int(seconds / one))))
    monitor.restart()
    searches, started = 0, time.perf_counter()
    for graphs, states in islice(batches, count):
        learner.update(graphs, states)
        searches += 2 * graphs.num_graphs
    learner.reduce()
    taken = time.perf_counter() - started
    report = monitor.report(taken)
    busy = [value for name, value in report.items() if name.endswith("_busy")]
    return {
        "steps": count,
        "seconds": taken,
        "ms per step": 1000 * taken / count,
        "searches per second": searches / taken,
        "rounds per second": searches * settings.rounds / taken,
        "search": report["search_share"],
        "waiting": report["waiting_share"],
        "busy": float(np.mean(busy)) if busy else None,
        "peak GiB": torch.cuda.max_memory_reserved() / GIB if rt.device.type == "cuda" else None,
    }


PARTS: dict[str, Callable[[Options], Iterator[Row]]] = {
    "machine": describe, "agreement": compare, "rounds": rounds_by_size, "children": children_by_size,
    "step": step_by_batch, "ranks": steps_by_ranks,
}  # fmt: skip


def shown(value: Any) -> str:
    """A value for people."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def page(found: dict[str, Row]) -> str:
    """What was found, and what the columns mean."""
    parts = ["# GPUs", f"{datetime.now():%Y-%m-%d %H:%M}"]
    for name, part in found.items():
        parts += [f"## {name}", str(inspect.getdoc(PARTS[name]))]
        if rows := part["rows"]:
            parts.append(as_text(markdown_table({title: [shown(row[title]) for row in rows] for title in rows[0]})))
        if part["failed"]:
            parts.append(f"**It failed: {part['failed']}**")
    return "\n\n".join(parts) + "\n"


def note(out: Path, name: str, **changes: Any) -> None:
    """Write what a part has found, or why it failed."""
    file = out / "gpu.json"
    parts = json.loads(file.read_text()) if file.exists() else {}
    parts[name] = {"rows": [], "failed": ""} | parts.get(name, {}) | changes
    files.write_bytes(file, files.as_json(parts))
    files.write_text(out / "gpu.md", page(parts))


def measure_part(name: str, options: Options, parent: int) -> None:
    """Measure one part, in a process of its own."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it, too
    set_up_logging()
    rows = []
    try:
        for row in PARTS[name](options):
            rows.append(row)
            note(options.out, name, rows=rows)
        note(options.out, name, failed="")
    except UserError as error:
        note(options.out, name, failed=str(error))
    except Exception as error:
        log.exception("%s", name)
        note(options.out, name, failed=f"{type(error).__name__}: {error}")


def end_of_process(name: str, options: Options) -> str:
    """Measure one part in a process of its own. Return why it ended before its time; "" if it did not."""
    process = multiprocessing.get_context("spawn").Process(target=measure_part, args=(name, options, os.getpid()))
    process.start()
    try:
        process.join(60 * options.minutes)
        code = process.exitcode
    finally:
        process.kill()  # without waiting: a driver that hangs does not let go of it
    if code is None:
        return f"{options.minutes:g} minutes are over: --minutes allows more"
    if code < 0:
        return f"its process was killed by signal {-code}, perhaps out of memory"
    return f"its process ended with exit code {code}" if code else ""


def main(options: Options) -> None:
    """Measure the parts. UserError if the options are wrong or parts have failed."""
    if unknown := set(options.parts) - PARTS.keys():
        raise UserError(f"--parts {' '.join(unknown)}: the parts are {', '.join(PARTS)}")
    PackedGraphs.open(options.data)
    files.make_folder(options.out)
    file, failures = options.out / "gpu.json", list[str]()
    if file.exists():
        raise UserError(f"{options.out} has the results of a measurement: name another folder with --out")
    for name in options.parts:
        log.info("%s ...", name)
        note(options.out, name, failed="it was interrupted")
        if end := end_of_process(name, options):
            note(options.out, name, failed=end)
        if failed := json.loads(file.read_text())[name]["failed"]:
            failures.append(f"{name}: {failed}")
        log.info("%s: %s", name, failed or "done")
    print(file.with_suffix(".md").read_text())
    if failures:
        raise UserError("; ".join(failures))


if __name__ == "__main__":
    set_up_logging()
    try:
        main(tyro.cli(Options, description=__doc__))
    except UserError as error:
        sys.exit(f"gpu: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
