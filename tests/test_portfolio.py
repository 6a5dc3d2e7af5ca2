"""The methods that improve a coloring: proper, repeatable, as good as published, in time and together."""

import math
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import networkx as nx
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_graphs import planted, random_graph

from gnn_training.contract import SHIPPED_MODEL
from gnn_training.graph import Graph, conflicts, is_proper, num_colors
from gnn_training.graph_objects import as_graph
from gnn_training.network.crossover_weights import CrossoverWeights, to_text, zero_weights
from gnn_training.onnx_program.session import Model
from gnn_training.search import engine, first_colorings, islands, kernels, methods, proofs
from gnn_training.search.engine import UNTRAINED, Budget, Method, SearchWeights, improvements
from gnn_training.search.kernels import NEVER_STOP
from gnn_training.search.portfolio import colorings

pytestmark = pytest.mark.usefixtures("compiled")
METHODS: dict[Method, float] = {methods.independent_sets: 2, methods.crossover_search: 2, methods.fewer_colors: 1}
GRAPH = replace(random_graph(125, 0.5), name="random")
FEW_COLORS = 17  # as TabuCol finds them in a second; DSATUR takes 22


def found(
    graph: Graph, methods: dict[Method, float], patience: int, seed: int = 0, lower: int = 1,
    trained: SearchWeights = UNTRAINED,
) -> list[np.ndarray]:  # fmt: skip
    """What one thread finds with a limit of work; each is proper, without gaps, and has fewer colors than the last."""
    lists = graph.csr()
    start = kernels.dsatur(*lists)
    budget = Budget(time.monotonic() + 60, lower, 1, seed)
    result = [start, *(each.colors for each in improvements(lists, start, budget, methods, trained, patience))]
    assert all(is_proper(graph, colors) and colors.max() + 1 == num_colors(colors) for colors in result)
    assert all(after.max() < before.max() for before, after in zip(result, result[1:], strict=False))
    return result


@given(n=st.integers(1, 40), density=st.floats(0, 1), k=st.integers(1, 12), seed=st.integers(0, 2**31))
def test_tabucol_counts_the_conflicts_of_the_coloring_that_it_returns(n, density, k, seed):
    graph = random_graph(n, density, seed)
    start = np.random.default_rng(seed).integers(0, k, n).astype(np.int32)
    before = conflicts(graph, start)
    best, ages, fewest, moves, _ = kernels.tabucol(
        *graph.csr(), start, k, 200, first_colorings.seeded(seed), NEVER_STOP
    )
    assert fewest == conflicts(graph, best) <= before and best.min() >= 0 and best.max() < k
    assert moves == 200 or fewest == 0
    assert ages.min() >= 0 and ages.max() <= moves


@given(n=st.integers(1, 40), density=st.floats(0, 1), seed=st.integers(0, 2**31))
def test_completion_colors_the_rest_and_properly_where_colors_are_enough(n, density, seed):
    graph = random_graph(n, density, seed)
    colors = np.full(n, -1, dtype=np.int32)
    colors[0] = n
    kernels.complete(*graph.csr(), colors, n, first_colorings.seeded(seed), NEVER_STOP)
    assert colors[0] == n and is_proper(graph, colors)


@pytest.mark.parametrize("method", [methods.tabu_search, methods.crossover_search])
def test_tabu_and_crossover_search_color_a_random_graph_as_well_as_published(method: Method):
    assert found(GRAPH, {method: 1}, 100_000_000, lower=FEW_COLORS)[-1].max() + 1 == FEW_COLORS


@pytest.mark.parametrize("method", [methods.crossover_search, methods.independent_sets])
def test_a_search_takes_the_weights_of_crossover_from_the_file(method: Method, tmp_path: Path):
    shipped, file = Model(), onnx.load(SHIPPED_MODEL)
    [entry] = [entry for entry in file.metadata_props if entry.key == "crossover"]
    entry.value = to_text(CrossoverWeights(*(-part for part in shipped.crossover)))
    onnx.save(file, tmp_path / "other.onnx")
    models = shipped.trained, Model(tmp_path / "other.onnx").trained, UNTRAINED
    graph = random_graph(200, 0.7)
    runs = [found(graph, {method: 1}, 30_000_000, trained=each)[-1].tolist() for each in (*models, models[0])]
    assert runs[0] not in runs[1:3] and runs[1] != runs[2] and runs[0] == runs[3]


@pytest.mark.parametrize(("graph_seed", "seed"), [(4, 0), (20, 1)])
def test_crossover_search_soon_ignores_a_network_with_bad_values(graph_seed: int, seed: int, monkeypatch):
    """Every node is worth -1 to it, so the class with fewest nodes is taken."""
    lists, k = random_graph(200, 0.5, graph_seed).csr(), 24
    harmful = zero_weights()._replace(first_bias=np.ones(1, np.float32), out=np.full(1, -2, np.float32))

    def is_solved(generations: int, weights: CrossoverWeights) -> bool:
        search = engine.Portfolio(
            lists, np.arange(200) % (k + 1), Budget(math.inf, seed=seed), SearchWeights(None, weights)
        )
        turns = methods.crossover_search(engine.Worker(search, 0))
        return any(search.num_colors <= k for _ in islice(turns, 2 * generations))

    assert is_solved(30, zero_weights()) and is_solved(60, harmful)
    monkeypatch.setattr(islands, "ODDS_AGAINST", 0)  # always the network's choice
    assert not is_solved(60, harmful)


def test_independent_sets_first_color_dense_random_graphs_with_far_fewer_colors_than_dsatur():
    start, *_, last = found(random_graph(400, 0.7), {methods.independent_sets: 1}, 100_000_000)
    assert last.max() <= start.max() - 12


def test_asking_for_far_fewer_colors_finds_a_planted_coloring():
    graph, _ = planted(300, 20, 0.5, seed=5)
    assert found(graph, {methods.fewer_colors: 1}, 300_000_000, lower=20)[-1].max() + 1 <= 24
    assert found(graph, METHODS, 300_000_000, lower=20)[-1].max() + 1 == 20


@settings(max_examples=10)
@given(n=st.integers(1, 30), density=st.floats(0, 1), seed=st.integers(0, 2**31))
def test_any_graph_can_be_searched_and_one_thread_repeats_itself(n, density, seed):
    graph = random_graph(n, density, seed)
    runs = [found(graph, METHODS | {methods.tabu_search: 1}, 300_000, seed) for _ in range(2)]
    assert all(map(np.array_equal, *runs))


def test_a_search_ends_at_the_bound():
    long, short = (as_graph(nx.cycle_graph(n)) for n in (51, 9))
    assert len(found(long, METHODS, 2**60, lower=3)) == 1
    assert [*improvements(short.csr(), np.arange(9), Budget(time.monotonic() + 60, 3), METHODS)][-1].num_colors == 3


@pytest.mark.parametrize("seconds", [-5, 0, 0.3])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_search_keeps_the_time(seconds: float, threads: int):
    before, start = threading.active_count(), time.monotonic()
    for coloring in colorings(GRAPH, UNTRAINED, Budget(start + seconds, threads=threads)):
        assert is_proper(GRAPH, coloring.colors) and coloring.num_colors == num_colors(coloring.colors)
    assert max(0, seconds) <= time.monotonic() - start < max(0, seconds) + 2
    assert threading.active_count() == before


@pytest.mark.parametrize("num_nodes", [1, 125, 400, 1500])
def test_without_time_the_first_coloring_is_proper(num_nodes: int):
    graph = random_graph(num_nodes, 0.5)
    [only] = colorings(graph, UNTRAINED, Budget(time.monotonic() - 1))
    assert is_proper(graph, only.colors) and only.num_colors == num_colors(only.colors)


def test_a_dense_graph_begins_with_independent_sets_and_what_they_leave_is_colored_too():
    graph = random_graph(400, 0.7)
    lists = graph.csr()
    first, sets = islice(colorings(graph, UNTRAINED, Budget(time.monotonic() + 30)), 2)
    assert (first.method, sets.method) == ("DSATUR", "independent sets") and sets.num_colors <= first.num_colors - 8
    colors = first_colorings.set_coloring(*lists, 0, 100, NEVER_STOP)
    left = np.where(colors < 5, colors, -1)
    whole = first_colorings.completed(lists, left)
    assert is_proper(graph, colors) and is_proper(graph, whole) and (whole[left >= 0] == left[left >= 0]).all()
    assert (first_colorings.set_coloring(*lists, 0, 100, np.ones(1, dtype=np.uint8)) == -1).all()


def test_independent_sets_get_the_moves_that_fit_into_the_time():
    lists = random_graph(400, 0.7).csr()
    moves = [first_colorings.set_moves(lists, 100, seconds) for seconds in (-1, 0, 0.004, 0.011, 10, math.inf)]
    assert moves == [0, 0, 8, 32, 1024, 1024]
    assert first_colorings.set_moves(random_graph(400, 0.01).csr(), 3, 1) == 0, "sparse"
    started = time.thread_time()
    first_colorings.set_coloring(*lists, 0, 32, NEVER_STOP)
    assert time.thread_time() - started < 0.5


def test_threads_continue_from_the_best_of_them():
    start = kernels.dsatur(*GRAPH.csr())
    budget = Budget(time.monotonic() + 60, FEW_COLORS, threads=3)
    numbers = [coloring.num_colors for coloring in improvements(GRAPH.csr(), start, budget, METHODS)]
    assert numbers[-1] == FEW_COLORS and numbers == sorted(set(numbers), reverse=True)


def test_a_search_that_is_left_ends_its_threads():
    before = threading.active_count()
    search = colorings(GRAPH, UNTRAINED, Budget(time.monotonic() + 60, threads=2))
    assert [next(search).method for _ in range(2)][0] == "DSATUR"
    search.close()
    assert threading.active_count() == before


def test_an_error_in_a_method_is_raised_and_ends_the_others():
    def broken(worker: engine.Worker) -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    start = kernels.dsatur(*GRAPH.csr())
    budget = Budget(time.monotonic() + 60, threads=2)
    with pytest.raises(ValueError, match="broken"):
        list(improvements(GRAPH.csr(), start, budget, {methods.tabu_search: 1, broken: 1}))


def test_a_method_with_a_small_share_has_no_thread_for_itself():
    workers = []

    def small(worker: engine.Worker) -> Iterator[int]:
        workers.append(worker)
        while True:
            yield 10**6

    start = kernels.dsatur(*GRAPH.csr())
    list(improvements(GRAPH.csr(), start, Budget(time.monotonic() + 0.5, threads=4), METHODS | {small: 0.1}))
    assert len(workers) == 1 and workers[0].work > 10**6


def test_a_compiled_loop_is_stopped_at_the_deadline():
    start = time.monotonic()
    colors = np.arange(125, dtype=np.int32) % 5
    first_colorings.run_until(start + 0.2, kernels.tabucol, *GRAPH.csr(), colors, 5, 2**60, first_colorings.seeded(0))
    assert 0.2 <= time.monotonic() - start < 2


def test_without_memory_for_a_search_the_first_colorings_have_the_last_word(monkeypatch, caplog):
    monkeypatch.setattr("gnn_training.search.engine.available_bytes", lambda: 1000)
    found = [each.method for each in colorings(GRAPH, UNTRAINED, Budget(time.monotonic() + 60))]
    assert found == ["DSATUR", "independent sets"]
    assert "a search needs 0.0 GiB, more than are free" in caplog.text


@given(n=st.integers(1, 60), density=st.floats(0, 0.3), seed=st.integers(0, 2**31), k=st.integers(1, 6))
def test_nodes_with_few_neighbours_are_colored_last_with_no_color_more(n, density, seed, k):
    graph = random_graph(n, density, seed)
    lists, colors = graph.csr(), np.arange(n, dtype=np.int32)
    order, cores = proofs.removal_order(*lists)
    parts = methods.open_parts(lists, cores, colors, k)
    for nodes in parts:
        inside = lists.subgraph(nodes)
        assert np.diff(inside.offsets).min() >= k
        colors[nodes] = kernels.dsatur(*inside)
    most = max([k, *(colors[nodes].max() + 1 for nodes in parts)])
    whole = methods.smallest_last(lists, order, cores, colors, k)
    assert is_proper(graph, whole) and whole.max() < most


def test_the_number_of_colors_falls_to_that_of_a_component_and_one_thread_repeats_itself():
    parts = [nx.gnp_random_graph(120, 0.1 * i, seed=i) for i in range(1, 5)]
    graph = as_graph(nx.disjoint_union_all(parts))
    alone, *runs = (
        list(colorings(each, UNTRAINED, Budget(time.monotonic() + 3, lower=lower)))
        for each, lower in ((as_graph(parts[-1]), 15), (graph, 15), (graph, 15))
    )
    assert [run[-1].num_colors for run in (alone, *runs)] == [15] * 3
    assert all(np.array_equal(a.colors, b.colors) for a, b in zip(*runs, strict=True))


def test_a_wrong_coloring_is_never_given_out(monkeypatch):
    monkeypatch.setattr(kernels, "dsatur", lambda offsets, *_: np.zeros(len(offsets) - 1, dtype=int))
    with pytest.raises(RuntimeError, match="random: the coloring by DSATUR is not proper"):
        next(colorings(GRAPH, UNTRAINED, Budget(time.monotonic() + 1)))
