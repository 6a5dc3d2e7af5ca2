"""PredictionNetwork sees a search in a graph: not the numbers of nodes and colors, not padding, not other graphs."""

import pytest
import torch
from small_graphs import padded, random_graph
from torch import Tensor
from torch.nn.functional import pad

from gnn_training.contract import SHIPPED_MODEL
from gnn_training.errors import UserError
from gnn_training.graph import Graph
from gnn_training.network import network as network_module
from gnn_training.network import states
from gnn_training.network.crossover_network import CrossoverNetwork
from gnn_training.network.crossover_weights import to_text
from gnn_training.network.states import SearchState, features
from gnn_training.onnx_program import session
from gnn_training.settings import TrainSettings


def test_features_do_not_depend_on_the_numbers_of_nodes_and_colors_or_on_padding():
    graph, colors, counts = random_graph(40, 0.3, 5), torch.arange(40) % 7, torch.randint(9, (4, 40))
    order, names = torch.randperm(40), torch.randperm(9)
    plain = features_of(graph, colors, counts, 7)
    permuted = Graph.from_adjacency(graph.adjacency()[order][:, order])
    for other in (
        features_of(permuted, colors[order], counts[:, order], 7),
        features_of(graph, names[colors], counts, 9),
        features_of(graph, colors, counts, 7, padding=5),
    ):
        torch.testing.assert_close(other, plain)
    assert not torch.allclose(features_of(graph, colors, counts, 7, num_colors=8), plain)


def test_features_are_means_spreads_and_peaks_of_the_nodes():
    graph, colors = random_graph(40, 0.3, 5), torch.arange(40) % 7
    moves = torch.arange(40)
    values = features_of(graph, colors, torch.stack([0 * moves, 0 * moves, 0 * moves, moves]), 7)
    center, scale = torch.tensor(states.FEATURE_MEAN_STD).T
    logs = moves.float().log1p()
    expected = torch.stack([logs.mean(), (logs.var(correction=0) + 1e-6).sqrt(), (1 + moves.float().mean()).log()])
    places = torch.tensor([13, 20, 27])  # nine of the whole search, then the fifth of three times seven
    torch.testing.assert_close(values[0, places] * scale[places] + center[places], expected)


def test_features_stay_within_their_bounds_for_any_search():
    graph, ones = Graph.from_edges(30_000, [(0, 1)]), torch.ones(1)
    search = SearchState(*torch.full((5, 1, 30_000), 250_000).unbind(), 250 * ones, 2 * ones, *[250_000 * ones] * 3)
    batch = padded([graph])
    values = features(batch.exists, batch.degrees, search._replace(colors=0 * search.colors), torch.arange(250))
    assert values.isfinite().all() and values.abs().max() == states.LARGEST


def features_of(
    graph: Graph, colors: Tensor, counts: Tensor, ids: int, num_colors: int = 7, padding: int = 0
) -> Tensor:
    """Of a search in a graph that is padded by so many nodes. counts: (4, N) free, one, conflicts, moves."""
    batch, ones = padded([graph]), torch.ones(1)
    exists, degrees, colors, *counts = (
        pad(x, (0, padding)) for x in (batch.exists, batch.degrees, colors[None], *counts[:, None].float())
    )
    search = SearchState(colors, *counts, num_colors * ones, 3 * ones, 100 * ones, 50 * ones, 4 * ones)
    return features(exists, degrees, search, torch.arange(ids))


def test_chances_fall_and_the_median_stays_between_the_bounds():
    torch.manual_seed(2)
    for scale in (1, 100):
        logits = scale * torch.randn(50, len(network_module.SAVED))
        k, lower = 40 + torch.arange(50.0), torch.full((50,), 30.0)
        predicted = network_module.PredictionOutputs(logits, torch.zeros(50, 8), scale * torch.randn(50))
        chances = predicted.chances()
        assert (chances[:, 1:] <= chances[:, :-1]).all() and chances.min() >= 0 and chances.max() <= 1
        chromatic, hard = predicted.chromatic(k, lower), predicted.difficulty(k, lower, torch.zeros(50))
        assert (chromatic >= lower).all() and (chromatic <= k).all() and hard.min() >= 0 and hard.max() <= 100
        saved = torch.tensor([0, *network_module.SAVED])[(chances > 0.5).sum(1)]
        clear = ((chances - 0.5).abs() > 0.05).all(1)
        torch.testing.assert_close(chromatic[clear], torch.maximum(k - saved, lower)[clear])


def test_a_file_with_the_largest_crossover_network_that_settings_allow_can_be_read():
    with pytest.raises(UserError, match=r"width \(129\)"):
        TrainSettings(width=129)
    text = to_text(CrossoverNetwork(width=128, layers=16).weights())
    assert len(text) + SHIPPED_MODEL.stat().st_size < session.MODEL_LIMIT
