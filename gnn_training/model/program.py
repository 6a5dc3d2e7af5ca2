"""The program inside the ONNX file: edges in, color scores out, in five parts that pass named tensors on.

DSATUR and XRLF give a first coloring and the number of columns. The network colors it anew with fewer colors, or of a
large graph some of its classes, the core: it refines a soft coloring, drops the smallest class whenever that is proper
(color descent), and pays more for a conflict the longer it lasts. Copies of a graph have different cores. The best
proper coloring seen is returned, so no answer has more colors than DSATUR's.

Parts rather than one module because torch.while_loop can close over a tensor's size only where that size is an input's:
sizes that data decides (graphs, padded nodes, colors) are decided in one part and are input shapes of the next.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from gnn_training.contract import MAX_COLORS
from gnn_training.model.graphs import DenseGraphs
from gnn_training.model.greedy import change_if, clique_bound, dense, first_fit, greedy_along, loop, xrlf
from gnn_training.model.loss import ColoringNetwork
from gnn_training.model.network import STRIDE, noise

WORK = 8e10  # multiplications that XRLF may cost: so many independent sets are drawn at a time, up to SAMPLES;
SAMPLES, FEWEST = 64, 16  # graphs too large for FEWEST have no XRLF: every step of it reads the whole adjacency
START = 0.5  # where the descent begins between the estimated number of colors and the greedy one; docs/LOG.md compares
GOLDEN_RATIO = 0.618034  # copies begin at START + multiples of it, modulo 1: spread evenly however many there are
CORE = 100  # nodes that the network colors anew: all, or of a larger graph some classes of the greedy coloring
CHANCE = 0.25  # by how much copies differ in the classes they choose
CELLS = 20_000  # node-color pairs that a call refines at least: in copies, up to COPIES of every graph
COPIES = 8
PRICE = 0.3  # what a round in conflict adds to what the node's color costs it, in conflicts,
FADING = 0.9  # and what is left of that a round later
SURRENDER = 60  # rounds without a proper coloring before more colors are allowed,
PER_COLOR = 8  # one for so many conflicts that are left
FLOOR = 1e-4  # probability below which a color counts as unused: its logit is 0, all others lie above


class Densify(nn.Module):
    """Edge list to padded graphs, one name per color that a greedy could need, and per sample of XRLF."""

    inputs, outputs = ("edge_index", "batch"), ("adjacency", "mask", "place", "names", "samples")

    def forward(self, edge_index: Tensor, batch: Tensor) -> tuple[Tensor, ...]:
        """edge_index (2, E), batch (N,) to adjacency (G, n, n), mask (G, n), place (N,), names (max degree + 1,) and
        samples (S,).
        """
        graphs, place = dense(edge_index, batch)
        return graphs.adjacency, graphs.mask, place, *names_for(graphs)


class Bound(nn.Module):
    """What is known before the network starts: colorings by DSATUR and XRLF above, a clique below."""

    inputs = ("adjacency", "mask", "names", "samples", "seed")
    outputs = ("dsatur", "greedy", "clique", "color_ids", "copies")

    def forward(self, adjacency: Tensor, mask: Tensor, names: Tensor, samples: Tensor, seed: Tensor) -> tuple:
        """To the colorings of DSATUR (G, n) int64 and of the better one (G, n), clique (G,) float, color_ids (K,)
        for the K colors of the worst graph, and copies (R,) to refine of every graph.
        """
        graphs = DenseGraphs(adjacency, mask)
        saturated = first_fit(graphs, graphs.degrees, names, saturation_weight=adjacency.shape[1] + 1)
        seeds = seed + torch.zeros_like(mask[:, 0]).long()  # the same for all: a graph's answer hangs on no other graph
        sets = xrlf(graphs, samples, seeds, torch.where(FEWEST * work_of_xrlf(mask) > WORK, saturated, -1)).clamp(min=0)
        fewer = sets.max(1).values < saturated.max(1).values                              # (G,)
        colors = torch.where(fewer[:, None], sets, saturated)
        num_colors = colors.max() + 1
        share = (CORE / (mask.shape[1] * torch.ones_like(mask[0, 0]))).clamp(max=1)       # () of the nodes, and colors
        copies = (CELLS / (mask.shape[0] * mask.shape[1] * num_colors * share**2)).clamp(1, COPIES).long()
        counts = (torch.arange(count.item(), device=mask.device) for count in (num_colors, copies))
        return saturated, colors, clique_bound(graphs), *counts


class Cores(nn.Module):
    """What of a large graph the network colors anew: some color classes, the smaller ones rather."""

    inputs = ("adjacency", "mask", "greedy", "color_ids", "copies", "seed")
    outputs = ("ranked", "core_adjacency", "core_mask", "seats", "core_names")

    def forward(
        self, adjacency: Tensor, mask: Tensor, greedy: Tensor, color_ids: Tensor, copies: Tensor, seed: Tensor
    ) -> tuple[Tensor, ...]:
        """To greedy's coloring with the classes of the core first, ranked (G R, n) int64; core_adjacency (G R, m, m)
        and core_mask (G R, m) of as many classes as have at most CORE nodes, two at least; the nodes of the core,
        seats (G R, m); core_names (K,) for the colors of the largest.
        """
        size = (one_hot(greedy, color_ids) * mask[..., None]).sum(1)                      # (G, K)
        size, greedy, mask = (copied(x, copies) for x in (size, greedy, mask))            # G R rows each
        rows = torch.arange(mask.shape[0], device=mask.device)
        owner = rows // copies.shape[0]
        chance = noise(seed + 7919 * rows, color_ids.shape[0], 1)[..., 0]             # (G R, K)
        first = rows == owner * copies.shape[0]  # its core: the smallest classes
        key = size * torch.where(first[:, None], 0.0, CHANCE * chance).exp() + color_ids / 1024  # ties by number
        order = torch.where(size > 0, key, torch.inf).argsort(1)                          # (G R, K)
        rank = order.argsort(1)
        nodes_up_to = size.gather(1, order).cumsum(1).gather(1, rank)                     # (G R, K) the class included
        taken = (size > 0) & ((nodes_up_to <= CORE) | (rank < 2))
        inside = taken.gather(1, greedy) & (mask > 0)                                     # (G R, n)
        nodes = torch.arange(mask.shape[1], device=mask.device)
        seat_names, core_names = (
            torch.arange(which.sum(1).max().item(), device=mask.device) for which in (inside, taken)
        )
        seats = torch.where(inside, 0.0, 1.0 * mask.shape[1]).add(nodes).argsort(1)[:, seat_names]  # (G R, m)
        core = inside.gather(1, seats).float()
        adjacency = adjacency[owner[:, None, None], seats[:, :, None], seats[:, None, :]]
        return rank.gather(1, greedy), adjacency * core[:, :, None] * core[:, None, :], core, seats, core_names


class Refine(nn.Module):
    """The network, looped."""

    inputs = (
        *("adjacency", "mask", "dsatur", "clique", "color_ids", "copies"),
        *("ranked", "core_adjacency", "core_mask", "seats", "core_names", "num_colors", "seed", "steps"),
    )
    outputs = ("probabilities", "last", "chromatic", "graph_type_logits", "difficulty")

    def __init__(self, network: ColoringNetwork):
        super().__init__()
        self.refiner, self.reader = network.refiner, network.reader

    def forward(
        self,
        adjacency: Tensor,
        mask: Tensor,
        dsatur: Tensor,
        clique: Tensor,
        color_ids: Tensor,
        copies: Tensor,
        ranked: Tensor,
        core_adjacency: Tensor,
        core_mask: Tensor,
        seats: Tensor,
        core_names: Tensor,
        num_colors: Tensor,
        seed: Tensor,
        steps: Tensor,
    ) -> tuple[Tensor, ...]:
        """To probabilities (G, n, K) whose argmax is proper, the soft colors (G R, m, k) of the last round, and the
        three readings of every graph.
        """
        saturated = dsatur.max(1).values + 1                                              # (G,)
        chromatic, types, difficulty = self.reader(DenseGraphs(adjacency, mask), clique, saturated.float())
        rows = torch.arange(mask.shape[0], device=mask.device)                            # (G,)
        bound = (ranked * copied(mask, copies).long()).max(1).values + 1                  # (G R,) greedy colors
        chromatic = torch.minimum(chromatic, bound[rows * copies.shape[0]])
        graphs = DenseGraphs(core_adjacency, core_mask)
        start = ranked.gather(1, seats) * core_mask.long()                                # (G R, m)
        core_bound = start.max(1).values + 1                                              # (G R,)
        asked = num_colors[rows.clamp(max=num_colors.shape[0] - 1)]  # one number for all graphs, or one for each
        asked = copied(asked, copies)
        # What can be saved is thought to lie in the core as much as elsewhere.
        saving = (bound - copied(chromatic, copies)) * graphs.num_nodes / copied(mask, copies).sum(1)
        share = (START + GOLDEN_RATIO * copies) % 1                                       # (R,)
        share = (share + 0 * rows[:, None]).flatten()                                     # (G R,)
        k = torch.minimum((core_bound - (1 - share) * saving).round().long(), core_bound - 1)
        k = torch.where(asked > 0, torch.minimum(asked, bound) - bound + core_bound, k)
        kept = bound - core_bound                                                         # (G R,) colors outside
        floor = torch.maximum(clique_bound(graphs), copied(clique, copies) - kept)        # (G R,)
        k = torch.maximum(k, floor.long())
        color_mask = (core_names < k[:, None]).float()                                       # (G R, k)
        seeds = seed + 7919 * torch.arange(core_mask.shape[0], device=mask.device)
        first = one_hot(start, core_names)                                                    # (G R, m, k)
        best, used, last = self._descend(graphs, color_mask, first, core_bound, floor, seeds, steps)
        # Of floats, because ONNX Runtime 1.16 knows no ArgMin of integers.
        winner = (used - core_bound).view(-1, copies.shape[0]).float().argmin(1)          # (G,)
        chosen = rows * copies.shape[0] + winner
        whole = one_hot(ranked[chosen], color_ids)                                        # (G, n, K)
        column = (core_names[:, None] == color_ids).float()                           # (k, K)
        place = rows[:, None], seats[chosen]
        core = torch.where(core_mask[chosen][..., None] > 0, best[chosen] @ column, whole[place])
        return whole.index_put(place, core), last, chromatic, types, difficulty

    def _descend(self, graphs: DenseGraphs, color_mask, best, bound, clique, seeds, steps) -> tuple[Tensor, ...]:
        """Refine for `steps` rounds, or until every graph has as many colors as its clique; the best proper coloring
        (G, n, K), at first the greedy `best` with `bound` colors, how many colors it has (G,), and the soft colors
        (G, n, K) of the last round. A coloring of its own with `bound` colors is taken too, since it hangs on the seed.

        The network has learned to lower conflicts, and would rest where none of its moves does. Prices drive it on,
        as weights do in the breakout method (Morris 1993).
        """
        mask, refiner = graphs.mask, self.refiner
        names = torch.arange(color_mask.shape[1], device=mask.device)

        def body(t, h, p, price, color_mask, best, fewest, failed):
            h, p, _ = refiner(h, p, graphs, color_mask, seeds + STRIDE * t, price=price)
            clash = conflicts_per_node(graphs, p.argmax(2))                                          # (G, n)
            conflicts = clash.sum(1) / 2                                                  # (G,)
            k = color_mask.sum(1).long()
            proper = conflicts == 0
            better = proper & (k < fewest)
            best = torch.where(better[:, None, None], p, best)
            fewest = torch.where(better, k, fewest)
            price = FADING * price + PRICE * p * clash[..., None]
            failed = torch.where(proper, 0, failed + 1)
            missing = torch.minimum((conflicts / PER_COLOR).ceil().long(), fewest - 1 - k)
            stuck = (failed >= SURRENDER) & (missing > 0)
            failed = torch.where(stuck, 0, failed)
            allowed = k + torch.where(stuck, missing, 0) - (proper & (k > clique)).long()  # (G,)
            ranked = torch.where(color_mask > 0, 1 + p.sum(1), -names.float())               # (G, K) by size, then idle
            color_mask = (ranked.argsort(1, descending=True).argsort(1) < allowed[:, None]).float()
            (p,) = change_if((allowed != k).any(), lambda _: (refiner.soft_colors(h, graphs, color_mask),), (p,))
            return t + 1, h, p, price, color_mask, best, fewest, failed

        def more(t, h, p, price, color_mask, best, fewest, *_):
            return (t < steps) & (fewest > clique).any()

        h = refiner.start(graphs, color_mask, seeds)
        p = refiner.soft_colors(h, graphs, color_mask)
        state = (torch.zeros_like(steps), h, p, torch.zeros_like(p), color_mask, best, bound + 1, torch.zeros_like(bound))
        _, _, last, _, _, best, fewest, *_ = loop(more, body, state)
        fewest = torch.minimum(fewest, bound)
        colors = greedy_along(graphs, order_by_conflicts(graphs, last.argmax(2), names), names)
        count = colors.max(1).values + 1
        better = (count < fewest) & (conflicts_per_node(graphs, colors).sum(1) == 0)
        best = torch.where(better[:, None, None], one_hot(colors, names), best)
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
        self.parts = nn.ModuleList([Densify(), Bound(), Cores(), Refine(network), Readout()])

    @torch.no_grad()
    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        """Named inputs of the contract to everything computed from them, the contract's outputs among it."""
        return run(self.parts, tensors)


def run(parts: Iterable[nn.Module], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """`tensors` and all that the parts make of them, by name."""
    for part in parts:
        made = part(*(tensors[name] for name in part.inputs))
        tensors = tensors | dict(zip(part.outputs, made if isinstance(made, tuple) else (made,), strict=True))
    return tensors


def work_of_xrlf(mask: Tensor) -> Tensor:
    """Multiplications () that one sample of XRLF costs on graphs with this mask (G, n)."""
    return torch.ones_like(mask[0, 0]) * mask.shape[0] * mask.shape[1] ** 3


def names_for(graphs: DenseGraphs) -> tuple[Tensor, Tensor]:
    """Names 0, 1, ... of the colors that a greedy could need (max degree + 1,) and of the samples of XRLF (S,)."""
    enough = (graphs.degrees.max() + 1).clamp(max=MAX_COLORS).long()
    names, samples = (
        torch.arange(count.item(), device=graphs.mask.device) for count in (enough, samples_for(graphs.mask))
    )
    return names, samples


def samples_for(mask: Tensor) -> Tensor:
    """How many samples () XRLF draws of every independent set."""
    return (WORK / work_of_xrlf(mask)).clamp(1, SAMPLES).long()


def copied(x: Tensor, copies: Tensor) -> Tensor:
    """Every row of x (G, ...) once per copy: (G R, ...)."""
    return x[torch.arange(x.shape[0] * copies.shape[0], device=x.device) // copies.shape[0]]


def order_by_conflicts(graphs: DenseGraphs, classes: Tensor, names: Tensor) -> Tensor:
    """Classes (G, n) renumbered by their conflicts, fewest first: a greedy that follows them then disturbs least."""
    trouble = (conflicts_per_node(graphs, classes)[:, :, None] * one_hot(classes, names)).sum(1)         # (G, K)
    order = (trouble * names.shape[0] + names).argsort(1)                                 # ties by number
    return order.argsort(1).gather(1, classes)


def one_hot(colors: Tensor, names: Tensor) -> Tensor:
    """Colors (G, n) as probabilities (G, n, K)."""
    return (colors[:, :, None] == names).float()


def conflicts_per_node(graphs: DenseGraphs, colors: Tensor) -> Tensor:
    """Neighbours of the same color (G, n)."""
    return (graphs.adjacency * (colors[:, :, None] == colors[:, None, :])).sum(2)
