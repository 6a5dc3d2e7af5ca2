"""Classical algorithms that run before the search, written in tensors so that they run inside the ONNX file.

Letters in shapes: G graphs, N nodes (padded), K colors, S starts, D largest degree.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from gnn_training.network import rule
from gnn_training.onnx_program.padded_graphs import Graphs, noise_table

ONE_BY_ONE, NODES_PER_RANK = 2048, 128  # DSATUR colors one node a round up to 2048 nodes, one more per 128 above
COLORED_PER_RANK = 16  # colored nodes that each further node of a round needs, so that a grid still gets two colors
SPEED, HEAD_START = 4000, 1 / 64  # c colors around a node are enough if a round colors c / SPEED of all nodes
SCATTER = 1_327_217_885  # .618 of rule.PRIME, so that its multiples modulo rule.PRIME come in no order
DEGREE_WORTH, DEGREE_LEVELS = 1 / 4, 256  # extra worth of a member of the largest degree, in so many levels
INSIDE = 4096.0  # marks members of a set in `Chains.beside`; more than any number of neighbours
FEW_ROWS = 509  # rows of a small table of random numbers
STAYS_OUT = 7  # steps for which a node that has left a set may not return
State = TypeVar("State")


def loop(condition: Callable[[State], Tensor], body: Callable[[State], State], state: State) -> State:
    """`while condition(state): state = body(state)`, for tensors in (named) tuples. An export makes it an ONNX Loop."""
    if torch.compiler.is_exporting():
        leaves, form = tree_flatten(state)
        leaves = torch.while_loop(
            lambda *leaves: condition(tree_unflatten(leaves, form)),
            lambda *leaves: tuple(tree_leaves(body(tree_unflatten(leaves, form)))),
            tuple(leaves),
        )
        return tree_unflatten(leaves, form)
    while condition(state):
        state = body(state)
    return state


def at_once(num_nodes: Tensor) -> Tensor:
    """The number of nodes that DSATUR may color in one round of a graph with num_nodes (int64) nodes."""
    return 1 + (num_nodes - ONE_BY_ONE).clamp(min=0) // NODES_PER_RANK


def dsatur(graphs: Graphs, color_ids: Tensor, rank_ids: Tensor) -> Tensor:
    """Return colors (G, N) int64 by DSATUR (Brélaz 1979): the next node has most colors around it, ties by degree, then
    number. Padded nodes get 0. A node that finds none of color_ids (K,) = 0..K-1 free takes the last one.

    In a large graph, ties of degree are broken at random, and a round colors up to B nodes, rank_ids (B,) = 0..B-1. Of
    the next B nodes, it takes those with as many colors around them as the first, or fewer if rounds become too many. A
    node waits if a neighbour comes before it.
    """
    numbers = torch.arange(graphs.exists.shape[1] + 1, device=color_ids.device)           # (N + 1,)
    size, num_colors, n = numbers.max() + 1, color_ids.max() + 1, graphs.exists.sum(1, keepdim=True)
    before = torch.arange(graphs.exists.shape[0], device=color_ids.device)[:, None] * size  # (G, 1) in the flat tensors
    neighbours, nobody = graphs.graph * size + graphs.neighbours, size - 1                # (E + 1,), ()
    degrees, first = (torch.nn.functional.pad(x, (0, 1)) for x in (graphs.degrees, graphs.first))  # (G, N + 1)
    tie = torch.where(n > ONE_BY_ONE, numbers * SCATTER % rule.PRIME, nobody - numbers)   # (G, N + 1)
    # The key of a node that waits is made of the colors around it, its degree and `tie`. Others have -1 - color.
    keys, one_color = torch.where(degrees > 0, degrees * rule.PRIME + tie, -1), (degrees.max() + 1) * rule.PRIME
    needed = torch.where(rank_ids < at_once(n), rank_ids * COLORED_PER_RANK, size)        # (G, B) colored nodes
    graph = (before + 0 * rank_ids).flatten() // size                                     # (G B,)
    degrees, first = degrees.flatten(), first.flatten()

    # The loop asks no tensor for its size: torch.while_loop cannot close over a size that data decides.
    def body(state: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        key, taken, waiting, rounds = state  # taken: whether a neighbour has a color; waiting (G,): nodes without color
        best, v = key.view_as(tie).topk(rank_ids.shape[0], 1)                             # (G, B)
        done = n - waiting[:, None]                                                       # (G, 1)
        limit = ((done + n * HEAD_START) * SPEED / (n * rounds)).long() * one_color       # (G, 1)
        least = torch.minimum(best[:, :1] - best[:, :1] % one_color, limit).clamp(min=0)
        at = ((best >= least) & (needed <= done)).flatten().nonzero().flatten()           # (P,)
        node, node_keys = (v + before).flatten().gather(0, at), best.flatten().gather(0, at)
        start, entry, owner = joined_lists(degrees.gather(0, node))                       # (P,), (S,), (S,)
        others = neighbours.gather(0, (first.gather(0, node) - start).gather(0, owner) + entry)
        is_before = (key.gather(0, others) > node_keys.gather(0, owner)).long()           # (S,)
        goes = torch.zeros_like(node).scatter_add(0, owner, is_before) == 0               # (P,)
        around = taken.view(-1, color_ids.shape[0]).index_select(0, node)                 # (P, K)
        c = torch.where(around, num_colors - 1, color_ids).min(1).values
        place = torch.where(goes.gather(0, owner), others * num_colors + c.gather(0, owner), nobody * num_colors)
        place = place.sort().values                                                       # (S,) some come twice
        others = torch.div(place, num_colors, rounding_mode="trunc")
        is_new = (place != torch.cat([place[:1] - 1, place[:-1]])) & ~taken.gather(0, place)
        gain = (is_new & (key.gather(0, others) >= 0)) * one_color
        key = key.scatter_add(0, others, gain).scatter(0, torch.where(goes, node, nobody), -1 - c)
        waiting = waiting.scatter_add(0, graph.gather(0, at), -goes.long())
        return key, taken.scatter(0, place, True), waiting, rounds + 1

    taken = (torch.zeros_like(first)[:, None] * color_ids).flatten() > 0                  # (G (N + 1) K,)
    state = keys.flatten(), taken, (keys >= 0).sum(1), 0 * size + 1
    return -1 - loop(lambda state: state[2].max() > 0, body, state)[0].view_as(keys)[:, :-1]


def joined_lists(lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of P lists of `lengths` (P,) in a row: the start (P,) of each list; number (S,) and list (S,) of every entry."""
    start = lengths.cumsum(0) - lengths
    entry = torch.arange(lengths.sum().item(), device=lengths.device)
    return start, entry, torch.zeros_like(entry).scatter(0, start, 1).cumsum(0) - 1


def clique_bound(graphs: Graphs, start_ids: Tensor) -> Tensor:
    """Size (G,) int64 of the largest clique found. Cliques grow from the S nodes of highest degree, start_ids (S,) =
    0..S-1, and always take the candidate of highest degree.
    """
    degrees = torch.where(graphs.exists, graphs.degrees, -1)
    nodes = torch.arange(degrees.shape[1], device=degrees.device)
    starts = (nodes - degrees * degrees.shape[1]).argsort(1)[:, start_ids]                # (G, S)

    def joined(members: Tensor, candidates: Tensor) -> Tensor:
        """Candidates (G, S, N + 1) that are neighbours of the new members (G, S)."""
        return candidates & torch.zeros_like(candidates).scatter(2, graphs.lists(members), True)

    def body(state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        candidates, size = state                                                          # (G, S, N + 1), (G, S)
        key = torch.where(candidates, degree_key[:, None], -1)
        best, pick = key.max(2)
        grows = best >= 0
        return joined(torch.where(grows, pick, graphs.exists.shape[1]), candidates), size + grows.long()

    # Floats, because ONNX Runtime 1.16 has no ArgMax of integers.
    degree_key = torch.nn.functional.pad(degrees.float(), (0, 1), value=-1)               # (G, N + 1)
    everything = torch.cat([graphs.exists, torch.zeros_like(graphs.exists[:, :1])], 1)
    candidates = joined(starts, everything[:, None] & (start_ids >= 0)[:, None])
    size = torch.ones_like(starts)
    return loop(lambda state: state[0].any(), body, (candidates, size))[1].max(1).values


class Chains(NamedTuple):
    """S independent sets that change step by step in every graph."""

    step: Tensor       # (G,) int64, steps made in the search for this set
    beside: Tensor     # (G, S, N) float, neighbours that are members; INSIDE for a member, negative for colored nodes
    out_until: Tensor  # (G, S, N) float, step up to which a node stays out
    worth: Tensor      # (G, S) float, sum over the members
    best: Tensor       # (G, N) float, 1 for members of the most worthy set so far
    highest: Tensor    # (G,) float, worth of that set
    found_at: Tensor   # (G,) int64, the step that found that set


class Fixed(NamedTuple):
    """What stays constant while the sets change."""

    rows: Tensor       # (G N, N) float, the adjacency, with INSIDE on the diagonal
    offset: Tensor     # (G, 1) int64, the first row of every graph
    table: Tensor      # (FEW_ROWS, N) float, random numbers
    seeds: Tensor      # (G,) int64
    chain_ids: Tensor  # (S,)
    patience: Tensor   # () float

    def rows_of(self, v: Tensor, counts: Tensor) -> Tensor:
        """Rows (G, S, N) of nodes v (G, S), zeros where counts (G, S) is False."""
        return self.rows.index_select(0, (self.offset + v).flatten()).unflatten(0, v.shape) * counts[:, :, None].float()

    def goes_on(self, state: Chains) -> Tensor:
        """Whether the search for a better set goes on in every graph (G,)."""
        return (state.step - state.found_at).float() <= self.patience * state.highest


def independent_sets(
    adjacency: Tensor, exists: Tensor, colors: Tensor, seeds: Tensor, chain_ids: Tensor, patience: Tensor
) -> Tensor:
    """Return colors (G, N) int64, in which large independent sets color the nodes that are -1 in `colors` (G, N) int64.

    S chains, chain_ids (S,) = 0..S-1, grow sets by plateau search, as Pullan and Hoos (2006) do for cliques. A node
    without neighbours in the set enters, preferably one of large degree. If there is none, a node with one neighbour in
    the set replaces that neighbour. The best set becomes a color class when no better one has been found for
    `patience` () steps per member. adjacency (G, N, N) float, exists (G, N) bool, seeds (G,) int64.
    """
    nodes = torch.arange(colors.shape[1], device=colors.device)
    table = noise_table(nodes, FEW_ROWS)
    # A member counts as beside itself. A while_loop may not close over a tensor and a view of it: only `rows` is used.
    rows = (adjacency + INSIDE * (nodes == nodes[:, None])).flatten(0, 1)
    offset = torch.arange(seeds.shape[0], device=colors.device)[:, None] * exists.shape[1]
    fixed, waiting = Fixed(rows, offset, table, seeds, chain_ids, patience), torch.where(exists, colors, -1)

    def next_class(state: tuple[Tensor]) -> tuple[Tensor]:
        colors = state[0]
        best = largest_set(exists & (colors < 0), fixed)
        return (torch.where(best > 0, colors.amax(1, keepdim=True) + 1, colors),)

    return loop(lambda state: (exists & (state[0] < 0)).any(), next_class, (waiting,))[0].clamp(min=0)


def largest_set(waits: Tensor, fixed: Fixed) -> Tensor:
    """The best independent set (G, N) float that the chains find, 1 for members. waits (G, N) bool: its candidates."""
    degrees = (fixed.rows.unflatten(0, waits.shape) @ waits.float()[:, :, None])[..., 0] - INSIDE * waits.float()
    largest = degrees.amax(1, keepdim=True).clamp(min=1)                                  # (G, 1)
    value = 1 + (degrees / largest * DEGREE_LEVELS).floor() / DEGREE_LEVELS * DEGREE_WORTH  # (G, N)
    enter, spread = 2 + degrees / largest, 2 * degrees.sqrt() / largest                   # (G, N)

    def one_step(state: Chains) -> Chains:
        row = rule.turn(fixed.chain_ids, fixed.seeds[:, None], state.step[:, None]) % FEW_ROWS  # (G, S)
        random = fixed.table.index_select(0, row.flatten()).unflatten(0, row.shape)       # (G, S, N)
        swaps = (state.beside == 1) & (state.out_until <= state.step[:, None, None])
        key = torch.where(swaps, random, -1.0)
        key = torch.where(state.beside == 0, enter[:, None] + spread[:, None] * random, key)
        top, v = key.max(2)                                                               # (G, S)
        acts = (top >= 0) & fixed.goes_on(state)[:, None]
        entering = fixed.rows_of(v, acts)
        member, u = torch.where(state.beside >= INSIDE, entering, 0.0).max(2)             # (G, S)
        leaves = member > 0
        beside = state.beside + entering - fixed.rows_of(u, leaves)
        place, until = u[:, :, None], (state.step + STAYS_OUT).float()[:, None, None]
        until = torch.where(leaves[:, :, None], until, state.out_until.gather(2, place))
        out_until = state.out_until.scatter(2, place, until)
        # Sums of multiples of 1 / 1024 are exact, so all runtimes compare them alike.
        worth = state.worth + torch.where(acts, value.gather(1, v), 0) - torch.where(leaves, value.gather(1, u), 0)
        highest, chain = worth.max(1)                                                     # (G,)
        better = highest > state.highest
        chain = chain[:, None, None].expand(-1, 1, beside.shape[2])
        best = torch.where(better[:, None], (beside.gather(1, chain)[:, 0] >= INSIDE).float(), state.best)
        return Chains(state.step + 1, beside, out_until, worth, best, torch.maximum(highest, state.highest),
                      torch.where(better, state.step, state.found_at))  # fmt: skip

    beside = torch.where(waits, 0.0, -2.0 * INSIDE)[:, None] + 0.0 * fixed.chain_ids[:, None]
    zero = 0 * fixed.seeds
    state = Chains(zero, beside, 0 * beside, beside[:, :, 0] * 0, 0.0 * degrees, 0.0 * zero, zero + 0)
    return loop(lambda state: fixed.goes_on(state).any(), one_step, state).best
