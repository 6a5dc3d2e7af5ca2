"""Colorings are counted, decoded and written correctly."""

import numpy as np
from dimacs import read_solution
from hypothesis import given
from hypothesis import strategies as st
from small_graphs import GRAPH

from gnn_training.graph import Graph, from_logits, is_proper, num_colors
from gnn_training.jobs.color import write_solution
from gnn_training.solve.kernels import first_fit

TRIANGLE_WITH_TAIL = Graph.from_edges(4, [(0, 1), (1, 2), (0, 2), (2, 3)])


def test_a_coloring_with_a_missing_node_or_a_negative_color_is_not_proper():
    assert is_proper(TRIANGLE_WITH_TAIL, np.array([0, 1, 2, 0]))
    assert not is_proper(TRIANGLE_WITH_TAIL, np.array([0, 1, 2]))
    assert not is_proper(TRIANGLE_WITH_TAIL, np.array([0, 1, 2, -1]))
    assert not is_proper(TRIANGLE_WITH_TAIL, np.array([0, 1, 1, 0]))


def test_first_fit_follows_the_order():
    path = Graph.from_edges(4, [(0, 1), (1, 2), (2, 3)])
    assert first_fit(*path.csr(), np.array([0, 1, 2, 3])).tolist() == [0, 1, 0, 1]
    assert first_fit(*path.csr(), np.array([0, 3, 1, 2])).tolist() == [0, 1, 2, 0]


@given(GRAPH, st.randoms(use_true_random=False))
def test_first_fit_is_proper_without_gaps_and_within_the_largest_degree(graph, random):
    order = list(range(graph.num_nodes))
    random.shuffle(order)
    colors = first_fit(*graph.csr(), np.array(order))
    assert is_proper(graph, colors)
    assert set(colors.tolist()) == set(range(num_colors(colors)))
    assert colors.max() <= graph.degrees().max()


@given(GRAPH, st.data())
def test_decoding_uses_no_more_colors_than_a_proper_argmax(graph, data):
    order = np.array(data.draw(st.permutations(range(graph.num_nodes))))
    classes = first_fit(*graph.csr(), order)
    columns = np.array(data.draw(st.permutations(range(graph.num_nodes + 3))))
    decoded = from_logits(graph, np.eye(graph.num_nodes + 3)[columns[classes]])
    assert is_proper(graph, decoded)
    assert num_colors(decoded) <= num_colors(classes)


def test_decoding_sorts_by_class_and_keeps_the_order_of_nodes_within_one():
    path = Graph.from_edges(4, [(0, 1), (1, 2), (2, 3)])
    logits = np.array([[5.0, 0.0], [0.0, 5.0], [0.0, 5.0], [5.0, 0.0]])
    assert from_logits(path, logits).tolist() == [0, 1, 2, 0]


def test_decoding_survives_logits_that_are_not_numbers():
    assert is_proper(TRIANGLE_WITH_TAIL, from_logits(TRIANGLE_WITH_TAIL, np.full((4, 8), np.nan)))


@given(colors=st.lists(st.integers(0, 300), min_size=1, max_size=30))
def test_a_solution_reads_back_as_written(tmp_path_factory, colors):
    path = tmp_path_factory.mktemp("solution") / "graph.sol"
    write_solution(path, np.array(colors))
    assert read_solution(path).tolist() == colors
    assert list(path.parent.iterdir()) == [path]
