"""Generations of children on an NVIDIA GPU: memory, launches and results around `search.search_cuda`.

Letters in shapes: R children, N nodes of the largest graph.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gnn_training.graph import NeighbourLists
from gnn_training.network.rule import NOT_MOVED
from gnn_training.search import search_cuda
from gnn_training.search.search_kernel import noise_table

MOST_ROUNDS = search_cuda.LAST - NOT_MOVED  # of a child
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
        return torch.from_numpy(values).to(self.device)


def adjacency(lists: NeighbourLists) -> np.ndarray:
    """(N, N) bool."""
    n = len(lists.offsets) - 1
    matrix = np.zeros((n, n), dtype=bool)
    matrix[np.repeat(np.arange(n), np.diff(lists.offsets)), lists.neighbours] = True
    return matrix
