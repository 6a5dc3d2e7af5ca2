"""Graphs for the tests of the search, the network and the exported program."""

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from gnn_training.data.packed import Label, PackedGraphs, cut
from gnn_training.graph import Graph
from gnn_training.model.graphs import Graphs, concatenated, pad


def random_graph(num_nodes: int, density: float, seed: int = 0) -> Graph:
    """A graph in which every pair of nodes is an edge with probability `density`."""
    rng = np.random.default_rng(seed)
    return Graph.from_adjacency(rng.random((num_nodes, num_nodes)) < density)


GRAPH = st.builds(random_graph, st.integers(1, 16), st.floats(0, 1), st.integers(0, 10**6))


def planted(num_nodes: int, num_colors: int, density: float, seed: int = 0) -> tuple[Graph, np.ndarray]:
    """A random graph that has a coloring with so many colors, and this coloring."""
    rng, colors = np.random.default_rng(seed), np.arange(num_nodes) % num_colors
    edges = (rng.random((num_nodes, num_nodes)) < density) & (colors[:, None] != colors)
    return Graph.from_adjacency(edges), colors


def padded(graphs: Sequence[Graph]) -> Graphs:
    """Graphs padded to the largest."""
    return pad(*concatenated(graphs))[0]


def edge_list(graphs: Sequence[Graph]) -> tuple[np.ndarray, np.ndarray]:
    """edge_index (2, E) and batch (N,) of the graphs, in numpy."""
    edge_index, batch = concatenated(graphs)
    return edge_index.numpy(), batch.numpy()


def label_of(data: PackedGraphs, i: int) -> Label:
    """The label of graph i of packed graphs."""
    names = ("num_colors", "lower_bound", "dsatur_colors", "optimal", "difficulty")
    return Label(cut(data.tensors, "coloring", i), *(getattr(data, name)[i].item() for name in names))
