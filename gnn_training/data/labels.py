"""What is known of a graph before the search for a label, and after."""
# DOC The label of a graph: the best coloring a search finds, what bounds it, and how hard it was.

import math
from dataclasses import dataclass

import numpy as np

from gnn_training.contract import UNKNOWN_TYPE
from gnn_training.graph import Graph
from gnn_training.solve.kernels import dsatur, greedy_clique
from gnn_training.solve.local_search import descend, extractions


@dataclass(frozen=True)
class Instance:
    """A graph with what its generator or its owner knows about it.

    coloring (N,) a proper coloring with colors from 0, if one is known; optimal says that no coloring has fewer
    colors. graph_type is a position in contract.GRAPH_TYPES. note is one sentence for the person who started the job,
    such as why a coloring of theirs was not taken.
    """

    graph: Graph
    coloring: np.ndarray | None = None
    optimal: bool = False
    family: str = "imported"
    graph_type: int = UNKNOWN_TYPE
    note: str = ""


@dataclass(frozen=True)
class Label:
    """The best coloring found and how good it is; docs/DATA.md defines every number.

    coloring (N,) int16, colors 0..num_colors-1; lower_bound <= chromatic number <= num_colors <= dsatur_colors unless
    DSATUR is luckier; optimal: num_colors is proven to be the chromatic number; difficulty 0 easy to 100 hard.
    """

    coloring: np.ndarray
    num_colors: int
    lower_bound: int
    dsatur_colors: int
    optimal: bool
    difficulty: float


_CLIQUE_STARTS = 2_000  # nodes of highest degree, all of them in most graphs: milliseconds
_LARGE = 500  # nodes: from here on large independent sets are a better start, TabuCol being slow


def label(instance: Instance, iterations: int, seconds: float, seed: int) -> Label:
    """TabuCol has at most `seconds`; below that limit the label depends on instance, iterations and seed alone."""
    graph = instance.graph
    offsets, neighbours = graph.csr()
    greedy = dsatur(offsets, neighbours)
    dsatur_colors = int(greedy.max()) + 1
    known = instance.coloring
    start = greedy if known is None or known.max() >= greedy.max() else known
    if graph.num_nodes >= _LARGE:
        sets = next(colors for colors in extractions((offsets, neighbours), seed) if colors is not None)
        start = min(start, sets, key=np.max)
    lower = greedy_clique(offsets, neighbours, np.argsort(-np.diff(offsets), kind="stable")[:_CLIQUE_STARTS])
    if instance.optimal:
        assert known is not None
        lower = int(known.max()) + 1
    coloring, effort = descend((offsets, neighbours), start, lower, iterations, seconds, seed)
    num_colors = int(coloring.max()) + 1
    return Label(
        coloring=coloring.astype(np.int16),
        num_colors=num_colors,
        lower_bound=lower,
        dsatur_colors=dsatur_colors,
        optimal=lower == num_colors,
        difficulty=difficulty(graph.num_nodes, num_colors, lower, dsatur_colors, effort),
    )


def difficulty(num_nodes: int, num_colors: int, lower_bound: int, dsatur_colors: int, effort: int) -> float:
    """0 easy to 100 hard: a weighted mean of four shares, each clipped to 0..1.

    40% what DSATUR wastes, (dsatur - best) / best, full at 0.4; 25% what no clique proves, (best - lower) / best, full
    at 0.75; 25% log10(1 + iterations of the search up to its best coloring) / 5; 10% log10(nodes) / 3.
    """
    shares = (
        (0.40, (dsatur_colors - num_colors) / num_colors / 0.4),
        (0.25, (num_colors - lower_bound) / num_colors / 0.75),
        (0.25, math.log10(1 + effort) / 5),
        (0.10, math.log10(num_nodes) / 3),
    )
    return 100 * sum(weight * min(1.0, max(0.0, share)) for weight, share in shares)
