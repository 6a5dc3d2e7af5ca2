"""Crossover: classes by the values of their nodes, and the network that gives these values."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_graphs import random_graph
from torch_geometric.data import Batch

from benchmarks.crossover_quality import Task, solve
from gnn_training.graph import Graph
from gnn_training.network.crossover_network import CrossoverNetwork, size_of
from gnn_training.network.crossover_weights import CrossoverWeights, from_text, shapes, to_text, zero_weights
from gnn_training.onnx_program.session import Model
from gnn_training.search.crossover import crossover, features_of, node_values
from gnn_training.training.games import Pair, as_data

pytestmark = pytest.mark.usefixtures("compiled")


def random_parents(n: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two colorings (2, n), and ages."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, k, (2, n)).astype(np.int32), rng.integers(0, 5000, (2, n)).astype(np.int32)


@given(n=st.integers(1, 40), k=st.integers(1, 9), seed=st.integers(0, 2**31))
def test_a_child_has_the_most_valuable_class_of_the_first_parent_and_parts_of_others(n, k, seed):
    (first, second), _ = random_parents(n, k, seed)
    values = np.random.default_rng(seed).integers(1, 4, (2, n)).astype(np.float32)
    child = crossover(first, second, values, k, np.zeros((1, k)))
    worth = np.bincount(first, values[0])
    assert (first[child == 0] == worth.argmax()).all() and values[0][child == 0].sum() == worth.max()
    for color in range(k):
        assert len(set((second if color % 2 else first)[child == color].tolist())) <= 1


def random_network(seed: int, width: int = 24, layers: int = 2) -> CrossoverNetwork:
    torch.manual_seed(seed)
    network = CrossoverNetwork(width, layers)
    for parameter in network.parameters():
        parameter.data.normal_(0, 0.3)
    return network


@settings(max_examples=20)
@given(n=st.integers(1, 40), k=st.integers(1, 9), density=st.floats(0, 1), seed=st.integers(0, 2**31))
@pytest.mark.parametrize(("width", "layers"), [(24, 2), (5, 3)])
def test_compiled_values_are_those_of_the_network_that_is_trained(width, layers, n, k, density, seed):
    lists = random_graph(n, density, seed).csr()
    colors, ages = random_parents(n, k, seed)
    network, rng = random_network(seed, width, layers), np.random.default_rng(seed)
    origin, conflicts = rng.integers(-1, 2, (3, n)).astype(np.int8), rng.integers(0, 9, 3)
    pair = Pair(0, k, colors.astype(np.int16), ages.astype(np.uint16), origin, conflicts)
    data = Batch.from_data_list([as_data(pair, lists)] * 2)
    values = node_values(features_of(*lists, colors, ages, k), colors, k, network.weights())
    torch.testing.assert_close(network.values(data)[: 2 * n], torch.from_numpy(values.ravel()), rtol=1e-3, atol=1e-3)
    worth = np.array([values[0][row == 0].sum() + values[1][row == 1].sum() for row in origin])
    scale = network.log_conflicts.exp().item()
    for expected in network(data).detach().numpy():  # of either of the two pairs in the batch
        np.testing.assert_allclose(expected, scale * (worth.mean() - worth), rtol=1e-3, atol=2e-3 * scale)


def test_weights_of_a_search_go_back_into_the_network():
    network, other = random_network(0, 7, 3), random_network(1, 7, 3)
    other.load_weights(network.weights())
    assert size_of(other.state_dict(), "") == (7, 3)
    for name, weight in network.state_dict().items():
        assert torch.equal(weight, other.state_dict()[name]) == (name != "log_conflicts")


@pytest.mark.parametrize("seed", range(3))
def test_values_do_not_depend_on_the_order_of_nodes_colors_and_parents(seed: int):
    graph, k = random_graph(30, 0.4, seed), 6
    parents, ages = random_parents(30, k, seed)
    weights = random_network(seed).weights()
    values = node_values(features_of(*graph.csr(), parents, ages, k), parents, k, weights)
    rng = np.random.default_rng(seed)
    nodes, colors = rng.permutation(30), rng.permutation(k).astype(np.int32)
    other = Graph.from_edges(30, np.argsort(nodes)[graph.edges])
    parents, ages = (np.ascontiguousarray(each[::-1][:, nodes]) for each in (colors[parents], ages))
    again = node_values(features_of(*other.csr(), parents, ages, k), parents, k, weights)
    np.testing.assert_allclose(again, values[::-1][:, nodes], rtol=1e-3, atol=1e-3)


@given(width=st.integers(1, 5), layers=st.integers(0, 3), seed=st.integers(0, 2**31))
def test_weights_of_any_size_are_read_back_exactly(width: int, layers: int, seed: int):
    rng = np.random.default_rng(seed)
    parts = [rng.normal(size=each) * 10.0 ** rng.integers(-12, 5, each) for each in shapes(width, layers).values()]
    weights = CrossoverWeights(*(part.astype(np.float32) for part in parts))
    assert all(map(np.array_equal, from_text(to_text(weights)), weights))


@pytest.mark.slow
def test_the_shipped_network_saves_a_fifth_of_the_moves():
    """Of dense graphs of 160 nodes with as few colors as HEAD just finds."""
    tasks = [Task("", random_graph(160, 0.9, seed).csr(), k) for seed, k in [(1, 52), (5, 52), (6, 53)]]
    networks = zero_weights(), Model().crossover
    moves = [[solve(task, weights, seed)[0] for task in tasks for seed in range(8)] for weights in networks]
    before, after = np.log(moves).mean(1)
    assert after < before + np.log(0.8)
