"""Generations of children on an NVIDIA GPU: memory, launches and results around `search.search_cuda`, and crossover.

Letters in shapes: R children, N nodes of the largest graph, P pairs of parents, F features.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gnn_training.graph import NeighbourLists
from gnn_training.network.crossover import CrossoverNetwork, pairs_of
from gnn_training.network.crossover_weights import Weights
from gnn_training.network.rule import NOT_MOVED
from gnn_training.search import search_cuda
from gnn_training.search.batches import copied_to, shared_memory
from gnn_training.search.crossover import LOG_GENERATION
from gnn_training.search.search_kernel import noise_table

MOST_ROUNDS = search_cuda.LAST - NOT_MOVED  # of a child
EXACT = 2048  # up to which float16 has all integers
CROSSED = 2**27  # numbers of colorings, nodes and colors that are crossed at a time
MEMORY_SHARE = 0.4  # of the free memory of a GPU, for what children keep there


class Children(NamedTuple):
    """What became of the children of a generation, in the memory of the GPU."""

    conflicts: Tensor  # (R,) int32, of the best coloring
    made: Tensor  # (R,) int32, rounds
    colors: Tensor  # (R, N) int16
    ages: Tensor  # (R, N) int16, rounds since a node took its color


def compile_children(device: torch.device) -> None:
    """Compile the kernels for a GPU, once and for a minute, before a clock starts."""
    with torch.cuda.device(device):
        for in_shared in (True, False):
            search_cuda.kernel(in_shared, shared_memory(device), True, device.index)


def fitting(nodes: np.ndarray, colors: np.ndarray, device: torch.device) -> np.ndarray:
    """Which graphs of so many nodes and colors (G,) a GPU can search."""
    fits = np.ones(len(nodes), dtype=bool)
    fits[search_cuda.plan(nodes.tolist(), colors.tolist(), shared_memory(device))[1]] = False
    return fits


class Generations:
    """Graphs on a GPU, one child per thread block. It launches on the current stream of torch."""

    def __init__(self, graphs: Sequence[NeighbourLists], device: torch.device):
        """The device must be that of the present thread."""
        self.device, self.nodes = device, np.array([len(lists.offsets) - 1 for lists in graphs], dtype=np.int32)
        ends = np.array([len(lists.neighbours) for lists in graphs], dtype=np.int32)
        words = [search_cuda.words(adjacency(lists)) for lists in graphs]
        first_word = np.cumsum([0, *map(len, words)])[:-1]
        self.graphs = [self._copied(values) for values in (self.nodes, ends, first_word, np.concatenate(words))]
        self.max_shared = shared_memory(device)
        self.processors = torch.cuda.get_device_properties(device).multi_processor_count
        self._tables = lru_cache(1)(self._make_tables)

    def room(self, colors: Sequence[int]) -> int:
        """Children that the GPU has at the same time, also of the largest graph; 0 if a graph is too large for a block.
        colors: of every graph.
        """
        launches, too_large = search_cuda.plan(self.nodes.tolist(), colors, self.max_shared)
        free, reserved = MEMORY_SHARE * torch.cuda.mem_get_info(self.device)[0], search_cuda.RESERVED
        rooms = [0] * min(1, len(too_large))
        for launch in launches:
            blocks = min(search_cuda.BLOCKS, (self.max_shared + reserved) // (launch.shared + reserved))
            rooms.append(max(1, min(self.processors * blocks, int(free / (2 * launch.large)))))
        return min(rooms)

    def __call__(
        self, graph: np.ndarray, k: np.ndarray, starts: np.ndarray, seeds: np.ndarray, weights: np.ndarray, rounds: int
    ) -> Children:
        """Make a child of every start, see `search_kernel.child`, and return at once. graph (R,): place among the
        graphs; k, seeds (R,); starts (R, N); weights (R, NUM_WEIGHTS) float32; rounds: MOST_ROUNDS at most. None may be
        too large for a block.
        """
        (count, num_nodes), empty = starts.shape, torch.empty
        children = Children(*(empty(count, dtype=torch.int32, device=self.device) for _ in range(2)), *(
            empty(count, num_nodes, dtype=torch.int16, device=self.device) for _ in range(2)
        ))  # fmt: skip
        tables = self._tables(int(k.max()), max(rounds, num_nodes))
        launches, too_large = search_cuda.plan(self.nodes[graph].tolist(), k.tolist(), self.max_shared)
        assert not len(too_large) and rounds <= MOST_ROUNDS
        kinds = np.int32, np.int32, np.int64, np.int16, np.float32
        given = [
            self._copied(each.astype(kind))
            for each, kind in zip((graph, k, seeds, starts, weights), kinds, strict=True)
        ]
        stream = search_cuda.cuda.external_stream(torch.cuda.current_stream(self.device).cuda_stream)
        for launch in launches:
            places, blocks = self._copied(launch.searches), len(launch.searches)
            large = empty(blocks, launch.large, dtype=torch.int16, device=self.device)
            found = Children(*(torch.empty_like(each[:blocks]) for each in children))
            tensors = *self.graphs, *(each[places] for each in given), *tables, large, *found
            kernel = search_cuda.kernel(launch.in_shared, self.max_shared, True, self.device.index)
            kernel[blocks, search_cuda.THREADS, stream, launch.shared](*map(search_cuda.as_array, tensors), rounds)
            for all_of_them, some in zip(children, found, strict=True):
                all_of_them[places] = some
        self._event = torch.cuda.current_stream(self.device).record_event()
        return children

    def is_done(self) -> bool:
        """Whether the last children are there. RuntimeError: the GPU reports an error."""
        return self._event.query()

    def _make_tables(self, num_colors: int, count: int) -> tuple[Tensor, Tensor]:
        """Noise of so many colors, and logarithms."""
        return self._copied(noise_table(num_colors)), self._copied(search_cuda.logarithms(count))

    def _copied(self, values: np.ndarray) -> Tensor:
        return copied_to(self.device, values)


class Crossing:
    """Crossover for many pairs of parents at once, as `search.crossover` does it for one. Shorter graphs are filled up
    with nodes without a color, -1.
    """

    def __init__(self, generations: Generations, graphs: Sequence[NeighbourLists], weights: Weights):
        """graphs: those of the generations."""
        self.graphs, device = generations.graphs, generations.device
        degrees = [np.diff(lists.offsets) for lists in graphs]
        self.degree = copied_to(device, filled_up(degrees))
        moments = [(each.mean(), math.sqrt(max(each.var(), 1e-6))) for each in degrees]
        self.moments = torch.tensor(moments, dtype=torch.float, device=device)  # mean and standard deviation of degrees
        self.kind = torch.half if device.type == "cuda" and self.degree.shape[1] <= EXACT else torch.float
        self.only = None
        if len(graphs) == 1:
            self.only = self._adjacency(torch.zeros(1, dtype=torch.long, device=device), self.degree.shape[1])[0]
        self.network = CrossoverNetwork(*weights.size)
        self.network.load_weights(weights)
        self.network.to(device)

    def __call__(self, graph: Tensor, k: Tensor, parents: Tensor, ages: Tensor, by_network: Tensor) -> Tensor:
        """Both children (2, P, N) of every pair. by_network (P, 2): see `search.crossover.children`; else `values`."""
        values = self.values(graph, k, parents, ages)
        both = torch.where(by_network.T[:, :, None, None], torch.stack([values, values.flip(1)]), 1.0)
        children = crossover(torch.cat([parents, parents.flip(1)]), both.flatten(0, 1), k.repeat(2))
        return children.view(2, *parents[:, 0].shape)

    @torch.no_grad()
    def values(self, graph: Tensor, k: Tensor, parents: Tensor, ages: Tensor) -> Tensor:
        """What the nodes of pairs are worth: (P, 2, N). graph (P,): place among the graphs; k (P,); parents, ages
        (P, 2, N): see `Parent`, all int64.
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
        """What `search.crossover.features_of` says of pairs: (P, 2, N, F)."""
        is_node, num_colors = parents >= 0, int(k.max()) + 1
        parents = parents.where(is_node, num_colors - 1)  # what only fills up has a class of its own
        n = is_node[:, :1].sum(2, keepdim=True)
        degree = self.degree[graph, : parents.shape[2]][:, None]
        mean, deviation = self.moments[graph].T[:, :, None, None]
        own = degree.new_zeros(len(parents), 2, num_colors, parents.shape[2], dtype=self.kind)
        own.scatter_(2, parents[:, :, None], 1)
        matrix = self._adjacency(graph, parents.shape[2]) if self.only is None else self.only
        counts = (own.flatten(1, 2) @ matrix).view_as(own)  # neighbours of a node with a color
        is_color = torch.arange(num_colors, device=k.device) < k[:, None]
        free = (counts == 0) & (own == 0) & is_color[:, None, :, None] & is_node[:, :, None]
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
        """Of graphs (P,): (P, N, N), filled up with zeros."""
        nodes, _, first_word, words = self.graphs
        bit = torch.arange(search_cuda.BITS, dtype=torch.int32, device=graph.device)
        v = torch.arange(num_nodes, device=graph.device)
        n, first = (each[graph][:, None, None] for each in (nodes, first_word))
        width, place = (n + len(bit) - 1) // len(bit), v[: -(-len(v) // len(bit))]  # words of a node
        at = first + v[:, None] * width + place
        found = words.view(torch.int32)[at.clamp(max=len(words) - 1)].where((v[:, None] < n) & (place < width), 0)
        return (found[..., None] >> bit & 1).flatten(2)[:, :, : len(v)].to(self.kind)


@torch.no_grad()
def crossover(parents: Tensor, values: Tensor, k: Tensor, noise: Tensor | None = None) -> Tensor:
    """`search.crossover.crossover` of P pairs: (P, N). parents, values (P, 2, N); k (P,); noise (P, K, K)."""
    values, num_colors = values.double(), int(k.max())
    child, of_node = torch.full_like(parents[:, 0], -1), parents.clamp(min=0)
    for c in range(num_colors):
        p, is_left = c % 2, (parents[:, 0] >= 0) & (child < 0)
        left = values.new_zeros(len(k), num_colors)
        worth = left.scatter_add(1, of_node[:, p], values[:, p] * is_left)
        left = left.scatter_add(1, of_node[:, p], is_left.double())
        worth = (worth if noise is None else worth + noise[:, c]).masked_fill(left == 0, -torch.inf)
        is_chosen = is_left & (of_node[:, p] == worth.argmax(1, keepdim=True)) & (c < k)[:, None]
        child = torch.where(is_chosen, c, child)
    return child


def adjacency(lists: NeighbourLists) -> np.ndarray:
    """(N, N) bool."""
    n = len(lists.offsets) - 1
    matrix = np.zeros((n, n), dtype=bool)
    matrix[lists.sources, lists.neighbours] = True
    return matrix


def filled_up(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays (..., N) of different N in one, with -1 at the ends."""
    longest = max(row.shape[-1] for row in rows)
    filled = np.full((len(rows), *rows[0].shape[:-1], longest), -1, dtype=rows[0].dtype)
    for place, row in zip(filled, rows, strict=True):
        place[..., : row.shape[-1]] = row
    return filled
