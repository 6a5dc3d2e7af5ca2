"""Graphs as the program sees them, and the classical steps before the search, which so run inside the ONNX file.

Neighbour lists of a padded batch take memory that grows with the edges. Letters in shapes: G graphs, N nodes (padded),
E directed edges, K colors, S starts, D largest degree.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch_geometric.data import Batch, Data

from gnn_training.graph import Graph
from gnn_training.model import rule

ONE_BY_ONE, NODES_PER_RANK = 2048, 128  # DSATUR: nodes up to which a round colors one; above, one more for so many,
COLORED_PER_RANK = 16  # but one more only for so many colored ones, so that a grid still gets two colors
SPEED, HEAD_START = 4000, 1 / 64  # if rounds color fewer than c nodes of 4000, c colors around a node are enough
SCATTER = 1_327_217_885  # .618 of rule.PRIME, so that multiples modulo it are in no order
DEGREE_WORTH, DEGREE_LEVELS = 1 / 4, 256  # in members: what one of the largest degree counts besides, in so many levels
INSIDE = 4096.0  # more than any number of neighbours
STAYS_OUT = 7  # steps that a node stays out of a set after it has left
FEW_ROWS = 509  # of small tables of random numbers
State = TypeVar("State")


class Graphs(NamedTuple):
    """G graphs, padded to N nodes. Node N, which no graph has, stands for "no node".

    An edge is stored in both directions, sorted by source; one more entry at the end stands for "no edge".
    """

    exists: Tensor      # (G, N) bool
    degrees: Tensor     # (G, N) int64
    first: Tensor       # (G, N) int64, place of a node's first neighbour in `neighbours`
    graph: Tensor       # (E + 1,) int64
    source: Tensor      # (E + 1,) int64, a node of that graph
    neighbours: Tensor  # (E + 1,) int64, another one, N in the last entry
    window: Tensor      # (D,) int64 0, 1, ..., largest degree - 1, at least one

    def lists(self, nodes: Tensor) -> Tensor:
        """Neighbours (G, A, D) of nodes (G, A), filled up with N; those of node N are all N."""
        size, clamped = self.exists.shape[1], nodes.clamp(max=self.exists.shape[1] - 1)
        degrees = torch.where(nodes < size, self.degrees.gather(1, clamped), 0)
        place = self.first.gather(1, clamped)[:, :, None] + self.window
        place = torch.where(self.window < degrees[:, :, None], place, self.neighbours.shape[0] - 1)
        return take(self.neighbours, place)

    def sum_neighbours(self, x: Tensor) -> Tensor:
        """Sum over the neighbours of every node: (G, N) float to (G, N)."""
        size = x.shape[1]
        values = take(x.flatten(), self.graph * size + self.neighbours.clamp(max=size - 1))
        values = torch.where(self.neighbours < size, values, 0)
        return torch.zeros_like(x).flatten().scatter_add(0, self.graph * size + self.source, values).view_as(x)

    def adjacency(self, node_ids: Tensor) -> Tensor:
        """Dense adjacency (G, P, P) float of 0 and 1 with node N; node_ids (P,) is 0, 1, ..., P - 1. It has no edges if
        P is not N + 1.
        """
        graphs, width = self.exists.shape[0], node_ids.shape[0]
        fits = (self.neighbours < self.exists.shape[1]) & (node_ids.max() == self.neighbours.max())
        place = (self.graph * width + self.source) * width + self.neighbours
        entries = graphs * width * width
        matrix = torch.zeros(entries + 1, device=node_ids.device)
        return matrix.scatter(0, torch.where(fits, place, entries), 1.0)[:-1].view(graphs, width, width)

    @property
    def num_nodes(self) -> Tensor:
        """Number of nodes (G,) float."""
        return self.exists.sum(1).float()


def take(values: Tensor, places: Tensor) -> Tensor:
    """values[places] of values (V,). It becomes ONNX's GatherElements, a seventh of the time of Gather."""
    return values.gather(0, places.flatten()).view_as(places)


def pad(edge_index: Tensor, batch: Tensor) -> tuple[Graphs, Tensor]:
    """Graphs of an edge list (2, E) and `batch` (V,), ascending, and the position (V,) of every node in its graph.
    Loops, repeated edges and edges between graphs are dropped; one direction of an edge is enough. A node that does
    not exist is an error, in an exported file too.
    """
    num_graphs = cast(int, (batch.max() + 1).item())
    torch._check(num_graphs >= 1)
    ones = torch.ones_like(batch)
    total = ones.sum()  # a tensor: an export cannot divide by a size
    counts = torch.zeros(num_graphs, dtype=torch.int64, device=batch.device).scatter_add(0, batch, ones)
    position = torch.arange(batch.shape[0], device=batch.device) - (counts.cumsum(0) - counts)[batch]
    size = cast(int, counts.max().item())
    torch._check(size >= 1)
    s, t = torch.where(edge_index < 0, total, edge_index)  # or a negative node would count from the end
    inside = (batch[s] == batch[t]) & (s != t)
    keys = torch.where(torch.cat([inside, inside]), torch.cat([s * total + t, t * total + s]), total * total)
    keys = torch.cat([keys, total * total * ones[:1]]).sort().values
    before = torch.cat([-ones[:1], keys[:-1]])
    keys = keys[(keys != before) & (keys < total * total)]
    sources = keys // total
    degrees = torch.zeros_like(batch).scatter_add(0, sources, torch.ones_like(sources))
    first = degrees.cumsum(0) - degrees
    columns = torch.arange(size, device=batch.device)
    exists = columns < counts[:, None]
    place = torch.where(exists, (counts.cumsum(0) - counts)[:, None] + columns, 0)
    widest = cast(int, degrees.max().clamp(min=1).item())
    torch._check(widest >= 1)
    return Graphs(
        exists,
        torch.where(exists, degrees[place], 0),
        first[place],
        torch.cat([batch[sources], 0 * ones[:1]]),
        torch.cat([position[sources], 0 * ones[:1]]),
        torch.cat([position[keys % total], torch.full_like(ones[:1], size)]),
        torch.arange(widest, device=batch.device),
    ), position


def concatenated(graphs: Sequence[Graph], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Graphs one after the other, as the contract has them: edge_index (2, E) and batch (N,)."""
    data = [Data(edge_index=torch.from_numpy(graph.edge_index()), num_nodes=graph.num_nodes) for graph in graphs]
    batch = Batch.from_data_list(data).to(device)
    return batch.edge_index, batch.batch


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
    """How many nodes DSATUR may color in a round of a graph with num_nodes int64."""
    return 1 + (num_nodes - ONE_BY_ONE).clamp(min=0) // NODES_PER_RANK


def dsatur(graphs: Graphs, color_ids: Tensor, rank_ids: Tensor) -> Tensor:
    """Color the node with most colors around it next, ties by degree, then number (Brélaz 1979): (G, N) int64, padded
    nodes get 0. Nodes that find none of the colors color_ids (K,) = 0..K-1 free take the last one.

    A large graph breaks ties of degree at random and colors up to B nodes in a round, rank_ids (B,) = 0..B-1: of the B
    nodes that come next those with equally many colors around them, or fewer if that takes too many rounds. A node next
    to one that comes before it waits.
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
        key, taken, waiting, rounds = state  # taken: True where a neighbour has a color; waiting (G,): nodes
        best, v = key.view_as(tie).topk(rank_ids.shape[0], 1)                             # (G, B)
        done = n - waiting[:, None]                                                       # (G, 1)
        limit = ((done + n * HEAD_START) * SPEED / (n * rounds)).long() * one_color       # (G, 1)
        least = torch.minimum(best[:, :1] - best[:, :1] % one_color, limit).clamp(min=0)
        at = ((best >= least) & (needed <= done)).flatten().nonzero().flatten()           # (P,)
        node, node_keys = (v + before).flatten().gather(0, at), best.flatten().gather(0, at)
        degree = degrees.gather(0, node)
        start = degree.cumsum(0) - degree                                                 # (P,) in all their lists (S,)
        entry = torch.arange(degree.sum().item(), device=node.device)                     # (S,)
        owner = torch.zeros_like(entry).scatter(0, start, 1).cumsum(0) - 1                # (S,) one of P
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


def clique_bound(graphs: Graphs, start_ids: Tensor) -> Tensor:
    """Size (G,) int64 of the largest clique grown from one of the nodes of highest degree, start_ids (S,) = 0..S-1 of
    them, always by the candidate of highest degree.
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

    # Of floats: ONNX Runtime 1.16 has no ArgMax of integers.
    degree_key = torch.nn.functional.pad(degrees.float(), (0, 1), value=-1)               # (G, N + 1)
    everything = torch.cat([graphs.exists, torch.zeros_like(graphs.exists[:, :1])], 1)
    candidates = joined(starts, everything[:, None] & (start_ids >= 0)[:, None])
    size = torch.ones_like(starts)
    return loop(lambda state: state[0].any(), body, (candidates, size))[1].max(1).values


class Chains(NamedTuple):
    """S independent sets that change step by step in every graph."""

    step: Tensor       # (G,) int64, of the search for this set
    beside: Tensor     # (G, S, N) float, members among the neighbours; INSIDE for a member, negative for colored nodes
    out_until: Tensor  # (G, S, N) float, step up to which a node stays out
    worth: Tensor      # (G, S) float, of the members
    best: Tensor       # (G, N) float, 1 for members of the most worthy set so far
    highest: Tensor    # (G,) float, its worth
    found_at: Tensor   # (G,) int64, the step that found it


def independent_sets(
    adjacency: Tensor, exists: Tensor, colors: Tensor, seeds: Tensor, chain_ids: Tensor, patience: Tensor
) -> Tensor:
    """Color the nodes that `colors` (G, N) int64 leaves at -1 with large independent sets: (G, N) int64.

    S chains, chain_ids (S,) = 0..S-1, grow sets by plateau search: a node without neighbours in the set enters,
    preferably one of large degree; if there is none, a node takes the place of its only neighbour there (as for cliques
    in Pullan and Hoos 2006). The best of all sets becomes a color class when no better one has been found for
    `patience` () steps per member. adjacency (G, N, N) float, exists (G, N) bool, seeds (G,) int64.
    """
    nodes = torch.arange(colors.shape[1], device=colors.device)
    table = noise_table(nodes, FEW_ROWS)                                                  # (R, N)
    # A member counts as beside itself. A while_loop may not close over a tensor and a view of it: only `rows` is used.
    rows = (adjacency + INSIDE * (nodes == nodes[:, None])).flatten(0, 1)                 # (G N, N)
    offset = torch.arange(seeds.shape[0], device=colors.device)[:, None] * exists.shape[1]  # (G, 1)

    def row_of(v: Tensor, counts: Tensor) -> Tensor:
        """Rows (G, S, N) of nodes v (G, S), zeros where counts (G, S) is False."""
        return rows.index_select(0, (offset + v).flatten()).unflatten(0, v.shape) * counts[:, :, None].float()

    def next_class(colors: Tensor) -> Tensor:
        waits = exists & (colors < 0)
        degrees = (rows.unflatten(0, waits.shape) @ waits.float()[:, :, None])[..., 0] - INSIDE * waits.float()
        largest = degrees.amax(1, keepdim=True).clamp(min=1)                              # (G, 1)
        value = 1 + (degrees / largest * DEGREE_LEVELS).floor() / DEGREE_LEVELS * DEGREE_WORTH  # (G, N)
        enter, spread = 2 + degrees / largest, 2 * degrees.sqrt() / largest               # (G, N)

        def goes_on(state: Chains) -> Tensor:
            return (state.step - state.found_at).float() <= patience * state.highest      # (G,)

        def body(state: Chains) -> Chains:
            row = rule.turn(chain_ids, seeds[:, None], state.step[:, None]) % FEW_ROWS    # (G, S)
            random = table.index_select(0, row.flatten()).unflatten(0, row.shape)         # (G, S, N)
            swaps = (state.beside == 1) & (state.out_until <= state.step[:, None, None])
            key = torch.where(swaps, random, -1.0)
            key = torch.where(state.beside == 0, enter[:, None] + spread[:, None] * random, key)
            top, v = key.max(2)                                                           # (G, S)
            acts = (top >= 0) & goes_on(state)[:, None]
            entering = row_of(v, acts)
            member, u = torch.where(state.beside >= INSIDE, entering, 0.0).max(2)         # (G, S)
            leaves = member > 0
            beside = state.beside + entering - row_of(u, leaves)
            place, until = u[:, :, None], (state.step + STAYS_OUT).float()[:, None, None]
            until = torch.where(leaves[:, :, None], until, state.out_until.gather(2, place))
            out_until = state.out_until.scatter(2, place, until)
            # Sums of such fractions are exact, so all runtimes compare them alike.
            worth = state.worth + torch.where(acts, value.gather(1, v), 0) - torch.where(leaves, value.gather(1, u), 0)
            highest, chain = worth.max(1)                                                 # (G,)
            better = highest > state.highest
            chain = chain[:, None, None].expand(-1, 1, beside.shape[2])
            best = torch.where(better[:, None], (beside.gather(1, chain)[:, 0] >= INSIDE).float(), state.best)
            return Chains(state.step + 1, beside, out_until, worth, best, torch.maximum(highest, state.highest),
                          torch.where(better, state.step, state.found_at))  # fmt: skip

        beside = torch.where(waits, 0.0, -2.0 * INSIDE)[:, None] + 0.0 * chain_ids[:, None]
        zero = 0 * seeds
        state = Chains(zero, beside, 0 * beside, beside[:, :, 0] * 0, 0.0 * degrees, 0.0 * zero, zero + 0)
        state = loop(lambda state: goes_on(state).any(), body, state)
        return torch.where(state.best > 0, colors.amax(1, keepdim=True) + 1, colors)

    waiting = torch.where(exists, colors, -1)
    waits = loop(lambda state: (exists & (state[0] < 0)).any(), lambda state: (next_class(state[0]),), (waiting,))[0]
    return waits.clamp(min=0)


def noise_table(columns: Tensor, rows: int = rule.NOISE_ROWS) -> Tensor:
    """Random numbers (rows, K) between 0 and 1 for columns (K,)."""
    return rule.noise(torch.arange(rows, device=columns.device)[:, None], columns).float() / rule.PRIME
