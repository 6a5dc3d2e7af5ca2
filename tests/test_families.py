"""Families draw what they promise: the same graph every time, proper colorings, true optima, no benchmark. Labels are
proper, within their bounds, as good as TabuCol should be. Graphs of the public benchmarks are as published.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import gcol
import networkx as nx
import numpy as np
import pytest
from dimacs import queens
from hypothesis import given
from hypothesis import strategies as st
from small_graphs import GRAPH, random_graph
from tiny_runs import ROOT

from gnn_training.contract import GRAPH_TYPES
from gnn_training.data import suites
from gnn_training.data.families import FAMILIES, RECIPES, draw, graph_specs
from gnn_training.data.label import fingerprint, label
from gnn_training.data.sources import read
from gnn_training.graph import Graph, Instance, is_proper, num_colors
from gnn_training.graph_objects import as_graph
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
    degrees = (draw(0, "planted", index, 120).graph.degrees() for index in range(20))
    spreads = sorted(each.std() / each.mean() for each in degrees)
    assert spreads[0] < 0.02 and spreads[-1] > 0.05


def test_no_drawn_graph_is_a_deterministic_benchmark():
    squares = [queens(n, n) for n in range(4, 10)] + [queens(8, 12)]
    mycielski = [as_graph(nx.mycielskian(nx.path_graph(2), times)) for times in range(1, 5)]
    benchmarks = {fingerprint(graph) for graph in squares + mycielski}
    drawn = [graph_draw.instance() for graph_draw in graph_specs(RECIPES["smoke"], 0, 1500)]
    assert not benchmarks & {fingerprint(instance.graph) for instance in drawn}
    large = [draw(0, "queen", i, 96).graph for i in range(200)]
    assert 96 in {graph.num_nodes for graph in large}  # graphs of that size are drawn, only not this one
    assert fingerprint(squares[-1]) not in map(fingerprint, large)


@given(GRAPH, st.data())
def test_renaming_nodes_keeps_the_fingerprint(graph: Graph, data):
    names = np.array(data.draw(st.permutations(range(graph.num_nodes))))
    assert fingerprint(Graph.from_edges(len(names), names[graph.edges])) == fingerprint(graph)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nx.graph_atlas_g()[1:],  # all up to seven nodes
        lambda: [nx.random_regular_graph(3, 40, seed=seed) for seed in range(50)],
        lambda: [nx.cycle_graph(3000), nx.path_graph(3000)],  # too large for a matrix
    ],
)
def test_fingerprints_tell_graphs_apart(make):
    graphs = [as_graph(network) for network in make()]
    assert len({fingerprint(graph) for graph in graphs}) == len(graphs)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_all_families_and_its_sizes_in_their_shares(name):
    recipe = RECIPES[name]
    assert set(recipe.counts) == set(FAMILIES)
    chosen = list(graph_specs(recipe, seed=1))
    sizes = np.array([graph_draw.num_nodes for graph_draw in chosen])
    assert len(chosen) == {"smoke": 208, "cpu": 1250, "full": 15_000}[name]
    for low, high, share in recipe.sizes:
        assert np.mean((low <= sizes) & (sizes <= high)) == pytest.approx(share, abs=0.02)


def test_another_total_keeps_the_shares_of_the_families():
    chosen = [graph_draw.family for graph_draw in graph_specs(RECIPES["cpu"], seed=0, graphs=122)]
    assert len(chosen) == 122
    assert all(abs(chosen.count(family) - count / 10) <= 1 for family, count in RECIPES["cpu"].counts.items())


@given(st.integers(1, 40), st.floats(0, 1), st.integers(0, 10**6))
def test_labels_of_any_graph_are_proper_and_within_their_bounds(n, p, seed):
    graph = random_graph(n, p, seed)
    found = label(Instance(graph), moves=500, seconds=5, seed=0)
    assert is_proper(graph, found.coloring)
    assert set(found.coloring) == set(range(found.num_colors))
    assert 1 <= found.lower_bound <= found.num_colors <= found.dsatur_colors <= n
    assert found.optimal == (found.lower_bound == found.num_colors)


@pytest.mark.parametrize(("graph", "colors"), [(nx.empty_graph(9), 1), (nx.complete_graph(9), 9), (queens(7, 7), 7)])
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


def test_q_coloring_has_the_graphs_that_published_solvers_solved():
    cases = list(suites.q_coloring())
    # Counted in the published results, ids up to 20.
    assert Counter(case.family for case in cases if case.best_known == 3) == {
        "q = 3, n = 16": 76, "q = 3, n = 32": 100, "q = 3, n = 64": 116, "q = 3, n = 128": 144, "q = 3, n = 256": 147,
    }  # fmt: skip
    assert sum(case.best_known == 5 for case in cases) == 455
    # Of random graphs of these sizes, most need more colors: other graphs than the published ones would fail here.
    small = [case for case in cases if case.graph.num_nodes == 16]
    assert all(gcol.chromatic_number(nx.from_numpy_array(case.graph.adjacency())) <= case.best_known for case in small)
    first = small[0]
    assert (first.graph.name, first.graph.num_edges) == ("q3_n16_m27_2", 27) and first.published["rPI-GNN"]


@pytest.mark.parametrize("path", [suites.DIMACS, suites.Q_COLORING])
def test_tables_of_a_suite_name_every_graph_once(path):
    lines = path.read_text().splitlines()
    keys = [line.split(",")[: 3 if path == suites.Q_COLORING else 1] for line in lines]
    assert len({tuple(key) for key in keys}) == len(keys) > 60


# Nodes and edges as the collection's pages list them.
SIZES = {
    **{"myciel3": (11, 20), "myciel4": (23, 71), "myciel5": (47, 236), "myciel6": (95, 755), "myciel7": (191, 2360)},
    **{"queen5_5": (25, 160), "queen6_6": (36, 290), "queen7_7": (49, 476), "queen8_8": (64, 728)},
    **{"queen8_12": (96, 1368), "queen9_9": (81, 1056), "queen10_10": (100, 1470), "queen11_11": (121, 1980)},
    **{"queen12_12": (144, 2596), "queen13_13": (169, 3328), "queen14_14": (196, 4186), "queen15_15": (225, 5180)},
    **{"queen16_16": (256, 6320), "qg.order30": (900, 26100)},
    **{"1-Insertions_4": (67, 232), "1-Insertions_5": (202, 1227), "1-Insertions_6": (607, 6337)},
    **{"2-Insertions_3": (37, 72), "2-Insertions_4": (149, 541), "2-Insertions_5": (597, 3936)},
    **{"3-Insertions_3": (56, 110), "3-Insertions_4": (281, 1046)},
    **{"4-Insertions_3": (79, 156), "4-Insertions_4": (475, 1795)},
    **{"1-FullIns_3": (30, 100), "1-FullIns_4": (93, 593), "1-FullIns_5": (282, 3247)},
    **{"2-FullIns_3": (52, 201), "2-FullIns_4": (212, 1621), "2-FullIns_5": (852, 12201)},
    **{"3-FullIns_3": (80, 346), "3-FullIns_4": (405, 3524), "4-FullIns_3": (114, 541), "4-FullIns_4": (690, 6650)},
    **{"5-FullIns_3": (154, 792), "5-FullIns_4": (1085, 11395)},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("known") / "graphs"
    subprocess.run([sys.executable, ROOT / "scripts/known_graphs.py", folder], check=True)
    return folder


def test_all_graphs_have_their_published_sizes(folder: Path):
    found = [read(path) for path in folder.glob("*.col")]
    assert not any(instance.warning for instance in found)  # of another number of edges
    assert {graph.name: (graph.num_nodes, graph.num_edges) for graph in (each.graph for each in found)} == SIZES
    assert suites.best_known(folder / "best_known.csv").keys() == SIZES.keys()


@pytest.mark.parametrize("name", ["myciel4", "queen5_5", "queen6_6", "2-Insertions_3", "1-FullIns_3", "2-FullIns_3"])
def test_small_graphs_need_as_many_colors_as_stated(folder: Path, name: str):
    network = nx.from_numpy_array(read(folder / f"{name}.col").graph.adjacency())
    assert gcol.chromatic_number(network) == suites.best_known(folder / "best_known.csv")[name]


def test_nodes_are_numbered_as_in_the_published_files(folder: Path):
    adjacency = read(folder / "2-FullIns_3.col").graph.adjacency()
    neighbours = {node: (np.flatnonzero(adjacency[node - 1]) + 1).tolist() for node in (1, 9, 49, 50)}
    assert neighbours[1] == [2, 4, 14, 16] and neighbours[9] == [7, 8, 10, 11, 12, 19, 20, 22, 23, 24]
    assert neighbours[49] == [*range(37, 49), 50, 51, 52] and neighbours[50] == [*range(13, 25), 49, 51, 52]
