"""GraphHead sees the structure of a graph: not the order of its nodes, not padding, not other graphs."""

import networkx as nx
import numpy as np
import pytest
import torch
from small_graphs import padded, random_graph

from gnn_training.graph import Graph, as_graph
from gnn_training.model.network import GraphHead, GraphPredictions, clustering_coefficients, structure

GRAPHS = [random_graph(12, 0.5, 1), random_graph(30, 0.2, 2), Graph.from_edges(4, []), Graph.from_edges(1, [])]


@pytest.fixture(scope="module")
def graph_head() -> GraphHead:
    torch.manual_seed(0)
    return GraphHead().requires_grad_(False)


def predict(graph_head: GraphHead, *graphs: Graph) -> GraphPredictions:
    return graph_head(structure(padded(graphs)), torch.full((len(graphs),), 2.0), torch.full((len(graphs),), 9.0))


def test_permuting_the_nodes_changes_no_prediction(graph_head: GraphHead):
    halves = random_graph(30, 0.4).adjacency()
    halves[:15, :15] = halves[15:, 15:] = False  # no triangles, so that the estimate of clustering is exact
    order = np.random.default_rng(4).permutation(30)
    permuted = predict(graph_head, Graph.from_adjacency(halves[order][:, order]))
    torch.testing.assert_close(permuted, predict(graph_head, Graph.from_adjacency(halves)), rtol=1e-4, atol=1e-4)


def test_padding_and_batch_mates_change_no_prediction(graph_head: GraphHead):
    together = predict(graph_head, *GRAPHS)
    for i, graph in enumerate(GRAPHS):
        for joint, single in zip(together, predict(graph_head, graph), strict=True):
            torch.testing.assert_close(joint[i], single[0], rtol=1e-4, atol=1e-4)


def test_predictions_differ_between_graphs_and_stay_in_their_ranges(graph_head: GraphHead):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for scale in (1, 1000):
            head = GraphHead().requires_grad_(False)
            head.head.weight.mul_(scale)
            chromatic, types, difficulty = predict(head, *GRAPHS)
            assert (chromatic >= 2).all() and (chromatic <= 9).all() and types.shape == (4, 8)
            assert (difficulty >= 0).all() and (difficulty <= 100).all()
            assert len({*difficulty[:3].tolist()}) == 3 or scale > 1


def clustering(network: nx.Graph) -> np.ndarray:
    return clustering_coefficients(padded([as_graph(network), random_graph(500, 0.01)]))[0, : len(network)].numpy()


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


def test_clustering_follows_the_nodes():
    # Cliques in which some nodes are also in the middle of a star.
    network = nx.disjoint_union_all([nx.complete_graph(12)] * 20)
    for center in range(0, 240, 12):
        network.add_edges_from((center, f"{center} {leaf}") for leaf in range(40))
    exact = np.array(list(nx.clustering(network).values()))
    assert np.corrcoef(exact, clustering(network))[0, 1] > 0.95
