"""The batches of a training step, made from packed graphs: a sampler gives every rank about the same work, and a
dataset puts the batches on the device.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapreplace
from itertools import count, islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gnn_training.contract import HORIZON
from gnn_training.data.packed import PackedGraphs, ragged_row
from gnn_training.distributed import Runtime
from gnn_training.network.rule import NUM_WEIGHTS
from gnn_training.network.states import STATE_FEATURES, prediction_inputs
from gnn_training.search.batches import SearchBatch, copied_to
from gnn_training.settings import TrainSettings

log = logging.getLogger(__name__)
SAMPLER, SEARCH, HORIZONS = range(3)  # purposes of random generators
# Cumulative probabilities of the horizon of a state: unlimited, that of the exported file; the others are log-uniform.
UNLIMITED_SHARE, CALL_SHARE = 0.2, 0.6
MAX_CACHED_NEIGHBOURS = 2**28  # lists are kept if all graphs have at most this many neighbours (1 GiB)


@dataclass(frozen=True)
class GraphBatch(SearchBatch):
    """G graphs with their labels, all tensors on one device. num_graphs: the graphs in the step on all ranks."""

    num_colors: Tensor  # (G,) int64, fewest known
    epsilon: Tensor  # (G, NUM_WEIGHTS) float, change of the rule, standard normal
    num_graphs: int


@dataclass(frozen=True)
class StateBatch:
    """S states of long searches and what came later, on one device. num_states: states in the step on all ranks."""

    inputs: Tensor  # (S, STATE_FEATURES + 2) float, see states.prediction_inputs
    num_colors: Tensor  # (S,) float, fewest so far
    lower: Tensor  # (S,) float, lower bound on the number of colors
    saved: Tensor  # (S,) float, colors saved until the horizon
    log_rounds: Tensor  # (S,) float, decimal logarithm of 1 + the round of the last color saved by then
    graph_type: Tensor  # (S,) int64
    num_states: int


class PlannedStep(NamedTuple):
    """One step of one rank."""

    ids: np.ndarray  # the graphs or states of this rank, perhaps none
    num_graphs: int  # their number in the step on all ranks


class EqualCostSampler:
    """Deals out the graphs of each step. An epoch takes every graph exactly once over all ranks, in an order that all
    ranks share. indices (G,): the graphs to sample from, perhaps none; costs (G,): the cost of a search of each graph,
    in any unit; batch_size: upper bound of the mean number of graphs of a rank in a step.
    """

    def __init__(
        self, indices: np.ndarray, costs: np.ndarray, batch_size: int, num_ranks: int, rank: int, seed: int = 0
    ):
        self.indices, self.costs, self.batch_size = indices, costs, batch_size
        self.num_ranks, self.rank, self.seed = num_ranks, rank, seed

    def __len__(self) -> int:
        """The number of steps of an epoch."""
        return max(1, -(-len(self.indices) // (self.batch_size * self.num_ranks)))

    @property
    def graphs_per_step(self) -> float:
        """Mean number of graphs of a step on all ranks."""
        return len(self.indices) / len(self)

    def epoch(self, number: int) -> Iterator[PlannedStep]:
        """Yield the plans of the steps of an epoch."""
        rng = np.random.default_rng([self.seed, number, SAMPLER])
        for places in np.array_split(rng.permutation(len(self.indices)), len(self)):
            positions = partition(self.costs[places], self.num_ranks)[self.rank]
            yield PlannedStep(self.indices[places[positions]], len(places))

    def starting_at(self, step: int) -> Iterator[PlannedStep]:
        """Yield the plans of step `step`, counted over all epochs, and of all later steps, without end."""
        for number in count(step // len(self)):
            yield from islice(self.epoch(number), max(0, step - number * len(self)), None)

    def largest(self) -> PlannedStep:
        """A step with the `batch_size` most expensive graphs, which are the same on every rank."""
        ids = self.indices[np.argsort(-self.costs, kind="stable")][: self.batch_size]
        return PlannedStep(ids, len(ids) * self.num_ranks)


def partition(costs: np.ndarray, num_parts: int) -> list[np.ndarray]:
    """Divide items into parts of about the same cost, and return the positions of the items of each part. Each item,
    the most expensive first, goes to the part with the lowest cost so far (Graham 1969).
    """
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    loads = [(0.0, part) for part in range(num_parts)]
    for i in np.argsort(-costs, kind="stable"):
        load, part = loads[0]
        heapreplace(loads, (load + costs[i], part))
        parts[part].append(i)
    return [np.array(part, dtype=int) for part in parts]


def search_costs(data: PackedGraphs, ids: np.ndarray) -> np.ndarray:
    """The cost of a round of a search, in units of 3 ns on a core, fitted to 180 graphs of 100 to 1,000 nodes."""
    return 600 + data.num_nodes[ids] + 11 * data.num_edges[ids] / data.num_nodes[ids]


class GraphLoader:
    """Yields the batches of this rank: every graph once per epoch across all ranks."""

    def __init__(self, settings: TrainSettings, data: PackedGraphs, rt: Runtime):
        self.seed, self.dataset = settings.seed, DeviceDataset(data, rt.device)
        train = data.indices("train")
        # Graphs that DSATUR colors optimally teach nothing, so they are used only if there are no others.
        open_ones = train[data.dsatur_colors[train] > data.lower_bound[train]]
        if rt.is_main and 0 < len(open_ones) < len(train):
            easy = len(train) - len(open_ones)
            log.info("%d of %d training graphs are left out: DSATUR colors them optimally", easy, len(train))
        train = open_ones if len(open_ones) else train
        ranks = rt.world_size, rt.rank, settings.seed
        self.sampler = EqualCostSampler(train, search_costs(data, train), settings.batch_size, *ranks)
        ids = self.dataset.state_ids("train")
        self.state_sampler = EqualCostSampler(ids, np.ones(len(ids)), settings.batch_states, *ranks)

    def starting_at(self, step: int) -> Iterator[tuple[GraphBatch, StateBatch | None]]:
        """Yield the graphs and the states of optimizer step `step`, counted over all epochs, and of all later steps,
        without end.
        """
        plans = zip(self.sampler.starting_at(step), self.state_sampler.starting_at(step), strict=False)
        for number, (graphs, states) in enumerate(plans, step):
            yield self._batch(graphs, states, number)

    def largest(self) -> tuple[GraphBatch, StateBatch | None]:
        """Return the most expensive graphs, as many as a step has, and the states of a step."""
        return self._batch(self.sampler.largest(), self.state_sampler.largest(), 0)

    def _batch(self, graphs: PlannedStep, states: PlannedStep, step: int) -> tuple[GraphBatch, StateBatch | None]:
        dataset, seed = self.dataset, self.seed
        return dataset.graphs(*graphs, seed, step), dataset.states(*states, seed, step)


class DeviceDataset:
    """Packed graphs with their labels and states, and batches of them on a device. Neighbour lists are computed when
    they are first used, and kept if MAX_CACHED_NEIGHBOURS allows.
    """

    def __init__(self, data: PackedGraphs, device: torch.device):
        self.data, self.device = data, device
        keeps_lists = 2 * int(data.num_edges.sum(dtype=np.int64)) <= MAX_CACHED_NEIGHBOURS
        self.lists = lru_cache(None if keeps_lists else 0)(lambda i: data.graph(i).csr())  # neighbour lists of graph i
        columns = data.num_colors, data.lower_bound
        self._columns = torch.from_numpy(np.stack(columns).astype(np.int64)).to(device)
        self.state_graph = np.repeat(np.arange(len(data)), np.diff(data.state_offset))  # (S,) graph of each state

    def state_ids(self, split: str) -> np.ndarray:
        """The states of the graphs of a split (`train` or `validation`), in ascending order."""
        return np.flatnonzero(np.isin(self.state_graph, self.data.indices(split)))

    def graphs(self, ids: np.ndarray, num_graphs: int, seed: int = 0, step: int = 0) -> GraphBatch:
        """The graphs `ids`, with random numbers drawn by (seed, step, graph). num_graphs: of the step on all ranks."""
        num_colors, lower = self._columns[:, copied_to(self.device, ids)]
        epsilon, seeds = (copied_to(self.device, values) for values in perturbations(seed, step, ids))
        first = [ragged_row(self.data.tensors, "first", i) for i in ids]
        return GraphBatch(
            ids, lambda row: self.lists(int(ids[row])), first, lower, seeds, num_colors, epsilon, num_graphs
        )

    def states(self, ids: np.ndarray, num_states: int, seed: int = 0, step: int | None = None) -> StateBatch | None:
        """The states `ids`, None if there are none. Horizons are drawn by (seed, step, state); if step is None, they
        are those of the exported file, or the ends of shorter searches. num_states: states in the step on all ranks.
        """
        if not len(ids):
            return None
        data, graphs, rounds = self.data, self.state_graph[ids], self.data.state_rounds[ids]
        draws = [[seed, step, HORIZONS, state] if step is not None else None for state in ids.tolist()]
        horizons = list(map(self._horizon, graphs, rounds.tolist(), draws))
        num_colors, saved, last = np.array(list(map(self._outlook, graphs, rounds.tolist(), horizons))).T

        def copied(values: np.ndarray, dtype: type = np.float32) -> Tensor:
            return copied_to(self.device, values.astype(dtype))

        features = copied(data.states.reshape(-1, STATE_FEATURES)[ids])
        return StateBatch(
            inputs=prediction_inputs(features, copied(rounds), copied(np.array(horizons))),
            num_colors=copied(num_colors),
            lower=copied(data.clique[graphs]),
            saved=copied(saved),
            log_rounds=copied(np.log10(1 + last)),
            graph_type=copied(data.graph_type[graphs], np.int64),
            num_states=num_states,
        )

    def _horizon(self, i: int, rounds: int, draw: list[int] | None) -> int:
        """Return the number of rounds to predict for the long search of graph i, from its start on, at round `rounds`:
        as in the exported file, or until the search ends. draw: seed of a random horizon instead; 0 means unlimited.
        """
        longest, is_over = int(self.data.search_rounds[i]), self.data.search_colors[i] <= self.data.clique[i]
        called = HORIZON * rounds
        is_recorded = called <= longest or bool(is_over)  # nothing changes after the lower bound is reached
        if draw is None:
            return called if is_recorded else longest
        kind, u = np.random.default_rng(draw).random(2)
        if kind < UNLIMITED_SHARE:
            return 0
        return called if kind < CALL_SHARE and is_recorded else round(rounds * (longest / rounds) ** u)

    def _outlook(self, i: int, rounds: int, horizon: int) -> tuple[int, int, int]:
        """Return what came after round `rounds` of the long search of graph i: the number of colors at that round, the
        number of colors saved from it to the horizon (0: unlimited), and the round of the last color saved by then.
        """
        data, reached = self.data, ragged_row(self.data.tensors, "reached", i)
        now, then = (int(np.searchsorted(reached, r, "right")) - 1 for r in (rounds, horizon or 2**31 - 1))
        num_colors, saved = int(data.search_colors[i]) + len(reached) - 1 - now, then - now
        if not horizon:
            saved = max(saved, num_colors - int(data.num_colors[i]))
        return num_colors, saved, int(reached[then])


def perturbations(seed: int, step: int, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standard normal epsilon (G, NUM_WEIGHTS) float32 and seeds of searches (G,) int64 for the graphs `ids` in a step.
    The counter of Philox (Salmon et al. 2011) begins with step and graph, so neither batch nor rank changes them.
    """
    epsilon, seeds = np.empty((len(ids), NUM_WEIGHTS), np.float32), np.empty(len(ids), np.int64)
    for row, graph in enumerate(ids.tolist()):
        rng = np.random.Generator(np.random.Philox(key=[seed, SEARCH], counter=[0, 0, step, graph]))
        rng.standard_normal(out=epsilon[row], dtype=np.float32)
        seeds[row] = rng.integers(2**31)
    return epsilon, seeds
