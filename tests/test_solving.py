"""What color and evaluate do after the first call: calls, iterated greedy, independent sets, TabuCol, the clock."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import tiny_onnx

from gnn_training.coloring import greedy_along, is_proper, num_colors
from gnn_training.graph import Graph
from gnn_training.model.session import Colorer
from gnn_training.solve.anytime import improvements, one_call
from gnn_training.solve.baselines import clique_size
from gnn_training.solve.local_search import GROUP, SetSearch, _in_groups, local_search, seeded


def random_graph(num_nodes: int, seed: int) -> Graph:
    return Graph.from_adjacency(np.random.default_rng(seed).random((num_nodes, num_nodes)) < 0.5, "random")


pytestmark = pytest.mark.usefixtures("compiled")

GRAPH = random_graph(125, 0)


@pytest.fixture(scope="module")
def colorer(tmp_path_factory: pytest.TempPathFactory) -> Colorer:
    return Colorer(tiny_onnx.write(tmp_path_factory.mktemp("model") / "coloring_gnn.onnx"), threads=1)


def found(colorer: Colorer, graph: Graph, seconds: float, polished: bool, lower: int = 1) -> np.ndarray:
    """The last coloring of the search; each is proper and has fewer colors than the one before."""
    call = one_call(colorer, graph, 60)
    best = call.colors
    for colors in improvements(colorer, graph, call, seconds, lower, polish=polished):
        assert is_proper(graph, colors) and num_colors(colors) < num_colors(best)
        best = colors
    return best


@pytest.mark.parametrize("polished", [False, True])
@pytest.mark.parametrize("seconds", [-5, 0, 0.5])
def test_the_search_keeps_the_time(colorer: Colorer, polished: bool, seconds: float):
    start = time.monotonic()
    found(colorer, GRAPH, seconds, polished)
    assert max(0, seconds) <= time.monotonic() - start < max(0, seconds) + 1


@pytest.mark.parametrize("polished", [False, True])
def test_the_search_ends_at_the_bound(colorer: Colorer, polished: bool):
    ring = Graph.from_edges(50, [(i, (i + 1) % 50) for i in range(50)])
    start = time.monotonic()
    assert num_colors(found(colorer, ring, 60, polished, lower=clique_size(ring))) == 2
    assert time.monotonic() - start < 10


def test_polish_colors_random_graphs_as_tabucol_does_and_better_than_the_search_without(colorer: Colorer):
    """DSATUR takes about 22 colors on the smaller one and 31 on the larger."""
    small, large = GRAPH, random_graph(200, 1)
    assert num_colors(found(colorer, small, 5, True)) <= 18
    assert num_colors(found(colorer, large, 3, True)) <= 25 < num_colors(found(colorer, large, 3, False))


def test_a_search_without_polish_repeats_itself_up_to_its_end(colorer: Colorer):
    call = replace(one_call(colorer, GRAPH, 60), seconds=10.0)  # so that iterated greedy makes all its passes
    first, second = (next(improvements(colorer, GRAPH, call, 60)) for _ in range(2))
    assert np.array_equal(first, second)


def test_threads_polish_from_the_best_of_them_and_end_with_the_search():
    start = greedy_along(GRAPH, np.arange(125))
    used = [num_colors(start)]
    before = threading.active_count()
    for colors in local_search(GRAPH.csr(), start, time.monotonic() + 5, lower=18, threads=3, seed=0, polish=True):
        assert is_proper(GRAPH, colors)
        used.append(num_colors(colors))
    assert used[-1] == 18 and used == sorted(set(used), reverse=True)
    assert threading.active_count() == before


def test_sets_have_their_turn_and_go_on_where_they_stopped():
    graph = random_graph(60, 0)
    sets = SetSearch(graph.csr(), seed=0, threads=2)
    assert sets.turn(time.monotonic() - 1) is None
    turns = [sets.turn(time.monotonic() + 60) for _ in range(2)]
    assert all(is_proper(graph, colors) for colors in turns) and not np.array_equal(*turns)


def test_a_color_is_saved_in_a_group_of_classes():
    graph = random_graph(2 * GROUP, 0)
    start = greedy_along(graph, np.arange(graph.num_nodes))
    found = _in_groups(graph.csr(), start, seeded(0), lambda: False)
    assert is_proper(graph, found) and sorted(set(found.tolist())) == list(range(num_colors(start) - 1))
    assert (found != start).sum() <= 2 * GROUP  # the group, and a class with another number
    assert _in_groups(graph.csr(), start, seeded(0), lambda: True) is None


def test_a_polish_that_is_left_ends_its_threads():
    before = threading.active_count()
    start = greedy_along(GRAPH, np.arange(125))
    search = local_search(GRAPH.csr(), start, time.monotonic() + 60, lower=1, threads=2, seed=0, polish=True)
    assert all(is_proper(GRAPH, next(search)) for _ in range(3))  # the third is TabuCol's
    search.close()
    assert threading.active_count() == before
