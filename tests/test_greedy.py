"""The classical steps in tensors: DSATUR, cliques, independent sets and the table of random numbers."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_graphs import GRAPH, edge_list, padded, random_graph
from torch import Tensor

from gnn_training import coloring
from gnn_training.graph import Graph, as_graph
from gnn_training.model import greedy, rule
from gnn_training.model.graphs import Graphs, pad
from gnn_training.model.greedy import at_once, clique_bound, dsatur, independent_sets, noise_table
from gnn_training.solve import kernels

GRAPHS = st.lists(GRAPH, min_size=1, max_size=4)


def sets(batch: Graphs, chains: int, colors: Tensor | None = None, seed: int = 0, patience: float = 6.0) -> Tensor:
    adjacency = batch.adjacency(torch.arange(batch.exists.shape[1] + 1))[:, :-1, :-1]
    waiting = torch.full_like(batch.degrees, -1) if colors is None else colors
    seeds = torch.full_like(waiting[:, 0], seed)
    return independent_sets(adjacency, batch.exists, waiting, seeds, torch.arange(chains), torch.tensor(patience))


@settings(max_examples=30)
@given(graphs=GRAPHS)
def test_edge_lists_become_neighbour_lists_and_a_dense_matrix(graphs: list[Graph]):
    made, position = pad(*map(torch.from_numpy, edge_list(graphs)))
    size = made.exists.shape[1]
    dense, x = made.adjacency(torch.arange(size + 1)), torch.arange(len(graphs) * size).view(-1, size).float()
    lists = made.lists(torch.arange(size + 1).expand(len(graphs), -1))
    for i, graph in enumerate(graphs):
        expected = np.zeros((size, size), dtype=bool)
        expected[: graph.num_nodes, : graph.num_nodes] = graph.adjacency()
        assert [[u for u in row if u < size] for row in lists[i].tolist()] == [
            *(np.flatnonzero(row).tolist() for row in expected), []
        ]  # fmt: skip
        assert np.array_equal(dense[i].numpy(), np.pad(expected, (0, 1)))
        assert made.sum_neighbours(x)[i].tolist() == (expected @ x[i].numpy()).tolist()
        assert made.exists[i].tolist() == [v < graph.num_nodes for v in range(size)]
    assert position.tolist() == [v for graph in graphs for v in range(graph.num_nodes)]
    assert not made.adjacency(torch.arange(1)).any()  # not wanted


def check_dsatur(graphs: list[Graph], num_colors: int, at_once: int) -> None:
    """Assert that DSATUR in tensors is that of the kernels."""
    colors = dsatur(padded(graphs), torch.arange(num_colors), torch.arange(at_once))
    for row, graph in zip(colors, graphs, strict=True):
        assert row[: graph.num_nodes].tolist() == kernels.dsatur(*graph.csr()).tolist()
        assert (row[graph.num_nodes :] == 0).all()


@settings(max_examples=60)
@given(graphs=GRAPHS)
def test_dsatur_in_tensors_is_that_of_the_kernels(graphs: list[Graph]):
    check_dsatur(graphs, 16, 1)


# Two stars, centers 0 and 3, on a path: one saturation counts more than all degrees.
STARS = Graph.from_edges(16, [(0, 1), (1, 2), (2, 3), *((3 * (v % 2), v) for v in range(4, 16))])
HUBS = [as_graph(nx.barabasi_albert_graph(150, 2, seed)) for seed in range(8)]
LARGER = [random_graph(n, density, n) for n in (50, 150) for density in (0.02, 0.1, 0.5, 0.95)]


@pytest.mark.parametrize("graphs", [[STARS], HUBS, LARGER], ids=["stars", "hubs", "larger"])
def test_dsatur_in_tensors_is_that_of_the_kernels_on_larger_graphs(graphs: list[Graph]):
    check_dsatur(graphs, 150, 4)


@settings(max_examples=40)
@given(graphs=GRAPHS)
def test_several_nodes_at_once_are_colored_properly_whatever_the_batch_mates(graphs: list[Graph]):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"ONE_BY_ONE": 4, "NODES_PER_RANK": 2, "COLORED_PER_RANK": 1, "SPEED": 8}.items():
            patch.setattr(greedy, name, value)
        together = several_at_once(graphs)
        for row, graph in zip(together, graphs, strict=True):
            assert coloring.is_proper(graph, row[: graph.num_nodes].numpy()) and (row[graph.num_nodes :] == 0).all()
            assert row[: graph.num_nodes].tolist() == several_at_once([graph])[0].tolist()


def several_at_once(graphs: list[Graph]) -> Tensor:
    nodes = torch.tensor(max(graph.num_nodes for graph in graphs))
    return dsatur(padded(graphs), torch.arange(32), torch.arange(int(at_once(nodes))))


U, V = np.random.default_rng(0).integers(0, 10_000, (2, 50_000))
LARGE = {  # and the colors that they may need above DSATUR's
    "random": (lambda: Graph.from_edges(10_000, np.stack([U, V], 1)), 1),
    "hubs": (lambda: nx.barabasi_albert_graph(5_000, 5, 0), 1),
    "star": (lambda: nx.star_graph(9_999), 0),
    "triangles": (lambda: nx.triangular_lattice_graph(80, 80), 0),
    "path": (lambda: nx.path_graph(20_000), 1),
    "no edge": (lambda: nx.empty_graph(10_000), 0),
    "parts": (lambda: Graph.from_edges(10_000, np.stack([U, U // 4 * 4 + V % 4], 1)), 0),
}


@pytest.mark.parametrize("name", LARGE)
def test_several_nodes_at_once_need_about_the_colors_of_dsatur_and_few_rounds(name: str, monkeypatch):
    (make, more), rounds = LARGE[name], []
    graph = as_graph(make())

    def counting(condition, body, state):
        while condition(state):
            state = body(state)
            rounds.append(0)
        return state

    monkeypatch.setattr(greedy, "loop", counting)
    colors = several_at_once([graph])[0].numpy()
    assert coloring.is_proper(graph, colors)
    assert coloring.num_colors(colors) <= coloring.num_colors(kernels.dsatur(*graph.csr())) + more
    assert len(rounds) < 3_000


@settings(max_examples=40)
@given(graphs=GRAPHS, starts=st.integers(1, 16))
def test_the_clique_bound_is_the_size_of_a_clique_that_nothing_extends(graphs: list[Graph], starts: int):
    batch = padded(graphs)
    few, all_starts = (clique_bound(batch, torch.arange(min(s, batch.exists.shape[1]))) for s in (starts, 16))
    assert (few <= all_starts).all()
    for graph, size in zip(graphs, few.tolist(), strict=True):
        network = nx.empty_graph(graph.num_nodes)
        network.add_edges_from(graph.edges.tolist())
        assert size in {len(clique) for clique in nx.find_cliques(network)}


@settings(max_examples=20)
@given(GRAPHS, st.integers(-(2**40), 2**40), st.integers(1, 8), st.sampled_from([0, 0.3, 6]))
def test_independent_sets_color_properly_and_without_gaps(graphs: list[Graph], seed: int, chains: int, patience: float):
    colors = sets(padded(graphs), chains, seed=seed, patience=patience)
    for row, graph in zip(colors, graphs, strict=True):
        mine = row[: graph.num_nodes].numpy()
        assert coloring.is_proper(graph, mine) and coloring.num_colors(mine) == mine.max() + 1


def test_independent_sets_color_only_nodes_that_wait():
    graph = random_graph(40, 0.3)
    given_colors = torch.from_numpy(kernels.dsatur(*graph.csr())).long()[None]
    kept = given_colors < 4
    colors = sets(padded([graph]), 8, torch.where(kept, given_colors, -1))
    assert torch.equal(colors[kept], given_colors[kept]) and (colors[~kept] >= 4).all()
    assert coloring.is_proper(graph, colors[0].numpy())


def test_more_chains_and_more_patience_save_colors_and_all_are_better_than_dsatur():
    batch = padded([random_graph(100, 0.5, seed) for seed in range(6)])
    poor, patient, both = (sets(batch, c, patience=p).amax(1).sum() for c, p in [(1, 0.5), (1, 6.0), (32, 6.0)])
    assert poor > patient > both and dsatur(batch, torch.arange(40), torch.arange(1)).amax(1).sum() >= both + 10


def test_noise_is_the_hash_in_integers_without_limits_and_below_1():
    table = noise_table(torch.arange(256))
    for row, column in [(0, 0), (1, 0), (0, 1), (rule.NOISE_ROWS - 1, 255)]:
        y = (row * 69_621 + 1) % rule.PRIME
        y = (y * y + column * 40_014 + 12_345) % rule.PRIME
        for _ in range(3):
            y = (y * (y + 1_000_003) + 7) % rule.PRIME
        assert table[row, column].item() == pytest.approx(y / rule.PRIME, abs=1e-6)
    assert torch.equal(noise_table(torch.arange(7)), table[:, :7])
    assert table.min() >= 0 and table.max() < 1
