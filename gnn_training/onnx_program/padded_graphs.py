"""Graphs as the program sees them: neighbour lists of a padded batch, whose memory grows with the edges."""

from typing import NamedTuple, cast

import torch
from torch import Tensor

from gnn_training.network import rule


class Graphs(NamedTuple):
    """G graphs, padded to N nodes. Node N, which no graph has, stands for "no node".

    An edge is stored in both directions, sorted by source; one more entry at the end stands for "no edge".
    """

    exists: Tensor      # (G, N) bool
    degrees: Tensor     # (G, N) int64
    first: Tensor       # (G, N) int64, place of a node's first neighbour in `neighbours`
    graph: Tensor       # (E + 1,) int64, the graph of an edge
    source: Tensor      # (E + 1,) int64, a node of that graph
    neighbours: Tensor  # (E + 1,) int64, a neighbour of that node, N in the last entry
    window: Tensor      # (D,) int64 0, 1, ..., largest degree - 1, at least one

    def lists(self, nodes: Tensor) -> Tensor:
        """Neighbours (G, A, D) of nodes (G, A), filled up with N; those of node N are all N."""
        size, clamped = self.exists.shape[1], nodes.clamp(max=self.exists.shape[1] - 1)
        degrees = torch.where(nodes < size, self.degrees.gather(1, clamped), 0)
        place = self.first.gather(1, clamped)[:, :, None] + self.window
        place = torch.where(self.window < degrees[:, :, None], place, self.neighbours.shape[0] - 1)
        return take(self.neighbours, place)

    def adjacency(self, node_ids: Tensor) -> Tensor:
        """Dense adjacency matrices (G, P, P) float of 0 and 1, including node N. node_ids (P,) is 0, 1, ..., P - 1. If
        P is not N + 1, all entries are 0.
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
    """values[places] of values (V,). An export makes it GatherElements, which takes a seventh of the time of Gather."""
    return values.gather(0, places.flatten()).view_as(places)


def pad(edge_index: Tensor, batch: Tensor) -> tuple[Graphs, Tensor]:
    """Graphs of an edge list (2, E) and an ascending `batch` (V,), and the position (V,) of every node in its graph.
    Loops, repeated edges and edges between graphs are dropped; one direction of an edge is enough. An edge of a node
    that does not exist is an error, in an exported file too.
    """
    num_graphs = cast(int, (batch.max() + 1).item())
    torch._check(num_graphs >= 1)
    ones = torch.ones_like(batch)
    total = ones.sum()  # a tensor: an export cannot divide by a size
    counts = torch.zeros(num_graphs, dtype=torch.int64, device=batch.device).scatter_add(0, batch, ones)
    position = torch.arange(batch.shape[0], device=batch.device) - (counts.cumsum(0) - counts)[batch]
    size = cast(int, counts.max().item())
    torch._check(size >= 1)
    s, t = torch.where(edge_index < 0, total, edge_index)  # a negative node would count from the end
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


def noise_table(columns: Tensor, rows: int = rule.NOISE_ROWS) -> Tensor:
    """Random numbers (rows, K) between 0 and 1 for columns (K,)."""
    return rule.noise(torch.arange(rows, device=columns.device)[:, None], columns).float() / rule.PRIME
