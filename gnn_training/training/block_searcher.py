"""Searches on an NVIDIA GPU, one per thread block: memory, launches and results around `search.search_cuda`."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numba import cuda
from torch import Tensor

from gnn_training.data.packed import PackedGraphs
from gnn_training.search import search_cuda
from gnn_training.search.search_cuda import DeviceGraphs, Launch
from gnn_training.search.search_kernel import noise_table
from gnn_training.training.loader import Batch, copied_to


class BlockSearcher:
    """Searches the graphs of a folder; each stays on the GPU from its first search on. search_on_cpu: for graphs that
    are too large.
    """

    def __init__(self, data: PackedGraphs, device: torch.device, search_on_cpu: Callable[..., tuple[Tensor, Tensor]]):
        self.data, self.device, self.search_on_cpu = data, device, search_on_cpu
        properties: Any = torch.cuda.get_device_properties(device)
        self.max_shared = properties.shared_memory_per_block_optin
        nodes = data.num_nodes.astype(np.int64)
        self.first_node = np.cumsum([0, *nodes])
        self.first_word = np.cumsum([0, *nodes * -(-nodes // search_cuda.BITS)])
        self.num_colors = np.zeros(len(data), int)  # of the colorings to start with, 0 if a graph is not there yet
        self._tables = lru_cache(1)(self._make_tables)
        self._streams = [torch.cuda.Stream(device) for _ in range(2)]  # of launches, which run at the same time
        self.graphs = DeviceGraphs(
            nodes=self._copied(data.num_nodes), ends=self._copied(2 * data.num_edges),
            num_colors=self._empty(torch.int32, len(data)), first_node=self._copied(self.first_node),
            first_word=self._copied(self.first_word), first=self._empty(torch.int16, self.first_node[-1]),
            adjacency=self._empty(torch.uint32, self.first_word[-1]),
        )  # fmt: skip

    @torch.no_grad()
    def __call__(self, weights: Tensor, batch: Batch, rounds: int) -> tuple[Tensor, Tensor]:
        """Search; see `Searcher`. Nothing here waits for the GPU, unless a search is too large for a block."""
        for i, first in zip(batch.ids.tolist(), batch.first, strict=True):
            if not self.num_colors[i]:
                self._keep(i, first)
        repeats, count = weights.shape[:2]
        outcomes = torch.empty(2, repeats * count, device=self.device)  # colors and conflicts
        nodes, colors = (values[np.tile(batch.ids, repeats)] for values in (self.data.num_nodes, self.num_colors))
        launches, too_large = search_cuda.plan(nodes.tolist(), colors.tolist(), self.max_shared)
        searches = [values.repeat(repeats) for values in (self._copied(batch.ids), batch.lower, batch.seeds)]
        main = torch.cuda.current_stream(self.device)
        for launch, stream in zip(launches, self._streams, strict=False):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                places = self._copied(launch.searches)
                chosen = [values[places] for values in (*searches, weights.flatten(0, 1))]
                outcomes[:, places] = torch.stack(self.run(launch, chosen, int(nodes.max()), rounds)[:2])
        if len(too_large):  # the cores search these graphs
            rows = too_large[: len(too_large) // repeats].tolist()
            results = self.search_on_cpu(weights, batch, rounds, rows)
            outcomes[:, self._copied(too_large)] = torch.stack(results).flatten(1)
        for stream in self._streams:
            main.wait_stream(stream)
        fewest, conflicts = outcomes.view(2, repeats, count)
        return fewest, conflicts

    def _keep(self, i: int, first: np.ndarray) -> None:
        """Copy graph i and its first coloring to the GPU."""
        self.num_colors[i] = first.max() + 1
        self.graphs.num_colors[i : i + 1] = self._copied(self.num_colors[i : i + 1].astype(np.int32))
        self.graphs.first[self.first_node[i] : self.first_node[i + 1]] = self._copied(first)
        words = self._copied(search_cuda.words(self.data.adjacency(i)))
        self.graphs.adjacency[self.first_word[i] : self.first_word[i + 1]] = words

    def run(self, launch: Launch, searches: list[Tensor], num_nodes: int, rounds: int) -> tuple[Tensor, ...]:
        """Fewest colors (R,) float, conflicts (R,) and the best colorings (R, N) int16 of R searches. searches: graph,
        lower (at least 1), seeds and weights (R, ...); num_nodes: N, that of the largest.
        """
        count, empty = len(launch.searches), self._empty
        tables = self._tables(int(self.num_colors.max()), max(rounds, int(self.data.num_nodes.max())))
        large = empty(torch.int16, count, launch.large)
        fewest, conflicts = empty(torch.int32, count), empty(torch.float32, count)
        best = empty(torch.int16, count, num_nodes)
        tensors = (*self.graphs, *searches, *tables, large, fewest, conflicts, best)
        kernel = search_cuda.kernel(launch.in_shared, self.max_shared)
        stream = cuda.external_stream(torch.cuda.current_stream(self.device).cuda_stream)
        kernel[count, search_cuda.THREADS, stream, launch.shared](*map(as_array, tensors), rounds)
        return fewest.float(), conflicts, best

    def _make_tables(self, num_colors: int, count: int) -> tuple[Tensor, Tensor]:
        """Noise of so many colors, and logarithms."""
        return self._copied(noise_table(num_colors)), self._copied(search_cuda.logarithms(count))

    def _copied(self, values: np.ndarray) -> Tensor:
        return copied_to(self.device, values)

    def _empty(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(*map(int, shape), dtype=dtype, device=self.device)


def as_array(tensor: Tensor) -> Any:
    """The memory of a tensor, as a kernel of numba takes it."""
    return cuda.as_cuda_array(tensor.contiguous(), sync=False)
