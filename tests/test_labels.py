"""Labels: proper, within their bounds, as good as TabuCol should be."""

import networkx as nx
import numpy as np
import pytest
from dimacs import queens
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_training.data.families import draw
from gnn_training.data.labels import label
from gnn_training.graph import Graph, Instance, as_graph, is_proper, num_colors
from gnn_training.search.first_colorings import clique_size

pytestmark = pytest.mark.usefixtures("compiled")


@settings(max_examples=40)
@given(st.integers(1, 40), st.floats(0, 1), st.integers(0, 10**6))
def test_labels_of_any_graph_are_proper_and_within_their_bounds(n, p, seed):
    graph = Graph.from_adjacency(np.random.default_rng(seed).random((n, n)) < p)
    found = label(Instance(graph), moves=500, seconds=5, seed=0)
    assert is_proper(graph, found.coloring)
    assert set(found.coloring) == set(range(found.num_colors))
    assert 1 <= found.lower_bound <= found.num_colors <= found.dsatur_colors <= n
    assert found.optimal == (found.lower_bound == found.num_colors)


@pytest.mark.parametrize(
    ("graph", "colors"), [(nx.empty_graph(9), 1), (nx.complete_graph(9), 9), (queens(7, 7), 7)], ids=str
)
def test_optimal_colorings_of_easy_graphs_are_found_and_proven(graph, colors: int):
    found = label(Instance(as_graph(graph)), moves=100_000, seconds=30, seed=0)
    assert found.num_colors == colors and found.optimal


def test_a_random_graph_is_labelled_as_well_as_published():
    """G(200, .5) takes DSATUR about 31 colors and TabuCol about 24."""
    graph = as_graph(nx.gnp_random_graph(200, 0.5, seed=0))
    found = label(Instance(graph), moves=100_000, seconds=30, seed=0)
    assert found.dsatur_colors >= 29 and found.num_colors <= 25


def test_without_time_the_label_is_what_is_known():
    instance = draw(0, "planted", 6, 100)  # a coloring that greedy methods miss by far
    greedy = label(Instance(instance.graph), moves=10_000, seconds=0, seed=0)
    planted = label(instance, moves=10_000, seconds=0, seed=0)
    assert greedy.num_colors == greedy.dsatur_colors
    assert planted.num_colors == num_colors(instance.coloring) < greedy.num_colors
    path = Instance(as_graph(nx.path_graph(6)), np.arange(6))  # with a coloring that is worse than DSATUR's
    assert label(path, 100, 1, 0).num_colors == 2


def test_what_the_family_proves_is_the_lower_bound():
    instance = next(i for i in (draw(0, "mycielski", index, 60) for index in range(20)) if i.optimal)
    found = label(instance, moves=1_000, seconds=5, seed=0)
    assert found.optimal and found.lower_bound == found.num_colors > clique_size(instance.graph.csr())
