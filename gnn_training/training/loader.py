"""From packed graphs to the batches of a training step."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
import torch
from torch import Tensor

from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime
from gnn_training.graph import NeighbourLists
from gnn_training.model.graphs import Graphs
from gnn_training.model.program import SETS_FROM, SETS_UP_TO
from gnn_training.model.search import NUM_WEIGHTS
from gnn_training.settings import TrainSettings
from gnn_training.solve import kernels
from gnn_training.solve.local_search import extractions
from gnn_training.training.loss import Batch
from gnn_training.training.sampler import EqualCostSampler, PlannedStep, Shape

SEARCH = 1  # purpose of the random generator; 0 is the sampler's


@dataclass(frozen=True)
class StepBatch:
    """What one rank needs for one optimizer step. num_graphs: graphs of the step on all ranks."""

    micro_batches: list[Batch]
    num_graphs: int


class GraphLoader:
    """Yields the batches of this rank: every graph once per epoch across all ranks."""

    def __init__(self, settings: TrainSettings, data: PackedGraphs, rt: Runtime):
        self.settings = settings
        self.dataset = DeviceDataset(data, rt.device)
        train = data.indices("train")
        # Nothing can be learned where DSATUR has the fewest colors possible, unless there are no other graphs.
        open_ones = train[data.dsatur_colors[train] > data.lower_bound[train]]
        train = open_ones if len(open_ones) else train
        self.sampler = EqualCostSampler(
            train, data.num_nodes[train], data.dsatur_colors[train], settings.batch_size, rt.world_size, rt.rank,
            settings.seed, settings.accumulate,
        )  # fmt: skip

    def starting_at(self, step: int) -> Iterator[StepBatch]:
        """Yield the batches of optimizer step `step`, counted over all epochs, and of all that follow, without end."""
        first_epoch, skipped = divmod(step, len(self.sampler))
        for epoch in count(first_epoch):
            self.sampler.set_epoch(epoch)
            for planned in islice(self.sampler, skipped, None):
                yield self.load(planned, step)
                step += 1
            skipped = 0

    def load(self, planned: PlannedStep, step: int) -> StepBatch:
        """The batches of a planned step, with what is random drawn by (seed, step, graph)."""
        batches = [self.dataset.batch(ids, planned.shape, (self.settings.seed, step)) for ids in planned.micro_batches]
        return StepBatch(batches, planned.num_graphs)


class DeviceDataset:
    """Packed graphs with their labels, and batches of them on a device."""

    def __init__(self, data: PackedGraphs, device: torch.device):
        self.data, self.device = data, device
        self._first: dict[int, np.ndarray] = {}  # greedy colorings of the graphs seen so far

    def batch(self, ids: np.ndarray, shape: Shape, seed: tuple[int, ...] = (0,)) -> Batch:
        """The graphs `ids`, at most shape.graphs, padded to `shape`, with random numbers drawn by (seed, graph). Places
        that are left over hold a graph of one node that counts nothing.
        """
        data, places = self.data, shape.graphs - len(ids)
        lists = [neighbour_lists(data, i) for i in ids]
        lists += places * [NeighbourLists(np.zeros(2, np.int64), np.zeros(0, np.int32))]
        first = np.zeros((shape.graphs, shape.nodes), np.int64)
        for row, i in enumerate(ids):
            if i not in self._first:
                self._first[i] = first_coloring(lists[row])
            first[row, : len(self._first[i])] = self._first[i]
        generators = [np.random.default_rng([*seed, int(i), SEARCH]) for i in ids]
        seeds = [rng.integers(2**31) for rng in generators] + places * [0]
        change = np.zeros((shape.graphs, NUM_WEIGHTS), np.float32)
        for row, rng in enumerate(generators):
            change[row] = rng.standard_normal(NUM_WEIGHTS, dtype=np.float32)

        def column(values: np.ndarray, dtype: torch.dtype = torch.int64) -> Tensor:
            return self._tensor(np.concatenate([values[ids], np.ones(places, values.dtype)]), dtype)

        return Batch(
            graphs=self.graphs(lists, shape.nodes),
            lists=lists,
            first=self._tensor(first, torch.int64),
            num_colors=column(data.num_colors),
            lower=column(data.lower_bound),
            graph_type=column(data.graph_type),
            difficulty=column(data.difficulty, torch.float32),
            seeds=self._tensor(np.array(seeds), torch.int64),
            change=self._tensor(change, torch.float32),
            graph_mask=self._tensor(np.arange(shape.graphs) < len(ids), torch.float32),
            max_colors=shape.colors,
        )

    def graphs(self, lists: list[NeighbourLists], num_nodes: int) -> Graphs:
        """Graphs of neighbour lists, padded to so many nodes."""
        sizes = np.array([len(offsets) - 1 for offsets, _ in lists])[:, None]  # (G, 1)
        degrees, first = np.zeros((2, len(lists), num_nodes), np.int64)
        edges = np.cumsum([0, *(len(neighbours) for _, neighbours in lists)])
        for row, (offsets, _) in enumerate(lists):
            degrees[row, : len(offsets) - 1] = np.diff(offsets)
            first[row, : len(offsets) - 1] = edges[row] + offsets[:-1]
        graph = np.repeat(np.arange(len(lists)), np.diff(edges))
        source = np.concatenate([np.repeat(np.arange(num_nodes), row) for row in degrees])
        neighbours = np.concatenate([neighbours for _, neighbours in lists])
        columns = np.append(graph, 0), np.append(source, 0), np.append(neighbours, num_nodes)
        window = np.arange(max(1, degrees.max()))
        return Graphs(
            self._tensor(np.arange(num_nodes) < sizes, torch.bool),
            *(self._tensor(x, torch.int64) for x in (degrees, first, *columns, window)),
        )

    def _tensor(self, x: np.ndarray, dtype: torch.dtype) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(x)).to(dtype)
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()  # else the copy would wait for everything before it
        return tensor.to(self.device, non_blocking=True)


def neighbour_lists(data: PackedGraphs, i: int) -> NeighbourLists:
    """Neighbour lists of graph i, without the edge list and the sorting of `Graph.csr`."""
    source, neighbours = np.nonzero(data.adjacency(i))
    offsets = np.searchsorted(source, np.arange(data.num_nodes[i] + 1))
    return NeighbourLists(offsets.astype(np.int64), neighbours.astype(np.int32))


def first_coloring(lists: NeighbourLists) -> np.ndarray:
    """A greedy coloring (N,) like that of the program: by DSATUR or, in dense graphs, independent sets."""
    colors, n = kernels.dsatur(*lists), len(lists.offsets) - 1
    if len(lists.neighbours) >= SETS_FROM * n * (n - 1) and n <= SETS_UP_TO:
        sets = next(found for found in extractions(lists, 0) if found is not None)
        colors = min(colors, sets, key=np.max)
    return colors.astype(np.int16)
