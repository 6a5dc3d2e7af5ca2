"""Families draw what they promise: the same graph every time, proper colorings, true optima, no benchmark."""

import gcol
import networkx as nx
import numpy as np
import pytest
from dimacs import queens
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_training.contract import GRAPH_TYPES
from gnn_training.data.families import FAMILIES, RECIPES, draw, draws
from gnn_training.data.labels import fingerprint
from gnn_training.graph import Graph, as_graph, is_proper, num_colors


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", [10, 37, 120])
def test_a_family_draws_graphs_of_about_n_nodes_with_proper_known_colorings(family, n):
    for index in range(4):
        instance = draw(7, family, index, n)
        assert abs(instance.graph.num_nodes - n) <= 3 + n // 8
        assert GRAPH_TYPES[instance.graph_type] == FAMILIES[family].graph_type
        assert instance.coloring is None or is_proper(instance.graph, instance.coloring)
        assert not instance.optimal or instance.coloring is not None


@pytest.mark.parametrize("family", FAMILIES)
def test_a_graph_depends_on_seed_family_and_index_alone(family):
    first = draw(3, family, 5, 30).graph
    np.random.seed(0)
    draw(3, family, 4, 30)
    assert np.array_equal(draw(3, family, 5, 30).graph.edges, first.edges)
    others = [draw(4, family, 5, 30).graph, draw(3, family, 6, 30).graph]
    assert all(fingerprint(other) != fingerprint(first) for other in others)


@pytest.mark.parametrize("family", ["interval", "leighton", "mycielski"])
def test_what_a_family_calls_optimal_is_the_chromatic_number(family):
    proven = [i for i in (draw(1, family, index, 13) for index in range(12)) if i.optimal]
    assert len(proven) > 5
    for instance in proven:
        network = nx.from_numpy_array(instance.graph.adjacency())
        assert num_colors(instance.coloring) == gcol.chromatic_number(network)


def test_flat_planted_graphs_have_nearly_equal_degrees():
    def spread(graph: Graph) -> float:
        return graph.degrees().std() / graph.degrees().mean()

    spreads = sorted(spread(draw(0, "planted", index, 120).graph) for index in range(20))
    assert spreads[0] < 0.02 and spreads[-1] > 0.05


def test_no_drawn_graph_is_a_deterministic_benchmark():
    squares = [queens(n, n) for n in range(4, 10)] + [queens(8, 12)]
    mycielski = [as_graph(nx.mycielskian(nx.path_graph(2), times)) for times in range(1, 5)]
    benchmarks = {fingerprint(graph) for graph in squares + mycielski}
    drawn = [graph_draw.load() for graph_draw in draws(RECIPES["smoke"], 0, 1500)]
    assert not benchmarks & {fingerprint(instance.graph) for instance in drawn}
    large = [draw(0, "queen", i, 96).graph for i in range(200)]
    assert 96 in {graph.num_nodes for graph in large}  # graphs of that size are drawn, only not this one
    assert fingerprint(squares[-1]) not in map(fingerprint, large)


@settings(max_examples=60)
@given(st.integers(1, 14), st.floats(0, 1), st.integers(0, 10**6))
def test_renaming_nodes_keeps_the_fingerprint(n, p, seed):
    rng = np.random.default_rng(seed)
    graph = Graph.from_adjacency(rng.random((n, n)) < p)
    renamed = Graph.from_edges(n, rng.permutation(n)[graph.edges])
    assert fingerprint(renamed) == fingerprint(graph)


def test_fingerprints_tell_all_graphs_of_seven_nodes_apart():
    atlas = [as_graph(network) for network in nx.graph_atlas_g()[1:]]
    assert len({fingerprint(graph) for graph in atlas}) == len(atlas) == 1252


def test_fingerprints_tell_regular_graphs_apart():
    graphs = [as_graph(nx.random_regular_graph(3, 40, seed=seed)) for seed in range(50)]
    assert len({fingerprint(graph) for graph in graphs}) == 50


def test_fingerprints_of_graphs_too_large_for_a_matrix_compare_edges():
    ring = as_graph(nx.cycle_graph(3000))
    assert fingerprint(ring) == fingerprint(as_graph(nx.cycle_graph(3000)))
    assert fingerprint(ring) != fingerprint(as_graph(nx.path_graph(3000)))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_all_families_and_its_sizes_in_their_shares(name):
    recipe = RECIPES[name]
    assert set(recipe.counts) == set(FAMILIES)
    chosen = list(draws(recipe, seed=1))
    sizes = np.array([graph_draw.num_nodes for graph_draw in chosen])
    assert len(chosen) == {"smoke": 208, "cpu": 1250, "full": 15_000}[name]
    for low, high, share in recipe.sizes:
        assert np.mean((low <= sizes) & (sizes <= high)) == pytest.approx(share, abs=0.02)


def test_another_total_keeps_the_shares_of_the_families():
    chosen = [graph_draw.family for graph_draw in draws(RECIPES["cpu"], seed=0, graphs=122)]
    assert len(chosen) == 122
    assert all(abs(chosen.count(family) - count / 10) <= 1 for family, count in RECIPES["cpu"].counts.items())
