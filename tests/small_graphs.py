"""Graphs for the tests of the network and of the exported program."""

from collections.abc import Sequence

import numpy as np

from gnn_training.graph import Graph
from gnn_training.model.graphs import DenseGraphs, concatenated
from gnn_training.model.greedy import pad


def random_graph(num_nodes: int, density: float, seed: int = 0) -> Graph:
    """A graph in which every pair of nodes is an edge with probability `density`."""
    rng = np.random.default_rng(seed)
    return Graph.from_adjacency(rng.random((num_nodes, num_nodes)) < density)


def dense(graphs: Sequence[Graph]) -> DenseGraphs:
    """Graphs padded to the largest."""
    return pad(*concatenated(graphs))[0]


def edge_list(graphs: Sequence[Graph]) -> tuple[np.ndarray, np.ndarray]:
    """edge_index (2, E) and batch (N,) of the graphs, in numpy."""
    edge_index, batch = concatenated(graphs)
    return edge_index.numpy(), batch.numpy()
