"""GraphHead, the network that predicts properties of whole graphs.

Letters in shapes: G graphs, N nodes (padded), W wedges, H hidden width.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from gnn_training.contract import GRAPH_TYPES
from gnn_training.model.graphs import Graphs, take
from gnn_training.model.greedy import FEW_ROWS, noise_table

NUM_NODE_FEATURES, NUM_GRAPH_FEATURES = 5, 5  # of Structure
WEDGES = 8  # pairs of neighbours of every node that are looked at for triangles
HALVINGS = 17  # of a neighbour list until one entry is left, in an exported file: enough for 131,072 neighbours


class Structure(NamedTuple):
    """Features of graphs that do not depend on any coloring."""

    exists: Tensor  # (G, N) bool
    node: Tensor    # (G, N, 5) float
    graph: Tensor   # (G, 5) float


class GraphPredictions(NamedTuple):
    """What GraphHead predicts of every graph."""

    chromatic: Tensor          # (G,) estimated number of colors needed, within the bounds given
    graph_type_logits: Tensor  # (G, 8)
    difficulty: Tensor         # (G,) 0 easy to 100 hard


class GraphHead(nn.Module):
    """Predicts three properties of every graph."""

    def __init__(self, hidden: int = 32):
        super().__init__()
        self.node = nn.Sequential(nn.Linear(NUM_NODE_FEATURES, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.graph = nn.Linear(3 * hidden + NUM_GRAPH_FEATURES + 4, 2 * hidden)
        self.head = nn.Linear(2 * hidden, 1 + len(GRAPH_TYPES) + 1)

    def forward(self, structure: Structure, lower: Tensor, upper: Tensor) -> GraphPredictions:
        """Predictions from the structure of the graphs and bounds lower, upper (G,) on their chromatic numbers."""
        mask = structure.exists.float()[..., None]                                        # (G, N, 1)
        n = mask.sum(1)                                                                   # (G, 1)
        x = self.node(structure.node) * mask                                              # (G, N, H)
        center = x.sum(1) / n                                                             # (G, H)
        spread = (((x - center[:, None]) ** 2 * mask).sum(1) / n + 1e-6).sqrt()           # (G, H)
        peak = x.masked_fill(mask == 0, -1e4).max(1).values                               # (G, H)
        bounds = torch.stack([lower.log(), upper.log(), lower / upper, n[:, 0] / upper / 10], 1)
        y = self.head(silu(self.graph(torch.cat([center, spread, peak, structure.graph, bounds], 1))))  # (G, 10)
        chromatic = lower + (upper - lower) * y[:, 0].sigmoid()                           # (G,)
        return GraphPredictions(chromatic, y[:, 1:-1], 100 * y[:, -1].sigmoid())


def structure(graphs: Graphs) -> Structure:
    """What GraphHead knows of the graphs."""
    mask, n = graphs.exists.float(), graphs.num_nodes                                     # (G, N), (G,)
    d = graphs.degrees.float()                                                            # (G, N)
    mean = d.sum(1, keepdim=True) / n[:, None] + 1e-6                                     # (G, 1) a divisor
    around = graphs.sum_neighbours(d) / d.clamp(min=1)                                    # (G, N)
    wedges = d * (d - 1) / 2                                                              # (G, N)
    clustering = clustering_coefficients(graphs)                                          # (G, N)
    node = torch.stack([d.log1p(), d / mean - 1, d / n[:, None], around / mean - 1, clustering], 2)
    deviation = (((d - mean) ** 2 * mask).sum(1) / n).sqrt() / mean[:, 0]                 # (G,) of the degrees
    transitivity = (clustering * wedges).sum(1) / wedges.sum(1).clamp(min=1)
    graph = [n.log(), mean[:, 0] / (n - 1).clamp(min=1), mean[:, 0].log1p(), deviation, transitivity]
    return Structure(graphs.exists, node, torch.stack(graph, 1))


def clustering_coefficients(graphs: Graphs) -> Tensor:
    """Share (G, N) of a node's pairs of neighbours that are adjacent, estimated from WEDGES pairs; 0 below degree 2."""
    size, last = graphs.exists.shape[1], graphs.neighbours.shape[0] - 1
    random = noise_table(torch.arange(2 * WEDGES, device=graphs.degrees.device), FEW_ROWS)
    random = random[torch.arange(size, device=random.device) % FEW_ROWS]           # (N, 2 W)
    d, first = graphs.degrees[:, :, None], graphs.first[:, :, None]                       # (G, N, 1)
    i = (random[:, :WEDGES] * d).long()                                                   # (G, N, W)
    j = i + 1 + (random[:, WEDGES:] * (d - 1)).long()
    j = torch.where(j >= d, j - d, j)
    a, b = (take(graphs.neighbours, torch.where(d > 1, first + place, last)) for place in (i, j))  # (G, N, W)
    in_list = a.clamp(max=size - 1).flatten(1)
    low = graphs.first.gather(1, in_list).view_as(a)
    high = low + graphs.degrees.gather(1, in_list).view_as(a)  # b may stand in low <= place < high
    for _ in range(HALVINGS if torch.compiler.is_exporting() else len(graphs.window).bit_length()):
        middle = (low + high) // 2
        after = take(graphs.neighbours, middle.clamp(max=last)) <= b
        low, high = torch.where(after & (middle < high), middle, low), torch.where(after, high, middle)
    found = (take(graphs.neighbours, low.clamp(max=last)) == b) & (a < size)
    return found.float().mean(2)
