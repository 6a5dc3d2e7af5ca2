"""What a coloring is measured against: classic methods, the greedy ones from the gcol library (R. Lewis), a clique."""

import time
from collections.abc import Iterator

import gcol
import networkx as nx
import numpy as np

from gnn_training.graph import Graph
from gnn_training.solve import kernels, local_search

# RLF takes time in proportion to nodes x edges: a minute here (a thousand nodes, half of all edges), on one core.
RLF_LIMIT = 300_000_000
CLIQUE_STARTS = 1000  # all nodes of most graphs, as in the exported file; milliseconds


def dsatur(graph: Graph) -> np.ndarray:
    """Proper colors (N,) int64 by saturation degree (Brélaz 1979); about 10 µs per node and per edge."""
    return _colors(graph, "dsatur")


def rlf(graph: Graph) -> np.ndarray | None:
    """Proper colors (N,) int64 by recursive largest first (Leighton 1979); None above RLF_LIMIT."""
    return _colors(graph, "rlf") if graph.num_nodes * graph.num_edges <= RLF_LIMIT else None


def tabucol(graph: Graph, seconds: float, lower: int) -> Iterator[np.ndarray]:
    """Yield proper colors (N,) int32 that TabuCol alone reaches in `seconds`, one thread; it stops at `lower`.

    The first are DSATUR's; each does without the highest color of the one before.
    """
    deadline = time.monotonic() + seconds
    lists = graph.csr()
    start = kernels.dsatur(*lists)
    yield start
    for colors, _ in local_search.descents(
        lists, start, lower, local_search.FOREVER, deadline - time.monotonic(), seed=0
    ):
        yield colors


def clique_size(graph: Graph) -> int:
    """Size of a clique, grown greedily from each of the nodes of highest degree: no coloring has fewer colors."""
    offsets, neighbours = graph.csr()
    return int(kernels.greedy_clique(offsets, neighbours, np.argsort(-np.diff(offsets), kind="stable")[:CLIQUE_STARTS]))


def _colors(graph: Graph, strategy: str) -> np.ndarray:
    full = nx.empty_graph(graph.num_nodes)
    full.add_edges_from(graph.edges.tolist())
    colors = gcol.node_coloring(full, strategy)
    return np.array([colors[node] for node in range(graph.num_nodes)], dtype=np.int64)
