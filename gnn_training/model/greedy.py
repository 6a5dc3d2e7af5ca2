"""Classical steps around the network, in tensors so that they run inside the ONNX file."""

from collections.abc import Callable

import torch
from torch import Tensor

from gnn_training.model.graphs import DenseGraphs
from gnn_training.model.network import noise

ROVING = 0.1  # by how much of the mean degree every further sample of XRLF may miss the node of largest degree


def loop(condition: Callable, body: Callable, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """`while condition(*state): state = body(*state)`; becomes an ONNX Loop in an export."""
    if torch.compiler.is_exporting():
        return torch.while_loop(condition, body, state)
    while condition(*state):
        state = body(*state)
    return state


def change_if(flag: Tensor, change: Callable, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """`change(*state)` if `flag` (), else `state`: costs nothing where nothing changes, in the ONNX file too."""

    # A loop of one round or none, because torch.cond does not convert to the contract's opset.
    def body(done, *state):
        return done + 1, *change(*state)

    return loop(lambda done, *state: done < 1, body, (1 - flag.long(), *state))[1:]


def first_fit(graphs: DenseGraphs, priority: Tensor, names: Tensor, saturation_weight: float) -> Tensor:
    """Color node after node with the first free color: (G, N) int64, padded nodes get 0.

    The next node is the one of largest saturation_weight * (distinct colors around it) + priority (G, N): weight 0 is
    greedy along an order, a weight above all priorities is DSATUR (Brélaz 1979). Nodes that find none of the colors
    names (K,) = 0..K-1 free take the last one.
    """
    adjacency, mask = graphs.adjacency, graphs.mask
    nodes = torch.arange(mask.shape[1], device=mask.device)  # (N,)
    rows = torch.arange(mask.shape[0], device=mask.device)  # (G,)

    # The loop asks no tensor for its size: torch.while_loop cannot close over a size that data decides.
    def body(colors, saturation, taken):
        waiting = (colors < 0) & (mask > 0)  # (G, N)
        v = torch.where(waiting, saturation * saturation_weight + priority, -torch.inf).argmax(1)  # (G,)
        here = (nodes == v[:, None]) & waiting  # (G, N) none: graph is done
        around = taken.gather(2, v[:, None, None] + 0 * names[:, None])[..., 0]  # (G, K)
        c = torch.where(around == 0, names, last).min(1).values  # (G,)
        colors = torch.where(here, c[:, None], colors)
        before = taken[rows, c]  # (G, N)
        after = torch.maximum(before, adjacency[rows, v] * waiting[rows, v][:, None])
        return colors, saturation + after - before, taken.index_put((rows, c), after)

    def more(colors, saturation, taken):
        return ((colors < 0) & (mask > 0)).any()

    last = names.max()
    taken = torch.zeros_like(names, dtype=mask.dtype)[:, None] * mask[:, None]  # (G, K, N) colors around
    state = (torch.full_like(mask, -1, dtype=torch.int64), torch.zeros_like(mask), taken)
    return loop(more, body, state)[0].clamp(min=0)


def xrlf(graphs: DenseGraphs, samples: Tensor, seeds: Tensor, colors: Tensor) -> Tensor:
    """Give what `colors` (G, N) int64 leaves at -1 its colors, one large independent set after the other: (G, N).

    Every set is the best of samples (S,) = 0..S-1, all drawn at once: the one that leaves the fewest edges (XRLF of
    Johnson et al. 1991). Sample 0 begins at a node of largest degree, the later the more at random, by seeds (G,); all
    go on as RLF does, with the node that has the most neighbours among those excluded (Leighton 1979). Time S G N^3.
    """
    adjacency, mask = graphs.adjacency, graphs.mask
    nodes = torch.arange(mask.shape[1], device=mask.device)  # (N,)
    rows = torch.arange(mask.shape[0], device=mask.device)  # (G,)
    drawn = noise(seeds, mask.shape[1], samples.shape[0]).transpose(1, 2)  # (G, S, N)

    def body(colors, name, free, inside, removed):
        over = free.amax((1, 2)) == 0  # (G,) all sets are maximal
        best = inside[rows, removed.argmax(1)]  # (G, N)
        colors = torch.where(over[:, None] & (best > 0), name[:, None], colors)
        left = ((colors < 0) & (mask > 0)).float()  # (G, N)
        begins = over[:, None, None]
        free = torch.where(begins, left[:, None], free)  # (G, S, N)
        inside = torch.where(begins, 0.0, inside)  # (G, S, N)
        removed = torch.where(over[:, None], 0.0, removed)  # (G, S)
        both = torch.bmm(torch.cat([left[:, None], free], 1), adjacency)  # at once: the adjacency is read once
        degrees, open_degrees = both[:, :1], both[:, 1:]  # (G, 1, N), (G, S, N)
        mean = (degrees[:, 0] * left).sum(1) / left.sum(1).clamp(min=1)  # (G,)
        start = degrees + ROVING * samples[:, None] * mean[:, None, None] * drawn
        # As many neighbours excluded as possible, of those left; of equals, with as few free ones as possible.
        follow = degrees - (1 + 1 / 1024) * open_degrees
        score = torch.where(begins, start, follow)
        v = torch.where(free > 0, score, -torch.inf).argmax(2)  # (G, S)
        added = free * (nodes == v[..., None])  # (G, S, N) none: maximal
        free = free * (1 - adjacency[rows[:, None], v]) * (1 - added)
        return colors, name + over.long(), free, inside + added, removed + (added * degrees).sum(2)

    def more(colors, *_):
        return ((colors < 0) & (mask > 0)).any()

    nothing = 0 * drawn
    return loop(more, body, (colors, torch.full_like(seeds, -1), nothing, nothing + 0, nothing.sum(2)))[0]


def greedy_along(graphs: DenseGraphs, classes: Tensor, names: Tensor) -> Tensor:
    """What callers do with the argmax (G, N): stable sort by class, first fit along it; colors (G, N) int64."""
    position = torch.arange(classes.shape[1], device=classes.device)
    return first_fit(graphs, -(classes * classes.shape[1] + position).float(), names, 0.0)


def greedy_by_class(graphs: DenseGraphs, probabilities: Tensor) -> Tensor:
    """What callers do with a proper argmax of probabilities (G, N, K): first fit class by class; colors (G, N) int64.

    The nodes of a proper class are no neighbours, so all of them find their colors at once.
    """
    classes, names = probabilities.argmax(2), torch.arange(probabilities.shape[2], device=probabilities.device)
    taken, colors = torch.zeros_like(probabilities), torch.zeros_like(classes)  # (G, N, K), (G, N)
    for c in range(len(names)):
        here = (classes == c) & (graphs.mask > 0)  # (G, N)
        colors = torch.where(here, (taken > 0).float().argmin(2), colors)  # the first that is free
        taken = taken + graphs.aggregate(((colors[..., None] == names) & here[..., None]).float())
    return colors


def clique_bound(graphs: DenseGraphs) -> Tensor:
    """Size (G,) float of the largest clique grown from any one node, always by the candidate of highest degree."""
    adjacency, degrees = graphs.adjacency, graphs.degrees
    rows = torch.arange(adjacency.shape[0], device=adjacency.device)[:, None]  # (G, 1)

    def body(candidates, size):
        grows = candidates.max(2).values  # (G, N) 1: clique v can grow
        pick = (candidates * (1 + degrees[:, None, :])).argmax(2)  # (G, N)
        return candidates * adjacency[rows, pick], size + grows

    def more(candidates, size):
        return candidates.max() > 0

    return loop(more, body, (adjacency + 0, graphs.mask + 0))[1].max(1).values


def dense(edge_index: Tensor, batch: Tensor) -> tuple[DenseGraphs, Tensor]:
    """Graphs of a flat edge list (2, E) and `batch` (N,), and every node's place (N,) within its graph."""
    G = (batch.max() + 1).item()
    torch._check(G >= 1)
    member = batch[None] == torch.arange(G, device=batch.device)[:, None]  # (G, N)
    counts = member.sum(1)
    place = torch.arange(batch.shape[0], device=batch.device) - (counts.cumsum(0) - counts)[batch]
    size = counts.max().item()
    torch._check(size >= 1)
    s, t = edge_index[0], edge_index[1]
    inside = ((batch[s] == batch[t]) & (s != t)).float()
    adjacency = torch.zeros(G, size, size, device=batch.device)
    adjacency = adjacency.index_put((batch[s], place[s], place[t]), inside)
    adjacency = torch.maximum(adjacency, adjacency.transpose(1, 2))
    adjacency = adjacency * (1 - torch.eye(size, device=batch.device))
    mask = (torch.arange(size, device=batch.device) < counts[:, None]).float()
    return DenseGraphs(adjacency, mask), place
