"""Searches on an NVIDIA GPU, one per thread block: memory, launches and results around `search.search_cuda`.

Letters in shapes: G graphs, R searches or children, N nodes of the largest graph.
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
from gnn_training.search.batches import GraphStore, SearchBatch, copied_to, search_on_cpu
from gnn_training.search.search_kernel import noise_table

MOST_ROUNDS = search_cuda.LAST - NOT_MOVED  # largest number of rounds of a child
MEMORY_SHARE = 0.4  # share of the free memory of a GPU that children may use


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a thread block of a GPU may have."""
    properties: Any = torch.cuda.get_device_properties(device)
    return properties.shared_memory_per_block_optin


def fitting(nodes: np.ndarray, colors: np.ndarray, device: torch.device) -> np.ndarray:
    """Whether a GPU can search each graph: (G,) bool. nodes, colors (G,): their numbers in each graph."""
    fits = np.ones(len(nodes), dtype=bool)
    fits[search_cuda.plan_launches(nodes.tolist(), colors.tolist(), shared_memory(device))[1]] = False
    return fits


class KernelLauncher:
    """What the searches on a GPU share: tables, and launches on the current stream of torch."""

    of_children = False

    def __init__(self, device: torch.device):
        self.device, self.max_shared = device, shared_memory(device)
        self._tables = lru_cache(1)(self._make_tables)

    def _launch(self, launch: search_cuda.Launch, tensors: Sequence[Tensor], rounds: int) -> None:
        """Start a launch, in which each search has a thread block."""
        kernel = search_cuda.kernel(launch.in_shared, self.max_shared, self.of_children, self.device.index)
        stream = search_cuda.cuda.external_stream(torch.cuda.current_stream(self.device).cuda_stream)
        blocks = len(launch.searches)
        kernel[blocks, search_cuda.THREADS, stream, launch.shared](*map(search_cuda.as_array, tensors), rounds)

    def _make_tables(self, num_colors: int, count: int) -> tuple[Tensor, Tensor]:
        """The tables of a launch: noise for `num_colors` colors, and logarithms up to `count`, rounds or nodes."""
        return self._copied(noise_table(num_colors)), self._copied(search_cuda.logarithms(count))

    def _copied(self, values: np.ndarray) -> Tensor:
        return copied_to(self.device, values)

    def _empty(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(*map(int, shape), dtype=dtype, device=self.device)


class BlockSearcher(KernelLauncher):
    """Searches the graphs of a folder. Each graph stays on the GPU from its first search on."""

    def __init__(self, data: GraphStore, device: torch.device):
        super().__init__(device)
        self.data = data
        nodes = data.num_nodes.astype(np.int64)
        self.first_node = np.cumsum([0, *nodes])
        self.first_word = np.cumsum([0, *nodes * -(-nodes // search_cuda.BITS)])
        self.num_colors = np.zeros(len(nodes), int)  # of the first colorings; 0 for a graph that is not on the GPU yet
        self._streams = [torch.cuda.Stream(device) for _ in range(2)]  # for launches that run at the same time
        self.graphs = search_cuda.DeviceGraphs(
            nodes=self._copied(data.num_nodes), num_neighbours=self._copied(2 * data.num_edges),
            num_colors=self._empty(torch.int32, len(nodes)), first_node=self._copied(self.first_node),
            first_word=self._copied(self.first_word), first=self._empty(torch.int16, self.first_node[-1]),
            adjacency=self._empty(torch.uint32, self.first_word[-1]),
        )  # fmt: skip

    @torch.no_grad()
    def __call__(self, weights: Tensor, batch: SearchBatch, rounds: int) -> tuple[Tensor, Tensor]:
        """Search; see `Searcher`. Nothing here waits for the GPU, unless a search is too large for a block."""
        for row, (i, first) in enumerate(zip(batch.ids.tolist(), batch.first, strict=True)):
            if not self.num_colors[i]:
                self._keep(i, batch.lists(row), first)
        repeats, count = weights.shape[:2]
        outcomes = torch.empty(2, repeats * count, device=self.device)  # colors and conflicts
        nodes, colors = (values[np.tile(batch.ids, repeats)] for values in (self.data.num_nodes, self.num_colors))
        launches, too_large = search_cuda.plan_launches(nodes.tolist(), colors.tolist(), self.max_shared)
        searches = [values.repeat(repeats) for values in (self._copied(batch.ids), batch.lower, batch.seeds)]
        tables = self._tables(int(self.num_colors.max()), max(rounds, int(self.data.num_nodes.max())))
        main = torch.cuda.current_stream(self.device)
        for launch, stream in zip(launches, self._streams, strict=False):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                places = self._copied(launch.searches)
                chosen = [values[places] for values in (*searches, weights.flatten(0, 1))]
                outcomes[:, places] = torch.stack(self._run(launch, chosen, tables, rounds))
        if len(too_large):  # the cores search these graphs
            rows = too_large[: len(too_large) // repeats].tolist()
            results = search_on_cpu(weights, batch, rounds, rows)
            outcomes[:, self._copied(too_large)] = torch.stack(results).flatten(1)
        for stream in self._streams:
            main.wait_stream(stream)
        fewest, conflicts = outcomes.view(2, repeats, count)
        return fewest, conflicts

    def _keep(self, i: int, lists: NeighbourLists, first: np.ndarray) -> None:
        """Copy graph i and its first coloring to the GPU."""
        self.num_colors[i] = first.max() + 1
        self.graphs.num_colors[i : i + 1] = self._copied(self.num_colors[i : i + 1].astype(np.int32))
        self.graphs.first[self.first_node[i] : self.first_node[i + 1]] = self._copied(first)
        self.graphs.adjacency[self.first_word[i] : self.first_word[i + 1]] = self._copied(
            search_cuda.adjacency_bits(lists)
        )

    def _run(
        self, launch: search_cuda.Launch, searches: Sequence[Tensor], tables: Sequence[Tensor], rounds: int
    ) -> tuple[Tensor, Tensor]:
        """Run a launch of R searches. Return fewest colors (R,) float and conflicts (R,). searches: graph, lower bound
        (at least 1), seed and weights of each, tensors (R, ...); tables: from `_tables`.
        """
        count, empty = len(launch.searches), self._empty
        large = empty(torch.int16, count, launch.large)
        fewest, conflicts = empty(torch.int32, count), empty(torch.float32, count)
        self._launch(launch, (*self.graphs, *searches, *tables, large, fewest, conflicts), rounds)
        return fewest.float(), conflicts


class Children(NamedTuple):
    """The children of a generation after their search, in the memory of the GPU."""

    conflicts: Tensor  # (R,) int32, of the best coloring
    colors: Tensor  # (R, N) int16
    ages: Tensor  # (R, N) int16, rounds since a node took its color


class ChildSearcher(KernelLauncher):
    """Makes children of colorings of a few graphs, which are on the GPU from the start."""

    of_children = True

    def __init__(self, graphs: Sequence[NeighbourLists], device: torch.device):
        """The device must be that of the present thread."""
        super().__init__(device)
        self.nodes = np.array([lists.num_nodes for lists in graphs], dtype=np.int32)
        num_neighbours = np.array([len(lists.neighbours) for lists in graphs], dtype=np.int32)
        words = [search_cuda.adjacency_bits(lists) for lists in graphs]
        first_word = np.cumsum([0, *map(len, words)])[:-1]
        self.graphs = [
            self._copied(values) for values in (self.nodes, num_neighbours, first_word, np.concatenate(words))
        ]
        self.processors = torch.cuda.get_device_properties(device).multi_processor_count
        self._event = torch.cuda.Event()

    def capacity(self, colors: Sequence[int]) -> int:
        """The number of children that fit on the GPU at once, even of the largest graph; 0 if a graph is too large for
        a block. colors: of every graph.
        """
        launches, too_large = search_cuda.plan_launches(self.nodes.tolist(), colors, self.max_shared)
        free, reserved = MEMORY_SHARE * torch.cuda.mem_get_info(self.device)[0], search_cuda.RESERVED
        rooms = [0] * min(1, len(too_large))
        for launch in launches:
            blocks = min(search_cuda.BLOCKS, (self.max_shared + reserved) // (launch.shared + reserved))
            rooms.append(max(1, min(self.processors * blocks, int(free / (2 * launch.large)))))
        return min(rooms)

    def __call__(
        self, graph: np.ndarray, k: np.ndarray, starts: np.ndarray, seeds: np.ndarray, weights: np.ndarray, rounds: int
    ) -> Children:
        """Make a child of every start, see `search_kernel.search_child`, and return at once. graph (R,): place among
        the graphs; k, seeds (R,); starts (R, N); weights (R, NUM_WEIGHTS) float32; rounds: MOST_ROUNDS at most. Every
        graph must fit into a block.
        """
        count, num_nodes = shape = starts.shape
        sizes = (torch.int32, count), (torch.int16, *shape), (torch.int16, *shape)
        children = Children(*(self._empty(*size) for size in sizes))
        tables = self._tables(int(k.max()), max(rounds, num_nodes))
        launches, too_large = search_cuda.plan_launches(self.nodes[graph].tolist(), k.tolist(), self.max_shared)
        assert not len(too_large) and rounds <= MOST_ROUNDS
        kinds = np.int32, np.int32, np.int64, np.int16, np.float32
        given = [
            self._copied(each.astype(kind))
            for each, kind in zip((graph, k, seeds, starts, weights), kinds, strict=True)
        ]
        for launch in launches:
            places, blocks = self._copied(launch.searches), len(launch.searches)
            large = self._empty(torch.int16, blocks, launch.large)
            made = Children(*(torch.empty_like(each[:blocks]) for each in children))
            tensors = *self.graphs, *(each[places] for each in given), *tables, large, *made
            self._launch(launch, tensors, rounds)
            for all_of_them, some in zip(children, made, strict=True):
                all_of_them[places] = some
        self._event.record()
        return children

    def is_done(self) -> bool:
        """Whether the last children are finished. RuntimeError if the GPU reports an error."""
        return self._event.query()
