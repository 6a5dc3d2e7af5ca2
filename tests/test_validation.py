"""Scores on the validation graphs: what a caller of the exported program gets, however they are batched and spread."""

from pathlib import Path

import numpy as np
import pytest
import tiny_runs
import torch
from torch.nn.utils import parameters_to_vector

from gnn_training.coloring import count_conflicts_and_colors
from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime
from gnn_training.model.loss import ColoringNetwork
from gnn_training.model.program import Program
from gnn_training.training.loader import DeviceDataset
from gnn_training.training.validation import BATCH_FACTOR, SCORES, Validation

ROUNDS = 20


@pytest.fixture
def network() -> ColoringNetwork:
    """Random weights that change the colors a lot from round to round."""
    torch.manual_seed(0)
    network = ColoringNetwork()
    with torch.no_grad():
        network.refinement.update.bias[: network.refinement.width] = 1.0
    return network


def start(data: PackedGraphs, rt: Runtime, **changes) -> Validation:
    settings = tiny_runs.settings(data.folder, Path("nowhere"), **({"validation_rounds": ROUNDS} | changes))
    return Validation(settings, DeviceDataset(data, rt.device), rt)


def everything_held_out(data: PackedGraphs) -> PackedGraphs:
    data.split = np.ones_like(data.split)
    return data


def called(network: ColoringNetwork, data: PackedGraphs, ids: np.ndarray) -> tuple[list[list[int]], dict]:
    """What a caller makes of the program's answer for these graphs in one call: greedy along the classes, in Python."""
    pairs = [data.graph(i).edges.tolist() for i in ids]
    first = np.cumsum([0, *data.num_nodes[ids]])
    edges = [[a + start, b + start] for start, edges in zip(first, pairs, strict=False) for a, b in edges]
    batch = torch.repeat_interleave(torch.from_numpy(data.num_nodes[ids].astype(int)))
    options = (torch.tensor(value) for value in ([0], 0, ROUNDS))
    outputs = Program(network)(torch.tensor(edges).T, batch, *options)
    classes, colorings = outputs["color_logits"].argmax(1).tolist(), []
    for i, offset, edges in zip(ids, first, pairs, strict=False):
        colors: dict[int, int] = {}
        for v in sorted(range(data.num_nodes[i]), key=lambda v, offset=offset: classes[offset + v]):
            around = {colors.get(b if a == v else a) for a, b in edges if v in (a, b)}
            colors[v] = next(c for c in range(data.num_nodes[i]) if c not in around)
        colorings.append([colors[v] for v in range(data.num_nodes[i])])
    return colorings, outputs


def test_the_score_is_what_a_caller_gets_who_colors_along_the_classes(data: PackedGraphs, rt: Runtime, network):
    # No label is the truth here: the best known is one less, or every score would be 0.
    data.num_colors = np.maximum(1, data.num_colors - 1)
    one = start(everything_held_out(data), rt)
    gap, errors, right = [], [], []
    for planned in one.batches:
        (ids,) = planned.micro_batches
        colorings, outputs = called(network, data, ids)
        for i, colors in zip(ids, colorings, strict=True):
            wrong, used = count_conflicts_and_colors(data.graph(i).edges.tolist(), colors)
            assert wrong == 0
            gap.append(used - data.num_colors[i])
        errors.extend(np.abs(outputs["chromatic"].numpy() - data.num_colors[ids]))
        right.extend(outputs["graph_type_logits"].argmax(1).numpy() == data.graph_type[ids])
    scores = one.scores(network)
    assert tuple(scores) == SCORES and scores["graphs"] == len(gap) == 24
    assert scores["gap"] == pytest.approx(np.mean(gap)) and np.mean(gap) > 0.5
    assert scores["at_best_known"] == pytest.approx(np.mean(np.array(gap) <= 0))
    assert scores["dsatur_gap"] == pytest.approx((data.dsatur_colors.astype(int) - data.num_colors).mean())
    assert scores["chromatic_error"] == pytest.approx(np.mean(errors), abs=1e-4)
    assert scores["family_accuracy"] == pytest.approx(np.mean(right))


def test_every_graph_is_scored_once_in_batches_within_their_size(data: PackedGraphs, rt: Runtime):
    for batch_size in (1, 200, 100_000):
        one = start(everything_held_out(data), rt, batch_size=batch_size)
        assert np.array_equal(
            np.sort(np.concatenate([planned.micro_batches[0] for planned in one.batches])), np.arange(24)
        )
        for planned in one.batches:
            assert planned.shape.graphs <= 2 or planned.shape.cost <= BATCH_FACTOR * batch_size


def test_how_graphs_are_batched_does_not_change_the_score(data: PackedGraphs, rt: Runtime, network: ColoringNetwork):
    one, other = start(data, rt), start(data, rt, batch_size=10)
    assert len(one.batches) < len(other.batches)
    assert other.scores(network) == pytest.approx(one.scores(network), abs=1e-6)


def test_a_second_evaluation_gives_the_same_scores_and_other_weights_give_others(data, rt, network: ColoringNetwork):
    one = start(data, rt)
    first = one.scores(network)
    assert one.scores(network) == first
    with torch.no_grad():
        network.graph_head.head.bias += torch.randn(network.graph_head.head.bias.shape)
    assert one.scores(network) != first


def test_an_evaluation_leaves_weights_and_gradients_alone(data: PackedGraphs, rt: Runtime, network: ColoringNetwork):
    before = parameters_to_vector(network.parameters()).detach().clone()
    start(data, rt).scores(network)
    assert torch.equal(parameters_to_vector(network.parameters()), before)
    assert all(parameter.grad is None for parameter in network.parameters())


def test_graphs_too_large_for_the_program_are_not_scored(data: PackedGraphs, rt: Runtime, monkeypatch):
    monkeypatch.setattr("gnn_training.training.validation.MAX_NODES", 10)
    ids = start(data, rt).ids
    assert 0 < len(ids) < 5 and data.num_nodes[ids].max() <= 10


def test_fewer_validation_graphs_are_spread_over_all(data: PackedGraphs, rt: Runtime):
    assert start(data, rt, validation_graphs=3).ids.tolist() == data.indices("validation")[[0, 2, 4]].tolist()
    assert start(data, rt, validation_graphs=99).ids.tolist() == data.indices("validation").tolist()


def test_where_no_graph_is_held_out_those_of_the_training_are_scored(tmp_path: Path, rt: Runtime, network):
    data = tiny_runs.write_data(tmp_path, graphs=1)
    assert start(data, rt).scores(network)["graphs"] == 1
