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
PATIENCE = 6  # steps without a larger set, per node of the largest one
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
        new = ~taken.gather(1, place) & waits
        grown = priority.gather(1, near) + weight * new
        priority = priority.scatter(1, near, grown).scatter(1, v, torch.full_like(grown[:, :1], -torch.inf))
        colors = colors.scatter(1, v, torch.where(waits, c, colors.gather(1, v)))
        return colors, priority, taken.scatter(1, place, waits.expand_as(place) | taken.gather(1, place))

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

    degree_key = torch.cat([degrees, torch.full_like(degrees[:, :1], -1)], 1)
    everything = torch.cat([graphs.exists, torch.zeros_like(graphs.exists[:, :1])], 1)
    candidates = joined(starts, everything[:, None] & (start_ids >= 0)[:, None])
    size = torch.ones_like(starts)
    return loop(lambda state: state[0].any(), body, (candidates, size))[1].max(1).values


class Chains(NamedTuple):
    """S independent sets that change step by step in every graph. Column N belongs to no node."""

    step: Tensor       # () int64
    colors: Tensor     # (G, N + 1) int64, -1 for nodes that wait
    inside: Tensor     # (G, S, N + 1) float, 1 for members
    beside: Tensor     # (G, S, N + 1) float, members among the neighbours
    out_until: Tensor  # (G, S, N + 1) float, step up to which a node stays out
    best: Tensor       # (G, S, N + 1) float, the best set of a chain so far
    score: Tensor      # (G, S) float, its size, and a fraction for its edges
    degrees: Tensor    # (G, N + 1) float, neighbours that wait
    grown: Tensor      # (G,) int64, step at which the largest of all sets last grew


def independent_sets(graphs: Graphs, colors: Tensor, seeds: Tensor, chain_ids: Tensor) -> Tensor:
    """Color the nodes that `colors` (G, N) int64 leaves at -1 with large independent sets: (G, N) int64.

    S chains, chain_ids (S,) = 0..S-1, grow sets by plateau search: a node without neighbours in the set enters,
    preferably one of large degree; if there is none, a node takes the place of its only neighbour there (as for cliques
    in Pullan and Hoos 2006). When the largest set has not grown for a while, it becomes a color class, and so do sets
    of the same size that share no node with it or with each other.
    """
    table = noise_table(chain_ids).T                                                      # (S, R)
    nodes = torch.arange(colors.shape[1] + 1, device=colors.device)
    is_node = torch.nn.functional.pad(graphs.exists, (0, 1))                              # (G, N + 1)

    def body(state: Chains) -> Chains:
        step, degrees = state.step, state.degrees
        largest = degrees.amax(1, keepdim=True).clamp(min=1)
        row = (NODE_STRIDE * nodes + ROUND_STRIDE * step + seeds[:, None]) % NOISE_ROWS   # (G, N + 1)
        random = table.index_select(1, row.flatten()).unflatten(1, row.shape).transpose(0, 1)  # (G, S, N + 1)
        outside = (is_node & (state.colors < 0))[:, None] & (state.inside == 0)
        enter = 2 + (degrees / largest)[:, None] + (2 * degrees.sqrt() / largest)[:, None] * random
        swaps = (state.beside == 1) & (state.out_until <= step)
        key = torch.where(state.beside == 0, enter, torch.where(swaps, random, -1.0))
        top, v = torch.where(outside, key, -1.0).max(2)                                   # (G, S)
        v = torch.where(top >= 0, v, colors.shape[1])
        near = graphs.lists(v)                                                            # (G, S, D)
        member, place = state.inside.gather(2, near).max(2)                               # (G, S)
        u = torch.where(member > 0, near.gather(2, place[:, :, None])[..., 0], colors.shape[1])
        both = torch.cat([near, graphs.lists(u)], 2)                                      # (G, S, 2 D)
        change = torch.cat([torch.ones_like(near), -torch.ones_like(near)], 2).float()
        beside = state.beside.scatter_add(2, both, change)
        inside = state.inside.scatter(2, v[:, :, None], torch.ones_like(beside[:, :, :1]))
        inside = inside.scatter(2, u[:, :, None], torch.zeros_like(beside[:, :, :1]))
        inside = torch.where(is_node[:, None], inside, 0)
        until = (step + STAYS_OUT).float().expand_as(v)[:, :, None]
        out_until = state.out_until.scatter(2, u[:, :, None], until)
        # Sums of whole numbers are exact, so all runtimes compare scores alike.
        now = inside.sum(2) + DEGREE_WORTH * ((inside * degrees[:, None]).sum(2) / largest)  # (G, S)
        better = now > state.score
        best, score = torch.where(better[:, :, None], inside, state.best), torch.maximum(now, state.score)
        size = score.amax(1).floor()                                                      # (G,)
        grown = torch.where(size > state.score.amax(1).floor(), step, state.grown)
        done = (step - grown).float() > PATIENCE * size                                   # (G,)
        # Of equally large sets that share a node, the one with the higher score is taken, of equals the first.
        higher = (score[:, None] > score[:, :, None]) | (
            (score[:, None] == score[:, :, None]) & (chain_ids < chain_ids[:, None])
        )
        shares = best @ best.transpose(1, 2) > 0                                          # (G, S, S)
        taken = (score.floor() == size[:, None]) & ~(higher & shares).any(2) & done[:, None]  # (G, S)
        color = state.colors.amax(1, keepdim=True) + taken.long().cumsum(1)               # (G, S)
        found = ((color + 1) * taken)[:, :, None] * best.long()                           # (G, S, N + 1)
        found = found.sum(1) - 1                                                          # (G, N + 1)
        colors_now = torch.where(found >= 0, found, state.colors)
        keeps = (~done).float()[:, None]                                                  # (G, 1)
        inside, beside, best = (x * keeps[:, :, None] for x in (inside, beside, best))
        degrees = change_if(done.any(), lambda _: waiting_neighbours(graphs, colors_now), degrees)
        return Chains(step + 1, colors_now, inside, beside, out_until, best, score * keeps, degrees,
                      torch.where(done, step, grown))  # fmt: skip

    waiting = torch.where(is_node, torch.nn.functional.pad(colors, (0, 1)), -1)           # (G, N + 1)
    empty = 0.0 * (waiting[:, None] + chain_ids[:, None])                                 # (G, S, N + 1)
    zero = 0 * seeds
    state = Chains(zero[0], waiting, empty, empty + 0, empty + 0, empty + 0, empty.sum(2),
                   waiting_neighbours(graphs, waiting), zero + 0)  # fmt: skip
    state = loop(lambda state: (is_node & (state.colors < 0)).any(), body, state)
    return state.colors[:, :-1].clamp(min=0)


def waiting_neighbours(graphs: Graphs, colors: Tensor) -> Tensor:
    """Neighbours of every node whose color (G, N + 1) is -1: (G, N + 1) float."""
    waits = graphs.exists & (colors[:, :-1] < 0)
    return torch.nn.functional.pad(graphs.sum_neighbours(waits.float()), (0, 1))


def noise_table(color_ids: Tensor) -> Tensor:
    """Random numbers (NOISE_ROWS, K) between 0 and 1. Each of four rounds multiplies and squares in the integers mod
    PRIME, which mixes all bits. Only `*`, `+` and `%` on int64 are used: they are the same in all runtimes.
    """
    x = (torch.arange(NOISE_ROWS, device=color_ids.device)[:, None] * 69_621 + 1) % PRIME
    x = (x * x + color_ids * 40_014 + 12_345) % PRIME
    for _ in range(3):
        x = (x * (x + 1_000_003) + 7) % PRIME
    return x.float() / PRIME
