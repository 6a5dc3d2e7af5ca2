"""What to compare with: DSATUR and RLF of the gcol library (R. Lewis), and single methods of the portfolio."""

import math
import time
from collections.abc import Iterator

import gcol
import networkx as nx
import numpy as np

from gnn_training.graph import Graph
from gnn_training.model import rule as move_rule
from gnn_training.solve import kernels
from gnn_training.solve.portfolio import Budget, Method, improvements

# RLF takes time in proportion to nodes x edges: a minute here (a thousand nodes, half of all edges), on one core.
RLF_LIMIT = 300_000_000


def dsatur(graph: Graph) -> Iterator[np.ndarray]:
    """Yield proper colors (N,) int64 by saturation degree (Brélaz 1979); about 10 µs per node and per edge."""
    yield _colors(graph, "dsatur")


def rlf(graph: Graph) -> Iterator[np.ndarray]:
    """Yield proper colors (N,) int64 by recursive largest first (Leighton 1979); nothing above RLF_LIMIT."""
    if graph.num_nodes * graph.num_edges <= RLF_LIMIT:
        yield _colors(graph, "rlf")


def alone(
    method: Method, graph: Graph, seconds: float, lower: int, rule: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Yield proper colors (N,) int32, DSATUR's first, then those of one method, such as `portfolio.tabu_search`, each
    with fewer colors, down to `lower`. The method has one thread and `seconds`. rule: weights for `trained_rule`.
    """
    budget, lists = Budget(time.monotonic() + seconds, lower), graph.csr()
    colors = kernels.dsatur(*lists)
    yield colors
    yield from (found.colors for found in improvements(lists, colors, budget, {method: 1}, rule))


def untrained_rule() -> np.ndarray:
    """Weights (NUM_WEIGHTS,) float32 of `trained_rule` with which every conflict weighs 1, as before any training."""
    weights, start = np.zeros(move_rule.NUM_WEIGHTS, np.float32), math.prod(move_rule.SHAPES["by_graph"])
    weights[start : start + len(move_rule.CONTROLS)] = np.log(move_rule.FIRST_CONTROLS)
    return weights


def _colors(graph: Graph, strategy: str) -> np.ndarray:
    network = nx.empty_graph(graph.num_nodes)
    network.add_edges_from(graph.edges.tolist())
    colors = gcol.node_coloring(network, strategy)
    return np.array([colors[node] for node in range(graph.num_nodes)], dtype=np.int64)
