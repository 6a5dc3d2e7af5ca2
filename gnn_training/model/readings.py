"""What a graph looks like as a whole: colors it needs, its family, how hard it is.

A second, small network beside the refinement. They share no weights, so no reading can drown the coloring.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from gnn_training.contract import GRAPH_TYPES
from gnn_training.model.graphs import Graphs

NUM_NODE_FEATURES = 5
NUM_GRAPH_FEATURES = 9


class Reader(nn.Module):
    """Three readings of every graph from its structure and two bounds on its chromatic number."""

    def __init__(self, hidden: int = 32):
        super().__init__()
        self.node = nn.Sequential(nn.Linear(NUM_NODE_FEATURES, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.graph = nn.Linear(3 * hidden + NUM_GRAPH_FEATURES, 2 * hidden)
        self.head = nn.Linear(2 * hidden, 1 + len(GRAPH_TYPES) + 1)

    def forward(self, graphs: Graphs, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Bounds lower, upper (G,) to chromatic (G,) inside them, type logits (G, 8) and difficulty (G,) in 0..100."""
        triangles = graphs.triangles()                                                    # (G, N)
        d, mask = graphs.degrees, graphs.mask                                             # (G, N)
        n, mean = graphs.num_nodes[:, None], graphs.mean_degree[:, None]                  # (G, 1)
        clustering = triangles / (d * (d - 1) / 2).clamp(min=1)                           # (G, N)
        node = torch.stack([d.log1p(), d / mean - 1, d / n, graphs.neighbour_degrees / mean - 1, clustering], 2)
        x = self.node(node) * mask[..., None]                                             # (G, N, H)
        center = x.sum(1) / n                                                             # (G, H)
        spread = (((x - center[:, None]) ** 2 * mask[..., None]).sum(1) / n + 1e-6).sqrt()
        peak = x.masked_fill(mask[..., None] == 0, -1e4).max(1).values                    # (G, H)
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
        chromatic = lower + (upper - lower) * y[:, 0].sigmoid()                           # (G,)
        return chromatic, y[:, 1:-1], 100 * y[:, -1].sigmoid()
