"""The two networks: RefinementNetwork improves a soft coloring, GraphHead predicts properties of whole graphs.

The refinement state holds one vector per node and color. One small update, shared by all colors and all rounds, works
for any number of both. It sees no color's number, so permuting the colors permutes the result. Noise, new in every
round, breaks the symmetry. Forebears are RUN-CSP, ANYCSP (Tönshoff et al. 2020, 2023) and Colantonio et al. 2024.

Letters in shapes: G graphs, N nodes (padded), K colors (padded), D width of the state, H hidden width.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear, silu

from gnn_training.contract import GRAPH_TYPES
from gnn_training.model.graphs import Graphs

PRIME = 2_147_483_629  # below 2^31, so that squares of residues fit into int64
STRIDE = 104_729  # between the noise seeds of one round and the next
SHARPNESS = 4.0  # scale of the color scores before the softmax
NUM_INVARIANTS, NUM_PAIR_FEATURES = 9, 7  # of RefinementNetwork
NUM_NODE_FEATURES, NUM_GRAPH_FEATURES = 5, 9  # of GraphHead


def noise(seeds: Tensor, num_nodes: int, num_colors: int) -> Tensor:
    """Pseudo-random numbers (G, N, K) of mean 0 and variance 1, a pure function of (seed, node, color). seeds (G,)
    int64. Each of four rounds multiplies and squares in the integers mod PRIME, which mixes all bits. Only `*`, `+` and
    `%` on int64 are used: float hashes differ between runtimes and devices, these do not.
    """
    device = seeds.device
    nodes = torch.arange(num_nodes, device=device)[None, :, None]
    colors = torch.arange(num_colors, device=device)[None, None, :]
    x = (seeds[:, None, None] % PRIME * 48_271 + nodes * 69_621 + 1) % PRIME
    x = (x * x + colors * 40_014 + 12_345) % PRIME
    for _ in range(3):
        x = (x * (x + 1_000_003) + 7) % PRIME
    return (x.float() / PRIME - 0.5) * 12**0.5


class RefinementState(NamedTuple):
    """A soft coloring between two rounds."""
    h: Tensor           # (G, N, K, D) a vector per node and color
    p: Tensor           # (G, N, K) probability of every color; 0 for padded nodes and masked colors
    color_mask: Tensor  # (G, K) 1 for colors that may be used, else 0
    seeds: Tensor       # (G,) int64, of the next round's noise


class RefinementNetwork(nn.Module):
    """Improves a soft coloring, round by round."""
    one: Tensor
    zero: Tensor

    def __init__(self, width: int = 16):
        super().__init__()
        self.width, hidden = width, 2 * width
        self.first = nn.Linear(NUM_INVARIANTS + 1, width)
        self.of_cell = nn.Linear(2 * width + NUM_PAIR_FEATURES, hidden)  # of a node-color pair
        self.of_node = nn.Linear(2 * width + NUM_INVARIANTS + 4, hidden, bias=False)
        self.of_color = nn.Linear(width + 3, hidden, bias=False)
        self.of_graph = nn.Linear(width + 7, hidden, bias=False)
        self.update = nn.Linear(hidden, 2 * width)
        self.score = nn.Linear(width, 1, bias=False)
        # They change nothing, but ONNX Runtime 1.16 crashes on a sum before a LayerNormalization without bias.
        self.register_buffer("one", torch.ones(width), persistent=False)
        self.register_buffer("zero", torch.zeros(width), persistent=False)
        with torch.no_grad():
            self.update.bias[:width] = -1.0  # gates start nearly closed: a round changes little at first

    def begin(self, graphs: Graphs, color_mask: Tensor, seeds: Tensor) -> RefinementState:
        """First state for the usable colors, color_mask (G, K) of 0 and 1, with noise of seeds (G,)."""
        z = noise(seeds, graphs.mask.shape[1], color_mask.shape[1])                       # (G, N, K)
        node = invariants(graphs, color_mask.sum(1))[:, :, None].expand(-1, -1, z.shape[2], -1)  # (G, N, K, 9)
        h = layer_norm(self.first(torch.cat([node, z[..., None]], 3)), (self.width,), self.one, self.zero)
        p = self.soft_colors(h, graphs, color_mask)                                       # (G, N, K)
        return RefinementState(h, p, color_mask, seeds.clone())  # no view: torch.compile would look at its base

    @torch.no_grad()
    def run(self, state: RefinementState, graphs: Graphs, rounds: int) -> RefinementState:
        """State after so many rounds, without gradient."""
        state = state._replace(h=state.h.detach(), p=state.p.detach())  # torch.compile has a form with and one without
        for _ in range(rounds):
            state, _ = self(state, graphs)
        return state

    def forward(
        self, state: RefinementState, graphs: Graphs, damping: float = 1.0, conflict_weight: Tensor | float = 0.0
    ) -> tuple[RefinementState, Tensor]:
        """One round: the next state, and the cost (G,) of the colors given, which is their expected conflicts. The next
        state passes `damping` of the gradient of its h on, and all of that of its p. conflict_weight (G, N, K) is what
        a color costs a node besides its conflicts, in conflicts.
        """
        h, p, color_mask, seeds = state
        z = noise(seeds, *p.shape[1:])                                                    # (G, N, K)
        k, n = color_mask.sum(1), graphs.num_nodes                                        # (G,), (G,)
        usable = color_mask[:, None, :]                                                   # (G, 1, K)
        ph = p[..., None] * h                                                             # (G, N, K, D)
        conflicts = graphs.aggregate(p)                                                   # (G, N, K)
        message = graphs.aggregate(ph.flatten(2)).view_as(h) / (1 + conflicts)[..., None] # (G, N, K, D)
        cost = conflicts + conflict_weight                                                # (G, N, K)
        own = (p * cost).sum(2, keepdim=True)                                             # (G, N, 1) of the node
        log_cost, log_own, ease = cost.log1p(), own.log1p(), (-cost).exp()
        pairs = [p, log_cost, ease, log_own - log_cost, (cost - own).clamp(-3, 3), z, 0.2 * (p + 1e-4).log()]
        pair = torch.stack(pairs, 0).flatten(1)  # (7, G N K), features first: written and read in whole rows
        free = (ease * usable).sum(2, keepdim=True)                                       # (G, N, 1)
        mean_h = (h * usable[..., None]).sum(2) / k[:, None, None]                        # (G, N, D)
        top = p.max(2, keepdim=True).values                                               # (G, N, 1)
        node = torch.cat([mean_h, ph.sum(2), invariants(graphs, k), own, log_own, free.log1p(), top], 2)
        size = p.sum(1)[..., None]                                                        # (G, K, 1)
        spent = (p * cost).sum(1)[..., None]                                              # (G, K, 1)
        share = (k / n)[:, None, None]                                                    # (G, 1, 1)
        color = torch.cat([ph.sum(1) / (1 + size), size * share - 1, spent.log1p(), spent / (1 + size)], 2)
        total = own.sum(1)                                                                # (G, 1)
        rate = total / n[:, None]                                                         # (G, 1)
        mean_graph = (mean_h * graphs.mask[..., None]).sum(1) / n[:, None]                # (G, D)
        graph = torch.cat([mean_graph, graphs.summary(k), rate, rate.log1p()], 1)         # (G, D + 7)
        of_node = self.of_node(node) + self.of_graph(graph)[:, None]                      # (G, N, H)
        # of_cell applied to its three inputs one by one, which saves putting them side by side
        of_h, of_message, of_pair = self.of_cell.weight.T.split([self.width, self.width, NUM_PAIR_FEATURES])
        y = h.flatten(0, 2) @ of_h + message.flatten(0, 2) @ of_message + pair.T @ of_pair + self.of_cell.bias
        y = silu(y.view(*h.shape[:3], -1) + of_node[:, :, None] + self.of_color(color)[:, None])  # (G, N, K, H)
        halves = zip(self.update.weight.chunk(2), self.update.bias.chunk(2), strict=True)
        gate, change = (linear(y, weight, bias) for weight, bias in halves)               # (G, N, K, D) each
        h = layer_norm(h + gate.sigmoid() * change, (self.width,), self.one, self.zero)   # (G, N, K, D)
        p = self.soft_colors(h, graphs, color_mask)                                       # (G, N, K)
        damped = h if damping == 1 else damping * h + (1 - damping) * h.detach()          # (G, N, K, D)
        return RefinementState(damped, p, color_mask, seeds + STRIDE), total[:, 0] / 2

    def soft_colors(self, h: Tensor, graphs: Graphs, color_mask: Tensor) -> Tensor:
        """Probability (G, N, K) of every usable color; 0 for padded nodes and masked colors."""
        scores = (SHARPNESS * self.score(h)[..., 0]).masked_fill(color_mask[:, None, :] == 0, -1e4)  # (G, N, K)
        return torch.softmax(scores, 2) * graphs.mask[:, :, None]


def first_colors(k: Tensor, num_colors: int) -> Tensor:
    """Color mask (G, K) of 0 and 1 for the first k (G,) of so many colors."""
    return (torch.arange(num_colors, device=k.device) < k[:, None]).float()


def invariants(graphs: Graphs, k: Tensor) -> Tensor:
    """Features of a node (G, N, 9) that no permutation of nodes or colors changes; k (G,) colors to use."""
    d, k, n = graphs.degrees, k[:, None], graphs.num_nodes[:, None]                       # (G, N), (G, 1), (G, 1)
    mean = graphs.mean_degree[:, None]                                                    # (G, 1)
    rest = torch.stack([k / n, graphs.density[:, None], k.log(), n.log()], 2)             # (G, 1, 4)
    own = [d.log1p() - k.log(), d / mean - 1, d / n, graphs.neighbour_degrees / mean - 1, (-d / k).exp()]  # (G, N) each
    return torch.cat([torch.stack(own, 2), rest.expand(-1, d.shape[1], -1)], 2)


class GraphPredictions(NamedTuple):
    """What GraphHead predicts of every graph."""
    chromatic: Tensor          # (G,) estimated number of colors needed, within the bounds given
    graph_type_logits: Tensor  # (G, 8)
    difficulty: Tensor         # (G,) 0 easy to 100 hard


class GraphHead(nn.Module):
    """Predicts three properties of every graph. It shares no weight with the refinement, so it cannot disturb it."""
    def __init__(self, hidden: int = 32):
        super().__init__()
        self.node = nn.Sequential(nn.Linear(NUM_NODE_FEATURES, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.graph = nn.Linear(3 * hidden + NUM_GRAPH_FEATURES, 2 * hidden)
        self.head = nn.Linear(2 * hidden, 1 + len(GRAPH_TYPES) + 1)

    def forward(self, graphs: Graphs, lower: Tensor, upper: Tensor) -> GraphPredictions:
        """Predictions from the structure of the graphs and bounds lower, upper (G,) on their chromatic numbers."""
        triangles = graphs.triangles()                                                    # (G, N)
        d, mask = graphs.degrees, graphs.mask                                             # (G, N), (G, N)
        n, mean = graphs.num_nodes[:, None], graphs.mean_degree[:, None]                  # (G, 1), (G, 1)
        wedges = d * (d - 1) / 2                                                          # (G, N)
        clustering = triangles / wedges.clamp(min=1)                                      # (G, N)
        node = torch.stack([d.log1p(), d / mean - 1, d / n, graphs.neighbour_degrees / mean - 1, clustering], 2)
        x = self.node(node) * mask[..., None]                                             # (G, N, H)
        center = x.sum(1) / n                                                             # (G, H)
        spread = (((x - center[:, None]) ** 2 * mask[..., None]).sum(1) / n + 1e-6).sqrt()
        peak = x.masked_fill(mask[..., None] == 0, -1e4).max(1).values                    # (G, H)
        deviation = (((d - mean) ** 2 * mask).sum(1) / n[:, 0]).sqrt() / mean[:, 0]        # (G,) of the degrees
        features = [
            graphs.num_nodes.log(), graphs.density, graphs.mean_degree.log1p(), deviation,
            triangles.sum(1) / wedges.sum(1).clamp(min=1),
            lower.log(), upper.log(), lower / upper, graphs.num_nodes / upper / 10,
        ]
        y = self.head(silu(self.graph(torch.cat([center, spread, peak, torch.stack(features, 1)], 1))))  # (G, 10)
        chromatic = lower + (upper - lower) * y[:, 0].sigmoid()                           # (G,)
        return GraphPredictions(chromatic, y[:, 1:-1], 100 * y[:, -1].sigmoid())
