"""Searches with given weights in batches, as training and evaluation need them: many graphs, each several times.

The cores of a CPU search graph after graph in compiled loops. An NVIDIA GPU runs hundreds of searches at once, one per
thread block, and makes the same moves. Other GPUs leave the searches to the cores.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from itertools import product
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from gnn_training.graph import Graph, NeighbourLists
from gnn_training.search.search_kernel import SearchTask, noise_table, search_graph

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SearchBatch:
    """G graphs to search, all tensors on one device."""

    ids: np.ndarray  # (G,) int64, positions in the packed graphs
    lists: Callable[[int], NeighbourLists]  # of the graph in a row of the batch
    first: Sequence[np.ndarray]  # (N,) int16 each, colorings to start with
    lower: Tensor  # (G,) int64, bounds on the chromatic number
    seeds: Tensor  # (G,) int64


class GraphStore(Protocol):
    """Where the graphs of all batches are, such as PackedGraphs."""

    num_nodes: np.ndarray
    num_edges: np.ndarray

    def graph(self, i: int) -> Graph:
        """Graph i."""


# Searches every graph S times, with weights (S, G, NUM_WEIGHTS), for so many rounds: fewest colors (S, G) float, and
# the fewest conflicts (S, G) since, 0 where the lower bound is reached.
Searcher = Callable[[Tensor, SearchBatch, int], tuple[Tensor, Tensor]]


def searcher_for(data: GraphStore, device: torch.device) -> Searcher:
    """The fastest way to search on a device."""
    if has_kernels(device):
        return BlockSearcher(data, device)
    if device.type != "cpu":
        log.warning("the cores of the CPU do the searches: on GPUs, they need NVIDIA's and the package numba-cuda")
    return search_on_cpu


def has_kernels(device: torch.device) -> bool:
    """Whether searches can run on a device in thread blocks."""
    return device.type == "cuda" and not torch.version.hip and find_spec("numba_cuda") is not None


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a thread block of a GPU may have."""
    properties: Any = torch.cuda.get_device_properties(device)
    return properties.shared_memory_per_block_optin


@torch.no_grad()
def search_on_cpu(
    weights: Tensor, batch: SearchBatch, rounds: int, rows: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Search graph after graph, on as many threads as torch may use; see `Searcher`. rows: only these graphs."""
    rows, device = range(len(batch.ids)) if rows is None else rows, weights.device
    weights, lower, seeds = (values.detach().cpu() for values in (weights, batch.lower, batch.seeds))

    def run(place: tuple[int, int]) -> tuple[int, float]:
        _, i = place
        task = SearchTask(batch.first[i], rounds, int(seeds[i]), int(lower[i]))
        end = search_graph(batch.lists(i), task, weights[place].numpy())
        return end.num_colors, end.conflicts if end.num_colors > task.lower else 0

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        results = list(pool.map(run, product(range(len(weights)), rows)))
    outcomes = torch.tensor(results, dtype=torch.float32, device=device).view(len(weights), len(rows), 2)
    return outcomes[..., 0], outcomes[..., 1]


class BlockSearcher:
    """Searches the graphs of a folder on an NVIDIA GPU, one search per thread block: memory, launches and results
    around `search.search_cuda`. Each graph stays on the GPU from its first search on.
    """

    def __init__(self, data: GraphStore, device: torch.device):
        from gnn_training.search import search_cuda  # loads numba's CUDA

        self.data, self.device, self.search_cuda = data, device, search_cuda
        self.max_shared = shared_memory(device)
        nodes = data.num_nodes.astype(np.int64)
        self.first_node = np.cumsum([0, *nodes])
        self.first_word = np.cumsum([0, *nodes * -(-nodes // self.search_cuda.BITS)])
        self.num_colors = np.zeros(len(nodes), int)  # of the colorings to start with, 0 if a graph is not there yet
        self._tables = lru_cache(1)(self._make_tables)
        self._streams = [torch.cuda.Stream(device) for _ in range(2)]  # of launches, which run at the same time
        self.graphs = search_cuda.DeviceGraphs(
            nodes=self._copied(data.num_nodes), ends=self._copied(2 * data.num_edges),
            num_colors=self._empty(torch.int32, len(nodes)), first_node=self._copied(self.first_node),
            first_word=self._copied(self.first_word), first=self._empty(torch.int16, self.first_node[-1]),
            adjacency=self._empty(torch.uint32, self.first_word[-1]),
        )  # fmt: skip

    @torch.no_grad()
    def __call__(self, weights: Tensor, batch: SearchBatch, rounds: int) -> tuple[Tensor, Tensor]:
        """Search; see `Searcher`. Nothing here waits for the GPU, unless a search is too large for a block."""
        for i, first in zip(batch.ids.tolist(), batch.first, strict=True):
            if not self.num_colors[i]:
                self._keep(i, first)
        repeats, count = weights.shape[:2]
        outcomes = torch.empty(2, repeats * count, device=self.device)  # colors and conflicts
        nodes, colors = (values[np.tile(batch.ids, repeats)] for values in (self.data.num_nodes, self.num_colors))
        launches, too_large = self.search_cuda.plan(nodes.tolist(), colors.tolist(), self.max_shared)
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
            results = search_on_cpu(weights, batch, rounds, rows)
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
        words = self._copied(self.search_cuda.words(self.data.graph(i).adjacency()))
        self.graphs.adjacency[self.first_word[i] : self.first_word[i + 1]] = words

    def run(self, launch: Any, searches: list[Tensor], num_nodes: int, rounds: int) -> tuple[Tensor, ...]:
        """Fewest colors (R,) float, conflicts (R,) and the best colorings (R, N) int16 of R searches. searches: graph,
        lower (at least 1), seeds and weights (R, ...); num_nodes: N, that of the largest.
        """
        count, empty = len(launch.searches), self._empty
        tables = self._tables(int(self.num_colors.max()), max(rounds, int(self.data.num_nodes.max())))
        large = empty(torch.int16, count, launch.large)
        fewest, conflicts = empty(torch.int32, count), empty(torch.float32, count)
        best = empty(torch.int16, count, num_nodes)
        tensors = (*self.graphs, *searches, *tables, large, fewest, conflicts, best)
        kernel = self.search_cuda.kernel(launch.in_shared, self.max_shared)
        stream = self.search_cuda.cuda.external_stream(torch.cuda.current_stream(self.device).cuda_stream)
        kernel[count, self.search_cuda.THREADS, stream, launch.shared](*map(self.search_cuda.as_array, tensors), rounds)
        return fewest.float(), conflicts, best

    def _make_tables(self, num_colors: int, count: int) -> tuple[Tensor, Tensor]:
        """Noise of so many colors, and logarithms."""
        return self._copied(noise_table(num_colors)), self._copied(self.search_cuda.logarithms(count))

    def _copied(self, values: np.ndarray) -> Tensor:
        return copied_to(self.device, values)

    def _empty(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(*map(int, shape), dtype=dtype, device=self.device)


def copied_to(device: torch.device, values: np.ndarray) -> Tensor:
    """The same values on a GPU, without waiting for it; on a CPU the same memory."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
