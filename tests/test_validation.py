"""Scores on the validation graphs: colors of searches with these weights, however graphs are batched and spread."""

from pathlib import Path

import numpy as np
import pytest
import tiny_runs
import torch
from small_graphs import search_in_tensors
from torch.nn.utils import parameters_to_vector

from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime
from gnn_training.model.network import ColoringNetwork
from gnn_training.training.loader import DeviceDataset
from gnn_training.training.loss import Search
from gnn_training.training.searcher import search_on_cpu
from gnn_training.training.validation import PREDICTED, SCORES, Validation

ROUNDS = 100


@pytest.fixture
def network() -> ColoringNetwork:
    torch.manual_seed(0)
    return ColoringNetwork()


def start(data: PackedGraphs, rt: Runtime, search: Search = search_on_cpu, **changes) -> Validation:
    settings = tiny_runs.settings(data.folder, Path("nowhere"), **({"validation_rounds": ROUNDS} | changes))
    return Validation(settings, DeviceDataset(data, rt.device), search, rt)


def everything_held_out(data: PackedGraphs) -> PackedGraphs:
    data.split = data.tensors["split"] = np.ones_like(data.split)
    return data


def test_the_scores_are_those_of_searches_in_tensors(data: PackedGraphs, rt: Runtime, network):
    one = start(everything_held_out(data), rt)
    gap, errors, right = [], [], []
    for ids in one.batches:
        batch = one.dataset.batch(ids, len(ids))
        with torch.no_grad():
            used, _ = search_in_tensors(network.move_rule.expand(1, len(ids), -1), batch, ROUNDS)
        gap += (used[0].numpy() - data.num_colors[ids]).tolist()
    for i in range(len(one.dataset.state_graph)):  # one by one
        batch = one.dataset.states(np.array([i]), 1)
        predicted = network.predictions(batch.inputs)
        errors.append(abs(predicted.chromatic(batch.search) - (batch.search.num_colors - batch.saved)).item())
        right.append(predicted.graph_type_logits.argmax().item() == batch.graph_type.item())
    scores = one.scores(network)
    assert (
        tuple(scores) == (*SCORES[:-1], *PREDICTED, "gain_error", "dsatur_gap", "graphs")
        and scores["graphs"] == len(gap) == 24
    )
    assert scores["gap"] == pytest.approx(np.mean(gap)) and 0 < scores["gap"] < scores["dsatur_gap"]
    assert scores["at_best_known"] == pytest.approx(np.mean(np.array(gap) <= 0)) and scores["at_best_known"] < 1
    assert scores["dsatur_gap"] == pytest.approx((data.dsatur_colors.astype(int) - data.num_colors).mean())
    assert scores["gain"] == scores["gain_error"] == 0  # the network is untrained
    assert scores["chromatic_error"] == pytest.approx(np.mean(errors), abs=1e-4)
    assert scores["family_accuracy"] == pytest.approx(np.mean(right))


def test_every_graph_is_scored_once_easy_ones_too_and_batches_make_no_difference(data, rt: Runtime, network):
    assert (data.dsatur_colors == data.lower_bound).any()
    scores = []
    for batch_size in (1, 7, 100):
        one = start(everything_held_out(data), rt, batch_size=batch_size)
        assert sorted(np.concatenate(one.batches)) == list(range(24))
        scores.append(one.scores(network))
    assert scores[1:] == [pytest.approx(scores[0], abs=1e-6)] * 2


def test_a_second_evaluation_gives_the_same_scores_and_other_weights_give_others(data, rt, network: ColoringNetwork):
    one = start(everything_held_out(data), rt)
    first = one.scores(network)
    assert one.scores(network) == first
    with torch.no_grad():
        network.move_rule.normal_()
    second = one.scores(network)
    assert second["gap"] != first["gap"]
    assert second["gain"] == pytest.approx(first["gap"] - second["gap"]) and 0 < second["gain_error"] < 1


def test_an_evaluation_leaves_weights_and_gradients_alone(data: PackedGraphs, rt: Runtime, network: ColoringNetwork):
    before = parameters_to_vector(network.parameters()).detach().clone()
    start(data, rt).scores(network)
    assert torch.equal(parameters_to_vector(network.parameters()), before)
    assert all(parameter.grad is None for parameter in network.parameters())


def test_large_graphs_are_not_scored(data: PackedGraphs, rt: Runtime, monkeypatch):
    monkeypatch.setattr("gnn_training.training.validation.MAX_NODES", 36)
    ids = start(data, rt).ids
    assert 0 < len(ids) < 5 and data.num_nodes[ids].max() == 36


def test_fewer_validation_graphs_are_spread_over_all(data: PackedGraphs, rt: Runtime):
    assert start(data, rt, validation_graphs=3).ids.tolist() == data.indices("validation")[[0, 2, 4]].tolist()
    assert start(data, rt, validation_graphs=99).ids.tolist() == data.indices("validation").tolist()


def test_where_no_graph_is_held_out_those_of_the_training_are_scored(tmp_path: Path, rt: Runtime, network):
    data = tiny_runs.write_data(tmp_path, graphs=1)
    assert start(data, rt).scores(network)["graphs"] == 1
