"""The program inside the ONNX file: edges in, color scores out, in four parts that pass named tensors on.

DSATUR gives a first coloring and the number of columns; the network refines a soft coloring with fewer colors, drops
the smallest class whenever the coloring is proper (color descent), and is kicked when it stagnates. Small graphs are
refined in several copies. The best proper coloring seen is returned, so no answer has more colors than DSATUR's.

Parts rather than one module because torch.while_loop can close over a tensor's size only where that size is an input's:
sizes that data decides (graphs, padded nodes, colors) are decided in one part and are input shapes of the next.
"""

import torch
from torch import Tensor, nn

from gnn_training.contract import MAX_COLORS
from gnn_training.model.decoding import change_if, clique_bound, dense, first_fit, greedy_along, loop
from gnn_training.model.graphs import DenseGraphs
from gnn_training.model.noise import noise
from gnn_training.model.objective import ColoringNetwork

START = 0.5  # where the descent begins between the estimated number of colors and DSATUR's; docs/LOG.md compares
GOLDEN_RATIO = 0.618034  # copies begin at START + multiples of it, modulo 1: spread evenly however many there are
CELLS = 20_000  # node-color pairs that a call refines at least: small graphs get copies, up to COPIES
COPIES = 8
PATIENCE = 24  # rounds without fewer conflicts before a kick
SURRENDER = 60  # rounds without a proper coloring before more colors are allowed,
PER_COLOR = 8  # one for so many conflicts that are left
KICK_SHARE = 0.1  # neighbours of a conflict that are kicked with it
FLOOR = 1e-4  # probability below which a color counts as unused: its logit is 0, all others lie above


class Densify(nn.Module):
    """Edge list to padded graphs, and one name per color that a greedy could need."""

    inputs, outputs = ("edge_index", "batch"), ("adjacency", "mask", "place", "names")

    def forward(self, edge_index: Tensor, batch: Tensor) -> tuple[Tensor, ...]:
        """edge_index (2, E), batch (N,) to adjacency (G, n, n), mask (G, n), place (N,), names (max degree + 1,)."""
        graphs, place = dense(edge_index, batch)
        enough = (graphs.degrees.max() + 1).clamp(max=MAX_COLORS).long()
        return graphs.adjacency, graphs.mask, place, torch.arange(enough.item(), device=batch.device)


class Bound(nn.Module):
    """What is known before the network starts: DSATUR's coloring above, a clique below."""

    inputs, outputs = ("adjacency", "mask", "names"), ("dsatur", "clique", "palette_names", "copies")

    def forward(self, adjacency: Tensor, mask: Tensor, names: Tensor) -> tuple[Tensor, ...]:
        """To dsatur (G, n) int64, clique (G,) float, palette_names (K,) for the K colors of the worst graph, and
        copies (R,) to refine of every graph.
        """
        graphs = DenseGraphs(adjacency, mask)
        colors = first_fit(graphs, graphs.degrees, names, saturation_weight=adjacency.shape[1] + 1)
        num_colors = colors.max() + 1
        copies = (CELLS / (mask.shape[0] * mask.shape[1] * num_colors)).clamp(1, COPIES).long()
        counts = (torch.arange(count.item(), device=mask.device) for count in (num_colors, copies))
        return colors, clique_bound(graphs), *counts


class Refine(nn.Module):
    """The network, looped."""

    inputs = ("adjacency", "mask", "dsatur", "clique", "palette_names", "copies", "num_colors", "seed", "steps")
    outputs = ("probabilities", "last", "chromatic", "graph_type_logits", "difficulty")

    def __init__(self, network: ColoringNetwork):
        super().__init__()
        self.refiner, self.reader = network.refiner, network.reader

    def forward(self, adjacency, mask, dsatur, clique, palette_names, copies, num_colors, seed, steps):
        """To probabilities (G, n, K) whose argmax is proper, the soft colors (G R, n, K) of the last round, and the
        three readings of every graph.
        """
        bound = dsatur.max(1).values + 1                                                  # (G,)
        chromatic, types, difficulty = self.reader(DenseGraphs(adjacency, mask), clique, bound.float())
        rows = torch.arange(mask.shape[0], device=mask.device)                            # (G,)
        asked = num_colors[rows.clamp(max=num_colors.shape[0] - 1)]  # one number for all graphs, or one for each
        share = (START + GOLDEN_RATIO * copies) % 1                                       # (R,)
        k = (chromatic[:, None] + share * (bound - chromatic)[:, None]).round().long()    # (G, R)
        k = torch.minimum(k, bound[:, None] - 1)
        k = torch.where(asked[:, None] > 0, torch.minimum(asked, bound)[:, None], k)
        k = torch.maximum(k, clique[:, None].long()).flatten()                            # (G R,)
        graphs = DenseGraphs(copied(adjacency, copies), copied(mask, copies))
        dsatur, bound, clique = (copied(x, copies) for x in (dsatur, bound, clique))      # (G R, n), (G R,), (G R,)
        palette = (palette_names < k[:, None]).float()                                    # (G R, K)
        seeds = seed + 7919 * torch.arange(graphs.mask.shape[0], device=mask.device)
        best, used, last = self._descend(graphs, palette, hot(dsatur, palette_names), bound, clique, seeds, steps)
        # Of floats, because ONNX Runtime 1.16 knows no ArgMin of integers.
        winner = used.view(-1, copies.shape[0]).float().argmin(1)                         # (G,)
        return best[rows * copies.shape[0] + winner], last, chromatic, types, difficulty

    def _descend(self, graphs: DenseGraphs, palette, best, bound, clique, seeds, steps) -> tuple[Tensor, ...]:
        """Refine for `steps` rounds, or until every graph has as many colors as its clique; the best proper coloring
        (G, n, K), at first DSATUR's `best` with `bound` colors, how many colors it has (G,), and the soft colors
        (G, n, K) of the last round. A coloring of its own with `bound` colors is taken too, since it hangs on the seed.
        """
        mask, refiner = graphs.mask, self.refiner
        z = noise(seeds, mask.shape[1], palette.shape[1])
        names = torch.arange(palette.shape[1], device=mask.device)

        def body(t, h, p, palette, best, fewest, lowest, stale, failed):
            h, p, _ = refiner(h, p, graphs, palette, z)
            clash = clashes(graphs, p.argmax(2))                                          # (G, n)
            conflicts = clash.sum(1) / 2                                                  # (G,)
            k = palette.sum(1).long()
            proper = conflicts == 0
            better = proper & (k < fewest)
            best = torch.where(better[:, None, None], p, best)
            fewest = torch.where(better, k, fewest)
            stale = torch.where(conflicts < lowest, 0, stale + 1)
            lowest = torch.where(proper, torch.inf, torch.minimum(conflicts, lowest))
            failed = torch.where(proper, 0, failed + 1)
            kicked = (stale >= PATIENCE)[:, None] & to_kick(graphs, clash, seeds + t)     # (G, n)
            stale = torch.where(stale >= PATIENCE, 0, stale)
            missing = torch.minimum((conflicts / PER_COLOR).ceil().long(), fewest - 1 - k)
            stuck = (failed >= SURRENDER) & (missing > 0)
            failed = torch.where(stuck, 0, failed)
            lowest = torch.where(stuck, torch.inf, lowest)
            allowed = k + torch.where(stuck, missing, 0) - (proper & (k > clique)).long()  # (G,)
            ranked = torch.where(palette > 0, 1 + p.sum(1), -names.float())               # (G, K) by size, then idle
            palette = (ranked.argsort(1, descending=True).argsort(1) < allowed[:, None]).float()

            def renew(h, p):
                fresh = refiner.start(graphs, palette, noise(seeds + 31 * t + 17, h.shape[1], h.shape[2]))
                h = torch.where(kicked[:, :, None, None], fresh, h)
                return h, refiner.soft_colors(h, graphs, palette)

            h, p = change_if(kicked.any() | (allowed != k).any(), renew, (h, p))
            return t + 1, h, p, palette, best, fewest, lowest, stale, failed

        def more(t, h, p, palette, best, fewest, *_):
            return (t < steps) & (fewest > clique).any()

        zero = torch.zeros_like(bound)
        h = refiner.start(graphs, palette, z)
        infinite = torch.full_like(mask[:, 0], torch.inf)
        p = refiner.soft_colors(h, graphs, palette)
        state = (torch.zeros_like(steps), h, p, palette, best, bound + 1, infinite, zero, zero + 0)
        _, _, last, _, best, fewest, *_ = loop(more, body, state)
        fewest = torch.minimum(fewest, bound)
        colors = greedy_along(graphs, calm_first(graphs, last.argmax(2), names), names)
        count = colors.max(1).values + 1
        better = (count < fewest) & (clashes(graphs, colors).sum(1) == 0)
        best = torch.where(better[:, None, None], hot(colors, names), best)
        return best, torch.where(better, count, fewest), last


class Readout(nn.Module):
    """Padded graphs back to the caller's rows, as scores whose argmax, softmax and cosine all mean something."""

    inputs, outputs = ("probabilities", "batch", "place"), ("color_logits",)

    def forward(self, probabilities: Tensor, batch: Tensor, place: Tensor) -> Tensor:
        """To color_logits (N, 256): log(p / floor), 0 for colors that are not used."""
        rows = (probabilities[batch, place].clamp(min=FLOOR) / FLOOR).log()               # (N, K)
        return torch.nn.functional.pad(rows, (0, MAX_COLORS - rows.shape[1]))


class Program(nn.Module):
    """The parts in order; runs eagerly what the ONNX file runs."""

    def __init__(self, network: ColoringNetwork):
        super().__init__()
        self.parts = nn.ModuleList([Densify(), Bound(), Refine(network), Readout()])

    @torch.no_grad()
    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        """Named inputs of the contract to everything computed from them, the contract's outputs among it."""
        for part in self.parts:
            made = part(*(tensors[name] for name in part.inputs))
            tensors |= zip(part.outputs, made if isinstance(made, tuple) else (made,), strict=True)
        return tensors


def copied(x: Tensor, copies: Tensor) -> Tensor:
    """Every row of x (G, ...) once per copy: (G R, ...)."""
    return x[torch.arange(x.shape[0] * copies.shape[0], device=x.device) // copies.shape[0]]


def calm_first(graphs: DenseGraphs, classes: Tensor, names: Tensor) -> Tensor:
    """Classes (G, n) renumbered by their conflicts, fewest first: a greedy that follows them then disturbs least."""
    trouble = (clashes(graphs, classes)[:, :, None] * hot(classes, names)).sum(1)         # (G, K)
    order = (trouble * names.shape[0] + names).argsort(1)                                 # ties by number
    return order.argsort(1).gather(1, classes)


def hot(colors: Tensor, names: Tensor) -> Tensor:
    """Colors (G, n) as probabilities (G, n, K)."""
    return (colors[:, :, None] == names).float()


def clashes(graphs: DenseGraphs, colors: Tensor) -> Tensor:
    """Neighbours of the same color (G, n)."""
    return (graphs.adjacency * (colors[:, :, None] == colors[:, None, :])).sum(2)


def to_kick(graphs: DenseGraphs, clash: Tensor, seeds: Tensor) -> Tensor:
    """Nodes in conflict and some of their neighbours (G, n) bool."""
    in_conflict = (clash > 0).float()
    near = graphs.aggregate(in_conflict[..., None])[..., 0] > 0
    drawn = noise(seeds, clash.shape[1], 1)[:, :, 0] < (2 * KICK_SHARE - 1) * 3**0.5  # uniform on +-sqrt(3)
    return (in_conflict > 0) | (near & drawn)
