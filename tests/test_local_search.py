"""Iterated greedy, TabuCol and colorings of independent sets: proper, repeatable, as good as published, in time."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_training.coloring import greedy_along, is_proper, num_colors
from gnn_training.graph import Graph, NeighbourLists, as_graph
from gnn_training.solve.kernels import dsatur
from gnn_training.solve.local_search import (
    FOREVER,
    GROUP_NODES,
    Budget,
    descents,
    extract_in_threads,
    extractions,
    iterated_greedy,
    local_search,
    remove_color,
    remove_color_in_groups,
    seeded,
)

pytestmark = pytest.mark.usefixtures("compiled")


def random_graph(num_nodes: int, density: float, seed: int) -> Graph:
    return Graph.from_adjacency(np.random.default_rng(seed).random((num_nodes, num_nodes)) < density)


GRAPH = random_graph(125, 0.5, 0)
START = greedy_along(GRAPH, np.arange(125))


@settings(max_examples=40)
@given(st.integers(1, 40), st.floats(0, 1), st.integers(0, 10**6), st.integers(0, 30))
def test_iterated_greedy_keeps_any_coloring_proper_and_never_adds_a_color(n, p, seed, passes):
    graph = random_graph(n, p, seed)
    start = greedy_along(graph, np.random.default_rng(seed).permutation(n))
    before = start.copy()
    found = iterated_greedy(graph.csr(), start, 1, passes, 5, seed)
    assert is_proper(graph, found)
    assert set(found) == set(range(num_colors(found)))
    assert num_colors(found) <= num_colors(start)
    assert np.array_equal(start, before)


def test_iterated_greedy_finds_the_classes_of_an_easy_planted_graph():
    rng = np.random.default_rng(5)
    classes = rng.integers(0, 6, 200)
    graph = Graph.from_adjacency((rng.random((200, 200)) < 0.5) & (classes[:, None] != classes))
    start = greedy_along(graph, np.arange(200))
    assert num_colors(start) > 15
    assert num_colors(iterated_greedy(graph.csr(), start, 1, 2_000, 60, 0)) == 6


def test_iterated_greedy_repeats_itself_stops_at_the_bound_and_keeps_the_time():
    graph = random_graph(200, 0.5, 0)
    lists, start = graph.csr(), greedy_along(graph, np.arange(200))
    runs = [iterated_greedy(lists, start, 1, 500, 60, seed) for seed in (3, 3, 4)]
    assert np.array_equal(runs[0], runs[1]) and not np.array_equal(runs[0], runs[2])
    assert np.array_equal(iterated_greedy(lists, start, num_colors(start), 500, 60, 3), start)
    began = time.monotonic()
    iterated_greedy(lists, start, 1, FOREVER, 0.3, 3)
    assert 0.3 <= time.monotonic() - began < 1


def test_a_descent_repeats_itself_and_another_seed_goes_another_way():
    lists = as_graph(nx.gnp_random_graph(90, 0.5, seed=1)).csr()
    runs = [list(descents(lists, dsatur(*lists), 1, 5_000, 60, seed))[-1] for seed in (3, 3, 4)]
    assert np.array_equal(runs[0][0], runs[1][0]) and runs[0][1] == runs[1][1] > 0
    assert not np.array_equal(runs[0][0], runs[2][0])


def test_a_descent_yields_the_coloring_and_every_one_on_the_way():
    graph = as_graph(nx.gnp_random_graph(90, 0.5, seed=1))
    start = dsatur(*graph.csr())
    found, effort = zip(*descents(graph.csr(), start, 1, 5_000, 60, 3), strict=True)
    assert np.array_equal(found[0], start) and effort[0] == 0
    assert [int(colors.max()) for colors in found] == list(range(start.max(), start.max() - len(found), -1))
    assert len(found) > 3 and all(is_proper(graph, colors) for colors in found)
    assert list(effort) == sorted(effort)


def test_a_descent_ends_at_the_bound():
    lists = as_graph(nx.cycle_graph(5)).csr()
    assert len(list(descents(lists, dsatur(*lists), 3, 5_000, 60, 0))) == 1


def complete(search: Iterator[np.ndarray | None], number: int) -> list[np.ndarray]:
    """The next colorings of a search."""
    found: list[np.ndarray] = []
    while len(found) < number:
        if (colors := next(search)) is not None:
            found.append(colors)
    return found


@settings(max_examples=20)
@given(n=st.integers(1, 40), density=st.floats(0, 1), seed=st.integers(0, 2**31))
def test_a_coloring_of_independent_sets_is_proper_and_without_gaps(n, density, seed):
    graph = random_graph(n, density, seed)
    for colors in complete(extractions(graph.csr(), seed), 2):
        assert is_proper(graph, colors)
        assert set(colors.tolist()) == set(range(num_colors(colors)))


def test_colorings_of_sets_repeat_themselves_and_follow_the_seed():
    lists = random_graph(60, 0.5, 0).csr()
    first, again, other = (complete(extractions(lists, *seed), 3) for seed in ((1, 2), (1, 2), (1, 3)))
    assert all(map(np.array_equal, first, again)) and not all(map(np.array_equal, first, other))


def test_sets_color_random_graphs_with_far_fewer_colors_than_dsatur():
    lists = random_graph(300, 0.5, 0).csr()
    assert num_colors(complete(extractions(lists, 0), 1)[0]) <= num_colors(dsatur(*lists)) - 6


def test_the_clock_can_be_looked_at_after_every_set():
    search = extractions(random_graph(40, 0.5, 0).csr(), 0)
    yielded = [next(search) for _ in range(60)]
    for i, colors in enumerate(yielded):
        if colors is not None:
            assert all(item is None for item in yielded[i - num_colors(colors) : i])
    assert sum(colors is not None for colors in yielded) > 3


def test_extraction_in_threads_continues_where_it_stopped():
    graph = random_graph(25, 0.5, 0)
    searches = [extractions(graph.csr(), 0, number) for number in range(2)]
    assert extract_in_threads(searches, time.monotonic() - 1) is None
    turns = [extract_in_threads(searches, time.monotonic() + 60) for _ in range(2)]
    assert all(is_proper(graph, colors) for colors in turns) and not np.array_equal(*turns)


def test_threads_continue_from_the_best_of_them_and_end_with_the_search():
    used = [num_colors(START)]
    before = threading.active_count()
    for colors in local_search(GRAPH.csr(), START, Budget(time.monotonic() + 10, lower=18, threads=3)):
        assert is_proper(GRAPH, colors)
        used.append(num_colors(colors))
    assert used[-1] == 18 and used == sorted(set(used), reverse=True)
    assert threading.active_count() == before


def test_without_memory_for_tabucol_on_the_whole_graph_every_thread_takes_groups_of_classes(monkeypatch):
    sizes = []

    def watched(lists: NeighbourLists, colors: np.ndarray, *arguments: Any) -> tuple[np.ndarray | None, int]:
        sizes.append(len(colors))
        return remove_color(lists, colors, *arguments)

    monkeypatch.setattr("gnn_training.solve.local_search.remove_color", watched)
    for memory in (0, 2**30):
        sizes.clear()
        monkeypatch.setattr("gnn_training.solve.local_search.available_bytes", lambda memory=memory: memory)
        graph = random_graph(300, 0.5, 1)
        list(local_search(graph.csr(), dsatur(*graph.csr()), Budget(time.monotonic() + 0.5, threads=2)))
        assert sizes and (max(sizes) == 300) == bool(memory)


def test_a_search_that_is_left_ends_its_threads():
    before = threading.active_count()
    search = local_search(GRAPH.csr(), START, Budget(time.monotonic() + 60, threads=2))
    assert all(is_proper(GRAPH, next(search)) for _ in range(3))  # the third is TabuCol's
    search.close()
    assert threading.active_count() == before


def test_a_color_is_saved_in_a_group_of_classes():
    graph = random_graph(2 * GROUP_NODES, 0.5, 0)
    start = greedy_along(graph, np.arange(graph.num_nodes))
    found = remove_color_in_groups(graph.csr(), start, seeded(0), lambda: False)
    assert found is not None and is_proper(graph, found)
    assert sorted(set(found.tolist())) == list(range(num_colors(start) - 1))
    assert (found != start).sum() <= 2 * GROUP_NODES  # the group, and a class with another number
    assert remove_color_in_groups(graph.csr(), start, seeded(0), lambda: True) is None
