"""The whole search for a coloring: bounds, a first coloring, then the portfolio of methods on the open parts."""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from gnn_training.graph import Graph, NeighbourLists, is_proper
from gnn_training.network.crossover_weights import zero_weights
from gnn_training.network.rule import NUM_WEIGHTS
from gnn_training.search import kernels, proofs
from gnn_training.search.crossover import Individual, children
from gnn_training.search.engine import Budget, Coloring, ExtraWorker, SearchWeights, improvements, renumbered
from gnn_training.search.first_colorings import (
    clique_size,
    completed,
    run_first,
    run_until,
    seeded,
    set_coloring,
    set_moves,
)
from gnn_training.search.gpu_workers import on_gpus
from gnn_training.search.kernels import NEVER_STOP
from gnn_training.search.methods import FIRST_CLIQUE_WORK, methods_for, open_parts, smallest_last, tabu_search
from gnn_training.search.search_kernel import SearchTask, search_graph, search_loop

log = logging.getLogger(__name__)
CLIQUE_SHARE = 0.2  # share of the time for lower bounds, such as cliques
WHOLE_GRAPH_SHARE = 0.9  # if a part has this share of the nodes, the whole graph is searched: a restart costs more
SET_SHARE, SET_STOP = 0.5, 0.75  # shares of the time: independent sets get moves for the first, and stop at the second


@cache
def compile_all() -> None:
    """Compile the loops, which takes 20 s once, or load them from the disk, before a time limit begins."""
    folder = Path(search_loop.stats.cache_path or "")
    if not any(folder.glob(f"search_kernel.{search_loop.py_func.__qualname__}-*.nbi")):
        log.info("first use: compiling the search, which takes about 20 seconds")
    path = NeighbourLists(np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1], dtype=np.int32))
    run_until(0, kernels.greedy_clique, *path, np.arange(3))
    run_until(0, kernels.dsatur, *path)
    kernels.first_fit(*path, np.arange(3))
    [two] = improvements(path, np.arange(3), Budget(math.inf, lower=2), {tabu_search: 1})
    parent = Individual(0, two.colors, np.zeros(3, dtype=np.int32))
    children(path, [parent, parent], 2, zero_weights(1, 1))
    nodes = proofs.largest_clique(*path, 3, 1, NEVER_STOP)[0]
    kernels.branch_and_bound(*path, two.colors, nodes, 1, 1, NEVER_STOP)
    proofs.components(*path)
    proofs.has_odd_wheel(*path, NEVER_STOP)
    kernels.balance(*path, two.colors.copy(), np.ones(3, dtype=np.int64), 3, 1, seeded(0), NEVER_STOP)
    set_coloring(*path, 0, 1, NEVER_STOP)
    search_graph(path, SearchTask(two.colors, 1, lower=2), np.zeros(NUM_WEIGHTS, dtype=np.float32))


def colorings(
    graph: Graph, trained: SearchWeights, budget: Budget, clique: int = 0, start: np.ndarray | None = None
) -> Iterator[Coloring]:
    """Yield proper colorings with fewer and fewer colors, DSATUR's first, until the budget is spent or one has `lower`
    colors. The last coloring is yielded again if it is proven optimal later. clique: size of a known one, 0 to look for
    one. start (N,) int32: a coloring without gaps, which comes first instead of DSATUR's, unless that has fewer colors.
    """
    compile_all()
    lists = graph.csr()
    now = time.monotonic()
    until = now + CLIQUE_SHARE * (budget.deadline - now)
    clique = clique or clique_size(lists, until)
    colors = run_first(kernels.dsatur, budget.deadline, *lists)
    is_complete, colors = colors.min() >= 0, completed(lists, colors)
    first = Coloring("DSATUR", colors)
    if start is not None and start.max() < first.num_colors:
        first = Coloring("start", start)
    bound = clique
    if first.num_colors > clique:
        bound = lower_bound(lists, first.num_colors, clique, until, is_complete)
    budget = budget._replace(lower=max(bound, budget.lower))
    for coloring in _better_ones(lists, trained, budget, clique, first):
        if not is_proper(graph, coloring.colors):
            raise RuntimeError(f"{graph.name}: the coloring by {coloring.method} is not proper")
        yield coloring._replace(lower_bound=max(bound, coloring.lower_bound))


def lower_bound(lists: NeighbourLists, num_colors: int, clique: int, until: float, is_dsatur: bool) -> int:
    """A lower bound of the number of colors, from `clique` to `num_colors`. num_colors: of a coloring, no more than
    DSATUR's; is_dsatur: DSATUR has ended in time; it finds two colors if the graph is bipartite.
    """
    nodes, *_ = run_first(proofs.largest_clique, until, *lists, num_colors, FIRST_CLIQUE_WORK)
    bound = max(clique, len(nodes))
    if bound == 2 and is_dsatur:
        bound = 3
    if bound == 3 < num_colors and run_first(proofs.has_odd_wheel, until, *lists):
        bound = 4
    return min(bound, num_colors)


def _better_ones(
    lists: NeighbourLists, trained: SearchWeights, budget: Budget, clique: int, best: Coloring
) -> Iterator[Coloring]:
    """Yield the first coloring and better ones. While all `open_parts` are clearly smaller than the graph, they are
    searched one after the other, and a proof for one part is a proof for the graph.
    """
    yield best
    if best.num_colors <= budget.lower:
        return
    order, cores = proofs.removal_order(*lists)
    colors, is_first, extra = best.colors.copy(), True, on_gpus(budget.gpus)
    while best.num_colors > budget.lower and time.monotonic() < budget.deadline:
        k, method, num_done = best.num_colors - 1, "smallest last", 0
        parts = open_parts(lists, cores, colors, k)
        if parts and len(parts[-1]) >= WHOLE_GRAPH_SHARE * len(colors):
            yield from _search(lists, trained, budget, clique, best, is_first, extra)
            return
        for i, nodes in enumerate(parts):
            now, part = time.monotonic(), lists.subgraph(nodes)
            limits = budget._replace(deadline=now + (budget.deadline - now) / (len(parts) - i), lower=k)
            start = better = Coloring(method, renumbered(colors[nodes]))
            for better in _search(part, trained, limits, clique, start, is_first, extra):
                if better.lower_bound > k:
                    yield best._replace(method=better.method, lower_bound=better.lower_bound)
                    return
            if better.num_colors <= k:
                colors[nodes], method, num_done = better.colors, better.method, num_done + 1
        if parts and not num_done:  # the time is over, or the memory too small
            return
        is_first = False
        if num_done == len(parts):
            colors = smallest_last(lists, order, cores, colors, k)
            best = Coloring(method, colors.copy())
            yield best


def _search(
    lists: NeighbourLists, trained: SearchWeights, budget: Budget, clique: int, best: Coloring, with_sets: bool,
    extra: Sequence[ExtraWorker],
) -> Iterator[Coloring]:  # fmt: skip
    """Yield better colorings: first that of independent sets, if there is time for it, then those of the methods."""
    methods = methods_for(lists, best, clique, trained)
    now = time.monotonic()
    left = budget.deadline - now
    moves = set_moves(lists, best.num_colors, SET_SHARE * left) if with_sets else 0
    if moves and best.num_colors > budget.lower:
        colors = completed(lists, run_until(now + SET_STOP * left, set_coloring, *lists, budget.seed, moves))
        if colors.max() + 1 < best.num_colors:
            best = Coloring("independent sets", colors)
            yield best
    yield from improvements(lists, best.colors, budget, methods, trained, extra=extra)
