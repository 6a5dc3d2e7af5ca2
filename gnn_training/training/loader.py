"""From packed graphs to the batches of a training step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime
from gnn_training.graph import NeighbourLists
from gnn_training.model.graphs import Graphs
from gnn_training.model.network import NUM_GRAPH_FEATURES, NUM_NODE_FEATURES, Structure, structure
from gnn_training.model.program import SETS_FROM, SETS_UP_TO
from gnn_training.model.rule import NUM_WEIGHTS
from gnn_training.settings import TrainSettings
from gnn_training.solve import kernels
from gnn_training.solve.portfolio import seeded
from gnn_training.training.loss import Batch
from gnn_training.training.sampler import EqualCostSampler, PlannedStep, Shape

SET_MOVES = 100  # of the search for every independent set
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


class Prepared(NamedTuple):
    """What the training needs to know of a graph of N nodes and is always the same."""

    first: np.ndarray  # (N,) int16, coloring to start with
    node: np.ndarray  # (N, 5) float32, see Structure
    graph: np.ndarray  # (5,) float32


class DeviceDataset:
    """Packed graphs with their labels, and batches of them on a device."""

    def __init__(self, data: PackedGraphs, device: torch.device):
        self.data, self.device = data, device
        self._prepared: dict[int, Prepared] = {}  # graphs seen so far

    def batch(self, ids: np.ndarray, shape: Shape, seed: tuple[int, ...] = (0,)) -> Batch:
        """The graphs `ids`, at most shape.graphs, padded to `shape`, with random numbers drawn by (seed, graph). Places
        that are left over hold a graph of one node that counts nothing.
        """
        data, places = self.data, shape.graphs - len(ids)
        lists = [neighbour_lists(data, i) for i in ids]
        first = np.zeros((shape.graphs, shape.nodes), np.int64)
        node = np.zeros((*first.shape, NUM_NODE_FEATURES), np.float32)
        graph = np.zeros((shape.graphs, NUM_GRAPH_FEATURES), np.float32)
        change = np.zeros((shape.graphs, NUM_WEIGHTS), np.float32)
        seeds = np.zeros(shape.graphs, np.int64)
        for row, i in enumerate(ids):
            if i not in self._prepared:
                self._prepared[i] = prepared(lists[row])
            n = len(self._prepared[i].first)
            first[row, :n], node[row, :n], graph[row] = self._prepared[i]
            rng = np.random.default_rng([*seed, int(i), SEARCH])
            seeds[row], change[row] = rng.integers(2**31), rng.standard_normal(NUM_WEIGHTS, dtype=np.float32)
        lists += places * [NeighbourLists(np.zeros(2, np.int64), np.zeros(0, np.int32))]
        graphs = Graphs(*(self._tensor(x) for x in padded(lists, shape.nodes)))

        def column(values: np.ndarray, kind: type = np.int64) -> Tensor:
            return self._tensor(torch.from_numpy(np.concatenate([values[ids], np.ones(places)]).astype(kind)))

        return Batch(
            graphs=graphs,
            lists=lists,
            structure=Structure(graphs.exists, *(self._tensor(torch.from_numpy(x)) for x in (node, graph))),
            first=self._tensor(torch.from_numpy(first)),
            num_colors=column(data.num_colors),
            lower=column(data.lower_bound),
            graph_type=column(data.graph_type),
            difficulty=column(data.difficulty, np.float32),
            seeds=self._tensor(torch.from_numpy(seeds)),
            change=self._tensor(torch.from_numpy(change)),
            graph_mask=self._tensor((torch.arange(shape.graphs) < len(ids)).float()),
            max_colors=shape.colors,
        )

    def _tensor(self, x: Tensor) -> Tensor:
        if self.device.type == "cuda":
            x = x.pin_memory()  # else the copy would wait for everything before it
        return x.to(self.device, non_blocking=True)


def padded(lists: Sequence[NeighbourLists], num_nodes: int) -> Graphs:
    """Graphs of neighbour lists, padded to so many nodes."""
    sizes = np.array([len(offsets) - 1 for offsets, _ in lists])[:, None]  # (G, 1)
    degrees, first = np.zeros((2, len(lists), num_nodes), np.int64)
    edges = np.cumsum([0, *(len(neighbours) for _, neighbours in lists)])
    for row, (offsets, _) in enumerate(lists):
        degrees[row, : len(offsets) - 1] = np.diff(offsets)
        first[row, : len(offsets) - 1] = edges[row] + offsets[:-1]
    graph = np.repeat(np.arange(len(lists)), np.diff(edges))
    source = np.concatenate([np.repeat(np.arange(num_nodes), row) for row in degrees])
    neighbours = np.concatenate([neighbours for _, neighbours in lists]).astype(np.int64)
    columns = np.append(graph, 0), np.append(source, 0), np.append(neighbours, num_nodes)
    window = np.arange(max(1, degrees.max()))
    exists = np.arange(num_nodes) < sizes
    return Graphs(*map(torch.from_numpy, (exists, degrees, first, *columns, window)))


def prepared(lists: NeighbourLists) -> Prepared:
    """What is always the same of one graph."""
    known = structure(padded([lists], len(lists.offsets) - 1))
    return Prepared(first_coloring(lists), known.node[0].numpy(), known.graph[0].numpy())


def neighbour_lists(data: PackedGraphs, i: int) -> NeighbourLists:
    """Neighbour lists of graph i, without the edge list and the sorting of `Graph.csr`."""
    source, neighbours = np.nonzero(data.adjacency(i))
    offsets = np.searchsorted(source, np.arange(data.num_nodes[i] + 1))
    return NeighbourLists(offsets.astype(np.int64), neighbours.astype(np.int32))


def first_coloring(lists: NeighbourLists) -> np.ndarray:
    """A greedy coloring (N,) like that of the program: by DSATUR or, in dense graphs, independent sets."""
    colors, n = kernels.dsatur(*lists), len(lists.offsets) - 1
    if len(lists.neighbours) >= SETS_FROM * n * (n - 1) and n <= SETS_UP_TO:
        sets, rng, stop = np.full(n, -1, dtype=np.int32), seeded(0, n), np.zeros(1, dtype=np.uint8)
        while (sets < 0).any():
            sets[kernels.independent_set(*lists, sets < 0, SET_MOVES, rng, stop)[0]] = sets.max() + 1
        colors = min(colors, sets, key=np.max)
    return colors.astype(np.int16)
