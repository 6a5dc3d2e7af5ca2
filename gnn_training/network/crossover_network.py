"""The graph neural network of crossover in torch, for training. `search/crossover.py` defines features and children,
and has the same formulas in the compiled loops of a search.

Letters in shapes: P pairs of colorings; C children of a pair; V rows, one per pair, coloring and node.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.utils import scatter

from gnn_training.contract import CROSSOVER_LAYERS, CROSSOVER_WIDTH
from gnn_training.network.crossover_weights import FEATURES, MESSAGES, CrossoverWeights

FIRST_LOG_CONFLICTS = -3.9  # initial value of log_conflicts, close to that of a trained network


class CrossoverNetwork(nn.Module):
    """Gives every node a value. A child takes the class with the largest sum of values (in GPX: with most nodes). The
    values are equivariant to permutations of nodes, colors and parents. Before training, every value is 1.
    """

    def __init__(self, width: int = CROSSOVER_WIDTH, layers: int = CROSSOVER_LAYERS):
        super().__init__()
        self.first = nn.Linear(len(FEATURES), width)
        self.layers = nn.ModuleList(nn.Linear(MESSAGES * width, width) for _ in range(layers))
        self.out, self.direct = nn.Linear(width, 1, bias=False), nn.Linear(len(FEATURES), 1, bias=False)
        for last in (self.out, self.direct):
            nn.init.zeros_(last.weight)
        # Log of the conflicts (standard deviations above the mean of siblings) per unit of value below their mean.
        self.log_conflicts = nn.Parameter(torch.tensor(FIRST_LOG_CONFLICTS))

    def values(self, pairs: HeteroData) -> Tensor:
        """Values (V,) of the nodes. pairs: see `pairs_of`."""
        node, num_classes = pairs["node"], int(pairs["class"].num_nodes)
        classes, other = (pairs["node", relation, "class"].edge_index[1] for relation in ("own_class", "other_class"))
        other_node = pairs["node", "other_coloring", "node"].edge_index[1]
        h = self.first(node.x)
        for layer in self.layers:
            e = h.relu().float()
            of_class, of_other = (scatter(e, to, 0, num_classes, "mean").index_select(0, to) for to in (classes, other))
            h = h + layer(torch.cat([e, of_class, e.index_select(0, other_node), of_other], 1))
        return 1 + (self.out(h.relu()) + self.direct(node.x))[:, 0].float()

    def forward(self, pairs: HeteroData) -> Tensor:
        """Conflicts (P, C) that the values of its classes predict for every child, less the mean of its siblings, in
        standard deviations.
        """
        node = pairs["node"]
        taken = node.taken * self.values(pairs)[:, None]  # (V, C)
        class_values = taken.new_zeros(len(pairs.deviations), taken.shape[1]).index_add(0, node.batch, taken)
        return (class_values.mean(1, keepdim=True) - class_values) * self.log_conflicts.exp()

    def weights(self) -> CrossoverWeights:
        """Copies of the weights in the form that the compiled loops of a search take."""
        layers: list[Tensor] = [*self.layers.parameters()]
        width = self.first.out_features
        matrices = torch.stack([matrix.T.reshape(MESSAGES, width, width) for matrix in layers[::2]])
        first, biases = (self.first.weight.T, self.first.bias), torch.stack(layers[1::2])
        parts = *first, matrices, biases, self.out.weight[0], self.direct.weight[0]
        return CrossoverWeights(*(part.detach().float().cpu().numpy().copy(order="C") for part in parts))  # copies

    def load_weights(self, weights: CrossoverWeights) -> None:
        """Set the weights. They must have the width and the number of layers of this network."""
        sources = [weights.first.T, weights.first_bias]
        for matrices, bias in zip(weights.layers, weights.layer_biases, strict=True):
            sources += [np.concatenate(matrices).T, bias]
        sources += [weights.out[None], weights.direct[None]]
        parts = self.first, self.layers, self.out, self.direct
        targets = [parameter.data for part in parts for parameter in part.parameters()]
        for target, source in zip(targets, sources, strict=True):
            target.copy_(torch.from_numpy(np.ascontiguousarray(source)))


def pairs_of(x: Tensor, parents: Tensor, k: int) -> HeteroData:
    """Return P pairs of parents as CrossoverNetwork takes them: 2 P N nodes, because each coloring has its own rows,
    and 2 P k classes. parents (P, 2, N) int64: colors 0 to k - 1; x (P, 2, N, F): features of the nodes.
    """
    rows = torch.arange(parents.numel(), device=parents.device).view_as(parents)
    ids = parents + k * torch.arange(2 * len(parents), device=parents.device).view(-1, 2, 1)
    data = HeteroData()
    data["node"].x, data["class"].num_nodes = x.flatten(0, 2), 2 * k * len(parents)
    for relation, target, index in (
        ("own_class", "class", ids), ("other_class", "class", ids.flip(1)), ("other_coloring", "node", rows.flip(1)),
    ):  # fmt: skip
        data["node", relation, target].edge_index = torch.stack([rows.flatten(), index.flatten()])
    return data


def squared_errors(expected: Tensor, pairs: HeteroData) -> Tensor:
    """Mean squared error (P,) over the children of every pair. expected (P, C): see CrossoverNetwork.forward."""
    return (pairs.deviations - expected).square().mean(1)


def size_of(state: Mapping[str, Tensor], prefix: str) -> tuple[int, int]:
    """Width and number of layers of the network whose names in a state dict begin with the prefix."""
    num_layers = sum(name.startswith(f"{prefix}layers.") and name.endswith(".bias") for name in state)
    return len(state[f"{prefix}first.bias"]), num_layers
