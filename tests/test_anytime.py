"""DSATUR, one call and the search: proper colorings, ever fewer colors, and the clock."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tiny_onnx

from gnn_training.coloring import is_proper, num_colors
from gnn_training.graph import Graph
from gnn_training.model.session import Model
from gnn_training.solve import anytime
from gnn_training.solve.anytime import Coloring, colorings, improvements, one_call
from gnn_training.solve.local_search import Budget, clique_size

pytestmark = pytest.mark.usefixtures("compiled")


def random_graph(num_nodes: int, seed: int) -> Graph:
    return Graph.from_adjacency(np.random.default_rng(seed).random((num_nodes, num_nodes)) < 0.5, "random")


def ring(num_nodes: int) -> Graph:
    return Graph.from_edges(num_nodes, [(i, (i + 1) % num_nodes) for i in range(num_nodes)], "ring")


GRAPH = random_graph(125, 0)
FEW_COLORS = 17  # as TabuCol finds them in a second; DSATUR takes 22


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    return Model(tiny_model, threads=1)


def found(model: Model, graph: Graph, seconds: float, polish: bool, lower: int = 1) -> np.ndarray:
    """The last coloring of the search; each is proper and has fewer colors than the one before."""
    call = one_call(model, graph, 60)
    best = call.colors
    for colors in improvements(model, graph, call, Budget(time.monotonic() + seconds, lower), polish):
        assert is_proper(graph, colors) and num_colors(colors) < num_colors(best)
        best = colors
    return best


@pytest.mark.parametrize("polish", [False, True])
@pytest.mark.parametrize("seconds", [-5, 0, 0.5])
def test_the_search_keeps_the_time(model: Model, polish: bool, seconds: float):
    start = time.monotonic()
    found(model, GRAPH, seconds, polish)
    assert max(0, seconds) <= time.monotonic() - start < max(0, seconds) + 1


@pytest.mark.parametrize("polish", [False, True])
def test_the_search_ends_at_the_bound(model: Model, polish: bool):
    graph = ring(50)
    start = time.monotonic()
    assert num_colors(found(model, graph, 60, polish, lower=clique_size(graph.csr()))) == 2
    assert time.monotonic() - start < 10


def test_polish_colors_random_graphs_as_tabucol_does_and_longer_calls_save_colors(model: Model):
    assert num_colors(found(model, GRAPH, 10, True, lower=FEW_COLORS + 1)) == FEW_COLORS + 1
    assert num_colors(found(model, GRAPH, 5, False)) < num_colors(one_call(model, GRAPH, 60).colors)


def run(graph: Graph, model: Model, seconds: float, lower: int = 1) -> Iterator[Coloring]:
    return colorings(graph, model, Budget(time.monotonic() + seconds, lower))


def test_colorings_name_their_method_have_no_gaps_and_the_search_continues_from_the_best(model: Model):
    yielded = list(run(GRAPH, model, 1))
    assert [coloring.method for coloring in yielded[:3]] == ["DSATUR", "one call", "search"]
    for coloring in yielded:
        assert is_proper(GRAPH, coloring.colors)
        assert set(coloring.colors.tolist()) == set(range(coloring.num_colors))
    searched = [coloring.num_colors for coloring in yielded if coloring.method == "search"]
    assert searched == sorted(set(searched), reverse=True) and searched[0] < yielded[0].num_colors


def test_a_coloring_that_a_clique_proves_ends_the_search(model: Model):
    assert [coloring.method for coloring in run(ring(50), model, 60, lower=2)] == ["DSATUR"]


def test_dsatur_is_left_out_where_it_would_take_longer_than_the_time(model: Model, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(anytime, "DSATUR_SECONDS", 1.0)
    first = next(run(ring(50), model, 10))
    assert (first.method, first.num_colors) == ("greedy", 2)
    assert "ring: DSATUR would take 2500 s and is left out" in caplog.text


def test_a_graph_too_large_for_the_network_is_colored_without_it(model: Model, monkeypatch, caplog):
    monkeypatch.setattr("gnn_training.model.session.available_bytes", lambda: 10_000)
    assert {coloring.method for coloring in run(GRAPH, model, 1)} == {"DSATUR", "search"}
    assert "too large for the network and colored without it: the network needs about" in caplog.text


def test_a_graph_that_takes_the_network_too_long_is_colored_without_it(tmp_path: Path, monkeypatch, caplog):
    slow = tiny_onnx.write(tmp_path / "slow.onnx", tiny_onnx.MODEL.replace("steps = {2}", "steps = {1000000000}"))
    monkeypatch.setattr(anytime, "GRACE_SECONDS", 0.1)
    assert [coloring.method for coloring in run(GRAPH, Model(slow), 0)] == ["DSATUR"]
    assert "too large for the network and colored without it: the network takes longer than 0 s" in caplog.text


def test_a_wrong_coloring_is_never_given_out(model: Model, monkeypatch):
    monkeypatch.setattr("gnn_training.solve.kernels.dsatur", lambda offsets, _: np.zeros(len(offsets) - 1, dtype=int))
    with pytest.raises(RuntimeError, match="random: the coloring by DSATUR is not proper"):
        next(run(GRAPH, model, 1))
