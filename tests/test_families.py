"""Families draw what they promise: the same graph every time, proper colorings, true optima, no benchmark. Labels are
proper, within their bounds, as good as TabuCol should be.
"""

import gcol
import networkx as nx
import numpy as np
import pytest
from dimacs import queens
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_training.contract import GRAPH_TYPES
from gnn_training.data.families import FAMILIES, RECIPES, draw, draws
from gnn_training.data.labels import fingerprint, label
from gnn_training.graph import Graph, Instance, as_graph, is_proper, num_colors
from gnn_training.search.first_colorings import clique_size

pytestmark = pytest.mark.usefixtures("compiled")


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
