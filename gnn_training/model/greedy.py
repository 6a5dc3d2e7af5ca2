"""Classical steps before the search, in tensors, so that they run inside the ONNX file.

Letters in shapes: G graphs, N nodes (padded), K colors, S starts, D largest degree.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from gnn_training.model.graphs import Graphs

DEGREE_WORTH = 1 / 2048  # of the size of a set: what a member of the largest degree counts besides
STAYS_OUT = 7  # steps that a node stays out of a set after it has left
PRIME = 2_147_483_629  # below 2^31, so that squares of residues fit into int64
NOISE_ROWS = 509  # of the table of random numbers; a prime, so that strides reach every row
NODE_STRIDE, ROUND_STRIDE = 331, 197  # between the rows of two nodes, and of two rounds
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


def change_if(flag: Tensor, change: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`change(x)` if `flag` (), else x. The change is only computed where it is needed, in the ONNX file too."""
    # A loop of one round or none, because torch.cond does not convert to the contract's opset.
    return loop(lambda state: state[0] < 1, lambda state: (state[0] + 1, change(state[1])), (1 - flag.long(), x))[1]


def dsatur(graphs: Graphs, color_ids: Tensor) -> Tensor:
    """Color the node with most colors around it next, ties by degree, then number (Brélaz 1979): (G, N) int64, padded
    nodes get 0. Nodes that find none of the colors color_ids (K,) = 0..K-1 free take the last one.
    """
    exists, last = graphs.exists, color_ids.max()
    weight = graphs.degrees.max() + 1.0  # of a color around a node, above all degrees

    # The loop asks no tensor for its size: torch.while_loop cannot close over a size that data decides.
    def body(state: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        colors, priority, taken = state  # -1 for nodes that wait; (G, N + 1); True where a neighbour has a color
        v = priority.argmax(1)[:, None]                                                   # (G, 1)
        waits = priority.gather(1, v) >= 0                                                # (G, 1) False: graph is done
        around = taken.gather(1, v * color_ids.shape[0] + color_ids)                      # (G, K)
        c = torch.where(around, last, color_ids).min(1, keepdim=True).values              # (G, 1)
        near = graphs.lists(v)[:, 0]                                                      # (G, D)
        place = near * color_ids.shape[0] + c
        known = taken.gather(1, place)                                                    # (G, D)
        grown = priority.gather(1, near) + weight * (~known & waits)
        priority = priority.scatter(1, near, grown).scatter(1, v, torch.full_like(grown[:, :1], -torch.inf))
        colors = colors.scatter(1, v, torch.where(waits, c, colors.gather(1, v)))
        return colors, priority, taken.scatter(1, place, known | waits)

    none = torch.full_like(graphs.degrees[:, :1], -1)
    colors = torch.cat([torch.where(exists, -1, 0), 0 * none], 1)                         # (G, N + 1)
    priority = torch.cat([torch.where(exists, graphs.degrees.float(), -torch.inf), none - torch.inf], 1)
    taken = (torch.zeros_like(colors)[:, :, None] * color_ids).flatten(1) > 0             # (G, (N + 1) K)
    state = colors, priority, taken
    return loop(lambda state: state[1].max() >= 0, body, state)[0][:, :-1].clamp(min=0)


def clique_bound(graphs: Graphs, start_ids: Tensor) -> Tensor:
    """Size (G,) int64 of the largest clique grown from one of the nodes of highest degree, start_ids (S,) = 0..S-1 of
    them, always by the candidate of highest degree.
    """
    degrees = torch.where(graphs.exists, graphs.degrees, -1)
    nodes = torch.arange(degrees.shape[1], device=degrees.device)
    starts = (nodes - degrees * degrees.shape[1]).argsort(1)[:, start_ids]                # (G, S)

    def joined(members: Tensor, candidates: Tensor) -> Tensor:
        """Candidates (G, S, N + 1) that are neighbours of the new members (G, S)."""
        near = torch.zeros_like(candidates).scatter(2, graphs.lists(members), True)
        return candidates & near

    def body(state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        candidates, size = state                                                          # (G, S, N + 1), (G, S)
        key = torch.where(candidates, degree_key[:, None], -1)
        best, pick = key.max(2)
        grows = best >= 0
        return joined(torch.where(grows, pick, graphs.exists.shape[1]), candidates), size + grows.long()

    # Of floats: ONNX Runtime 1.16 has no ArgMax of integers.
    degree_key = torch.nn.functional.pad(degrees.float(), (0, 1), value=-1)               # (G, N + 1)
    everything = torch.cat([graphs.exists, torch.zeros_like(graphs.exists[:, :1])], 1)
    candidates = joined(starts, everything[:, None] & (start_ids >= 0)[:, None])
    size = torch.ones_like(starts)
    return loop(lambda state: state[0].any(), body, (candidates, size))[1].max(1).values


class Chains(NamedTuple):
    """S independent sets that change step by step in every graph."""

    step: Tensor       # () int64
    colors: Tensor     # (G, N) int64, -1 for nodes that wait
    inside: Tensor     # (G, S, N) float, 1 for members
    beside: Tensor     # (G, S, N) float, members among the neighbours
    out_until: Tensor  # (G, S, N) float, step up to which a node stays out
    best: Tensor       # (G, S, N) float, the best set of a chain so far
    score: Tensor      # (G, S) float, its size, and a fraction for its edges
    degrees: Tensor    # (G, N) float, neighbours that wait
    grown: Tensor      # (G,) int64, step at which the largest of all sets last grew


def independent_sets(
    adjacency: Tensor, exists: Tensor, colors: Tensor, seeds: Tensor, chain_ids: Tensor, patience: Tensor
) -> Tensor:
    """Color the nodes that `colors` (G, N) int64 leaves at -1 with large independent sets: (G, N) int64.

    S chains, chain_ids (S,) = 0..S-1, grow sets by plateau search: a node without neighbours in the set enters,
    preferably one of large degree; if there is none, a node takes the place of its only neighbour there (as for cliques
    in Pullan and Hoos 2006). When the largest set has not grown for `patience` () steps per member, it becomes a color
    class, and so do sets of the same size that share no node with it or with each other. adjacency (G, N, N) float,
    exists (G, N) bool, seeds (G,) int64.
    """
    # A while_loop may not close over a tensor and a view of it: only `rows` is used from here on.
    table, rows = noise_table(chain_ids).T, adjacency.flatten(0, 1)                       # (S, R), (G N, N)
    nodes = torch.arange(colors.shape[1], device=colors.device)
    offset = torch.arange(seeds.shape[0], device=colors.device)[:, None] * exists.shape[1]  # (G, 1)

    def neighbours(v: Tensor, counts: Tensor) -> Tensor:
        """Neighbours (G, S, N) of nodes v (G, S), as 0 and 1; none where counts (G, S) is False."""
        return rows.index_select(0, (offset + v).flatten()).unflatten(0, v.shape) * counts[:, :, None].float()

    def set_to(x: Tensor, v: Tensor, value: Tensor | float, counts: Tensor) -> Tensor:
        """x (G, S, N) with `value` at v (G, S) where counts (G, S) is True."""
        return x.scatter(2, v[:, :, None], torch.where(counts[:, :, None], value, x.gather(2, v[:, :, None])))

    def body(state: Chains) -> Chains:
        step, degrees = state.step, state.degrees
        largest = degrees.amax(1, keepdim=True).clamp(min=1)
        row = (NODE_STRIDE * nodes + ROUND_STRIDE * step + seeds[:, None]) % NOISE_ROWS   # (G, N)
        random = table.index_select(1, row.flatten()).unflatten(1, row.shape).transpose(0, 1)  # (G, S, N)
        waits = exists & (state.colors < 0)
        enter = 2 + (degrees / largest)[:, None] + (2 * degrees.sqrt() / largest)[:, None] * random
        swaps = (state.beside == 1) & (state.out_until <= step)
        key = torch.where(state.beside == 0, enter, torch.where(swaps, random, -1.0))
        top, v = torch.where(waits[:, None] & (state.inside == 0), key, -1.0).max(2)      # (G, S)
        acts = top >= 0
        near = neighbours(v, acts)
        member, u = (near * state.inside).max(2)                                          # (G, S)
        leaves = member > 0
        beside = state.beside + near - neighbours(u, leaves)
        inside = set_to(set_to(state.inside, v, 1.0, acts), u, 0.0, leaves)
        out_until = set_to(state.out_until, u, (step + STAYS_OUT).float(), leaves)
        # Sums of whole numbers are exact, so all runtimes compare scores alike.
        now = inside.sum(2) + DEGREE_WORTH * ((inside @ degrees[:, :, None])[..., 0] / largest)  # (G, S)
        better = now > state.score
        best, score = torch.where(better[:, :, None], inside, state.best), torch.maximum(now, state.score)
        size = score.amax(1).floor()                                                      # (G,)
        grown = torch.where(size > state.score.amax(1).floor(), step, state.grown)
        done = (step - grown).float() > patience * size                                   # (G,)
        closed = close_sets(state.colors, best, score, done, chain_ids)
        keeps = (~done).float()[:, None]                                                  # (G, 1)
        inside, beside, best = (x * keeps[:, :, None] for x in (inside, beside, best))
        degrees = change_if(done.any(), lambda _: waiting_neighbours(rows, exists & (closed < 0)), degrees)
        grown = torch.where(done, step, grown)
        return Chains(step + 1, closed, inside, beside, out_until, best, score * keeps, degrees, grown)

    waiting = torch.where(exists, colors, -1)
    empty = 0.0 * (waiting[:, None] + chain_ids[:, None])                                 # (G, S, N)
    zero = 0 * seeds
    degrees = waiting_neighbours(rows, exists & (waiting < 0))
    state = Chains(zero[0], waiting, empty, empty + 0, empty + 0, empty + 0, empty.sum(2), degrees, zero + 0)
    return loop(lambda state: (exists & (state.colors < 0)).any(), body, state).colors.clamp(min=0)


def close_sets(colors: Tensor, sets: Tensor, score: Tensor, done: Tensor, chain_ids: Tensor) -> Tensor:
    """Colors (G, N) with those of `sets` (G, S, N) as further classes that are largest by score (G, S), in graphs that
    are done (G,). Of sets that share a node, the one with the higher score is taken, of equals the first.
    """
    ahead = chain_ids < chain_ids[:, None]                                                # (S, S)
    higher = (score[:, None] > score[:, :, None]) | ((score[:, None] == score[:, :, None]) & ahead)
    shares = sets @ sets.transpose(1, 2) > 0                                              # (G, S, S)
    largest = score.floor() == score.amax(1, keepdim=True).floor()
    taken = largest & ~(higher & shares).any(2) & done[:, None]                           # (G, S)
    color = colors.amax(1, keepdim=True) + taken.long().cumsum(1)                         # (G, S)
    found = (((color + 1) * taken).float()[:, None] @ sets)[:, 0].long() - 1              # (G, N)
    return torch.where(found >= 0, found, colors)


def waiting_neighbours(rows: Tensor, waits: Tensor) -> Tensor:
    """Neighbours (G, N) float of every node that wait (G, N); rows (G N, N) of the adjacency."""
    return (rows.unflatten(0, waits.shape) @ waits.float()[:, :, None])[..., 0]


def noise_table(color_ids: Tensor) -> Tensor:
    """Random numbers (NOISE_ROWS, K) between 0 and 1. Each of four rounds multiplies and squares in the integers mod
    PRIME, which mixes all bits. Only `*`, `+` and `%` on int64 are used: they are the same in all runtimes.
    """
    x = (torch.arange(NOISE_ROWS, device=color_ids.device)[:, None] * 69_621 + 1) % PRIME
    x = (x * x + color_ids * 40_014 + 12_345) % PRIME
    for _ in range(3):
        x = (x * (x + 1_000_003) + 7) % PRIME
    return x.float() / PRIME
