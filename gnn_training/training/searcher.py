"""Searches with given weights, as training and evaluation need them: many graphs, each several times.

A CPU searches graph after graph in compiled loops. A GPU searches all at once, in tensors, and is faster the fewer
kernels the host has to launch: a round is "eager" (250 kernels) or "compiled" (45).
"""

import logging
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
import torch._dynamo
import torch.fx.experimental._config
from torch import Tensor

from gnn_training.model import search
from gnn_training.model.graphs import Graphs
from gnn_training.model.program import limits
from gnn_training.model.search import Fixed, State
from gnn_training.solve.search_kernel import noise_table, search_graph
from gnn_training.training.loss import Batch, Search

log = logging.getLogger(__name__)


def searcher(device: torch.device) -> "Search | GpuSearcher":
    """What searches on this device."""
    return GpuSearcher() if device.type == "cuda" else search_on_cpu


@torch.no_grad()
def search_on_cpu(weights: Tensor, batch: Batch, rounds: int) -> tuple[Tensor, Tensor]:
    """Search graph after graph, on as many threads as torch may use; see `Search`."""
    table, stop = noise_table(batch.max_colors), np.zeros(1, np.uint8)

    def run(place: tuple[int, int]) -> tuple[int, float]:
        _, i = place
        offsets, neighbours = batch.lists[i]
        first = batch.first[i, : len(offsets) - 1].int().numpy()
        lower, seed = int(batch.lower[i]), int(batch.seeds[i])
        _, fewest, conflicts = search_graph(
            offsets, neighbours, first, 0, lower, weights[place].numpy(), table, seed, rounds, stop
        )
        return fewest, conflicts if fewest > lower else 0

    weights = weights.detach()
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        results = pool.map(run, product(range(len(weights)), range(len(batch.lists))))
        fewest, conflicts = torch.tensor(list(results), dtype=torch.float32).T
    return fewest.view(weights.shape[:2]), conflicts.view(weights.shape[:2])


class Inputs(NamedTuple):
    """Tensors of S searches in each of G graphs."""

    weights: Tensor  # (S, G, NUM_WEIGHTS)
    graphs: Graphs
    first: Tensor  # (G, N) int64, colorings to start with
    lower: Tensor  # (G,) int64, colors with which a search ends
    seeds: Tensor  # (G,) int64


class GpuSearcher:
    """Searches on a GPU; `mode` says how. Short of memory, it searches half of the graphs at a time (`is_split`)."""

    def __init__(self) -> None:
        # Sizes of one make eight forms of a round. More than the limit would run uncompiled without a word.
        torch._dynamo.config.recompile_limit, torch._dynamo.config.fail_on_recompile_limit_hit = 64, True
        torch.fx.experimental._config.use_duck_shape = False  # sizes that are equal by chance make no form of their own
        self._compiled = torch.compile(search.one_round, dynamic=True)
        self.use("eager")

    def use(self, mode: str) -> None:
        """Search in this mode from now on, all graphs at once if the memory suffices."""
        self.mode, self.is_split = mode, False

    @torch.no_grad()
    def __call__(self, weights: Tensor, batch: Batch, rounds: int) -> tuple[Tensor, Tensor]:
        """Search; see `Search`."""
        inputs = Inputs(weights, batch.graphs, batch.first, batch.lower, batch.seeds)
        if not self.is_split:
            try:
                return self._search(inputs, batch.max_colors, rounds)
            except torch.OutOfMemoryError:
                if len(batch.lists) == 1:
                    raise
                log.warning("the memory of %s ran out: searching in two parts from now on", weights.device)
            self.is_split = True
            torch.cuda.empty_cache()
        ends, middle = [len(lists.neighbours) for lists in batch.lists], len(batch.lists) // 2
        half = sum(ends[:middle])
        bounds = [(0, middle, 0, half), (middle, None, half, sum(ends))][middle == 0 :]
        found = [self._search(part(inputs, *each), batch.max_colors, rounds) for each in bounds]
        fewest, conflicts = zip(*found, strict=True)
        return torch.cat(fewest, 1), torch.cat(conflicts, 1)

    def _search(self, inputs: Inputs, max_colors: int, rounds: int) -> tuple[Tensor, Tensor]:
        one_round = search.one_round if self.mode == "eager" else self._compiled
        with torch.autocast("cuda", enabled=False):
            state, fixed = begin(inputs, max_colors)
            for _ in range(rounds):  # nothing here waits for the GPU
                state = one_round(state, fixed)
        best = state.best
        conflicts = torch.where(best.num_colors > fixed.lower, best.conflicts, 0)
        return best.num_colors.view(inputs.weights.shape[:2]), conflicts.view(inputs.weights.shape[:2])


def part(inputs: Inputs, start: int, stop: int | None, first_end: int, last_end: int) -> Inputs:
    """The graphs from `start` to `stop`, whose ends of edges are those from `first_end` to `last_end`."""
    weights, graphs, first, lower, seeds = inputs
    graph, source, neighbours = (torch.cat([x[first_end:last_end], x[-1:]]) for x in graphs[3:6])
    rows = slice(start, stop)
    nodes = graphs.exists[rows], graphs.degrees[rows], graphs.first[rows] - first_end
    cut = Graphs(*nodes, (graph - start).clamp(min=0), source, neighbours, graphs.window)
    return Inputs(weights[:, rows], cut, first[rows], lower[rows], seeds[rows])


def begin(inputs: Inputs, max_colors: int) -> tuple[State, Fixed]:
    """All searches before their first round."""
    weights, graphs, first, lower, seeds = inputs
    sizes = limits(torch.tensor(first.shape[1]), torch.tensor(max_colors))
    sizes = search.Limits(*(torch.arange(len(ids), device=first.device) for ids in sizes))
    graph = torch.arange(len(seeds), device=first.device).repeat(len(weights))
    task = search.Task(first, lower, 0 * lower, graph, seeds.repeat(len(weights)))
    return search.begin(search.split(weights.flatten(0, 1)), graphs, task, sizes)
