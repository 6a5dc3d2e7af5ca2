"""Large independent sets, and colorings made of them."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_training.coloring import is_proper, num_colors
from gnn_training.graph import Graph
from gnn_training.solve.baselines import dsatur
from gnn_training.solve.kernels import independent_set
from gnn_training.solve.local_search import extractions, seeded

pytestmark = pytest.mark.usefixtures("compiled")


def random_graph(num_nodes: int, density: float, seed: int) -> Graph:
    return Graph.from_adjacency(np.random.default_rng(seed).random((num_nodes, num_nodes)) < density)


def colorings(graph: Graph, number: int, *seed: int) -> list[np.ndarray]:
    search, found = extractions(graph.csr(), *seed), []
    while len(found) < number:
        if (colors := next(search)) is not None:
            found.append(colors)
    return found


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 40), density=st.floats(0, 1), left=st.floats(0, 1), seed=st.integers(0, 2**31))
def test_a_set_is_independent_of_nodes_that_are_left_and_no_node_can_be_added(n, density, left, seed):
    graph = random_graph(n, density, seed)
    is_left = np.random.default_rng(seed + 1).random(n) < left
    found = independent_set(*graph.csr(), is_left, 50, seeded(seed))
    neighbours_inside = graph.adjacency()[found].sum(0)
    assert not found[~is_left].any()
    assert (neighbours_inside[found] == 0).all() and (neighbours_inside[is_left & ~found] > 0).all()


def test_of_a_known_graph_the_largest_set_is_found():
    graph = random_graph(70, 0.7, 0)
    complement = nx.from_numpy_array(~graph.adjacency() & ~np.eye(70, dtype=bool))
    largest = len(max(nx.find_cliques(complement), key=len))
    found = independent_set(*graph.csr(), np.ones(70, dtype=bool), 2_000, seeded(0))
    assert found.sum() == largest


def test_of_sets_of_one_size_the_one_with_more_edges_is_taken():
    """Two nodes of a ring of four and of a triangle on one of its sides: five edges with its end, four with its tip."""
    house = Graph.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 0), (0, 4), (1, 4)])
    for seed in range(10):
        found = independent_set(*house.csr(), np.ones(5, dtype=bool), 50, seeded(seed))
        assert np.flatnonzero(found).tolist() in ([0, 2], [1, 3])


@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 40), density=st.floats(0, 1), seed=st.integers(0, 2**31))
def test_a_coloring_of_sets_is_proper_and_without_gaps(n, density, seed):
    graph = random_graph(n, density, seed)
    for colors in colorings(graph, 2, seed):
        assert is_proper(graph, colors)
        assert set(colors.tolist()) == set(range(num_colors(colors)))


def test_colorings_repeat_themselves_and_follow_the_seed():
    graph = random_graph(60, 0.5, 0)
    first, again, other = (colorings(graph, 3, *seed) for seed in ((1, 2), (1, 2), (1, 3)))
    assert all(map(np.array_equal, first, again)) and not all(map(np.array_equal, first, other))


def test_sets_color_random_graphs_with_far_fewer_colors_than_dsatur():
    graph = random_graph(300, 0.5, 0)
    assert num_colors(colorings(graph, 1, 0)[0]) <= num_colors(dsatur(graph)) - 6


def test_the_clock_can_be_looked_at_after_every_set():
    search = extractions(random_graph(60, 0.5, 0).csr(), 0)
    said = [next(search) for _ in range(200)]
    for i, colors in enumerate(said):
        if colors is not None:
            assert all(x is None for x in said[i - num_colors(colors) : i])
    assert sum(colors is not None for colors in said) > 5
