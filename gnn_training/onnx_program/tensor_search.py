"""The search for a proper coloring with fewer colors: TabuCol whose rule of moving is a trained network.

A round lets a few nodes in conflict change their color. TabuCol (Hertz and de Werra 1987) takes the color with the
fewest conflicts. Here every conflict has a weight, which a small network computes from the state of the other node: a
conflict with a node that can move on easily costs less than one with a node that is stuck. So a round looks one move
ahead. The network also sets how long a node may not return to a color, and how many nodes move at once. It is asked
in every PERIOD-th round.

As soon as the coloring is proper, the smallest color class is closed. Its nodes count as conflicted until they have
moved to another color.

`network.rule` has the formulas. `search.search_kernel` is the same search in compiled loops. Its phases have the same
names (but `ask` is split into `ask` and `weigh`). tests/test_search.py checks that both searches make the same moves.
Change both together.

Letters in shapes: G graphs, R searches, S nodes (padded) and one that stands for "no node", K colors, A active nodes,
M nodes that may move, D largest degree, F features.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from gnn_training.network import rule
from gnn_training.onnx_program.greedy import loop
from gnn_training.onnx_program.padded_graphs import Graphs, noise_table, take

NUM_CONTROLS, HIDDEN = len(rule.CONTROLS), rule.HIDDEN


class RuleWeights(NamedTuple):
    """The trained weights, with shapes as in rule.SHAPES after a first axis: R, or 1 if all searches share them."""

    by_graph: Tensor
    by_graph_bias: Tensor
    by_node: Tensor
    out: Tensor
    direct: Tensor
    move: Tensor


class Limits(NamedTuple):
    """Sizes that the data decide, as the lengths of tensors 0, 1, 2, ..."""

    color_ids: Tensor   # (K,)
    active_ids: Tensor  # (A,)
    mover_ids: Tensor   # (M,)


class Task(NamedTuple):
    """What to search for."""

    colors: Tensor      # (G, N) int64, a proper coloring
    lower: Tensor       # (G,) int64, number of colors at which the search ends
    num_colors: Tensor  # (G,) int64, number of colors to start with, below that of `colors`; 0 for one fewer
    graph: Tensor       # (R,) int64 ascending, the graph of every search; every graph occurs
    seeds: Tensor       # (R,) int64, of the searches


class Result(NamedTuple):
    """The result of the best search of every graph."""

    colors: Tensor      # (G, N) int64, proper, the numbers of colors may have gaps
    num_colors: Tensor  # (G,) int64
    conflicts: Tensor   # (G,) float, the fewest conflicts with one color less than `num_colors`
    reached: Tensor     # (G,) float, the round that reached `num_colors`
    counts: Tensor      # (G, N, K) float, conflicts of every node in every color after the last round
    last: Tensor        # (G, N) int64, the coloring after the last round
    nodes: Tensor       # (G, 4, N) float, also then: open colors without and with one conflict, conflicts, moves
    rounds: Tensor      # () int64, number of rounds made


class State(NamedTuple):
    """The state of all searches between two rounds."""

    round: Tensor            # () int64
    colors: Tensor           # (R, S) int64, the coloring that changes
    counts: Tensor           # (R S K,) float, neighbours of a node with a color
    is_open: Tensor          # (R, K) float, 1 for colors that may be used
    until: Tensor            # (R S K,) float, last round in which a node may not take a color
    age: Tensor              # (R, S) float, rounds since the last move
    moves: Tensor            # (R, S) float
    best: Tensor             # (R, S) int64, the best coloring so far
    best_num_colors: Tensor  # (R, 1) float
    best_conflicts: Tensor   # (R, 1) float, the fewest with one color less than `best`
    reached: Tensor          # (R, 1) float, the round that reached `best_num_colors`


class Fixed(NamedTuple):
    """What stays constant during a search."""

    weights: RuleWeights
    graphs: Graphs   # a row for every search, (R, S)
    present: Tensor  # (R, S) float, 1 for nodes that exist
    lower: Tensor    # (R, 1) float
    seeds: Tensor    # (R, 1) int64
    limits: Limits
    table: Tensor    # (NOISE_ROWS, K) float, random numbers
    no_cost: Tensor  # (R A, K) int64, zeros
    ones: Tensor     # (R, M) float
    steps: Tensor    # (R 2 M D,) float, changes of `counts` by moves: -1 for the old colors, 1 for the new ones


class Answers(NamedTuple):
    """The answers of the network, which hold for PERIOD rounds."""

    controls: Tensor  # (R, 5) float, see rule.CONTROLS
    weights: Tensor   # (R, S) int64, of a conflict with every node, in parts of rule.UNIT; 0 for no node


class Measures(NamedTuple):
    """Counts that a round takes from the coloring."""

    conflicts: Tensor       # (R, S) float, neighbours with a node's color, one more if that color is closed
    is_conflicted: Tensor   # (R, S) float, 0 or 1
    num_conflicted: Tensor  # (R, 1) float
    num_colors: Tensor      # (R, 1) float, open colors
    is_closed: Tensor       # (R, K) float
    sizes: Tensor           # (R, K) float, nodes of every color


class Choice(NamedTuple):
    """The best move of every active node."""

    active: Tensor      # (R, A) int64, the nodes
    neighbours: Tensor  # (R, A D) int64, their neighbours
    random: Tensor      # (R, A, K) float
    here: Tensor        # (R, A) int64, the colors of the nodes
    target: Tensor      # (R, A) int64, the best other colors
    gain: Tensor        # (R, A) float


class Moves(NamedTuple):
    """The moves of a round."""

    movers: Tensor      # (R, M) int64, nodes; S - 1 for no move
    neighbours: Tensor  # (R, M, D) int64, their neighbours
    old: Tensor         # (R, M) int64, colors
    new: Tensor         # (R, M) int64
    random: Tensor      # (R, M) float


def split(flat: Tensor) -> RuleWeights:
    """Split vectors (R, NUM_WEIGHTS) into the weights."""
    sizes = [torch.Size(shape).numel() for shape in rule.SHAPES.values()]
    parts = zip(flat.split(sizes, 1), rule.SHAPES.values(), strict=True)
    # Copies, because the body of a while_loop may not close over two views of one tensor.
    return RuleWeights(*(part.reshape(flat.shape[0], *shape).clone() for part, shape in parts))


def search(weights: RuleWeights, graphs: Graphs, task: Task, limits: Limits, rounds: Tensor) -> Result:
    """Search for `rounds` () int64 rounds, or until every graph has as few colors as its lower bound."""
    state, fixed = begin(weights, graphs, task, limits)

    def goes_on(state: State) -> Tensor:
        at_bound = (state.best_num_colors <= fixed.lower).long()
        done = (0 * task.lower)[:, None].scatter_add(0, task.graph[:, None], at_bound)    # (G, 1) finished searches
        return (state.round < rounds) & (done.min() == 0)

    def period(state: State) -> State:
        answers, end = ask(state, fixed), state.round + rule.PERIOD
        return loop(
            lambda state: goes_on(state) & (state.round < end), lambda state: one_round(state, answers, fixed), state
        )

    state = loop(goes_on, period, state)
    num_colors = state.best_num_colors[:, 0].long()                                       # (R,)
    ids = torch.arange(task.graph.shape[0], device=task.graph.device)
    key = (task.graph * (limits.color_ids.shape[0] + 1) + num_colors) * (ids.max() + 1) + ids  # (R,) all different
    best = key.argsort().index_select(0, first_searches(task.graph, task.lower))          # (G,)
    measures = measure(state, fixed)
    nodes = torch.stack([*free_and_one(state, measures), measures.conflicts, state.moves], 1)  # (R, 4, S)
    of_searches = (
        state.best[:, :-1], num_colors, state.best_conflicts[:, 0], state.reached[:, 0],
        state.counts.view(*state.best.shape, -1)[:, :-1], state.colors[:, :-1], nodes[:, :, :-1],
    )
    return Result._make([*(x.index_select(0, best) for x in of_searches), state.round])


def first_searches(graph: Tensor, graphs: Tensor) -> Tensor:
    """Number (G,) int64 of the first search of every graph. graph (R,): of every search; graphs: any (G,) int64."""
    counts = torch.zeros_like(graphs).scatter_add(0, graph, torch.ones_like(graph))
    return counts.cumsum(0) - counts


def begin(weights: RuleWeights, graphs: Graphs, task: Task, limits: Limits) -> tuple[State, Fixed]:
    """The first state and the constants of a search: a row for every search, with a last column for "no node"."""

    def rows(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, 1)).index_select(0, task.graph)

    colors, counts, is_open = first_state(graphs, task, limits)
    exists = rows(graphs.exists)
    padded = graphs._replace(exists=exists, degrees=rows(graphs.degrees), first=rows(graphs.first))
    used = (task.colors.max(1, keepdim=True).values + 1).float().index_select(0, task.graph)
    zeros = 0.0 * exists.float()
    until, age, moves = 0 * counts - 1, zeros + rule.NOT_MOVED, zeros + 0
    best = colors + 0, used, torch.full_like(used, rule.NONE_FOUND), 0 * used
    state = State(0 * task.seeds.sum(), colors, counts, is_open, until, age, moves, *best)
    lower = task.lower[:, None].float().index_select(0, task.graph)
    no_cost = 0 * (task.graph[:, None, None] * limits.active_ids[:, None] * limits.color_ids).flatten(0, 1)
    ones = torch.ones_like(used * limits.mover_ids)
    steps = torch.ones_like(ones[:, None, :, None] * graphs.window)                       # (R, 1, M, D)
    return state, Fixed(
        weights, padded, exists.float(), lower, task.seeds[:, None] + 0, limits, noise_table(limits.color_ids), no_cost,
        ones, 1.0 * torch.cat([-steps, steps], 1).flatten(),
    )  # fmt: skip


def first_state(graphs: Graphs, task: Task, limits: Limits) -> tuple[Tensor, Tensor, Tensor]:
    """`colors`, `counts` and `is_open` of every search before the first round."""
    K = limits.color_ids.shape[0]
    sizes = ((task.colors[:, :, None] == limits.color_ids) & graphs.exists[:, :, None]).sum(1)  # (G, K)
    used = task.colors.max(1).values + 1                                                  # (G,)
    asked = torch.where(task.num_colors > 0, torch.minimum(task.num_colors, used), used)
    by_size = (-limits.color_ids - sizes * K).argsort(1).argsort(1)                       # (G, K) largest first
    is_open = (by_size < asked[:, None]).float()
    colors = torch.nn.functional.pad(task.colors, (0, 1))                                 # (G, S)
    size = colors.shape[1]
    around = take(colors.flatten(), graphs.graph * size + graphs.neighbours)              # (E + 1,)
    place = (graphs.graph * size + graphs.source) * K + around
    counts = (torch.zeros_like(colors)[:, :, None] * limits.color_ids).float()            # (G, S, K)
    counts = counts.flatten().scatter_add(0, place, (graphs.neighbours < size - 1).float()).view_as(counts)
    colors, counts, is_open = (x.index_select(0, task.graph) for x in (colors, counts, is_open))
    return colors, 1.0 * counts.flatten(), is_open


def ask(state: State, fixed: Fixed) -> Answers:
    """Ask the network about the search as a whole, and what a conflict with every node costs."""
    measures = measure(state, fixed)
    colors, weights, degrees = state.colors, fixed.weights, fixed.graphs.degrees
    nodes = fixed.present.sum(1, keepdim=True)                                            # (R, 1)
    density = degrees.sum(1, keepdim=True) / (nodes * (nodes - 1)).clamp(min=1)
    of_graph = rule.graph_features(nodes.log(), measures.num_colors.log(), density, measures.num_conflicted.log1p())
    outputs = weights.by_graph @ torch.cat(of_graph, 1)[:, :, None] + weights.by_graph_bias[:, :, None]
    controls, shift, level = outputs.split([NUM_CONTROLS, HIDDEN, 1], 1)
    free, one = free_and_one(state, measures)
    has_free = free.sign()[:, None]
    logs = torch.cat([free, one, measures.conflicts, state.age, state.moves], 1).log1p()
    free, one, conflicts, age, moves = logs.view(colors.shape[0], -1, colors.shape[1]).split(1, 1)  # (R, 1, S) each
    mean_moves = ((state.moves * fixed.present).sum(1) / fixed.present.sum(1)).log1p()[:, None, None]
    by_feature = torch.cat(rule.node_features(has_free, free, one, conflicts, age, moves, mean_moves), 1)  # (R, F, S)
    hidden = (weights.by_node @ by_feature + shift).relu()                                # (R, HIDDEN, S)
    z = weights.out[:, None] @ hidden + weights.direct[:, None] @ by_feature + level
    parts = rule.conflict_weight(z.view_as(colors), weights.move[:, :1])
    return Answers(controls[..., 0].exp(), torch.where(fixed.graphs.exists, parts, 0.0).long())


def one_round(state: State, answers: Answers, fixed: Fixed) -> State:
    """Close a color where the coloring is proper; elsewhere let a few nodes in conflict move."""
    measures = measure(state, fixed)
    state = close(state, measures, fixed)
    choice = choose(state, measures, answers, fixed)
    return apply(state, measures, answers, settle(choice, answers, fixed), fixed)


def measure(state: State, fixed: Fixed) -> Measures:
    """Count conflicts and colors."""
    colors, is_open = state.colors, state.is_open
    is_closed = 1 - is_open
    around = state.counts.view(-1, is_open.shape[1]).gather(1, colors.view(-1, 1)).view_as(colors)  # (R, S)
    conflicts = (around + is_closed.gather(1, colors)) * fixed.present
    is_conflicted = conflicts.clamp(max=1)
    num_conflicted = is_conflicted.sum(1, keepdim=True)                                   # (R, 1)
    num_colors = is_open.sum(1, keepdim=True)
    sizes = torch.zeros_like(is_open).scatter_add(1, colors, fixed.present)               # (R, K)
    return Measures(conflicts, is_conflicted, num_conflicted, num_colors, is_closed, sizes)


def close(state: State, measures: Measures, fixed: Fixed) -> State:
    """Where the coloring is proper, keep it as the best one and close its smallest class."""
    is_proper = measures.num_conflicted == 0                                              # (R, 1)
    best = torch.where(is_proper, state.colors, state.best)
    num_colors = torch.where(is_proper, measures.num_colors, state.best_num_colors)
    conflicts = torch.minimum(state.best_conflicts, measures.conflicts.sum(1, keepdim=True) / 2)
    conflicts = torch.where(is_proper, rule.NONE_FOUND, conflicts)
    is_better = is_proper & (measures.num_colors < state.best_num_colors)
    reached = torch.where(is_better, state.round, state.reached)
    smallest = torch.where(state.is_open > 0, measures.sizes, torch.inf).argmin(1, keepdim=True)  # (R, 1)
    closes = is_proper & (measures.num_colors > fixed.lower) & (fixed.limits.color_ids == smallest)
    return state._replace(is_open=torch.where(closes, 0.0, state.is_open), best=best, best_num_colors=num_colors,
                          best_conflicts=conflicts, reached=reached)


def free_and_one(state: State, measures: Measures) -> tuple[Tensor, Tensor]:
    """Numbers (R, S) float of open colors: those without a conflict but the node's own; those with one conflict."""
    by_search = state.counts.view(*state.colors.shape, -1)                                # (R, S, K)
    is_open = state.is_open[:, :, None]                                                   # (R, K, 1)
    up_to_one, up_to_two = ((by_search.clamp(max=n) @ is_open).view_as(state.colors) for n in (1, 2))
    return measures.num_colors - up_to_one - 1 + measures.is_conflicted, 2 * up_to_one - up_to_two


def choose(state: State, measures: Measures, answers: Answers, fixed: Fixed) -> Choice:
    """Find the best move of every active node. If more than A nodes are in conflict, each round takes other ones."""
    colors, graphs, limits = state.colors, fixed.graphs, fixed.limits
    rows, size = colors.shape
    active_ids, window = limits.active_ids, graphs.window
    turn = rule.turn(torch.arange(size, device=colors.device), fixed.seeds, state.round)  # (R, S)
    drawn, active = torch.where(measures.conflicts > 0, turn, -1).topk(active_ids.shape[0], 1)  # (R, A)
    place = graphs.first.gather(1, active)[:, :, None] + window
    place = torch.where(window < graphs.degrees.gather(1, active)[:, :, None], place, graphs.neighbours.shape[0] - 1)
    neighbours = graphs.neighbours.gather(0, place.flatten()).view(rows, -1)              # (R, A D)
    by_node = (-1, window.shape[0])
    parts = fixed.no_cost.scatter_add(
        1, colors.gather(1, neighbours).view(by_node), answers.weights.gather(1, neighbours).view(by_node)
    ).view(rows, active_ids.shape[0], -1)                                                 # (R, A, K)
    first_row = torch.arange(rows, device=colors.device)[:, None] * size
    place = active + first_row                                                            # (R, A) in counts and until
    plain, by_size, by_age = fixed.weights.move.split(1, 1)                               # (R, 1) each
    is_closed = measures.is_closed[:, None]                                               # (R, 1, K)
    by_row = (-1, limits.color_ids.shape[0])
    cost = parts.float() / rule.UNIT + is_closed * (1 + plain[:, :, None])
    crowding = rule.crowding(measures.sizes, measures.num_colors / fixed.present.sum(1, keepdim=True))[:, None]
    random = embedding(rule.noise_row(drawn), fixed.table)                                # (R, A, K)
    jitter = answers.controls[:, 4:, None]                                                # (R, 1, 1)
    score = rule.score(crowding, random, cost, jitter, by_size[:, :, None])
    here = colors.gather(1, active)                                                       # (R, A)
    is_here = limits.color_ids == here[:, :, None]
    forbidden = (embedding(place, state.until.view(by_row)) >= state.round) | (is_closed > 0) | is_here
    top, target = torch.where(forbidden, -torch.inf, score).max(2)                        # (R, A)
    cost_here = torch.where(is_here, cost, 0.0).sum(2)
    gain = rule.gain(cost_here, top, state.age.gather(1, active).log1p(), by_age)
    return Choice(active, neighbours, random, here, target, torch.where(drawn >= 0, gain, -torch.inf))


def settle(choice: Choice, answers: Answers, fixed: Fixed) -> Moves:
    """Take the best move and those about as good, except next to a node with a better move."""
    mover_ids, size, window = fixed.limits.mover_ids, fixed.present.shape[1], fixed.graphs.window
    gain, chosen = choice.gain.topk(mover_ids.shape[0], 1)                                # (R, M)
    moves = gain > gain[:, :1] - answers.controls[:, 3:4]
    movers = choice.active.gather(1, chosen)
    rows = torch.arange(movers.shape[0], device=movers.device)[:, None]
    neighbours = choice.neighbours.view(-1, window.shape[0])                              # (R A, D)
    neighbours = embedding(chosen + rows * choice.active.shape[1], neighbours)            # (R, M, D)
    last = torch.nn.functional.pad(0 * fixed.present, (0, 1)) + mover_ids.shape[0]        # (R, S + 1)
    order = last.scatter(1, torch.where(moves, movers, size), mover_ids.float().expand_as(movers))
    order = order.gather(1, neighbours.flatten(1)).view_as(neighbours)
    moves = moves & (order.amin(2) >= mover_ids)                                          # (R, M)
    return Moves(
        torch.where(moves, movers, size - 1), torch.where(moves[:, :, None], neighbours, size - 1),
        choice.here.gather(1, chosen), choice.target.gather(1, chosen), choice.random[..., 0].gather(1, chosen),
    )  # fmt: skip


def apply(state: State, measures: Measures, answers: Answers, moves: Moves, fixed: Fixed) -> State:
    """Let the nodes move. The values in the column of "no node" do not matter."""
    (movers, neighbours, old, new, random), (rows, size), K = moves, state.colors.shape, state.is_open.shape[1]
    first_row = torch.arange(rows, device=movers.device)[:, None] * size
    place = ((neighbours + first_row[:, :, None]) * K)[:, None]                           # (R, 1, M, D)
    place = place + torch.cat([old, new], 1).view(rows, 2, -1, 1)                         # (R, 2, M, D)
    counts = state.counts.scatter_add(0, place.flatten(), fixed.steps)
    fixed_part, per_conflicted, spread = answers.controls[:, :3].split(1, 1)              # (R, 1) each
    tenure = rule.tenure(fixed_part, per_conflicted, spread, measures.num_conflicted, random)  # (R, M)
    place = (movers + first_row) * K + old
    until = state.until.scatter(0, place.flatten(), (state.round + tenure.floor()).flatten())
    colors, age = state.colors.scatter(1, movers, new), (state.age + 1).scatter(1, movers, fixed.ones)
    num_moves = state.moves.scatter_add(1, movers, fixed.ones)
    return state._replace(round=state.round + 1, colors=colors, counts=counts, until=until, age=age, moves=num_moves)
