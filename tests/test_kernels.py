"""The compiled loops: DSATUR, first fit, greedy cliques, independent sets, and where their compiled code is kept."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import networkx as nx
import numba
import numpy as np
import pytest
from fuzzing import peak_bytes, reset_peak
from hypothesis import given
from hypothesis import strategies as st
from small_graphs import GRAPH, random_graph
from tiny_runs import full_disk

from gnn_training.graph import Graph, is_proper, num_colors
from gnn_training.graph_objects import as_graph
from gnn_training.onnx_program.session import from_logits
from gnn_training.search.compiled import njit
from gnn_training.search.first_colorings import clique_size, seeded
from gnn_training.search.kernels import NEVER_STOP, color_independent_set, dsatur, first_fit
from gnn_training.search.proofs import components, has_odd_wheel, largest_clique, removal_order

PATH = Graph.from_edges(4, [(0, 1), (1, 2), (2, 3)])
TRIANGLE_WITH_TAIL = Graph.from_edges(4, [(0, 1), (1, 2), (0, 2), (2, 3)])
pytestmark = pytest.mark.usefixtures("compiled")


def test_a_coloring_with_a_missing_node_or_a_negative_color_is_not_proper():
    assert is_proper(TRIANGLE_WITH_TAIL, np.array([0, 1, 2, 0]))
    for colors in ([0, 1, 2], [0, 1, 2, -1], [0, 1, 1, 0]):
        assert not is_proper(TRIANGLE_WITH_TAIL, np.array(colors))


@given(GRAPH, st.data())
def test_first_fit_is_proper_without_gaps_within_the_largest_degree_and_decoding_needs_no_more_colors(graph, data):
    colors = first_fit(*graph.csr(), np.array(data.draw(st.permutations(range(graph.num_nodes)))))
    assert is_proper(graph, colors) and colors.max() <= graph.degrees().max()
    assert set(colors.tolist()) == set(range(num_colors(colors)))
    columns = np.array(data.draw(st.permutations(range(graph.num_nodes + 3))))
    decoded = from_logits(graph, np.eye(graph.num_nodes + 3)[columns[colors]])
    assert is_proper(graph, decoded) and num_colors(decoded) <= num_colors(colors)


def test_first_fit_follows_the_order_and_decoding_that_of_the_classes_then_of_the_nodes():
    assert first_fit(*PATH.csr(), np.array([0, 1, 2, 3])).tolist() == [0, 1, 0, 1]
    assert first_fit(*PATH.csr(), np.array([0, 3, 1, 2])).tolist() == [0, 1, 2, 0]
    assert from_logits(PATH, np.array([[5.0, 0.0], [0.0, 5.0], [0.0, 5.0], [5.0, 0.0]])).tolist() == [0, 1, 2, 0]
    assert is_proper(TRIANGLE_WITH_TAIL, from_logits(TRIANGLE_WITH_TAIL, np.full((4, 8), np.nan)))


@given(n=st.integers(1, 30), density=st.floats(0, 1), seed=st.integers(0, 2**31))
def test_dsatur_is_that_of_networkx(n, density, seed):
    graph = random_graph(n, density, seed)
    expected = nx.greedy_color(nx.from_numpy_array(graph.adjacency()), "DSATUR")
    assert dict(enumerate(dsatur(*graph.csr()).tolist())) == expected


def large_graph(num_nodes: int, num_edges: int) -> Graph:
    return Graph.from_edges(num_nodes, np.random.default_rng(0).integers(0, num_nodes, (num_edges, 2)))


def test_large_graphs_are_colored_in_a_moment():
    graph = large_graph(50_000, 200_000)
    start = time.process_time()
    dsatur(*graph.csr())
    from_logits(graph, np.eye(8, dtype=np.float32)[np.arange(50_000) % 8])
    assert time.process_time() - start < 2  # measured: 0.1


def test_dsatur_ends_early_when_another_thread_tells_it_to():
    lists, stop = large_graph(300_000, 3_000_000).csr(), np.zeros(1, dtype=np.uint8)
    few = Graph.from_edges(3, [(0, 1)]).csr()
    assert dsatur(*few, stop).min() == 0 and dsatur(*few, stop + np.uint8(1)).tolist() == [-1] * 3
    with ThreadPoolExecutor() as pool:
        coloring = pool.submit(dsatur, *lists, stop)
        time.sleep(0.05)
        stop[0] = 1
        colors = coloring.result(timeout=60)
    assert (colors < 0).any() and colors.max() >= 0


def test_dsatur_needs_little_memory_for_a_star():
    lists = as_graph(nx.star_graph(100_000)).csr()
    before = reset_peak()
    assert dsatur(*lists).max() == 1
    assert peak_bytes() - before < 300e6  # rows of 100,000 bits would take 1250e6


def test_the_clique_bound_finds_a_planted_clique_and_never_exceeds_the_truth():
    network = nx.gnp_random_graph(150, 0.2, seed=4)
    network.add_edges_from((u, v) for u in range(40, 60) for v in range(40, u))
    cliques = {network: 20, nx.complete_graph(5): 5, nx.empty_graph(3): 1}
    assert [clique_size(as_graph(each).csr()) for each in cliques] == [*cliques.values()]
    for seed in range(10):
        network = nx.gnp_random_graph(30, 0.5, seed=seed)
        assert clique_size(as_graph(network).csr()) <= max(map(len, nx.find_cliques(network)))


@given(graph=GRAPH)
def test_core_numbers_components_cliques_and_odd_wheels_are_those_of_networkx(graph: Graph):
    network, lists = nx.from_numpy_array(graph.adjacency()), graph.csr()
    order, cores = removal_order(*lists)
    assert dict(enumerate(cores.tolist())) == nx.core_number(network)
    assert sorted(order.tolist()) == list(network) and (np.diff(cores[order]) >= 0).all()
    for i, node in enumerate(order.tolist()):
        assert len(set(network[node]) & set(order[i:].tolist())) <= cores[node]
    assert components(*lists).tolist() == [
        next(i for i, part in enumerate(nx.connected_components(network)) if node in part) for node in network
    ]
    beside = [network.subgraph(network[node]) for node in network]
    assert has_odd_wheel(*lists, NEVER_STOP) == (not all(map(nx.is_bipartite, beside)))
    largest = max(map(len, nx.find_cliques(network)))
    clique, is_largest, left = largest_clique(*lists, graph.num_nodes + 1, 10**6, NEVER_STOP)
    assert len(set(clique.tolist())) == len(clique) == largest and is_largest and left > 0
    assert network.subgraph(clique.tolist()).size() == largest * (largest - 1) // 2
    assert len(largest_clique(*lists, 2, 10**6, NEVER_STOP)[0]) >= min(2, largest)


@pytest.mark.parametrize(("work", "stop"), [(50, 0), (10**9, 1)])
def test_a_search_for_cliques_ends_after_its_work_or_when_it_is_told_to(work: int, stop: int):
    graph = random_graph(300, 0.5)
    stopped = np.full(1, stop, dtype=np.uint8)
    clique, is_largest, _ = largest_clique(*graph.csr(), 300, work, stopped)
    assert not is_largest and graph.adjacency()[np.ix_(clique, clique)].sum() == len(clique) * (len(clique) - 1)


def independent_set(graph: Graph, is_left: np.ndarray, moves: int, seed: int) -> np.ndarray:
    """The set (N,) bool that gets a color."""
    colors, adjacency = np.where(is_left, -1, 0).astype(np.int32), graph.adjacency()
    degree = adjacency[:, is_left].sum(1)
    color_independent_set(*graph.csr(), colors, degree, moves, seeded(seed), NEVER_STOP)
    assert degree.tolist() == adjacency[:, colors < 0].sum(1).tolist()
    return is_left & (colors >= 0)


@given(n=st.integers(1, 40), density=st.floats(0, 1), left=st.floats(0, 1), seed=st.integers(0, 2**31))
def test_a_set_is_independent_of_nodes_that_are_left_and_no_node_can_be_added(n, density, left, seed):
    graph = random_graph(n, density, seed)
    is_left = np.random.default_rng(seed + 1).random(n) < left
    found = independent_set(graph, is_left, 50, seed)
    neighbours_inside = graph.adjacency()[found].sum(0)
    assert not found[~is_left].any()
    assert (neighbours_inside[found] == 0).all() and (neighbours_inside[is_left & ~found] > 0).all()


def test_the_largest_independent_set_of_a_known_graph_is_found():
    graph = random_graph(70, 0.7, 0)
    complement = nx.from_numpy_array(~graph.adjacency() & ~np.eye(70, dtype=bool))
    largest = len(max(nx.find_cliques(complement), key=len))
    found = independent_set(graph, np.ones(70, dtype=bool), 2_000, 0)
    assert found.sum() == largest


def test_of_sets_of_one_size_the_one_with_more_edges_is_taken():
    """Two nodes of a ring of four and of a triangle on one of its sides: five edges with its end, four with its tip."""
    house = Graph.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 0), (0, 4), (1, 4)])
    for seed in range(10):
        found = independent_set(house, np.ones(5, dtype=bool), 50, seed)
        assert np.flatnonzero(found).tolist() in ([0, 2], [1, 3])


def colors_of_a_path() -> int:
    """Compile first fit, or load it, and color a path; how often it was loaded."""
    compiled = njit(cache=True)(first_fit.py_func)
    assert compiled(*PATH.csr(), np.arange(4)).tolist() == [0, 1, 0, 1]
    return sum(compiled.stats.cache_hits.values())


@pytest.mark.parametrize("size", [0, 40])
@pytest.mark.parametrize("kind", ["*.nbi", "*.nbc"])
def test_compiled_code_that_is_cut_off_on_the_disk_is_compiled_again(
    kind: str, size: int, tmp_path: Path, monkeypatch, caplog
):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert (colors_of_a_path(), colors_of_a_path()) == (0, 1)
    [file] = tmp_path.rglob(kind)
    os.truncate(file, size)
    assert (colors_of_a_path(), colors_of_a_path()) == (0, 1)
    [record] = caplog.records
    assert record.getMessage() == f"{file.parent}: files of numba are damaged or cannot be read; compiling again"


def test_the_search_works_where_compiled_code_cannot_be_written(tmp_path: Path, monkeypatch, caplog):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    with full_disk():
        assert (colors_of_a_path(), colors_of_a_path()) == (0, 0)
    assert "cannot be written (file too large): the search is compiled at every start; name a folder" in caplog.text
    monkeypatch.setattr(numba.core.caching.CompileResultCacheImpl, "_locator_classes", [])
    assert colors_of_a_path() == 0
    assert "no folder to keep compiled code in: the search is compiled at every start; name a folder" in caplog.text
