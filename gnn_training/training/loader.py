"""From packed graphs to the batches of a training step."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
from gnn_training.training.sampler import EqualCostSampler, search_costs

log = logging.getLogger(__name__)
SET_MOVES = 100  # of the search for every independent set
SEARCH = 1  # purpose of the random generator; 0 is the sampler's
KEPT = 2**28  # neighbours of all graphs: up to a GiB, lists are kept
GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # 2^64 divided by the golden ratio, in the integers of torch


class GraphLoader:
    """Yields the batches of this rank: every graph once per epoch across all ranks."""

    def __init__(self, settings: TrainSettings, data: PackedGraphs, rt: Runtime):
        self.settings = settings
        self.dataset = DeviceDataset(data, rt.device)
        train = data.indices("train")
        # Nothing can be learned where DSATUR has the fewest colors possible, unless there are no other graphs.
        open_ones = train[data.dsatur_colors[train] > data.lower_bound[train]]
        if rt.is_main and 0 < len(open_ones) < len(train):
            easy = len(train) - len(open_ones)
            log.info("%d of %d training graphs are left out: DSATUR colors them optimally", easy, len(train))
        train = open_ones if len(open_ones) else train
        costs = search_costs(data.num_nodes[train], data.num_edges[train])
        self.sampler = EqualCostSampler(train, costs, settings.batch_size, rt.world_size, rt.rank, settings.seed)

    def starting_at(self, step: int) -> Iterator[Batch]:
        """Yield the batches of optimizer step `step`, counted over all epochs, and of all that follow, without end."""
        first_epoch, skipped = divmod(step, len(self.sampler))
        for epoch in count(first_epoch):
            self.sampler.set_epoch(epoch)
            for planned in islice(self.sampler, skipped, None):
                yield self.dataset.batch(planned.ids, planned.num_graphs, self.settings.seed, step)
                step += 1
            skipped = 0

    def largest(self) -> Batch:
        """A batch of the graphs that take most, as many as a step has."""
        sampler = self.sampler
        ids = sampler.indices[np.argsort(-sampler.costs, kind="stable")][: self.settings.batch_size]
        return self.dataset.batch(ids, len(ids) * sampler.num_replicas)


class Prepared(NamedTuple):
    """What the training needs to know of a graph of N nodes and is always the same."""

    first: np.ndarray  # (N,) int16, coloring to start with
    node: np.ndarray  # (N, 5) float32, see Structure
    graph: np.ndarray  # (5,) float32


class DeviceDataset:
    """Packed graphs with their labels, and batches of them on a device. What is always the same of a graph is computed
    and copied to the device when the graph is first used.
    """

    def __init__(self, data: PackedGraphs, device: torch.device):
        self.data, self.device = data, device
        self._starts = np.cumsum([0, *data.num_nodes], dtype=np.int64)
        self._first: dict[int, np.ndarray] = {}  # colorings of the graphs used so far
        self._lists: dict[int, NeighbourLists] = {}
        keeps_lists = 2 * int(data.num_edges.sum(dtype=np.int64)) <= KEPT
        self._keeps_lists = keeps_lists and device.type == "cpu"  # a GPU keeps graphs itself
        self._node = torch.zeros(int(self._starts[-1]) + 1, NUM_NODE_FEATURES, device=device)  # zeros for no node
        self._graph = torch.zeros(len(data), NUM_GRAPH_FEATURES, device=device)
        columns = data.num_nodes, self._starts[:-1], data.num_colors, data.lower_bound, data.graph_type
        self._columns = torch.from_numpy(np.stack(columns).astype(np.int64)).to(device)
        self.difficulty = torch.from_numpy(data.difficulty.copy()).to(device)

    def batch(self, ids: np.ndarray, num_graphs: int, seed: int = 0, step: int = 0) -> Batch:
        """The graphs `ids`, with random numbers drawn by (seed, step, graph). num_graphs: of the step on all ranks."""
        self._prepare([i for i in ids.tolist() if i not in self._first])
        graph = copied_to(self.device, ids)
        nodes, starts, num_colors, lower, graph_type = self._columns[:, graph]
        columns = torch.arange(int(self.data.num_nodes[ids].max(initial=1)), device=self.device)
        exists = columns < nodes[:, None]
        node = self._node[torch.where(exists, starts[:, None] + columns, len(self._node) - 1)]
        key = int(np.random.SeedSequence([seed, step, SEARCH]).generate_state(1, np.uint64).view(np.int64)[0])
        change, seeds = perturbations(key, graph)
        return Batch(
            ids=ids,
            lists=lambda row: self.lists(int(ids[row])),
            first=[self._first[i] for i in ids.tolist()],
            structure=Structure(exists, node, self._graph[graph]),
            num_colors=num_colors,
            lower=lower,
            graph_type=graph_type,
            difficulty=self.difficulty[graph],
            seeds=seeds,
            change=change,
            num_graphs=num_graphs,
        )

    def lists(self, i: int) -> NeighbourLists:
        """Neighbour lists of graph i."""
        if i in self._lists:
            return self._lists[i]
        lists = self.data.graph(i).csr()
        if self._keeps_lists:
            self._lists[i] = lists
        return lists

    def _prepare(self, ids: list[int]) -> None:
        """Compute what is always the same of these graphs."""
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            for i, prepared in zip(ids, pool.map(self._prepared, ids), strict=True):
                self._first[i] = prepared.first
                self._node[self._starts[i] : self._starts[i + 1]] = copied_to(self.device, prepared.node)
                self._graph[i] = copied_to(self.device, prepared.graph)

    def _prepared(self, i: int) -> Prepared:
        lists = self.lists(i)
        known = structure(as_graphs(lists))
        return Prepared(first_coloring(lists), known.node[0].numpy(), known.graph[0].numpy())


def copied_to(device: torch.device, values: np.ndarray) -> Tensor:
    """The same values on a GPU, without waiting for it; on a CPU the same memory."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def perturbations(key: int, graph: Tensor) -> tuple[Tensor, Tensor]:
    """Standard normal changes of the weights (G, NUM_WEIGHTS) and seeds (G,) for graphs (G,) int64, on their device:
    SplitMix64 (Steele, Lea and Flood 2014) of key, graph and place, then Box and Muller 1958.
    """
    place = torch.arange(NUM_WEIGHTS + 1, device=graph.device)
    z = key + GOLDEN * (graph[:, None] * len(place) + place + 1)
    z = (z ^ shifted(z, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    z = (z ^ shifted(z, 27)) * (0x94D049BB133111EB - 2**64)
    z = z ^ shifted(z, 31)
    radius = (-2 * (((shifted(z, 40) + 1).float() / 2**24).log())).sqrt()
    angle = 2 * torch.pi * (z & (2**24 - 1)).float() / 2**24
    return (radius * angle.cos())[:, :-1], shifted(z[:, -1], 33)


def shifted(x: Tensor, bits: int) -> Tensor:
    """The bits of int64 moved to the right, with zeros from the left."""
    return (x >> bits) & (2 ** (64 - bits) - 1)


def as_graphs(lists: NeighbourLists) -> Graphs:
    """One graph as the network sees it, as `model.graphs.pad` makes it of edges."""
    offsets, neighbours = (torch.from_numpy(values).long() for values in lists)
    n, degrees = len(offsets) - 1, offsets.diff()
    source, none = torch.arange(n).repeat_interleave(degrees), torch.zeros(1, dtype=torch.int64)
    edges = 0 * torch.cat([source, none]), torch.cat([source, none]), torch.cat([neighbours, none + n])
    window = torch.arange(max(1, int(degrees.max())))
    return Graphs(torch.ones(1, n, dtype=torch.bool), degrees[None], offsets[None, :-1], *edges, window)


def first_coloring(lists: NeighbourLists) -> np.ndarray:
    """A greedy coloring (N,) like that of the program: by DSATUR or, in dense graphs, independent sets."""
    colors, n = kernels.dsatur(*lists), len(lists.offsets) - 1
    if len(lists.neighbours) >= SETS_FROM * n * (n - 1) and n <= SETS_UP_TO:
        sets, rng, stop = np.full(n, -1, dtype=np.int32), seeded(0, n), np.zeros(1, dtype=np.uint8)
        while (sets < 0).any():
            sets[kernels.independent_set(*lists, sets < 0, SET_MOVES, rng, stop)[0]] = sets.max() + 1
        colors = min(colors, sets, key=np.max)
    return colors.astype(np.int16)
