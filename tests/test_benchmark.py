"""What the benchmark compares, counts and predicts is what it says."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch

from gnn_training.data.packed import PackedGraphs
from gnn_training.model.objective import WEIGHTS, ColoringNetwork
from gnn_training.speed import peers
from gnn_training.speed.scatter_form import ScatterNetwork
from gnn_training.training.batches import Shape
from gnn_training.training.resident import ResidentGraphs


@pytest.fixture
def data(tiny_data: Path) -> PackedGraphs:
    return PackedGraphs.open(tiny_data)


@pytest.mark.parametrize("free_rounds", [0, 3])
def test_network_in_scatter_form_has_the_loss_and_the_gradient_of_ours(data: PackedGraphs, free_rounds: int):
    torch.manual_seed(0)
    network, ids = ColoringNetwork(), np.arange(len(data))
    graphs = peers.as_list(data, ids, seed=1)
    k, seeds = (np.array([graph[name] for graph in graphs]) for name in ("k", "seed"))
    shape = Shape(len(ids) + 2, int(data.num_nodes.max()) + 3, int(k.max()) + 1)
    padded = ResidentGraphs(data, torch.device("cpu")).batch(ids, k, seeds, shape)

    def gradient(terms: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        loss = sum(weight * terms[name] for name, weight in WEIGHTS.items())
        return torch.autograd.grad(loss, list(network.parameters()), materialize_grads=True)

    ours = network(padded, free_rounds, 5)
    theirs = ScatterNetwork(network)(Batch.from_data_list(graphs), free_rounds, 5)
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient(theirs), gradient(ours), rtol=1e-3, atol=1e-4)
