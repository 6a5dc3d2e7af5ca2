"""Crossover of many pairs of parents at once on a GPU, by the method of `search.crossover`.

Letters in shapes: P pairs of parents, N nodes of the largest graph, F features.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gnn_training.graph import NeighbourLists
from gnn_training.network.crossover_network import CrossoverNetwork, pairs_of
from gnn_training.network.crossover_weights import CrossoverWeights
from gnn_training.search import search_cuda
from gnn_training.search.batches import copied_to
from gnn_training.search.crossover import LOG_GENERATION
from gnn_training.search.gpu_searches import ChildSearcher

EXACT_IN_HALF = 2048  # float16 represents all integers up to this one
CROSSED = 2**27  # largest product of colorings, nodes and colors that are crossed at a time


class BatchedCrossover:
    """Crossover with the network. Smaller graphs are padded with nodes without a color, -1."""

    def __init__(self, searcher: ChildSearcher, graphs: Sequence[NeighbourLists], weights: CrossoverWeights):
        """graphs: those of the searcher."""
        self.graphs, device = searcher.graphs, searcher.device
        degrees = [np.diff(lists.offsets) for lists in graphs]
        self.degree = copied_to(device, pad_rows(degrees))
        moments = [(each.mean(), math.sqrt(max(each.var(), 1e-6))) for each in degrees]
        self.moments = torch.tensor(moments, dtype=torch.float, device=device)  # mean and standard deviation of degrees
        self.kind = torch.half if device.type == "cuda" and self.degree.shape[1] <= EXACT_IN_HALF else torch.float
        self.only = None
        if len(graphs) == 1:
            self.only = self._adjacency(torch.zeros(1, dtype=torch.long, device=device), self.degree.shape[1])[0]
        self.network = CrossoverNetwork(*weights.size)
        self.network.load_weights(weights)
        self.network.to(device)

    def __call__(self, graph: Tensor, k: Tensor, parents: Tensor, ages: Tensor, by_network: Tensor) -> Tensor:
        """Both children (2, P, N) of pairs. by_network (P, 2): see `crossover.children`; the others: see `values`."""
        values = self.values(graph, k, parents, ages)
        both = torch.where(by_network.T[:, :, None, None], torch.stack([values, values.flip(1)]), 1.0)
        children = cross_pairs(torch.cat([parents, parents.flip(1)]), both.flatten(0, 1), k.repeat(2))
        return children.view(2, *parents[:, 0].shape)

    @torch.no_grad()
    def values(self, graph: Tensor, k: Tensor, parents: Tensor, ages: Tensor) -> Tensor:
        """The network's values (P, 2, N) of the nodes of pairs, from int64 tensors: graph (P,), positions among the
        graphs; k (P,); parents and ages (P, 2, N), see `Individual`.
        """
        n = parents.shape[2]
        size = max(1, CROSSED // (2 * n * (int(k.max()) + 1 + (n if self.only is None else 0))))
        parts = zip(*(x.split(size) for x in (graph, k, parents, ages)), strict=True)
        return torch.cat([self._values(*part) for part in parts])

    def _values(self, graph: Tensor, k: Tensor, parents: Tensor, ages: Tensor) -> Tensor:
        filled = parents.where(parents >= 0, k.max())
        pairs = pairs_of(self.features(graph, k, parents, ages), filled, int(k.max()) + 1)
        return self.network.values(pairs).view_as(parents)

    def features(self, graph: Tensor, k: Tensor, parents: Tensor, ages: Tensor) -> Tensor:
        """The features (P, 2, N, F) of pairs, as `search.crossover.features_of` computes them."""
        is_node, num_colors = parents >= 0, int(k.max()) + 1
        parents = parents.where(is_node, num_colors - 1)  # padding has a class of its own
        n = is_node[:, :1].sum(2, keepdim=True)
        degree = self.degree[graph, : parents.shape[2]][:, None]
        mean, deviation = self.moments[graph].T[:, :, None, None]
        in_class = degree.new_zeros(len(parents), 2, num_colors, parents.shape[2], dtype=self.kind)
        in_class.scatter_(2, parents[:, :, None], 1)
        matrix = self._adjacency(graph, parents.shape[2]) if self.only is None else self.only
        counts = (in_class.flatten(1, 2) @ matrix).view_as(in_class)  # a node's neighbours of each color
        is_color = torch.arange(num_colors, device=k.device) < k[:, None]
        free = (counts == 0) & (in_class == 0) & is_color[:, None, :, None] & is_node[:, :, None]
        together, ones = parents[:, 0] * num_colors + parents[:, 1], torch.ones_like(parents[:, 0], dtype=torch.float)
        both = ones.new_zeros(len(parents), num_colors**2).scatter_add_(1, together, ones)
        square = both.view(-1, num_colors, num_colors)
        sizes = torch.stack([square.sum(2), square.sum(1)], 1).gather(2, parents)
        largest = torch.stack([square.amax(2), square.amax(1)], 1).gather(2, parents)
        shared = both.gather(1, together)[:, None]
        conflicts = counts.gather(2, parents[:, :, None])[:, :, 0].float()
        takes, colors, k = free.sum(3).log1p().gather(2, parents), free.sum(2).log1p(), k[:, None, None]
        x = (
            conflicts, largest / sizes, shared / sizes, (degree - mean) / deviation, takes,
            ages.clamp(min=0).float().log1p() / LOG_GENERATION, colors, (sizes * k / n + 0.1).log(), mean / n - 0.5,
            (n / k).log() - 1.5,
        )  # fmt: skip
        return torch.stack([each.expand(parents.shape) for each in x], -1)

    def _adjacency(self, graph: Tensor, num_nodes: int) -> Tensor:
        """The adjacency matrices (P, N, N) of graphs (P,), padded with zeros."""
        nodes, _, first_word, words = self.graphs
        bit = torch.arange(search_cuda.BITS, dtype=torch.int32, device=graph.device)
        v = torch.arange(num_nodes, device=graph.device)
        n, first = (each[graph][:, None, None] for each in (nodes, first_word))
        width, place = (n + len(bit) - 1) // len(bit), v[: -(-len(v) // len(bit))]  # width: words per node
        at = first + v[:, None] * width + place
        is_there = (v[:, None] < n) & (place < width)
        rows = words.view(torch.int32)[at.clamp(max=len(words) - 1)].where(is_there, 0)
        return (rows[..., None] >> bit & 1).flatten(2)[:, :, : len(v)].to(self.kind)


@torch.no_grad()
def cross_pairs(parents: Tensor, values: Tensor, k: Tensor, noise: Tensor | None = None) -> Tensor:
    """Children (P, N), as by `search.crossover.crossover`. parents, values (P, 2, N); k (P,); noise (P, K, K)."""
    values, num_colors = values.double(), int(k.max())
    child, of_node = torch.full_like(parents[:, 0], -1), parents.clamp(min=0)
    for c in range(num_colors):
        p, is_left = c % 2, (parents[:, 0] >= 0) & (child < 0)
        left = values.new_zeros(len(k), num_colors)
        class_values = left.scatter_add(1, of_node[:, p], values[:, p] * is_left)
        left = left.scatter_add(1, of_node[:, p], is_left.double())
        if noise is not None:
            class_values = class_values + noise[:, c]
        class_values = class_values.masked_fill(left == 0, -torch.inf)
        is_chosen = is_left & (of_node[:, p] == class_values.argmax(1, keepdim=True)) & (c < k)[:, None]
        child = torch.where(is_chosen, c, child)
    return child


def pad_rows(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Stack arrays (..., N) of different N into one, padded with -1 at the end."""
    longest = max(row.shape[-1] for row in rows)
    filled = np.full((len(rows), *rows[0].shape[:-1], longest), -1, dtype=rows[0].dtype)
    for place, row in zip(filled, rows, strict=True):
        place[..., : row.shape[-1]] = row
    return filled
