"""What training minimizes. Every term is unchanged when the colors are renamed."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, smooth_l1_loss

from gnn_training.contract import UNKNOWN_TYPE
from gnn_training.model.graphs import Graphs
from gnn_training.model.network import Refiner
from gnn_training.model.readings import Reader

WEIGHTS = {"conflicts": 1.0, "chromatic": 0.1, "family": 0.05, "difficulty": 0.05}


@dataclass(frozen=True)
class Batch:
    """Graphs with what is known of them, all tensors on one device.

    num_colors (G,) best known, int64; lower, upper (G,) bounds, float; graph_type (G,) int64; difficulty (G,) float;
    seeds (G,) int64 for the noise; k (G,) int64 colors that this step allows.
    """

    graphs: Graphs
    num_colors: Tensor
    lower: Tensor
    upper: Tensor
    graph_type: Tensor
    difficulty: Tensor
    seeds: Tensor
    k: Tensor


class ColoringNetwork(nn.Module):
    """Everything that is trained; called on a batch it unrolls the refinement and returns the loss terms."""

    def __init__(self, width: int = 16, hidden: int = 32, damping: float = 0.8):
        super().__init__()
        self.refiner = Refiner(width, hidden)
        self.reader = Reader()
        self.damping = damping

    def forward(self, batch: Batch, free_rounds: int, rounds: int) -> dict[str, Tensor]:
        """Loss terms (scalars), each a sum over the graphs of the batch: divide by the global number of graphs.

        `free_rounds` rounds without gradient come first, so that the network also learns to repair late states.
        """
        chromatic, types, difficulty = self.reader(batch.graphs, batch.lower, batch.upper)
        known = batch.num_colors.float()
        room = (batch.upper - batch.lower).clamp(min=1)  # a miss counts relative to what was left open
        return {
            "conflicts": self._conflicts(batch, free_rounds, rounds),
            "chromatic": smooth_l1_loss((chromatic - known) / room, torch.zeros_like(known), reduction="sum", beta=0.1),
            "family": cross_entropy(types, batch.graph_type, ignore_index=UNKNOWN_TYPE, reduction="sum"),
            "difficulty": smooth_l1_loss(difficulty / 100, batch.difficulty / 100, reduction="sum", beta=0.1),
        }

    def _conflicts(self, batch: Batch, free_rounds: int, rounds: int) -> Tensor:
        """Expected conflicts per node after every round, later rounds weigh more; summed over graphs."""
        graphs, refine = batch.graphs, self.refiner
        h, palette, z = refine.begin(graphs, batch.k, batch.seeds)                        # (G, N, K, D) the first
        loss = 0 * h.sum()  # every weight takes part in every step, or DDP waits for the missing gradient
        h = refine.run(h, graphs, palette, z, free_rounds) if free_rounds else h
        p = refine.soft_colors(h, graphs, palette)
        for t in range(1, rounds + 1):
            h = refine(h, p, graphs, palette, z)
            p = refine.soft_colors(h, graphs, palette)
            conflicts = (p * graphs.aggregate(p)).sum((1, 2)) / 2                         # (G,)
            loss = loss + (t / rounds) ** 2 * (conflicts / graphs.num_nodes).sum()
            h = self.damping * h + (1 - self.damping) * h.detach()  # undamped, gradients reach norms of thousands
        return loss / sum((t / rounds) ** 2 for t in range(1, rounds + 1))
