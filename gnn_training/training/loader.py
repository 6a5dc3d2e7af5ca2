"""From packed graphs to the batches of a training step: a sampler whose ranks do about the same work, and batches on
the device.
"""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from heapq import heapreplace
from itertools import count, islice, repeat

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DistributedSampler

from gnn_training.contract import HORIZON
from gnn_training.data.packed import STATE, STATE_NODES, PackedGraphs, cut
from gnn_training.distributed import Runtime
from gnn_training.model import network
from gnn_training.model.graphs import concatenated, pad
from gnn_training.model.network import NONE_SINCE, Edges, SearchState
from gnn_training.model.rule import NUM_WEIGHTS
from gnn_training.settings import TrainSettings
from gnn_training.solve.portfolio import first_coloring
from gnn_training.training.loss import Batch, StateBatch

log = logging.getLogger(__name__)
SAMPLER, SEARCH, HORIZONS = range(3)  # purposes of random generators
EVER, AS_CALLED = 0.2, 0.6  # shares of states asked for all times, and, including these, for that of the file
KEPT = 2**28  # neighbours of all graphs: up to a GiB, lists are kept
GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # 2^64 divided by the golden ratio, in the integers of torch


@dataclass(frozen=True)
class PlannedStep:
    """One step of one rank. ids: graphs of this rank, the largest first, perhaps none; num_graphs: graphs of the step
    on all ranks.
    """

    ids: np.ndarray
    num_graphs: int


class EqualCostSampler(DistributedSampler):
    """Yields one PlannedStep after the other; an epoch takes every graph exactly once over all ranks. `set_epoch`
    shuffles, the same way on all ranks.

    Args:
        indices: (G,) the graphs to sample from.
        costs: (G,) what a search of each takes, in any unit.
        batch_size: graphs of one rank in a step, at most on the mean.
    """

    def __init__(
        self, indices: np.ndarray, costs: np.ndarray, batch_size: int, num_replicas: int, rank: int, seed: int = 0
    ):
        super().__init__(indices, num_replicas, rank, seed=seed)  # type: ignore[arg-type] # it only takes the length
        self.indices, self.costs = indices, costs
        self.num_steps = -(-len(indices) // (batch_size * num_replicas))

    def __len__(self) -> int:
        """Steps of an epoch."""
        return self.num_steps

    @property
    def graphs_per_step(self) -> float:
        """Mean number of graphs of a step on all ranks."""
        return len(self.indices) / len(self)

    def __iter__(self) -> Iterator[PlannedStep]:
        rng = np.random.default_rng([self.seed, self.epoch, SAMPLER])
        for places in np.array_split(rng.permutation(len(self.indices)), len(self)):
            mine = share(self.costs[places], self.num_replicas)[self.rank]
            yield PlannedStep(self.indices[places[mine]], len(places))


def share(costs: np.ndarray, num_parts: int) -> list[np.ndarray]:
    """Divide items into parts of about the same cost, and return their positions: each goes, the largest first, to the
    part that has the least so far (Graham 1969).
    """
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    loads = [(0.0, part) for part in range(num_parts)]
    for i in np.argsort(-costs, kind="stable"):
        load, part = loads[0]
        heapreplace(loads, (load + costs[i], part))
        parts[part].append(i)
    return [np.array(part, dtype=int) for part in parts]


def search_costs(num_nodes: np.ndarray, num_edges: np.ndarray) -> np.ndarray:
    """What a round of a search takes, in 3 ns of a core: fitted to 180 graphs of 100 to 1,000 nodes."""
    return 600 + num_nodes + 11 * num_edges / num_nodes


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
        ids = self.dataset.state_ids("train")
        edges = data.num_edges[self.dataset.state_graph[ids]]
        self.states = EqualCostSampler(ids, edges, settings.batch_states, rt.world_size, rt.rank, settings.seed)

    def starting_at(self, step: int) -> Iterator[Batch]:
        """Yield the batches of optimizer step `step`, counted over all epochs, and of all that follow, without end."""
        seed, dataset = self.settings.seed, self.dataset
        for graphs, states in zip(planned(self.sampler, step), planned(self.states, step), strict=False):
            batch = dataset.batch(graphs.ids, graphs.num_graphs, seed, step)
            yield replace(batch, states=dataset.states(states.ids, states.num_graphs, seed, step))
            step += 1

    def largest(self) -> Batch:
        """A batch of the graphs that take most, as many as a step has."""
        sampler = self.sampler
        ids = sampler.indices[np.argsort(-sampler.costs, kind="stable")][: self.settings.batch_size]
        states = self.states.indices[np.argsort(-self.states.costs, kind="stable")][: self.settings.batch_states]
        batch = self.dataset.batch(ids, len(ids) * sampler.num_replicas)
        return replace(batch, states=self.dataset.states(states, len(states) * sampler.num_replicas))


def planned(sampler: EqualCostSampler, step: int) -> Iterator[PlannedStep]:
    """The plans of a sampler for step `step`, counted over all epochs, and for all that follow, without end."""
    if not len(sampler):
        yield from repeat(PlannedStep(np.zeros(0, int), 0))
    first_epoch, skipped = divmod(step, len(sampler))
    for epoch in count(first_epoch):
        sampler.set_epoch(epoch)
        yield from islice(sampler, skipped, None)
        skipped = 0


class DeviceDataset:
    """Packed graphs with their labels and states, and batches of them on a device. What is always the same of a graph
    is computed when it is first used.
    """

    def __init__(self, data: PackedGraphs, device: torch.device):
        self.data, self.device = data, device
        self._first: dict[int, np.ndarray] = {}  # colorings of the graphs used so far
        keeps_lists = device.type == "cpu" and 2 * int(data.num_edges.sum(dtype=np.int64)) <= KEPT  # a GPU keeps graphs
        self.lists = lru_cache(None if keeps_lists else 0)(lambda i: data.graph(i).csr())  # of graph i
        self._structure = cache(self._make_structure)
        columns = data.num_colors, data.lower_bound
        self._columns = torch.from_numpy(np.stack(columns).astype(np.int64)).to(device)
        counts = np.diff(data.state_offset) // STATE
        self.state_graph = np.repeat(np.arange(len(data)), counts)  # (S,) the graph of every state
        self._state_number = np.arange(len(self.state_graph)) - np.repeat(np.cumsum(counts) - counts, counts)

    def state_ids(self, split: str) -> np.ndarray:
        """The states of the graphs of `train` or `validation`, ascending."""
        return np.flatnonzero(np.isin(self.state_graph, self.data.indices(split)))

    def batch(self, ids: np.ndarray, num_graphs: int, seed: int = 0, step: int = 0) -> Batch:
        """The graphs `ids`, with random numbers drawn by (seed, step, graph), without states. num_graphs: of the step
        on all ranks.
        """
        self._prepare([i for i in ids.tolist() if i not in self._first])
        graph = copied_to(self.device, ids)
        num_colors, lower = self._columns[:, graph]
        key = int(np.random.SeedSequence([seed, step, SEARCH]).generate_state(1, np.uint64).view(np.int64)[0])
        change, seeds = perturbations(key, graph)
        return Batch(
            ids=ids,
            lists=lambda row: self.lists(int(ids[row])),
            first=[self._first[i] for i in ids.tolist()],
            num_colors=num_colors,
            lower=lower,
            seeds=seeds,
            change=change,
            num_graphs=num_graphs,
        )

    def states(self, ids: np.ndarray, num_states: int, seed: int = 0, step: int | None = None) -> StateBatch | None:
        """The states `ids`, each with a horizon drawn by (seed, step, state); without a step with that of the file, or
        the whole search if it is shorter. num_states: of the step on all ranks.
        """
        graphs = self.state_graph[ids].tolist()
        if not graphs:
            return None
        data, lists, structures = self.data, [self.lists(i) for i in graphs], [self._structure(i) for i in graphs]
        places = [(i, number) for i, number in zip(graphs, self._state_number[ids].tolist(), strict=True)]
        seen = np.stack([cut(data.tensors, "states", i).reshape(-1, STATE)[number] for i, number in places])
        nodes = [cut(data.tensors, "state_nodes", i).reshape(-1, STATE_NODES, data.num_nodes[i])[number]
                 for i, number in places]  # fmt: skip
        colors, *counts = np.concatenate(nodes, 1)
        horizons = [self._horizon(i, int(rounds), [seed, step, HORIZONS, state] if step is not None else None)
                    for i, rounds, state in zip(graphs, seen[:, 0], ids.tolist(), strict=True)]  # fmt: skip
        later = np.array([self._later(*each) for each in zip(graphs, seen[:, 0].tolist(), horizons, strict=True)])
        sizes = data.num_nodes[graphs].astype(np.int64)
        starts = np.cumsum(sizes) - sizes

        def copied(values: np.ndarray, dtype: type = np.float32) -> Tensor:
            return copied_to(self.device, values.astype(dtype))

        degrees = np.concatenate([np.diff(each.offsets) for each in lists])
        edges = Edges(
            node_graph=copied(np.repeat(np.arange(len(graphs)), sizes), np.int64),
            degrees=copied(degrees, np.int64),
            source=copied(np.repeat(np.arange(len(degrees)), degrees), np.int64),
            neighbours=copied(np.concatenate([x.neighbours + s for x, s in zip(lists, starts, strict=True)]), np.int64),
        )
        free, one, around, moves = (copied(each) for each in counts)
        num_colors, reached, saved, last = later.T
        conflicts = np.where(seen[:, 1] < 2 * NONE_SINCE, seen[:, 1] / 2, 10 * NONE_SINCE)
        search = SearchState(
            copied(colors, np.int64), free, one, around, moves, copied(num_colors), copied(data.clique[graphs]),
            copied(seen[:, 0]), copied(reached), copied(conflicts), copied(np.array(horizons)),
        )  # fmt: skip
        node, graph = (copied(np.concatenate(each)) for each in zip(*structures, strict=True))
        color_ids = copied(np.arange(colors.max() + 1), np.int64)
        return StateBatch(
            inputs=network.states(edges, node, graph, search, color_ids),
            search=search,
            saved=copied(saved),
            log_rounds=copied(np.log10(1 + last)),
            graph_type=copied(data.graph_type[graphs], np.int64),
            num_states=num_states,
        )

    def _horizon(self, i: int, rounds: int, draw: list[int] | None) -> int:
        """Rounds at which to ask for the colors of graph i after `rounds`; 0 for those of its label."""
        data, longest = self.data, int(self.data.search_rounds[i])
        is_over = data.search_colors[i] <= data.clique[i]  # nothing will change
        as_called = HORIZON * rounds if is_over else min(HORIZON * rounds, longest)
        if draw is None:
            return as_called
        kind, u = np.random.default_rng(draw).random(2)
        if kind < EVER:
            return 0
        if kind < AS_CALLED and as_called == HORIZON * rounds:
            return as_called
        return round(rounds * (longest / rounds) ** u)

    def _later(self, i: int, rounds: int, horizon: int) -> tuple[int, int, int, int]:
        """Of the long search of graph i: colors after `rounds`, the round in which there were so few, colors saved from
        then to the horizon, and the round of the last of them.
        """
        reached = cut(self.data.tensors, "reached", i)
        most = int(self.data.search_colors[i]) + len(reached) - 1
        now, then = (int(np.searchsorted(reached, r, "right")) - 1 for r in (rounds, horizon or 2**31 - 1))
        saved = then - now
        if not horizon:
            saved = max(saved, most - now - int(self.data.num_colors[i]))
        return most - now, int(reached[now]), saved, int(reached[then])

    def _make_structure(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Features of nodes (N, 5) and graph (1, 5)."""
        node, graph = network.structure(pad(*concatenated([self.data.graph(i)]))[0])
        return node[0].numpy(), graph.numpy()

    def _prepare(self, ids: list[int]) -> None:
        """Color these graphs."""
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            colorings = pool.map(lambda i: first_coloring(self.lists(i)), ids)
            self._first |= zip(ids, colorings, strict=True)


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
