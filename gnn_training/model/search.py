"""The search for a proper coloring with fewer colors: TabuCol whose rule of moving is a trained network.

A round lets a few nodes in conflict change their color. TabuCol (Hertz and de Werra 1987) takes the color with the
fewest conflicts. Here every neighbour u in that color has a price, which a small network computes from the state of u:
a conflict with a node that can move on easily costs less than one with a node that is stuck. So a round looks one move
ahead. The network also sets how long a node may not return to a color, and how many nodes move at once.

As soon as the coloring is proper, the smallest color class is closed. Its nodes count as conflicted until they have
moved to another color.

Letters in shapes: G graphs, R searches, N nodes (padded), K colors, A active nodes, M nodes that move, D largest
degree. In State and below it, every search has its row, and G counts the searches.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gnn_training.model.graphs import Graphs, take
from gnn_training.model.greedy import NODE_STRIDE, NOISE_ROWS, ROUND_STRIDE, loop, noise_table

ACTIVE, MOVERS = 16, 4  # nodes that a round looks at, and that may move,
NODES_PER_ACTIVE, NODES_PER_MOVER = 64, 256  # more of them in large graphs
NODE_FEATURES, GRAPH_FEATURES, HIDDEN = 7, 5, 8
NOT_MOVED = -20  # round of the last move of a node that has not moved

# Shapes of the weights, in the order in which one vector holds them.
SHAPES = {
    "hidden": (NODE_FEATURES + GRAPH_FEATURES, HIDDEN), "hidden_bias": (HIDDEN,), "out": (HIDDEN,),
    "direct": (NODE_FEATURES + GRAPH_FEATURES,), "bias": (1,), "move": (3,), "control": (GRAPH_FEATURES, 5),
    "control_bias": (5,),
}  # fmt: skip
NUM_WEIGHTS = sum(torch.Size(shape).numel() for shape in SHAPES.values())
# Control before training, as in Galinier and Hao 1999: a color that a node has left is forbidden for 1 round, .6 per
# node in conflict, and up to 10 at random. Nodes move whose gain is within .05 of the best; noise up to .1 breaks ties.
FIRST_CONTROL = (1.0, 0.6, 10.0, 0.05, 0.1)


class Weights(NamedTuple):
    """The trained numbers, for every graph its own or one set for all: G or 1 in front of the shapes of SHAPES."""

    hidden: Tensor
    hidden_bias: Tensor
    out: Tensor
    direct: Tensor
    bias: Tensor
    move: Tensor  # weights of plain conflicts, of the size of the new class, and of the rounds since the last move
    control: Tensor
    control_bias: Tensor


class Limits(NamedTuple):
    """Sizes as tensors 0, 1, 2, ..."""

    color_ids: Tensor  # (K,)
    active_ids: Tensor  # (A,)
    mover_ids: Tensor  # (M,)


class Task(NamedTuple):
    """What to search for."""

    colors: Tensor  # (G, N) int64, a proper coloring
    lower: Tensor  # (G,) int64, colors with which the search ends
    num_colors: Tensor  # (G,) int64, colors to start with, below those of `colors`; 0 for one fewer
    graph: Tensor  # (R,) int64 ascending, the graph of every search, each at least once
    seeds: Tensor  # (R,) int64, of the searches


class Found(NamedTuple):
    """What the best search of every graph has found."""

    colors: Tensor  # (G, N) int64, proper, the numbers of colors may have gaps
    fewest: Tensor  # (G,) int64, its colors
    conflicts: Tensor  # (G,) float, the fewest conflicts since, with one color less
    counts: Tensor  # (G, N, K) float, conflicts of every node in every color after the last round


class State(NamedTuple):
    """The search between two rounds. Column N of the nodes belongs to no node."""

    round: Tensor  # () int64
    colors: Tensor  # (G, N + 1) int64
    counts: Tensor  # (G, (N + 1) K) float, neighbours of a node with a color
    until: Tensor  # (G, (N + 1) K) float, round up to which a node may not take a color
    moved: Tensor  # (G, N + 1) int64, round of the last move
    moves: Tensor  # (G, N + 1) float
    is_open: Tensor  # (G, K) float, 1 for colors that may be used
    best: Tensor  # (G, N) int64
    fewest: Tensor  # (G,) int64
    conflicts: Tensor  # (G,) float


class Fixed(NamedTuple):
    """What stays as it is during a search. `graphs` and `lower` of `task` have a row for every search."""

    weights: Weights
    graphs: Graphs
    task: Task
    limits: Limits
    table: Tensor  # (R, K) float, random numbers


def split(flat: Tensor) -> Weights:
    """Weights of vectors (G, NUM_WEIGHTS)."""
    sizes = [torch.Size(shape).numel() for shape in SHAPES.values()]
    parts = zip(flat.split(sizes, 1), SHAPES.values(), strict=True)
    # Copies, because the body of a while_loop may not close over two views of one tensor.
    return Weights(*(part.reshape(flat.shape[0], *shape).clone() for part, shape in parts))


def first_weights() -> Tensor:
    """Weights (NUM_WEIGHTS,) of an untrained network: every price is 1, so that a round is one of TabuCol."""
    parts = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    parts["hidden"] = 0.5 * torch.randn(SHAPES["hidden"])
    parts["control_bias"] = torch.tensor(FIRST_CONTROL).log()
    return torch.cat([part.flatten() for part in parts.values()])


def search(weights: Weights, graphs: Graphs, task: Task, limits: Limits, rounds: Tensor) -> Found:
    """Search for so many rounds () int64, or until every graph has as few colors as its lower bound."""
    state, fixed = begin(weights, graphs, task, limits)

    def goes_on(state: State) -> Tensor:
        at_bound = (state.fewest <= fixed.task.lower).long()
        done = (0 * task.lower).scatter_add(0, task.graph, at_bound)  # (G,) searches
        return (state.round < rounds) & (done == 0).any()

    state = loop(goes_on, lambda state: one_round(state, fixed), state)
    ids = torch.arange(task.graph.shape[0], device=task.graph.device)
    key = (task.graph * (limits.color_ids.shape[0] + 1) + state.fewest) * (ids.max() + 1) + ids  # (R,) all different
    best = key.argsort().index_select(0, first_searches(task.graph, task.lower))  # (G,)
    counts = state.counts.index_select(0, best).unflatten(1, (-1, limits.color_ids.shape[0]))[:, :-1]
    colors, fewest, conflicts = (x.index_select(0, best) for x in (state.best, state.fewest, state.conflicts))
    return Found(colors, fewest, conflicts, counts)


def first_searches(graph: Tensor, graphs: Tensor) -> Tensor:
    """Number (G,) int64 of the first search of every graph. graph (R,): of every search; graphs: any (G,) int64."""
    counts = torch.zeros_like(graphs).scatter_add(0, graph, torch.ones_like(graph))
    return counts.cumsum(0) - counts


def begin(weights: Weights, graphs: Graphs, task: Task, limits: Limits) -> tuple[State, Fixed]:
    """All that a round needs: a row for every search."""
    state = State(*(x.index_select(0, task.graph) if x.dim() else x for x in first_state(graphs, task, limits)))
    exists, degrees, first, lower = (
        x.index_select(0, task.graph) for x in (graphs.exists, graphs.degrees, graphs.first, task.lower)
    )
    graphs, task = graphs._replace(exists=exists, degrees=degrees, first=first), task._replace(lower=lower)
    return state, Fixed(weights, graphs, task, limits, noise_table(limits.color_ids))


def first_state(graphs: Graphs, task: Task, limits: Limits) -> State:
    """State of one search per graph before the first round."""
    colors, K = task.colors, limits.color_ids.shape[0]
    none = 0 * colors[:, :1]
    sizes = ((colors[:, :, None] == limits.color_ids) & graphs.exists[:, :, None]).sum(1)  # (G, K)
    used = colors.max(1).values + 1  # (G,)
    wanted = torch.where(task.num_colors > 0, torch.minimum(task.num_colors, used), used)
    by_size = (limits.color_ids - sizes * K).argsort(1).argsort(1)  # (G, K) largest first
    is_open = (by_size < wanted[:, None]).float()
    padded = torch.cat([colors, none], 1)  # (G, N + 1)
    size = padded.shape[1]
    around = take(padded.flatten(), graphs.graph * size + graphs.neighbours)  # (E + 1,)
    place = (graphs.graph * size + graphs.source) * K + around
    counts = (torch.zeros_like(padded)[:, :, None] * limits.color_ids).float()  # (G, N + 1, K)
    counts = counts.flatten().scatter_add(0, place, (graphs.neighbours < size - 1).float()).view(colors.shape[0], -1)
    until = torch.zeros_like(counts)
    moved = torch.full_like(padded, NOT_MOVED)
    return State(none[0, 0] + 0, padded, counts, until, moved, 0.0 * padded, is_open, colors + 0, used + 0,
                 torch.full_like(used, 10**6).float())  # fmt: skip


def one_round(state: State, fixed: Fixed) -> State:
    """Close a color where the coloring is proper; elsewhere let a few nodes in conflict move."""
    weights, graphs, task, limits, table = fixed
    colors, color_ids, exists = state.colors, limits.color_ids, graphs.exists
    K, size = color_ids.shape[0], exists.shape[1]
    counts = state.counts.view(colors.shape[0], -1, K)  # (G, N + 1, K)
    is_closed = 1 - state.is_open.gather(1, colors[:, :-1])  # (G, N)
    own = counts[:, :-1].gather(2, colors[:, :-1, None])[..., 0]  # (G, N)
    own = torch.where(exists, own + is_closed, 0.0)
    in_conflict = own > 0  # (G, N)
    num_conflicted = in_conflict.sum(1)  # (G,)
    k = state.is_open.sum(1)  # (G,)

    proper = num_conflicted == 0  # (G,)
    better = proper & (k < state.fewest)
    best = torch.where(better[:, None], colors[:, :-1], state.best)
    fewest = torch.where(better, k.long(), state.fewest)
    conflicts = torch.where(proper, 1e6, torch.minimum(state.conflicts, own.sum(1) / 2))
    sizes = torch.zeros_like(state.is_open).scatter_add(1, colors[:, :-1], exists.float())  # (G, K)
    smallest = torch.where(state.is_open > 0, sizes, torch.inf).argmin(1, keepdim=True)  # (G, 1)
    closes = (proper & (k > task.lower))[:, None] & (color_ids == smallest)  # (G, K)

    summary = summarize(graphs, k, num_conflicted)  # (G, F)
    control = product(summary[:, None], weights.control)[:, 0] + weights.control_bias  # (G, 5)
    tenure, per_conflicted, spread, margin, jitter = control.exp().split(1, 1)  # (G, 1) each
    price = prices(state, graphs, own, is_closed, counts, summary, weights)  # (G, N + 1)

    # Nodes in conflict come first; which ones, if there are many, changes from round to round.
    row = NODE_STRIDE * torch.arange(size, device=k.device) + ROUND_STRIDE * state.round + task.seeds[:, None]
    row = row % NOISE_ROWS  # (G, N)
    drawn = in_conflict.float() * (1 + take(table[:, 0], row))
    drawn, active = drawn.topk(limits.active_ids.shape[0], 1)  # (G, A)
    row = row.gather(1, active)  # (G, A)
    random = table.index_select(0, row.flatten()).unflatten(0, row.shape)  # (G, A, K)
    near = graphs.lists(active)  # (G, A, D)
    flat = near.flatten(1)  # (G, A D)
    color_near = colors.gather(1, flat).view_as(near)
    price_near = price.gather(1, flat).view_as(near)
    here = colors.gather(1, active)[:, :, None]  # (G, A, 1)
    count = counts.gather(1, active[:, :, None].expand(-1, -1, K))  # (G, A, K)
    until = state.until.view_as(counts).gather(1, active[:, :, None].expand(-1, -1, K))
    cost = torch.zeros_like(count).scatter_add(2, color_near, price_near)  # (G, A, K)
    cost = cost + weights.move[:, :1, None] * count
    crowd = sizes * (k / graphs.num_nodes)[:, None] - 1  # (G, K)
    score = weights.move[:, 1:2, None] * crowd[:, None] + jitter[:, :, None] * random - cost
    is_here = color_ids == here  # (G, A, K)
    allowed = (until <= state.round) & (state.is_open > 0)[:, None] & ~is_here
    top, target = torch.where(allowed, score, -torch.inf).max(2)  # (G, A)
    closed = (1 - state.is_open)[:, None] * (1 + weights.move[:, :1, None])  # (G, 1, K)
    cost_here = torch.where(is_here, cost + closed, 0.0).sum(2)  # gathers instead break Inductor 2.13 (issue 194490)
    age = (state.round - state.moved.gather(1, active)).float().log1p()
    gain = torch.where(drawn > 0, cost_here + top + weights.move[:, 2:] * age, -torch.inf)

    # The best move, and those about as good, unless they interfere: neighbours with the same old or new color.
    gain, chosen = gain.topk(limits.mover_ids.shape[0], 1)  # (G, M)
    moves = gain > (gain[:, :1] - margin).clamp(min=-1e9)  # (G, M)
    movers = torch.where(moves, active.gather(1, chosen), size)  # (G, M)
    old, new = here[..., 0].gather(1, chosen), target.gather(1, chosen)  # (G, M)
    near = near.gather(1, chosen[:, :, None].expand(-1, -1, near.shape[2]))  # (G, M, D)
    rank = torch.full_like(colors, limits.mover_ids.shape[0]).scatter(1, movers, limits.mover_ids.expand_as(movers))
    other = rank.gather(1, near.flatten(1)).view_as(near)  # (G, M, D)
    known = other.clamp(max=limits.mover_ids.shape[0] - 1).flatten(1)
    alike = (old.gather(1, known).view_as(near) == old[:, :, None]) | (
        new.gather(1, known).view_as(near) == new[:, :, None]
    )
    before = (other < limits.mover_ids[:, None]) & (near < size)  # (G, M, D)
    ones = torch.ones_like(graphs.window).float()[:, None]  # (D, 1)
    moves = moves & ((before & alike).float() @ ones == 0)[..., 0]  # (G, M) `any` instead breaks Inductor 2.13
    movers = torch.where(moves, movers, size)

    step = moves.float()[:, :, None].expand_as(near).flatten(1)  # (G, M D)
    near = near.flatten(1)
    old_place = near * K + old[:, :, None].expand(-1, -1, graphs.window.shape[0]).flatten(1)
    new_place = near * K + new[:, :, None].expand(-1, -1, graphs.window.shape[0]).flatten(1)
    counts = state.counts.scatter_add(1, torch.cat([old_place, new_place], 1), torch.cat([-step, step], 1))
    wait = tenure + per_conflicted * num_conflicted[:, None]
    wait = wait + spread * random[..., 1 % K].gather(1, chosen)  # (G, M)
    after = state.until.scatter(1, movers * K + old, state.round + 1 + wait.floor())
    return State(
        state.round + 1,
        colors.scatter(1, movers, new),
        counts,
        after,
        state.moved.scatter(1, movers, state.round.expand_as(movers)),
        state.moves.scatter_add(1, movers, moves.float()),
        state.is_open * (1 - closes.float()),
        best,
        fewest,
        conflicts,
    )


def prices(
    state: State, graphs: Graphs, own: Tensor, is_closed: Tensor, counts: Tensor, summary: Tensor, weights: Weights
) -> Tensor:
    """What a conflict with a node costs (G, N + 1), from 0 to 2; 0 for no node."""
    free = counts[:, :-1]  # (G, N, K)
    here = own - is_closed  # (G, N) conflicts now
    within = [product((n - free).relu(), state.is_open[:, :, None])[..., 0] - (n - here).relu() * (1 - is_closed)
              for n in (1, 2, 3)]  # fmt: skip
    none, one, two = within[0], within[1] - 2 * within[0], within[2] - 2 * within[1] + within[0]  # colors other than
    age = (state.round - state.moved[:, :-1]).float()  # ... its own, by conflicts
    logs = torch.stack([none, one, two, own, age, state.moves[:, :-1]], 2).log1p()  # (G, N, 6)
    mean = (state.moves.sum(1, keepdim=True) / graphs.num_nodes[:, None]).log1p()  # (G, 1)
    none, one, two, own, age, moves = logs.split(1, 2)  # (G, N, 1) each
    features = torch.cat([(none > 0).float(), none, one, two, own, age / 4, moves - mean[:, :, None]], 2)
    by_node, by_graph = weights.hidden.split([NODE_FEATURES, GRAPH_FEATURES], 1)
    hidden = product(features, by_node) + (product(summary[:, None], by_graph) + weights.hidden_bias[:, None])
    direct_node, direct_graph = weights.direct.split([NODE_FEATURES, GRAPH_FEATURES], 1)
    level = (summary * direct_graph).sum(1, keepdim=True) + weights.bias  # (G, 1)
    z = product(hidden.relu(), weights.out[:, :, None]) + product(features, direct_node[:, :, None])  # (G, N, 1)
    return torch.nn.functional.pad(2 * (z[..., 0] + level).sigmoid(), (0, 1))


def product(x: Tensor, y: Tensor) -> Tensor:
    """x @ y of x (G, N, I), y (G, I, J) with few columns J. A compiler makes it one kernel with what surrounds it."""
    if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
        return (x[..., None] * y[:, None]).sum(2)
    return x @ y


def summarize(graphs: Graphs, k: Tensor, num_conflicted: Tensor) -> Tensor:
    """Features (G, 5) of a graph, its k (G,) colors, and its nodes in conflict (G,)."""
    n = graphs.num_nodes
    density = graphs.degrees.sum(1) / (n * (n - 1)).clamp(min=1)
    crowded = num_conflicted.float().log1p() / 2 - 1
    return torch.stack([n.log() / 3 - 2, k.log() / 2 - 1.5, density - 0.5, crowded, (k / n).log() + 2.3], 1)
