"""The program inside the ONNX file: edges in, color scores out.

Its five parts run one after the other. Pad makes matrices of the edge list. Bound colors the graphs with DSATUR and
XRLF. ChooseSubgraphs takes all of a small graph, or some color classes of a large one, in several replicas. Refine lets
the network recolor these subgraphs with fewer colors: it refines a soft coloring, removes the smallest class whenever
the coloring is proper (color descent), and adds to the cost of a conflict the longer it lasts. It returns the best
proper coloring seen, so no answer has more colors than DSATUR's. Readout turns it into scores.

The parts are modules of their own because torch.while_loop can close over a tensor's size only if it is the size of an
input. Sizes that data decides (graphs, padded nodes, colors) are decided in one part and are input shapes of the next.

Letters in shapes: G graphs, N nodes (padded), K colors, R replicas, M nodes and L colors of the largest subgraph.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from gnn_training.contract import MAX_COLORS
from gnn_training.model.graphs import DenseGraphs
from gnn_training.model.greedy import change_if, clique_bound, first_fit, greedy_along, loop, pad, xrlf
from gnn_training.model.loss import ColoringNetwork
from gnn_training.model.network import RefinementState, first_colors, noise

XRLF_WORK = 8e10  # multiplications that XRLF may cost; it draws as many samples as that allows
MIN_SAMPLES, MAX_SAMPLES = 16, 64  # and does not run where it allows too few: every step reads the whole adjacency
SUBGRAPH_NODES = 100  # nodes that the network recolors: all of a small graph, some classes of a large one
CLASS_NOISE = 0.25  # how much replicas differ in the classes they choose
MIN_PAIRS = 20_000  # node-color pairs that a call refines at least, by replicas,
MAX_REPLICAS = 8  # of which a graph has at most so many
START = 0.5  # where the descent starts between the estimated number of colors and the greedy one (see docs/LOG.md)
GOLDEN_RATIO = 0.618034  # replicas start at START plus multiples of it, modulo 1, which spreads any number of them
WEIGHT_STEP = 0.3  # what a round in conflict adds to the conflict weight of the node's color,
WEIGHT_DECAY = 0.9  # after this factor of every round
PATIENCE = 60  # rounds without a proper coloring before more colors are allowed,
CONFLICTS_PER_COLOR = 8  # one for so many conflicts that are left
SEED_STRIDE = 7919  # between the seeds of replicas
MIN_PROBABILITY = 1e-4  # below it a color counts as unused: its logit is 0, all others are positive


class Padded(NamedTuple):
    """Padded graphs as the parts pass them on."""
    adjacency: Tensor  # (G, N, N)
    mask: Tensor       # (G, N)

    def graphs(self) -> DenseGraphs:
        return DenseGraphs(self.adjacency, self.mask)


class Ranges(NamedTuple):
    """Sizes as tensors 0, 1, 2, ..."""
    greedy_color_ids: Tensor  # (max degree + 1,) colors that a greedy algorithm could need
    sample_ids: Tensor        # (S,) samples of XRLF


class Bounds(NamedTuple):
    """What is known before the network starts."""
    dsatur: Tensor     # (G, N) int64, coloring by DSATUR
    greedy: Tensor     # (G, N) int64, the better one of DSATUR's and XRLF's
    clique: Tensor     # (G,) float, size of a clique
    color_ids: Tensor  # (K,) = 0, 1, ..., greedy colors of the worst graph
    replicas: Tensor   # (R,) = 0, 1, ..., replicas to refine of every graph


class Subgraphs(NamedTuple):
    """What the network recolors. Replicas of a graph stand side by side."""
    class_rank: Tensor     # (G R, N) int64, the greedy coloring, renumbered so that the subgraph's classes come first
    sub_adjacency: Tensor  # (G R, M, M)
    sub_mask: Tensor       # (G R, M)
    node_ids: Tensor       # (G R, M) int64, nodes of the subgraph
    sub_color_ids: Tensor  # (L,) = 0, 1, ...

    def graphs(self) -> DenseGraphs:
        return DenseGraphs(self.sub_adjacency, self.sub_mask)


class Options(NamedTuple):
    """What a caller may ask for."""
    num_colors: Tensor  # (G,) or (1,) int64, 0 as predicted
    seed: Tensor        # () int64
    steps: Tensor       # () int64, rounds


class Refined(NamedTuple):
    """What the network makes of the graphs."""
    probabilities: Tensor      # (G, N, K), their argmax is proper
    last: Tensor               # (G R, M, L) soft colors after the last round
    chromatic: Tensor          # (G,) and the other predictions of GraphHead
    graph_type_logits: Tensor  # (G, 8)
    difficulty: Tensor         # (G,)


class Start(NamedTuple):
    """Where the descent of every replica starts."""
    coloring: Tensor    # (G R, M) int64, the greedy one
    num_colors: Tensor  # (G R,) int64, its colors
    lower: Tensor       # (G R,) float: fewer colors are impossible, or useless as the rest of the graph needs more
    k: Tensor           # (G R,) int64, colors to try first


class Descent(NamedTuple):
    """The descent between two rounds."""
    step: Tensor             # () int64, rounds done
    state: RefinementState
    conflict_weight: Tensor  # (G R, M, L)
    best: Tensor             # (G R, M, L) best proper coloring so far
    fewest: Tensor           # (G R,) int64, its colors
    failed: Tensor           # (G R,) int64, rounds since the last proper coloring


class Pad(nn.Module):
    """edge_index (2, E) and batch (V,) to padded graphs, the position (V,) of every node in its graph, and sizes."""
    def forward(self, edge_index: Tensor, batch: Tensor) -> tuple[Padded, Tensor, Ranges]:
        graphs, position = pad(edge_index, batch)
        return Padded(graphs.adjacency, graphs.mask), position, ranges(graphs)


class Bound(nn.Module):
    """Colorings by DSATUR and XRLF, and cliques."""
    def forward(self, padded: Padded, ranges: Ranges, seed: Tensor) -> Bounds:
        graphs, mask = padded.graphs(), padded.mask
        dsatur = first_fit(graphs, graphs.degrees, ranges.greedy_color_ids, saturation_weight=mask.shape[1] + 1)
        seeds = seed + torch.zeros_like(mask[:, 0]).long()  # one for all: a graph's answer depends on no batch mate
        waiting = torch.where(MIN_SAMPLES * xrlf_work(mask) > XRLF_WORK, dsatur, -1)
        sets = xrlf(graphs, ranges.sample_ids, seeds, waiting).clamp(min=0)
        greedy = torch.where((sets.max(1).values < dsatur.max(1).values)[:, None], sets, dsatur)  # (G, N)
        num_colors = greedy.max() + 1
        share = (SUBGRAPH_NODES / (mask.shape[1] * torch.ones_like(mask[0, 0]))).clamp(max=1)  # () of nodes and colors
        pairs = mask.shape[0] * mask.shape[1] * num_colors * share**2
        replicas = (MIN_PAIRS / pairs).clamp(1, MAX_REPLICAS).long()
        return Bounds(dsatur, greedy, clique_bound(graphs), count_to(num_colors), count_to(replicas))


class ChooseSubgraphs(nn.Module):
    """Color classes with at most SUBGRAPH_NODES nodes in all, but at least two, preferably small ones."""
    def forward(self, padded: Padded, bounds: Bounds, seed: Tensor) -> Subgraphs:
        color_ids, num_replicas = bounds.color_ids, bounds.replicas.shape[0]
        size = (one_hot(bounds.greedy, color_ids) * padded.mask[..., None]).sum(1)        # (G, K)
        size, greedy, mask = (replicated(x, bounds.replicas) for x in (size, bounds.greedy, padded.mask))
        rows = torch.arange(mask.shape[0], device=mask.device)                            # (G R,)
        graph = rows // num_replicas                                                      # (G R,)
        chance = CLASS_NOISE * noise(seed + SEED_STRIDE * rows, color_ids.shape[0], 1)[..., 0]  # (G R, K)
        first = rows == graph * num_replicas  # the first replica takes the smallest classes
        key = size * torch.where(first[:, None], 0.0, chance).exp() + color_ids / 1024  # ties by number
        order = torch.where(size > 0, key, torch.inf).argsort(1)                          # (G R, K)
        rank = order.argsort(1)
        nodes_up_to = size.gather(1, order).cumsum(1).gather(1, rank)                     # (G R, K) with the class
        taken = (size > 0) & ((nodes_up_to <= SUBGRAPH_NODES) | (rank < 2))
        inside = taken.gather(1, greedy) & (mask > 0)                                     # (G R, N)
        nodes = torch.arange(mask.shape[1], device=mask.device)                           # (N,)
        columns, sub_color_ids = (count_to(chosen.sum(1).max()) for chosen in (inside, taken))  # (M,), (L,)
        node_ids = torch.where(inside, 0.0, 1.0 * mask.shape[1]).add(nodes).argsort(1)[:, columns]  # (G R, M)
        sub_mask = inside.gather(1, node_ids).float()
        adjacency = padded.adjacency[graph[:, None, None], node_ids[:, :, None], node_ids[:, None, :]]
        adjacency = adjacency * sub_mask[:, :, None] * sub_mask[:, None, :]               # (G R, M, M)
        return Subgraphs(rank.gather(1, greedy), adjacency, sub_mask, node_ids, sub_color_ids)


class Refine(nn.Module):
    """The network, looped."""
    def __init__(self, network: ColoringNetwork):
        super().__init__()
        self.refinement, self.graph_head = network.refinement, network.graph_head

    def forward(self, padded: Padded, bounds: Bounds, subgraphs: Subgraphs, options: Options) -> Refined:
        dsatur_colors = (bounds.dsatur.max(1).values + 1).float()                         # (G,)
        chromatic, types, difficulty = self.graph_head(padded.graphs(), bounds.clique, dsatur_colors)
        chromatic = torch.minimum(chromatic, bounds.greedy.max(1).values + 1)
        start = choose_k(padded, bounds, subgraphs, chromatic, options.num_colors)
        descent = self.descend(subgraphs, start, options)
        best, fewest = take_greedy(subgraphs, start, descent)
        saved = start.num_colors - fewest                                                 # (G R,)
        return Refined(assemble(bounds, subgraphs, best, saved), descent.state.p, chromatic, types, difficulty)

    def descend(self, subgraphs: Subgraphs, start: Start, options: Options) -> Descent:
        """Refine for `steps` rounds, or until every subgraph has as many colors as its lower bound. Where no move of
        the network lowers conflicts, conflict weights keep it moving (breakout method, Morris 1993).
        """
        graphs, color_ids, lower = subgraphs.graphs(), subgraphs.sub_color_ids, start.lower
        refinement, steps = self.refinement, options.steps

        def body(descent: Descent) -> Descent:
            state, _ = refinement(descent.state, graphs, conflict_weight=descent.conflict_weight)
            conflicts = conflicts_per_node(graphs, state.p.argmax(2))                     # (G R, M)
            total = conflicts.sum(1) / 2                                                  # (G R,)
            k = state.color_mask.sum(1).long()                                            # (G R,)
            proper = total == 0                                                           # (G R,)
            better = proper & (k < descent.fewest)
            best = torch.where(better[:, None, None], state.p, descent.best)
            fewest = torch.where(better, k, descent.fewest)
            weight = WEIGHT_DECAY * descent.conflict_weight + WEIGHT_STEP * state.p * conflicts[..., None]
            failed = torch.where(proper, 0, descent.failed + 1)
            missing = torch.minimum((total / CONFLICTS_PER_COLOR).ceil().long(), fewest - 1 - k)
            stuck = (failed >= PATIENCE) & (missing > 0)
            failed = torch.where(stuck, 0, failed)
            allowed = k + torch.where(stuck, missing, 0) - (proper & (k > lower)).long()  # (G R,)
            # The largest classes keep their colors; colors that were not used follow.
            key = torch.where(state.color_mask > 0, 1 + state.p.sum(1), -color_ids.float())  # (G R, L)
            color_mask = (key.argsort(1, descending=True).argsort(1) < allowed[:, None]).float()
            p = change_if((allowed != k).any(), lambda _: refinement.soft_colors(state.h, graphs, color_mask), state.p)
            state = state._replace(p=p, color_mask=color_mask)
            return Descent(descent.step + 1, state, weight, best, fewest, failed)

        seeds = options.seed + SEED_STRIDE * torch.arange(graphs.mask.shape[0], device=graphs.mask.device)
        state = refinement.begin(graphs, first_colors(start.k, color_ids.shape[0]), seeds)
        # A coloring with as many colors as the greedy one counts as better, since it depends on the seed.
        fewest, zero = start.num_colors + 1, torch.zeros_like(start.num_colors)
        weight, greedy = torch.zeros_like(state.p), one_hot(start.coloring, color_ids)
        descent = Descent(torch.zeros_like(steps), state, weight, greedy, fewest, zero)
        return loop(lambda descent: (descent.step < steps) & (descent.fewest > lower).any(), body, descent)


class Readout(nn.Module):
    """Colorings as scores for the caller's rows. Their argmax, softmax and cosine all mean something."""
    def forward(self, probabilities: Tensor, batch: Tensor, position: Tensor) -> Tensor:
        """Scores (V, 256) of probabilities (G, N, K): log(p / MIN_PROBABILITY), 0 for colors that are not used."""
        rows = (probabilities[batch, position].clamp(min=MIN_PROBABILITY) / MIN_PROBABILITY).log()  # (V, K)
        return torch.nn.functional.pad(rows, (0, MAX_COLORS - rows.shape[1]))


class Program(nn.Module):
    """The parts in order. It runs in torch what the ONNX file runs."""
    def __init__(self, network: ColoringNetwork):
        super().__init__()
        self.pad, self.bound, self.choose_subgraphs = Pad(), Bound(), ChooseSubgraphs()
        self.refine, self.readout = Refine(network), Readout()

    @torch.no_grad()
    def forward(
        self, edge_index: Tensor, batch: Tensor, num_colors: Tensor, seed: Tensor, steps: Tensor,
        node_features: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Inputs of the contract to its outputs and all that lies between, by name. node_features are ignored."""
        options = Options(num_colors, seed, steps)
        padded, position, ranges = self.pad(edge_index, batch)
        bounds = self.bound(padded, ranges, seed)
        subgraphs = self.choose_subgraphs(padded, bounds, seed)
        refined = self.refine(padded, bounds, subgraphs, options)
        logits = self.readout(refined.probabilities, batch, position)
        tensors = {"edge_index": edge_index, "batch": batch, "position": position, "color_logits": logits}
        for group in (options, padded, ranges, bounds, subgraphs, refined):
            tensors |= group._asdict()
        return tensors


Prepared = tuple[Bounds, Subgraphs]  # all that the program knows before the network starts; it depends on no weight


@torch.no_grad()
def prepare(graphs: DenseGraphs, seed: int = 0) -> Prepared:
    """Run the program on graphs up to the network."""
    padded, seeds = Padded(graphs.adjacency, graphs.mask), torch.tensor(seed, device=graphs.mask.device)
    bounds = Bound()(padded, ranges(graphs), seeds)
    return bounds, ChooseSubgraphs()(padded, bounds, seeds)


@torch.no_grad()
def refine(network: ColoringNetwork, graphs: DenseGraphs, prepared: Prepared, steps: int, seed: int = 0) -> Refined:
    """Run the network of the program for so many rounds on graphs that `prepare` has seen."""
    options = Options(*(torch.tensor(value, device=graphs.mask.device) for value in ([0], seed, steps)))
    return Refine(network)(Padded(graphs.adjacency, graphs.mask), *prepared, options)


def choose_k(padded: Padded, bounds: Bounds, subgraphs: Subgraphs, chromatic: Tensor, num_colors: Tensor) -> Start:
    """Colors to start with: as asked (num_colors), or between the estimate chromatic (G,) and the greedy colors."""
    replicas, graphs = bounds.replicas, subgraphs.graphs()
    greedy_colors = replicated(bounds.greedy.max(1).values + 1, replicas)                 # (G R,)
    coloring = subgraphs.class_rank.gather(1, subgraphs.node_ids) * graphs.mask.long()    # (G R, M)
    own_colors = coloring.max(1).values + 1                                               # (G R,)
    outside = greedy_colors - own_colors                                                  # (G R,) colors that stay
    lower = torch.maximum(clique_bound(graphs), replicated(bounds.clique, replicas) - outside)
    # The colors that can be saved are expected to be spread evenly over the graph.
    num_nodes = replicated(padded.mask, replicas).sum(1)                                  # (G R,)
    saving = (greedy_colors - replicated(chromatic, replicas)) * graphs.num_nodes / num_nodes
    rows = torch.arange(padded.mask.shape[0], device=num_nodes.device)                    # (G,)
    fraction = ((START + GOLDEN_RATIO * replicas) % 1 + 0 * rows[:, None]).flatten()      # (G R,)
    k = torch.minimum((own_colors - (1 - fraction) * saving).round().long(), own_colors - 1)
    asked = replicated(num_colors[rows.clamp(max=num_colors.shape[0] - 1)], replicas)  # (G R,) one for all or for each
    k = torch.where(asked > 0, torch.minimum(asked, greedy_colors) - outside, k)
    return Start(coloring, own_colors, lower, torch.maximum(k, lower.long()))


def take_greedy(subgraphs: Subgraphs, start: Start, descent: Descent) -> tuple[Tensor, Tensor]:
    """The best coloring (G R, M, L) and its colors (G R,), a greedy one along the last soft colors among them."""
    graphs, color_ids = subgraphs.graphs(), subgraphs.sub_color_ids
    fewest = torch.minimum(descent.fewest, start.num_colors)
    colors = greedy_along(graphs, order_by_conflicts(graphs, descent.state.p.argmax(2), color_ids), color_ids)
    count = colors.max(1).values + 1
    better = (count < fewest) & (conflicts_per_node(graphs, colors).sum(1) == 0)
    best = torch.where(better[:, None, None], one_hot(colors, color_ids), descent.best)
    return best, torch.where(better, count, fewest)


def assemble(bounds: Bounds, subgraphs: Subgraphs, best: Tensor, saved: Tensor) -> Tensor:
    """Colorings of the whole graphs (G, N, K): best (G R, M, L) of the replica that saved most, greedy around it."""
    num_replicas = bounds.replicas.shape[0]
    winner = saved.view(-1, num_replicas).float().argmax(1)  # (G,) of floats: ONNX Runtime 1.16 has none of integers
    rows = torch.arange(winner.shape[0], device=winner.device)                            # (G,)
    chosen = rows * num_replicas + winner
    whole = one_hot(subgraphs.class_rank[chosen], bounds.color_ids)                       # (G, N, K)
    columns = (subgraphs.sub_color_ids[:, None] == bounds.color_ids).float()              # (L, K)
    place = rows[:, None], subgraphs.node_ids[chosen]
    inner = torch.where(subgraphs.sub_mask[chosen][..., None] > 0, best[chosen] @ columns, whole[place])
    return whole.index_put(place, inner)


def ranges(graphs: DenseGraphs) -> Ranges:
    """The colors that a greedy algorithm could need, and the samples that XRLF draws."""
    enough = (graphs.degrees.max() + 1).clamp(max=MAX_COLORS).long()
    samples = (XRLF_WORK / xrlf_work(graphs.mask)).clamp(1, MAX_SAMPLES).long()
    return Ranges(count_to(enough), count_to(samples))


def count_to(number: Tensor) -> Tensor:
    """0, 1, ..., number - 1: a size that data decides, as the shape of a tensor."""
    return torch.arange(number.item(), device=number.device)


def xrlf_work(mask: Tensor) -> Tensor:
    """Multiplications () that one sample of XRLF costs on graphs with this mask (G, N)."""
    return torch.ones_like(mask[0, 0]) * mask.shape[0] * mask.shape[1] ** 3


def replicated(x: Tensor, replicas: Tensor) -> Tensor:
    """Every row of x (G, ...) R times: (G R, ...)."""
    return x[torch.arange(x.shape[0] * replicas.shape[0], device=x.device) // replicas.shape[0]]


def order_by_conflicts(graphs: DenseGraphs, classes: Tensor, color_ids: Tensor) -> Tensor:
    """Classes (G, N) renumbered by their conflicts, fewest first, so that a greedy along them changes little."""
    conflicts = (conflicts_per_node(graphs, classes)[:, :, None] * one_hot(classes, color_ids)).sum(1)  # (G, K)
    return (conflicts * color_ids.shape[0] + color_ids).argsort(1).argsort(1).gather(1, classes)  # ties by number


def one_hot(colors: Tensor, color_ids: Tensor) -> Tensor:
    """Colors (G, N) as probabilities (G, N, K)."""
    return (colors[:, :, None] == color_ids).float()


def conflicts_per_node(graphs: DenseGraphs, colors: Tensor) -> Tensor:
    """Neighbours of the same color (G, N)."""
    return (graphs.adjacency * (colors[:, :, None] == colors[:, None, :])).sum(2)
