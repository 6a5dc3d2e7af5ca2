"""Measure how fast searches are in their forms.

    python -m benchmarks.search_speed --page docs/SPEED.md  # replaces the last section

docs/SPEED.md says how the numbers are obtained.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
import tyro
from torch.utils.benchmark import Timer

from gnn_training import files, machine
from gnn_training.console import as_text, markdown_table
from gnn_training.graph import Graph, concatenated
from gnn_training.network.network import initial_rule
from gnn_training.onnx_program import tensor_search
from gnn_training.onnx_program.padded_graphs import pad
from gnn_training.onnx_program.program import limits
from gnn_training.onnx_program.session import Model
from gnn_training.search import kernels
from gnn_training.search.search_kernel import SearchTask, search_graph

HEADING = "## Measured\n"  # the last section of a page, which is replaced
DENSITY, BATCH = 0.5, 16
ROUNDS = 200  # rounds of a measured call
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class Options:
    """What to measure, and for how long."""

    seconds: float = 3.0
    """Time for every form at every size."""
    sizes: tuple[int, ...] = (125, 250, 500, 1000)
    """Nodes of the graphs that are searched."""
    page: Path | None = None
    """Markdown page whose section "Measured" is replaced; None prints the section."""


def rounds_per_second(run: Callable[[int], object], seconds: float) -> float:
    """Rounds per second of run(rounds): a difference quotient, so what a call does besides them does not count."""

    def median(rounds: int) -> float:
        names, threads = {"run": run, "rounds": rounds}, torch.get_num_threads()
        timer = Timer("run(rounds)", timer=time.perf_counter, globals=names, num_threads=threads)
        return timer.blocked_autorange(min_run_time=seconds / 2).median

    return ROUNDS / (median(1 + ROUNDS) - median(1))


def forms(num_nodes: int) -> dict[str, Callable[[int], object]]:
    """The forms of the search by name, as functions of the number of rounds, in random graphs of `num_nodes` nodes."""
    rng, rule, model = np.random.default_rng(num_nodes), initial_rule(), Model()
    graphs = [Graph.from_adjacency(rng.random((num_nodes, num_nodes)) < DENSITY) for _ in range(BATCH)]
    lists = [graph.csr() for graph in graphs]
    first = np.stack([kernels.dsatur(*each) for each in lists])

    def tensors(count: int) -> Callable[[int], object]:
        padded, _ = pad(*(torch.from_numpy(values).to(DEVICE) for values in concatenated(graphs[:count])))
        colors = torch.from_numpy(first[:count]).long().to(DEVICE)
        sizes = limits(torch.tensor(num_nodes, device=DEVICE), colors.max() + 1)
        weights, zeros = tensor_search.split(rule[None].to(DEVICE)), torch.zeros_like(colors[:, 0])
        task = tensor_search.Task(colors, zeros, zeros, torch.arange(len(zeros)), zeros)
        return lambda rounds: tensor_search.search(
            weights, padded, task, sizes, torch.tensor(rounds)
        ).conflicts.tolist()

    return {
        "compiled, one thread": lambda rounds: search_graph(lists[0], SearchTask(first[0], rounds), rule.numpy()),
        "exported file": lambda rounds: model.predict(graphs[0], steps=rounds),
        "tensors": tensors(1),
        f"tensors, {BATCH} graphs": tensors(BATCH),
    }


@torch.no_grad()
def search_table(options: Options) -> str:
    """Rounds per second of all graphs together, by size and form."""
    columns: dict[str, list[object]] = {"nodes": list(options.sizes)}
    for size in options.sizes:
        for name, run in forms(size).items():
            rate = rounds_per_second(run, options.seconds) * (BATCH if name.endswith("graphs") else 1)
            columns.setdefault(name, []).append(f"{rate:,.0f}")
    return as_text(markdown_table(columns))


def main(options: Options) -> None:
    """Measure, then print or write the section."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    where = torch.cuda.get_device_name() if DEVICE.type == "cuda" else names[0].partition(": ")[2] if names else "CPU"
    about = f"{date.today()}, {where}, {machine.num_cores()} cores, torch {version('torch')}."
    section = "\n\n".join([HEADING.strip(), about, search_table(options)]) + "\n"
    if options.page:
        files.write_text(options.page, options.page.read_text().partition(HEADING)[0] + section)
    else:
        print(section)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
