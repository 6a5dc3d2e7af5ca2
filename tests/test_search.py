"""The compiled search: proper, never above DSATUR, as good as TabuCol should be, and repeatable."""

import os
import subprocess
import sys
import time
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_training.coloring import greedy_along, is_proper, num_colors
from gnn_training.data.families import draw
from gnn_training.data.labels import difficulty, label
from gnn_training.graph import Graph, Instance
from gnn_training.solve.kernels import dsatur, greedy_clique
from gnn_training.solve.local_search import FOREVER, descend, descents, iterated_greedy


def graph_of(network: nx.Graph) -> Graph:
    network = nx.convert_node_labels_to_integers(network)
    return Graph.from_edges(network.number_of_nodes(), list(network.edges))


def clique_size(graph: Graph) -> int:
    return greedy_clique(*graph.csr(), np.arange(graph.num_nodes))


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 40), st.floats(0, 1), st.integers(0, 10**6))
def test_labels_of_any_graph_are_proper_and_within_their_bounds(n, p, seed):
    graph = Graph.from_adjacency(np.random.default_rng(seed).random((n, n)) < p)
    found = label(Instance(graph), iterations=500, seconds=5, seed=0)
    assert is_proper(graph, found.coloring)
    assert set(found.coloring) == set(range(found.num_colors))
    assert 1 <= found.lower_bound <= found.num_colors <= found.dsatur_colors <= n
    assert found.optimal == (found.lower_bound == found.num_colors)
    assert 0 <= found.difficulty <= 100


@pytest.mark.parametrize("n", [1, 2, 9])
def test_graphs_without_edges_and_complete_graphs_are_proven(n):
    edgeless = label(Instance(Graph.from_edges(n, [])), 100, 1, 0)
    complete = label(Instance(graph_of(nx.complete_graph(n))), 100, 1, 0)
    assert (edgeless.num_colors, complete.num_colors) == (1, n)
    assert edgeless.optimal and complete.optimal


def test_the_label_of_a_large_graph_begins_with_independent_sets():
    graph = graph_of(nx.gnp_random_graph(500, 0.5, seed=0))
    found = label(Instance(graph), iterations=1, seconds=5, seed=0)
    assert is_proper(graph, found.coloring) and found.num_colors <= found.dsatur_colors - 8


def test_dsatur_is_exact_on_bipartite_graphs_and_cycles():
    bipartite = nx.grid_2d_graph(9, 14), nx.complete_bipartite_graph(20, 30), nx.cycle_graph(100), nx.star_graph(500)
    for network in bipartite:
        assert num_colors(dsatur(*graph_of(network).csr())) == 2
    assert num_colors(dsatur(*graph_of(nx.cycle_graph(101)).csr())) == 3


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 40), st.floats(0, 1), st.integers(0, 10**6), st.integers(0, 30))
def test_iterated_greedy_keeps_any_coloring_proper_and_never_adds_a_color(n, p, seed, passes):
    graph = Graph.from_adjacency(np.random.default_rng(seed).random((n, n)) < p)
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
    graph = graph_of(nx.gnp_random_graph(200, 0.5, seed=0))
    lists, start = graph.csr(), greedy_along(graph, np.arange(200))
    runs = [iterated_greedy(lists, start, 1, 500, 60, seed) for seed in (3, 3, 4)]
    assert np.array_equal(runs[0], runs[1]) and not np.array_equal(runs[0], runs[2])
    assert np.array_equal(iterated_greedy(lists, start, num_colors(start), 500, 60, 3), start)
    began = time.monotonic()
    iterated_greedy(lists, start, 1, FOREVER, 0.3, 3)
    assert 0.3 <= time.monotonic() - began < 1


def test_the_clique_bound_finds_a_planted_clique_and_never_exceeds_the_truth():
    network = nx.gnp_random_graph(150, 0.2, seed=4)
    network.add_edges_from((u, v) for u in range(40, 60) for v in range(40, u))
    assert clique_size(graph_of(network)) == 20
    for seed in range(10):
        network = nx.gnp_random_graph(30, 0.5, seed=seed)
        assert clique_size(graph_of(network)) <= max(map(len, nx.find_cliques(network)))


def test_tabucol_colors_a_random_graph_as_well_as_published():
    """G(200, .5) takes DSATUR about 31 colors and TabuCol about 24."""
    graph = graph_of(nx.gnp_random_graph(200, 0.5, seed=0))
    found = label(Instance(graph), iterations=100_000, seconds=30, seed=0)
    assert found.dsatur_colors >= 29 and found.num_colors <= 25


def test_the_search_finds_the_known_number_of_colors_of_a_board():
    cells = [(r, c) for r in range(7) for c in range(7)]
    moves = [(a, b) for a in range(49) for b in range(a) if
             cells[a][0] == cells[b][0] or cells[a][1] == cells[b][1]
             or abs(cells[a][0] - cells[b][0]) == abs(cells[a][1] - cells[b][1])]  # fmt: skip
    found = label(Instance(Graph.from_edges(49, moves)), iterations=100_000, seconds=30, seed=0)
    assert found.num_colors == 7 and found.optimal


def test_a_search_repeats_itself_and_another_seed_goes_another_way():
    graph = graph_of(nx.gnp_random_graph(90, 0.5, seed=1))
    lists, start = graph.csr(), dsatur(*graph.csr())
    runs = [descend(lists, start, 1, 5_000, 60, seed) for seed in (3, 3, 4)]
    assert np.array_equal(runs[0][0], runs[1][0]) and runs[0][1] == runs[1][1] > 0
    assert not np.array_equal(runs[0][0], runs[2][0])


def test_a_descent_yields_every_coloring_on_the_way_and_ends_where_the_search_does():
    graph = graph_of(nx.gnp_random_graph(90, 0.5, seed=1))
    lists, start = graph.csr(), dsatur(*graph.csr())
    way = list(descents(lists, start, 1, 5_000, 60, 3))
    end, effort = descend(lists, start, 1, 5_000, 60, 3)
    assert [int(colors.max()) for colors, _ in way] == list(range(start.max() - 1, end.max() - 1, -1))
    assert len(way) > 2 and all(is_proper(graph, colors) for colors, _ in way)
    assert np.array_equal(way[-1][0], end) and way[-1][1] == effort
    assert [done for _, done in way] == sorted(done for _, done in way)


def test_a_descent_without_a_step_leaves_the_coloring():
    lists = graph_of(nx.cycle_graph(5)).csr()
    colors, effort = descend(lists, dsatur(*lists), 3, 5_000, 60, 0)
    assert list(descents(lists, dsatur(*lists), 3, 5_000, 60, 0)) == []
    assert np.array_equal(colors, dsatur(*lists)) and effort == 0


def test_without_time_the_label_is_what_is_known():
    instance = draw(0, "planted", 3, 100)
    greedy = label(Instance(instance.graph), iterations=10_000, seconds=0, seed=0)
    planted = label(instance, iterations=10_000, seconds=0, seed=0)
    assert greedy.num_colors == greedy.dsatur_colors
    assert planted.num_colors == min(num_colors(instance.coloring), greedy.num_colors)


def test_a_known_coloring_worse_than_dsatur_is_not_kept():
    graph = graph_of(nx.path_graph(6))
    assert label(Instance(graph, np.arange(6)), 100, 1, 0).num_colors == 2


def test_what_the_family_proves_is_the_lower_bound():
    instance = next(i for i in (draw(0, "mycielski", index, 60) for index in range(20)) if i.optimal)
    found = label(instance, iterations=1_000, seconds=5, seed=0)
    assert found.optimal and found.lower_bound == found.num_colors > clique_size(instance.graph)


def test_difficulty_rises_with_each_of_its_parts():
    easy = difficulty(num_nodes=100, num_colors=10, lower_bound=9, dsatur_colors=11, effort=100)
    assert easy < difficulty(1000, 10, 9, 11, 100)
    assert easy < difficulty(100, 10, 5, 11, 100)
    assert easy < difficulty(100, 10, 9, 13, 100)
    assert easy < difficulty(100, 10, 9, 11, 10_000)
    assert difficulty(1, 1, 1, 1, 0) == 0
    assert difficulty(10**4, 100, 1, 500, 10**9) == 100


def test_the_search_compiles_where_the_package_cannot_be_written(tmp_path):
    program = """if True:
        import os, numpy as np
        os.access = lambda *_: False
        from gnn_training.data.search import greedy_clique
        assert greedy_clique(np.array([0, 1, 2]), np.array([1, 0], dtype=np.int32), np.arange(2)) == 2
    """
    root = Path(__file__).parent.parent
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(root)}
    environment.pop("NUMBA_CACHE_DIR", None)
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
    assert list(tmp_path.glob("gnn_training-numba-*/**/*.nbi"))
