"""Classical steps around the network, in tensors, so that they run inside the ONNX file.

Letters in shapes: G graphs, N nodes (padded), K colors, S samples.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from gnn_training.model.graphs import DenseGraphs
from gnn_training.model.network import noise

START_SPREAD = 0.1  # every further sample of XRLF may start so much of the mean degree below the largest degree
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


def first_fit(graphs: DenseGraphs, priority: Tensor, color_ids: Tensor, saturation_weight: float) -> Tensor:
    """Color node after node with the first free color: (G, N) int64, padded nodes get 0. The next node is the one of
    largest saturation_weight * saturation + priority (G, N). Weight 0 is greedy along an order, a weight above all
    priorities is DSATUR (Brélaz 1979). Nodes that find none of the colors color_ids (K,) = 0..K-1 free take the last
    one.
    """
    adjacency, mask = graphs.adjacency, graphs.mask
    rows, nodes = (torch.arange(size, device=mask.device) for size in mask.shape)         # (G,), (N,)
    last = color_ids.max()

    # The loop asks no tensor for its size: torch.while_loop cannot close over a size that data decides.
    def body(state: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        colors, saturation, taken = state  # -1 for nodes that wait; distinct colors around; 1 where a neighbour has it
        waiting = (colors < 0) & (mask > 0)                                               # (G, N)
        v = torch.where(waiting, saturation * saturation_weight + priority, -torch.inf).argmax(1)  # (G,)
        chosen = (nodes == v[:, None]) & waiting                                          # (G, N) none: graph is done
        around = taken.gather(2, v[:, None, None] + 0 * color_ids[:, None])[..., 0]       # (G, K)
        c = torch.where(around == 0, color_ids, last).min(1).values                       # (G,)
        colors = torch.where(chosen, c[:, None], colors)
        before = taken[rows, c]                                                           # (G, N)
        after = torch.maximum(before, adjacency[rows, v] * waiting[rows, v][:, None])
        return colors, saturation + after - before, taken.index_put((rows, c), after)

    taken = torch.zeros_like(color_ids, dtype=mask.dtype)[:, None] * mask[:, None]        # (G, K, N)
    state = torch.full_like(mask, -1, dtype=torch.int64), torch.zeros_like(mask), taken
    return loop(lambda state: ((state[0] < 0) & (mask > 0)).any(), body, state)[0].clamp(min=0)


class IndependentSets(NamedTuple):
    """S independent sets that grow at the same time in every graph, and the colors of the sets before them."""
    colors: Tensor   # (G, N) int64, -1 for nodes that wait
    color: Tensor    # (G,) int64, of the sets that grow
    free: Tensor     # (G, S, N) 1 for nodes that may join
    inside: Tensor   # (G, S, N) 1 for nodes that have joined
    removed: Tensor  # (G, S) edges that go with the set


def xrlf(graphs: DenseGraphs, sample_ids: Tensor, seeds: Tensor, colors: Tensor) -> Tensor:
    """Color the nodes that `colors` (G, N) int64 leaves at -1, one large independent set after the other: (G, N).

    Every set is the best of S samples, sample_ids (S,) = 0..S-1, drawn at the same time: the one that leaves the fewest
    edges (XRLF of Johnson et al. 1991). Sample 0 starts at a node of largest degree, later samples the more at random,
    by seeds (G,). All go on as RLF does: with the node that has the most neighbours among those excluded (Leighton
    1979). Time S G N^3.
    """
    adjacency, mask = graphs.adjacency, graphs.mask
    rows, nodes = (torch.arange(size, device=mask.device) for size in mask.shape)         # (G,), (N,)
    drawn = noise(seeds, mask.shape[1], sample_ids.shape[0]).transpose(1, 2)              # (G, S, N)

    def body(state: IndependentSets) -> IndependentSets:
        colors, color, free, inside, removed = state
        maximal = free.amax((1, 2)) == 0                                                  # (G,) all sets of a graph
        best = inside[rows, removed.argmax(1)]                                            # (G, N)
        colors = torch.where(maximal[:, None] & (best > 0), color[:, None], colors)
        left = ((colors < 0) & (mask > 0)).float()                                        # (G, N)
        starts = maximal[:, None, None]                                                   # (G, 1, 1)
        free = torch.where(starts, left[:, None], free)
        inside = torch.where(starts, 0.0, inside)
        removed = torch.where(maximal[:, None], 0.0, removed)
        both = torch.bmm(torch.cat([left[:, None], free], 1), adjacency)  # in one product: it reads the adjacency once
        degrees, free_degrees = both[:, :1], both[:, 1:]                                  # (G, 1, N), (G, S, N)
        mean = (degrees[:, 0] * left).sum(1) / left.sum(1).clamp(min=1)                   # (G,)
        first = degrees + START_SPREAD * sample_ids[:, None] * mean[:, None, None] * drawn
        following = degrees - (1 + 1 / 1024) * free_degrees  # most neighbours excluded; of equals, fewest free ones
        score = torch.where(starts, first, following)
        v = torch.where(free > 0, score, -torch.inf).argmax(2)                            # (G, S)
        added = free * (nodes == v[..., None])                                            # (G, S, N) none: maximal
        free = free * (1 - adjacency[rows[:, None], v]) * (1 - added)
        removed = removed + (added * degrees).sum(2)
        return IndependentSets(colors, color + maximal.long(), free, inside + added, removed)

    none = 0 * drawn  # the loop may not get one tensor twice
    state = IndependentSets(colors, torch.full_like(seeds, -1), none, none + 0, none.sum(2))
    return loop(lambda state: ((state.colors < 0) & (mask > 0)).any(), body, state).colors


def greedy_along(graphs: DenseGraphs, classes: Tensor, color_ids: Tensor) -> Tensor:
    """What callers do with the argmax (G, N): stable sort by class, first fit along it; colors (G, N) int64."""
    position = torch.arange(classes.shape[1], device=classes.device)
    return first_fit(graphs, -(classes * classes.shape[1] + position).float(), color_ids, 0.0)


def greedy_by_class(graphs: DenseGraphs, probabilities: Tensor) -> Tensor:
    """What callers do with a proper argmax of probabilities (G, N, K): first fit by class; colors (G, N) int64."""
    classes, color_ids = probabilities.argmax(2), torch.arange(probabilities.shape[2], device=probabilities.device)
    taken, colors = torch.zeros_like(probabilities), torch.zeros_like(classes)            # (G, N, K), (G, N)
    for c in range(len(color_ids)):
        members = (classes == c) & (graphs.mask > 0)                                      # (G, N)
        colors = torch.where(members, (taken > 0).float().argmin(2), colors)  # first free; members are no neighbours
        taken = taken + graphs.aggregate(((colors[..., None] == color_ids) & members[..., None]).float())
    return colors


def clique_bound(graphs: DenseGraphs) -> Tensor:
    """Size (G,) float of the largest clique grown from any one node, always by the candidate of highest degree."""
    adjacency, degrees = graphs.adjacency, graphs.degrees
    rows = torch.arange(adjacency.shape[0], device=adjacency.device)[:, None]             # (G, 1)

    def body(state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        candidates, size = state                                                          # (G, N, N), (G, N)
        grows = candidates.max(2).values                                                  # (G, N) 1: it has a candidate
        pick = (candidates * (1 + degrees[:, None, :])).argmax(2)                         # (G, N)
        return candidates * adjacency[rows, pick], size + grows

    return loop(lambda state: state[0].max() > 0, body, (adjacency + 0, graphs.mask + 0))[1].max(1).values


def pad(edge_index: Tensor, batch: Tensor) -> tuple[DenseGraphs, Tensor]:
    """Graphs of an edge list (2, E) and `batch` (N,), padded, and the position (N,) of every node in its graph."""
    G = cast(int, (batch.max() + 1).item())
    torch._check(G >= 1)
    member = batch[None] == torch.arange(G, device=batch.device)[:, None]                 # (G, N)
    counts = member.sum(1)                                                                # (G,)
    position = torch.arange(batch.shape[0], device=batch.device) - (counts.cumsum(0) - counts)[batch]
    size = cast(int, counts.max().item())
    torch._check(size >= 1)
    s, t = edge_index[0], edge_index[1]
    inside = ((batch[s] == batch[t]) & (s != t)).float()
    adjacency = torch.zeros(G, size, size, device=batch.device).index_put((batch[s], position[s], position[t]), inside)
    adjacency = torch.maximum(adjacency, adjacency.transpose(1, 2)) * (1 - torch.eye(size, device=batch.device))
    mask = (torch.arange(size, device=batch.device) < counts[:, None]).float()
    return DenseGraphs(adjacency, mask), position
