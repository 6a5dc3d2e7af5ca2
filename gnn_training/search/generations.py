"""Generations of children on an NVIDIA GPU: memory, launches and results around `search.search_cuda`, and crossover.

Letters in shapes: R children, N nodes of the largest graph, P pairs of parents, F features.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gnn_training.graph import NeighbourLists
from gnn_training.network.crossover import CrossoverNetwork, pairs_of
from gnn_training.network.rule import NOT_MOVED
from gnn_training.search import search_cuda
from gnn_training.search.batches import copied_to
from gnn_training.search.crossover import LOG_GENERATION, Weights
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


class Generations:
    """Graphs on a GPU, one child per thread block. It launches on the current stream of torch."""

    def __init__(self, graphs: Sequence[NeighbourLists], device: torch.device):
        """The device must be that of the present thread."""
        self.device, self.nodes = device, np.array([len(lists.offsets) - 1 for lists in graphs], dtype=np.int32)
        ends = np.array([len(lists.neighbours) for lists in graphs], dtype=np.int32)
        words = [search_cuda.words(adjacency(lists)) for lists in graphs]
        first_word = np.cumsum([0, *map(len, words)])[:-1]
        self.graphs = [self._copied(values) for values in (self.nodes, ends, first_word, np.concatenate(words))]
        properties: Any = torch.cuda.get_device_properties(device)
        self.max_shared = properties.shared_memory_per_block_optin
        self.processors = properties.multi_processor_count
        self._tables = lru_cache(1)(self._make_tables)

    def room(self, graph: int, k: int) -> int:
        """Children that the GPU has at the same time, 0 if they are too large for a block."""
        launches, _ = search_cuda.plan([int(self.nodes[graph])], [k], self.max_shared)
        for launch in launches:
            reserved = search_cuda.RESERVED
            blocks = min(search_cuda.BLOCKS, (self.max_shared + reserved) // (launch.shared + reserved))
            free = MEMORY_SHARE * torch.cuda.mem_get_info(self.device)[0]
            return max(1, min(self.processors * blocks, int(free / (2 * launch.large))))
        return 0

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
    """Crossover for many pairs of parents of a graph at once, as `search.crossover.children` does it for one."""

    def __init__(self, lists: NeighbourLists, weights: Weights, device: torch.device):
        matrix = torch.from_numpy(adjacency(lists)).to(device)
        is_half = device.type == "cuda" and len(matrix) <= EXACT
        self.adjacency, self.degree = matrix.to(torch.half if is_half else torch.float), matrix.sum(1).float()
        self.network = CrossoverNetwork(*weights.size)
        self.network.load_weights(weights)
        self.network.to(device)

    @torch.no_grad()
    def __call__(self, parents: np.ndarray, ages: np.ndarray, k: int, by_network: np.ndarray) -> np.ndarray:
        """The two children (P, 2, N) int16 of every pair, in which some nodes have no color, -1. parents, ages:
        (P, 2, N); by_network (P, 2): see `children`.
        """
        size = max(1, CROSSED // (2 * k * parents.shape[2]))
        device, found = self.degree.device, []
        for start in range(0, len(parents), size):
            part = (torch.from_numpy(each[start : start + size]).to(device) for each in (parents, ages, by_network))
            colors, ages_of, flags = part
            found.append(self._children(colors.long(), ages_of, k, flags).short().cpu().numpy())
        return np.concatenate(found)

    def _children(self, parents: Tensor, ages: Tensor, k: int, by_network: Tensor) -> Tensor:
        values = self.values(self.features(parents, ages, k), parents, k).double()
        turns = torch.stack([parents, parents.flip(1)], 1)  # (P, child, whose turn it is, N)
        values = torch.where(by_network[:, :, None, None], torch.stack([values, values.flip(1)], 1), 1.0)
        child = torch.full_like(parents, -1)
        for c in range(k):
            parent, is_left = turns[:, :, c % 2], child < 0
            worth = values.new_zeros(*parents.shape[:2], k)
            left = worth.scatter_add(2, parent, is_left.double())
            worth = worth.scatter_add(2, parent, values[:, :, c % 2] * is_left).masked_fill(left == 0, -torch.inf)
            child = torch.where(is_left & (parent == worth.argmax(2, keepdim=True)), c, child)
        return child

    def values(self, x: Tensor, parents: Tensor, k: int) -> Tensor:
        """What the nodes of pairs are worth: (P, 2, N). x (P, 2, N, F): their features."""
        return self.network.values(pairs_of(x, parents, k)).view_as(parents)

    def features(self, parents: Tensor, ages: Tensor, k: int) -> Tensor:
        """What `search.crossover.features_of` says of pairs: (P, 2, N, F)."""
        n, mean = parents.shape[2], self.degree.mean()
        own = self.adjacency.new_zeros(len(parents), 2, k, n).scatter_(2, parents[:, :, None], 1)
        counts = own @ self.adjacency  # neighbours of a node with a color
        free = (counts == 0) & (own == 0)
        together, ones = parents[:, 0] * k + parents[:, 1], torch.ones_like(parents[:, 0], dtype=torch.float)
        both = ones.new_zeros(len(parents), k * k).scatter_add_(1, together, ones).view(-1, k, k)
        sizes = torch.stack([both.sum(2), both.sum(1)], 1).gather(2, parents)
        largest = torch.stack([both.amax(2), both.amax(1)], 1).gather(2, parents)
        shared = both.flatten(1).gather(1, together)[:, None]
        deviation = (self.degree - mean).square().mean().clamp(min=1e-6).sqrt()
        conflicts = counts.gather(2, parents[:, :, None])[:, :, 0].float()
        takes, colors = free.sum(3).log1p().gather(2, parents), free.sum(2).log1p()
        x = (
            conflicts, largest / sizes, shared / sizes, (self.degree - mean) / deviation, takes,
            ages.float().log1p() / LOG_GENERATION, colors, (sizes * k / n + 0.1).log(), mean / n - 0.5,
            torch.full_like(mean, n / k).log() - 1.5,
        )  # fmt: skip
        return torch.stack([each.expand(parents.shape) for each in x], -1)


def adjacency(lists: NeighbourLists) -> np.ndarray:
    """(N, N) bool."""
    n = len(lists.offsets) - 1
    matrix = np.zeros((n, n), dtype=bool)
    matrix[lists.sources, lists.neighbours] = True
    return matrix
