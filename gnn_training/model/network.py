"""Noise that breaks symmetry: an integer hash, since float hashes differ between runtimes and devices."""
# DOC The refinement network: one small update, shared by all colors and all rounds, for any number of both.
# 
# The state is one vector per node and color; nothing in it knows the name of a color, so renaming colors renames the
# result. Symmetry is broken by noise from an integer hash, fresh in every round. The line of RUN-CSP (Tönshoff et al.
# 2020), ANYCSP (Tönshoff et al. 2023) and Colantonio et al. 2024.
# 
# Letters in shapes: G graphs, N nodes (padded), K colors (padded), D width of the state.
# 

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear, silu

from gnn_training.model.graphs import Graphs

PRIME = 2_147_483_629  # the largest below 2^31 but two: squares of residues stay inside int64
STRIDE = 104_729  # from the seeds of one round to those of the next


def noise(seeds: Tensor, num_nodes: int, num_colors: int) -> Tensor:
    """Pseudo-random numbers (G, N, K) of mean 0 and variance 1, a pure function of (seed, node, color).

    seeds (G,) int64. Each of four rounds multiplies and squares in the integers mod PRIME, which mixes all bits; only
    `*`, `+` and `%` on int64 are used, so every runtime computes the same.
    """
    device = seeds.device
    nodes = torch.arange(num_nodes, device=device)[None, :, None]
    colors = torch.arange(num_colors, device=device)[None, None, :]
    x = (seeds[:, None, None] % PRIME * 48_271 + nodes * 69_621 + 1) % PRIME
    x = (x * x + colors * 40_014 + 12_345) % PRIME
    for _ in range(3):
        x = (x * (x + 1_000_003) + 7) % PRIME
    return (x.float() / PRIME - 0.5) * 12**0.5
NUM_INVARIANTS = 9
SHARPNESS = 4.0  # scale of the color scores before the softmax


class RefinementNetwork(nn.Module):
    """Improves a soft coloring, round by round."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.width, hidden = width, 2 * width
        self.first = nn.Linear(NUM_INVARIANTS + 1, width)
        self.of_cell = nn.Linear(2 * width + 7, hidden)
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

    def begin(self, graphs: Graphs, k: Tensor, seeds: Tensor, num_colors: int) -> tuple[Tensor, Tensor, Tensor]:
        """First state (G, N, K, D), usable colors (G, K) for k (G,) of the K = num_colors, and seeds (G,) as given."""
        color_mask = (torch.arange(num_colors, device=k.device) < k[:, None]).float()
        return self.start(graphs, color_mask, seeds), color_mask, seeds

    @torch.no_grad()
    def run(self, h: Tensor, graphs: Graphs, color_mask: Tensor, seeds: Tensor, rounds: int) -> Tensor:
        """State after so many rounds, the first with noise of `seeds`, without gradient."""
        h = h.detach()  # torch.compile has one form for states that have a past, and another for those without
        p = self.soft_colors(h, graphs, color_mask)
        for t in range(rounds):
            h, p, _ = self(h, p, graphs, color_mask, seeds + STRIDE * t)
        return h

    def start(self, graphs: Graphs, color_mask: Tensor, seeds: Tensor) -> Tensor:
        """First state (G, N, K, D) for the usable colors `color_mask` (G, K) of 0/1 and noise of `seeds` (G,)."""
        z = noise(seeds, graphs.mask.shape[1], color_mask.shape[1])                          # (G, N, K)
        node = invariants(graphs, color_mask.sum(1))                                         # (G, N, 9)
        node = node[:, :, None, :].expand(-1, -1, color_mask.shape[1], -1)                   # (G, N, K, 9)
        return self.normal(self.first(torch.cat([node, z[..., None]], 3)))                # (G, N, K, D)

    def normal(self, h: Tensor) -> Tensor:
        """State with mean 0 and variance 1 over its width."""
        return layer_norm(h, (self.width,), self.one, self.zero)

    def soft_colors(self, h: Tensor, graphs: Graphs, color_mask: Tensor) -> Tensor:
        """Probability (G, N, K) of every usable color; zero for padded nodes and unusable colors."""
        scores = SHARPNESS * self.score(h)[..., 0]                                        # (G, N, K)
        scores = scores.masked_fill(color_mask[:, None, :] == 0, -1e4)
        return torch.softmax(scores, 2) * graphs.mask[:, :, None]

    def forward(
        self,
        h: Tensor,
        p: Tensor,
        graphs: Graphs,
        color_mask: Tensor,
        seeds: Tensor,
        damping: float = 1.0,
        price: Tensor | float = 0.0,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One round: state h (G, N, K, D) and its soft colors p (G, N, K) to the next of both, with noise of `seeds`
        (G,), and the expected conflicts (G,) of p. The next state passes `damping` of its gradient on, its soft colors
        all of theirs. price (G, N, K): what a color costs a node beside its conflicts, counted like those.
        """
        z = noise(seeds, *p.shape[1:])                                                    # (G, N, K)
        usable = color_mask[:, None, :]                                                      # (G, 1, K)
        k, n = color_mask.sum(1), graphs.num_nodes                                           # (G,), (G,)
        ph = p[..., None] * h                                                             # (G, N, K, D)
        met = graphs.aggregate(p)                                                         # (G, N, K) conflicts in c
        m = graphs.aggregate(ph.flatten(2)).view_as(h) / (1 + met)[..., None]             # (G, N, K, D)
        e = met + price                                                                   # (G, N, K) cost of c
        own = (p * e).sum(2, keepdim=True)                                                # (G, N, 1) cost of v
        log_e, log_own, ease = e.log1p(), own.log1p(), (-e).exp()
        cell = torch.stack(  # features first: written and read in whole rows
            [p, log_e, ease, log_own - log_e, (e - own).clamp(-3, 3), z, 0.2 * (p + 1e-4).log()], 0
        ).flatten(1)                                                                      # (7, G N K)
        free = (ease * usable).sum(2, keepdim=True)                                       # (G, N, 1)
        mean_h = (h * usable[..., None]).sum(2) / k[:, None, None]                        # (G, N, D)
        node = torch.cat(
            [mean_h, ph.sum(2), invariants(graphs, k), own, log_own, free.log1p(), p.max(2, keepdim=True).values], 2
        )                                                                                 # (G, N, 2D + 13)
        size = p.sum(1)[..., None]                                                        # (G, K, 1)
        spent = (p * e).sum(1)[..., None]                                                 # (G, K, 1) conflicts
        share = (k / n)[:, None, None]                                                    # (G, 1, 1)
        color = torch.cat([ph.sum(1) / (1 + size), size * share - 1, spent.log1p(), spent / (1 + size)], 2)
        total = own.sum(1)                                                                # (G, 1)
        rate = total / n[:, None]                                                         # (G, 1) conflicts per node
        graph = torch.cat(
            [(mean_h * graphs.mask[..., None]).sum(1) / n[:, None], graphs.summary(k), rate, rate.log1p()], 1
        )                                                                                 # (G, D + 7)
        of_state, of_around, of_rest = self.of_cell.weight.T.split([self.width, self.width, cell.shape[0]])
        of_cell = h.flatten(0, 2) @ of_state + m.flatten(0, 2) @ of_around + cell.T @ of_rest + self.of_cell.bias
        of_node = self.of_node(node) + self.of_graph(graph)[:, None]                      # (G, N, H)
        of_cell = of_cell.view(*p.shape, -1)                                              # (G, N, K, H)
        y = silu(of_cell + of_node[:, :, None] + self.of_color(color)[:, None])           # (G, N, K, H)
        halves = zip(self.update.weight.chunk(2), self.update.bias.chunk(2), strict=True)
        gate, change = (linear(y, weight, bias) for weight, bias in halves)               # (G, N, K, D) each
        h = self.normal(h + gate.sigmoid() * change)
        p = self.soft_colors(h, graphs, color_mask)
        damped = h if damping == 1 else damping * h + (1 - damping) * h.detach()          # (G, N, K, D)
        return damped, p, total[:, 0] / 2


def invariants(graphs: Graphs, k: Tensor) -> Tensor:
    """What a node knows of itself (G, N, 9), the same under any renaming of nodes; k (G,) colors to use."""
    d, k, n = graphs.degrees, k[:, None], graphs.num_nodes[:, None]                       # (G, N), (G, 1), (G, 1)
    mean = graphs.mean_degree[:, None]
    rest = torch.stack([k / n, graphs.density[:, None], k.log(), n.log()], 2)             # (G, 1, 4)
    own = torch.stack(
        [d.log1p() - k.log(), d / mean - 1, d / n, graphs.neighbour_degrees / mean - 1, (-d / k).exp()], 2
    )                                                                                     # (G, N, 5)
    return torch.cat([own, rest.expand(-1, d.shape[1], -1)], 2)
