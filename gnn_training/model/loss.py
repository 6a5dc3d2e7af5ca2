"""What training minimizes: loss terms of a batch. Permuting the colors changes none of them."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, smooth_l1_loss
from torch.utils.checkpoint import checkpoint

from gnn_training.contract import UNKNOWN_TYPE
from gnn_training.model.graphs import Graphs
from gnn_training.model.network import GraphHead, RefinementNetwork, first_colors

WEIGHTS = {"conflicts": 1.0, "chromatic": 0.1, "family": 0.05, "difficulty": 0.05}
_distance = partial(smooth_l1_loss, reduction="none", beta=0.1)


@dataclass(frozen=True)
class Batch:
    """Graphs with their labels, all tensors on one device."""
    graphs: Graphs
    num_colors: Tensor  # (G,) int64, best known
    lower: Tensor       # (G,) float, bounds on the chromatic number
    upper: Tensor       # (G,) float
    graph_type: Tensor  # (G,) int64
    difficulty: Tensor  # (G,) float, 0 to 100
    seeds: Tensor       # (G,) int64, of the noise
    k: Tensor           # (G,) int64 colors that this step allows, at most max_colors
    graph_mask: Tensor  # (G,) float, 0 for an empty place, which counts nothing, else 1
    max_colors: int


class ColoringNetwork(nn.Module):
    """Everything that is trained. Called on a batch, it unrolls the refinement and returns the loss terms."""
    def __init__(self, width: int = 16, damping: float = 0.8):
        super().__init__()
        self.refinement = RefinementNetwork(width)
        self.graph_head = GraphHead()
        self.damping = damping
        self.recompute = False  # keep only the states between rounds for the backward pass, and compute the rest again

    def forward(self, batch: Batch, no_gradient_rounds: int, rounds: int) -> dict[str, Tensor]:
        """Loss terms (scalars), each a sum over the graphs of the batch: divide by the global number of graphs.
        `no_gradient_rounds` rounds without gradient come first, so that the network also learns to repair late states.
        """
        chromatic, types, difficulty = self.graph_head(batch.graphs, batch.lower, batch.upper)
        gap = (batch.upper - batch.lower).clamp(min=1)  # an error counts relative to the gap between the bounds
        terms = {
            "conflicts": self._conflicts(batch, no_gradient_rounds, rounds),
            "chromatic": _distance(chromatic / gap, batch.num_colors.float() / gap),
            "family": cross_entropy(types, batch.graph_type, ignore_index=UNKNOWN_TYPE, reduction="none"),
            "difficulty": _distance(difficulty / 100, batch.difficulty / 100),
        }
        return {name: (values * batch.graph_mask).sum() for name, values in terms.items()}

    def _conflicts(self, batch: Batch, no_gradient_rounds: int, rounds: int) -> Tensor:
        """Expected conflicts per node (G,), a mean over the states after every round in which later ones weigh more."""
        graphs, network = batch.graphs, self.refinement
        state = network.begin(graphs, first_colors(batch.k, batch.max_colors), batch.seeds)
        loss = torch.zeros_like(graphs.num_nodes)                                         # (G,)
        if no_gradient_rounds:
            # DistributedDataParallel needs a gradient of every parameter; that of `first` is zero in such a step.
            loss = loss + 0 * sum(parameter.sum() for parameter in network.first.parameters())
            state = network.run(state, graphs, no_gradient_rounds)
            h = state.h.requires_grad_()  # or torch.compile would need another form for the first round
            state = state._replace(h=h, p=network.soft_colors(h, graphs, state.color_mask))
        for t in range(rounds):
            inputs = state, graphs, self.damping  # without damping, gradients reach norms of thousands
            if self.recompute:
                state, conflicts = checkpoint(network, *inputs, use_reentrant=False, preserve_rng_state=False)
            else:
                state, conflicts = network(*inputs)
            loss = loss + (t / rounds) ** 2 * conflicts
        loss = loss + (state.p * graphs.aggregate(state.p)).sum((1, 2)) / 2
        return loss / graphs.num_nodes / sum((t / rounds) ** 2 for t in range(rounds + 1))
