"""PredictionNetwork sees a search in a graph: not the numbers of nodes and colors, not padding, not other graphs."""

import networkx as nx
import numpy as np
import pytest
import torch
from small_graphs import edges_of, padded, random_graph

from gnn_training.contract import OUTPUTS
from gnn_training.graph import Graph, as_graph
from gnn_training.network import network as network_module
from gnn_training.network.graphs import concatenated
from gnn_training.network.network import ColoringNetwork, SearchState, structure
from gnn_training.onnx_program.program import Program

GRAPHS = [random_graph(12, 0.5, 1), random_graph(30, 0.2, 2), Graph.from_edges(4, []), Graph.from_edges(1, [])]


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(0)
    return Program(ColoringNetwork()).eval()


def predict(program: Program, *graphs: Graph, rounds: int = 0) -> list[torch.Tensor]:
    options = (torch.tensor(value) for value in ([0], 0, rounds))
    answer = program(*concatenated(graphs), *options)
    return [answer[name] for name in OUTPUTS[1:]]


def test_permuting_the_nodes_changes_no_prediction(program: Program):
    halves = random_graph(30, 0.4).adjacency()
    halves[:15, :15] = halves[15:, 15:] = False  # no triangles, so that the estimate of clustering is exact
    order = np.random.default_rng(4).permutation(30)  # two colors, whatever the order
    permuted, plain = (predict(program, Graph.from_adjacency(x)) for x in (halves[order][:, order], halves))
    torch.testing.assert_close(permuted, plain, rtol=1e-4, atol=1e-4)


def test_the_numbers_of_the_colors_change_no_prediction():
    torch.manual_seed(1)
    network, states = network_module.PredictionNetwork(), some_states()
    renamed = states.node_class.max() - states.node_class
    other = states._replace(node_class=renamed, class_sizes=states.class_sizes.flip(0))
    torch.testing.assert_close(network(states), network(other))


def test_messages_pass_along_the_edges_and_through_the_color_classes():
    torch.manual_seed(1)
    network, states = network_module.PredictionNetwork(), some_states()
    before = network(states).saved_logits
    edges = states.edges._replace(neighbours=states.edges.neighbours.flip(0))
    assert not torch.allclose(network(states._replace(edges=edges)).saved_logits, before)
    assert not torch.allclose(network(states._replace(node_class=states.node_class.roll(1))).saved_logits, before)


def some_states() -> network_module.States:
    graph = random_graph(40, 0.3, 5)
    edges, colors = edges_of([graph]), torch.arange(40) % 7
    ones, (node, of_graph) = torch.ones(1), structure(padded([graph]))
    search = SearchState(colors, *torch.rand(4, 40), 7 * ones, 3 * ones, 100 * ones, 50 * ones, 4 * ones, 10_000 * ones)
    return network_module.states(edges, node[0], of_graph, search, torch.arange(7))


def test_the_sparse_matrix_sums_as_indices_do_and_so_does_its_gradient():
    edges, x = some_states().edges, torch.randn(40, 3, requires_grad=True)
    matrix, weight = network_module.sparse(edges), torch.randn(40, 3)
    results = []
    for adjacency in (matrix, None):
        total = network_module.sum_neighbours(x, edges, adjacency)
        results.append((total, *torch.autograd.grad((total * weight).sum(), x)))
    torch.testing.assert_close(*results)


def test_chances_fall_and_the_median_stays_between_the_bounds():
    torch.manual_seed(2)
    for scale in (1, 100):
        logits, k, lower = (
            scale * torch.randn(50, len(network_module.SAVED)),
            40 + torch.arange(50.0),
            torch.full((50,), 30.0),
        )
        predicted = network_module.Predictions(logits, torch.zeros(50, 8), scale * torch.randn(50))
        chances = predicted.chances()
        assert (chances[:, 1:] <= chances[:, :-1]).all() and chances.min() >= 0 and chances.max() <= 1
        search = SearchState(*[torch.zeros(50)] * 5, k, lower, *[torch.zeros(50)] * 4)
        chromatic, hard = predicted.chromatic(search), predicted.difficulty(search)
        assert (chromatic >= lower).all() and (chromatic <= k).all() and hard.min() >= 0 and hard.max() <= 100
        saved = torch.tensor([0, *network_module.SAVED])[(chances > 0.5).sum(1)]
        clear = ((chances - 0.5).abs() > 0.05).all(1)
        torch.testing.assert_close(chromatic[clear], torch.maximum(k - saved, lower)[clear])


def clustering(network: nx.Graph) -> np.ndarray:
    return network_module.clustering_coefficients(padded([as_graph(network), random_graph(500, 0.01)]))[
        0, : len(network)
    ].numpy()


def test_clustering_is_exact_where_every_pair_of_neighbours_is_alike():
    tail = nx.Graph([(0, 1), (1, 2), (0, 2), (0, 3)])
    assert clustering(tail)[1:].tolist() == [1, 1, 0]
    assert clustering(nx.complete_graph(9)).tolist() == [1] * 9
    for network in (nx.empty_graph(3), nx.star_graph(8), nx.complete_bipartite_graph(5, 8)):
        assert not clustering(network).any()


@pytest.mark.parametrize("network", [nx.watts_strogatz_graph(400, 12, 0.2, 1), nx.gnp_random_graph(400, 0.3, 2)])
def test_clustering_is_estimated_without_bias(network: nx.Graph):
    exact, estimated = np.array(list(nx.clustering(network).values())), clustering(network)
    assert abs((estimated - exact).mean()) < 0.02
    assert (estimated - exact).std() < 0.2
