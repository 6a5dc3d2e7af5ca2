"""What a graph looks like as a whole: colors it needs, its family, how hard it is.

A second, small network beside the refinement. They share no weights, so no reading can drown the coloring.
"""
# DOC What training minimizes. Every term is unchanged when the colors are renamed.

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, silu, smooth_l1_loss
from torch.utils.checkpoint import checkpoint

from gnn_training.contract import GRAPH_TYPES, UNKNOWN_TYPE
from gnn_training.model.graphs import Graphs
from gnn_training.model.network import STRIDE, RefinementNetwork

NUM_NODE_FEATURES = 5
NUM_GRAPH_FEATURES = 9


class GraphHead(nn.Module):
    """Three readings of every graph from its structure and two bounds on its chromatic number."""

    def __init__(self, hidden: int = 32):
        super().__init__()
        self.node = nn.Sequential(nn.Linear(NUM_NODE_FEATURES, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.graph = nn.Linear(3 * hidden + NUM_GRAPH_FEATURES, 2 * hidden)
        self.head = nn.Linear(2 * hidden, 1 + len(GRAPH_TYPES) + 1)

    def forward(self, graphs: Graphs, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Bounds lower, upper (G,) to chromatic (G,) inside them, type logits (G, 8) and difficulty (G,) in 0..100."""
        triangles = graphs.triangles()  # (G, N)
        d, mask = graphs.degrees, graphs.mask  # (G, N)
        n, mean = graphs.num_nodes[:, None], graphs.mean_degree[:, None]  # (G, 1)
        clustering = triangles / (d * (d - 1) / 2).clamp(min=1)  # (G, N)
        node = torch.stack([d.log1p(), d / mean - 1, d / n, graphs.neighbour_degrees / mean - 1, clustering], 2)
        x = self.node(node) * mask[..., None]  # (G, N, H)
        center = x.sum(1) / n  # (G, H)
        spread = (((x - center[:, None]) ** 2 * mask[..., None]).sum(1) / n + 1e-6).sqrt()
        peak = x.masked_fill(mask[..., None] == 0, -1e4).max(1).values  # (G, H)
        wedges = (d * (d - 1) / 2).sum(1)
        facts = [
            graphs.num_nodes.log(),
            graphs.density,
            graphs.mean_degree.log1p(),
            (((d - mean) ** 2 * mask).sum(1) / n[:, 0]).sqrt() / mean[:, 0],
            triangles.sum(1) / wedges.clamp(min=1),
            lower.log(),
            upper.log(),
            lower / upper,
            graphs.num_nodes / upper / 10,
        ]
        y = self.head(silu(self.graph(torch.cat([center, spread, peak, torch.stack(facts, 1)], 1))))
        chromatic = lower + (upper - lower) * y[:, 0].sigmoid()  # (G,)
        return chromatic, y[:, 1:-1], 100 * y[:, -1].sigmoid()


WEIGHTS = {"conflicts": 1.0, "chromatic": 0.1, "family": 0.05, "difficulty": 0.05}


@dataclass(frozen=True)
class Batch:
    """Graphs with what is known of them, all tensors on one device.

    num_colors (G,) best known, int64; lower, upper (G,) bounds, float; graph_type (G,) int64; difficulty (G,) float;
    seeds (G,) int64 for the noise; k (G,) int64 colors that this step allows, none above max_colors; present (G,)
    float, 1 for a graph and 0 for an empty place, which counts nothing.
    """

    graphs: Graphs
    num_colors: Tensor
    lower: Tensor
    upper: Tensor
    graph_type: Tensor
    difficulty: Tensor
    seeds: Tensor
    k: Tensor
    present: Tensor
    max_colors: int


class ColoringNetwork(nn.Module):
    """Everything that is trained; called on a batch it unrolls the refinement and returns the loss terms."""

    def __init__(self, width: int = 16, damping: float = 0.8):
        super().__init__()
        self.refiner = RefinementNetwork(width)
        self.reader = GraphHead()
        self.damping = damping
        self.recompute = False

    def forward(
        self, batch: Batch, no_gradient_rounds: int, rounds: int, start: tuple[Tensor, ...] = ()
    ) -> dict[str, Tensor]:
        """Loss terms (scalars), each a sum over the graphs of the batch: divide by the global number of graphs.

        `no_gradient_rounds` rounds without gradient come first, so that the network also learns to repair late states.
        start: state, color_mask and seeds to go on from, instead of those that the refinement begins with.
        """
        chromatic, types, difficulty = self.reader(batch.graphs, batch.lower, batch.upper)
        known = batch.num_colors.float()
        room = (batch.upper - batch.lower).clamp(min=1)  # a miss counts relative to what was left open
        terms = {
            "conflicts": self._conflicts(batch, no_gradient_rounds, rounds, start),
            "chromatic": _distance(chromatic / room, known / room),
            "family": cross_entropy(types, batch.graph_type, ignore_index=UNKNOWN_TYPE, reduction="none"),
            "difficulty": _distance(difficulty / 100, batch.difficulty / 100),
        }
        return {name: (values * batch.present).sum() for name, values in terms.items()}

    def _conflicts(self, batch: Batch, no_gradient_rounds: int, rounds: int, start: tuple[Tensor, ...]) -> Tensor:
        """Expected conflicts per node (G,), a mean over the states after every round in which later ones weigh more."""
        graphs, refine = batch.graphs, self.refiner
        h, color_mask, seeds = start or refine.begin(graphs, batch.k, batch.seeds, batch.max_colors)  # h (G, N, K, D)
        if no_gradient_rounds:
            h = refine.run(
                h.detach(), graphs, color_mask, seeds, no_gradient_rounds
            ).requires_grad_()  # as states with a past
            seeds = seeds + STRIDE * no_gradient_rounds
        p = refine.soft_colors(h, graphs, color_mask)
        loss = torch.zeros_like(graphs.num_nodes)  # (G,)
        for t in range(rounds):
            h, following, conflicts = self._round(h, p, graphs, color_mask, seeds + STRIDE * t)
            loss = loss + (t / rounds) ** 2 * conflicts
            p = following
        loss = loss + (p * graphs.aggregate(p)).sum((1, 2)) / 2
        return loss / graphs.num_nodes / sum((t / rounds) ** 2 for t in range(rounds + 1))

    def _round(self, *state: Tensor | Graphs) -> tuple[Tensor, Tensor, Tensor]:
        """A round that passes gradients back, damped: undamped, they reach norms of thousands."""
        if self.recompute:  # keeps only the states between the rounds, and makes the rest again when it is needed
            return checkpoint(self.refiner, *state, self.damping, use_reentrant=False, preserve_rng_state=False)
        return self.refiner(*state, self.damping)


def _distance(a: Tensor, b: Tensor) -> Tensor:
    return smooth_l1_loss(a, b, reduction="none", beta=0.1)
