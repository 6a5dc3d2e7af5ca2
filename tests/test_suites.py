"""The graphs of the public benchmarks, against what is published about them."""

from collections import Counter
from itertools import islice

import gcol
import networkx as nx
import numpy as np
import pytest

from gnn_training.data import suites
from gnn_training.graph import Graph


def to_networkx(graph: Graph) -> nx.Graph:
    network = nx.empty_graph(graph.num_nodes)
    network.add_edges_from(graph.edges.tolist())
    return network


def test_q_coloring_has_the_graphs_that_published_solvers_solved():
    cases = list(suites.q_coloring())
    # Counted in the published results, ids up to 20.
    assert Counter(case.family for case in cases if case.best_known == 3) == {
        "q = 3, n = 16": 76, "q = 3, n = 32": 100, "q = 3, n = 64": 116, "q = 3, n = 128": 144, "q = 3, n = 256": 147,
    }  # fmt: skip
    assert sum(case.best_known == 5 for case in cases) == 455
    # Of random graphs of these sizes, most need more colors: other graphs than the published ones would fail here.
    small = [case for case in cases if case.graph.num_nodes == 16]
    assert all(gcol.chromatic_number(to_networkx(case.graph)) <= case.best_known for case in small)
    first = small[0]
    assert (first.graph.name, first.graph.num_edges) == ("q3_n16_m27_2", 27) and first.published["rPI-GNN"]


def test_graphbench_draws_its_three_models_and_the_same_graphs_again():
    cases, again = list(suites.graphbench()), islice(suites.graphbench(), 3)
    assert all(np.array_equal(a.graph.edges, b.graph.edges) for a, b in zip(cases, again, strict=False))
    assert Counter(case.family for case in cases) == {"Barabási-Albert": 10, "Erdős-Rényi": 10, "RB": 10}
    for case in cases:
        nodes, edges = case.graph.num_nodes, case.graph.num_edges
        if case.family == "Barabási-Albert":
            assert 700 <= nodes <= 800 and edges == 2 * (nodes - 2)
        elif case.family == "Erdős-Rényi":
            assert 700 <= nodes <= 800 and edges == pytest.approx(0.15 * nodes * (nodes - 1) / 2, rel=0.02)
            assert nx.is_connected(to_networkx(case.graph))
        else:
            sizes = [size for size in range(5, 13) if nodes % size == 0 and 20 <= nodes // size <= 25]
            assert 200 <= nodes <= 300
            assert any(is_covered_by_cliques(case.graph, size) for size in sizes)
            assert edges > nodes * (max(sizes) - 1) / 2  # more than those of the cliques


def is_covered_by_cliques(graph: Graph, size: int) -> bool:
    """Whether every `size` nodes in turn are a clique."""
    blocks = graph.adjacency().reshape(graph.num_nodes // size, size, -1, size)
    return all(blocks[i, :, i].sum() == size * (size - 1) for i in range(len(blocks)))


@pytest.mark.parametrize("path", [suites.DIMACS, suites.Q_COLORING])
def test_tables_of_a_suite_name_every_graph_once(path):
    lines = path.read_text().splitlines()
    keys = [line.split(",")[: 3 if path == suites.Q_COLORING else 1] for line in lines]
    assert len({tuple(key) for key in keys}) == len(keys) > 60
