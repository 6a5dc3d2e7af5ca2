"""The label of a graph: the best coloring that a search finds, a lower bound, and how difficult the graph is."""

import math

import numpy as np

from gnn_training.data.packed import Label
from gnn_training.graph import Instance
from gnn_training.solve.kernels import dsatur
from gnn_training.solve.local_search import clique_size, descend, extractions


def label(instance: Instance, iterations: int, seconds: float, seed: int) -> Label:
    """Search a coloring, `seconds` at most. Below that limit the label depends on the other arguments alone."""
    graph = instance.graph
    lists = graph.csr()
    greedy = dsatur(*lists)
    dsatur_colors, known = int(greedy.max()) + 1, instance.coloring
    start = greedy if known is None or known.max() >= greedy.max() else known
    if graph.num_nodes >= 500:  # TabuCol is slow, and large independent sets are a better start
        sets = next(colors for colors in extractions(lists, seed) if colors is not None)
        start = min(start, sets, key=np.max)
    lower = clique_size(lists, 2_000)  # starts at all nodes of most graphs: milliseconds
    if instance.optimal:
        assert known is not None
        lower = int(known.max()) + 1
    coloring, effort = descend(lists, start, lower, iterations, seconds, seed)
    num_colors = int(coloring.max()) + 1
    hard = difficulty(graph.num_nodes, num_colors, lower, dsatur_colors, effort)
    return Label(coloring.astype(np.int16), num_colors, lower, dsatur_colors, lower == num_colors, hard)


def difficulty(num_nodes: int, num_colors: int, lower_bound: int, dsatur_colors: int, effort: int) -> float:
    """Difficulty from 0 (easy) to 100 (hard): a weighted mean of four shares, each clipped to 0..1.

    40% colors wasted by DSATUR, (dsatur - best) / best, full at 0.4; 25% colors that no clique proves, (best - lower) /
    best, full at 0.75; 25% log10(1 + iterations up to the best coloring) / 5; 10% log10(nodes) / 3.
    """
    shares = (
        (0.40, (dsatur_colors - num_colors) / num_colors / 0.4),
        (0.25, (num_colors - lower_bound) / num_colors / 0.75),
        (0.25, math.log10(1 + effort) / 5),
        (0.10, math.log10(num_nodes) / 3),
    )
    return 100 * sum(weight * min(1.0, max(0.0, share)) for weight, share in shares)
