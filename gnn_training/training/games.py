"""A game of self-play: crossover search, one of the methods of `color`, on one graph.

For some pairs of parents, the game makes additional children. A softmax over the sums of values of the classes draws
the classes of each child. The network learns how many conflicts TabuCol leaves in each of these children.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch_geometric.data import Batch, HeteroData

from gnn_training.graph import NeighbourLists
from gnn_training.network.crossover_network import pairs_of
from gnn_training.network.crossover_weights import CrossoverWeights
from gnn_training.search import kernels
from gnn_training.search.crossover import Individual, crossover, features_of, node_values, stacked
from gnn_training.search.engine import Budget, Portfolio, SearchWeights, Worker
from gnn_training.search.first_colorings import seeded
from gnn_training.search.methods import crossover_search
from gnn_training.training.loader import DeviceDataset

PAIRS = 8, 128  # bounds of the number of pairs of parents in a game, which is drawn at random
RECORDED = 32  # largest number of pairs that a game records
CHILDREN = 12  # number of children that are made of a recorded pair
MOVES = 1_000  # moves of TabuCol on each child; more of them would hide the effect of the choice of classes
TEMPERATURE = 0.03, 0.3  # bounds of the temperature of the softmax, in mean values of a class
PLAYED_NODES = 2048  # largest number of nodes of a graph to play on
EXTRA_VARIANCE = 0.3  # added to the variance of the conflicts of siblings, which may be almost zero


class Pair(NamedTuple):
    """Two parents, the number of colors k of their children, and the outcome of each child."""

    graph: int  # position in the packed graphs
    k: int
    colors: np.ndarray  # (2, N) int16
    ages: np.ndarray  # (2, N) uint16, see `Individual`
    origin: np.ndarray  # (CHILDREN, N) int8: the parent (0 or 1) that gave the class of the node, -1 for none
    conflicts: np.ndarray  # (CHILDREN,) int32, left by TabuCol

    @property
    def deviations(self) -> np.ndarray:
        """Conflicts of the children (CHILDREN,) less their mean, in standard deviations."""
        return (self.conflicts - self.conflicts.mean()) / math.sqrt(self.conflicts.var(ddof=1) + EXTRA_VARIANCE)


class PairBatch(NamedTuple):
    """The pairs of this rank in a step."""

    data: HeteroData  # see `batch_of`
    num_pairs: int  # number of pairs in the step on all ranks


class Player(Worker):
    """The worker of a search with one thread, which records pairs of parents. seed: the seed of the game."""

    def __init__(
        self, graph: int, lists: NeighbourLists, colors: np.ndarray, lower: int, weights: CrossoverWeights, seed: int
    ):
        super().__init__(Portfolio(lists, colors, Budget(math.inf, lower, seed=seed), SearchWeights(None, weights)), 0)
        self.graph, self.weights, self.random = graph, weights, np.random.default_rng(seed)
        self.children_rng = seeded(seed, CHILDREN)
        self.num_pairs = round(math.exp(self.random.uniform(*np.log(PAIRS))))
        self.num_seen, self.pairs = 0, list[Pair]()

    def play(self) -> list[Pair]:
        """Search until there were `num_pairs` pairs or the search has ended; return the recorded pairs."""
        turns = crossover_search(self)
        while self.num_seen < self.num_pairs and self.search.is_running:
            next(turns)
        return self.pairs

    def on_generation(self, parents: Sequence[Individual], k: int) -> None:
        """Count a pair, and record some pairs: evenly spaced ones, at most RECORDED of them."""
        self.num_seen += 1
        if self.num_seen % math.ceil(self.num_pairs / RECORDED) == 0:
            self.record(parents, k)

    def record(self, parents: Sequence[Individual], k: int) -> None:
        """Make the children of a pair, and keep the pair if their conflicts differ."""
        colors, ages = stacked(parents)
        values = node_values(features_of(*self.lists, colors, ages, k), colors, k, self.weights)
        children, conflicts = np.empty((CHILDREN, colors.shape[1]), np.int32), np.empty(CHILDREN, np.int32)
        for i in range(CHILDREN):
            first, temperature = i % 2, math.exp(self.random.uniform(*np.log(TEMPERATURE)))
            noise = temperature * abs(values.sum()) / (2 * k) * self.random.gumbel(size=(k, k))
            children[i] = crossover(colors[first], colors[1 - first], values[:: 1 - 2 * first].copy(), k, noise)
            conflicts[i] = self.conflicts_left(children[i].copy(), k)
        self.add(parents, k, children, conflicts)

    def add(self, parents: Sequence[Individual], k: int, children: np.ndarray, conflicts: np.ndarray) -> None:
        """Keep a pair if its children (CHILDREN, N) differ in conflicts. Odd children begin with the second parent."""
        colors, ages = stacked(parents)
        if conflicts.min() < conflicts.max() and not self.search.is_over:
            origin = np.where(children < 0, -1, (children + np.arange(CHILDREN)[:, None]) % 2).astype(np.int8)
            small = np.minimum(ages, np.iinfo(np.uint16).max).astype(np.uint16)
            self.pairs.append(Pair(self.graph, k, colors.astype(np.int16), small, origin, conflicts))

    def conflicts_left(self, child: np.ndarray, k: int) -> int:
        """The number of conflicts that MOVES moves of TabuCol leave in a child."""
        self.look_for(k)
        kernels.complete(*self.lists, child, k, self.children_rng, self.stop)
        return kernels.tabucol(*self.lists, child, k, MOVES, self.children_rng, self.stop).conflicts


def batch_of(pairs: Sequence[Pair], dataset: DeviceDataset) -> HeteroData:
    """Return pairs as one batch of PyG on the device."""
    batch = Batch.from_data_list([as_data(pair, dataset.lists(pair.graph)) for pair in pairs])
    if dataset.device.type == "cpu":
        return batch
    return batch.pin_memory().to(dataset.device, non_blocking=True)  # the host does not wait


def trial_pairs(dataset: DeviceDataset, graphs: np.ndarray, count: int, num_ranks: int) -> PairBatch | None:
    """Return `count` pairs for a trial step, of the largest of these graphs with at most PLAYED_NODES nodes. Their
    children are placeholders. None if there are no such graphs.
    """
    data, pairs = dataset.data, list[Pair]()
    graphs = graphs[data.num_nodes[graphs] <= PLAYED_NODES]
    largest = graphs[np.argsort(-data.num_nodes[graphs], kind="stable")]
    for i in np.resize(largest, count if len(largest) else 0).tolist():
        colors = np.tile(kernels.dsatur(*dataset.lists(i)).astype(np.int16), (2, 1))
        origin, conflicts = np.zeros((CHILDREN, colors.shape[1]), np.int8), np.arange(CHILDREN, dtype=np.int32)
        pairs.append(Pair(i, int(colors.max()) + 1, colors, np.zeros_like(colors, np.uint16), origin, conflicts))
    return PairBatch(batch_of(pairs, dataset), count * num_ranks) if pairs else None


def as_data(pair: Pair, lists: NeighbourLists) -> HeteroData:
    """Return a pair as an input of `CrossoverNetwork`: 2 N rows, one for each node in each coloring, and 2 k classes.
    taken (2 N, CHILDREN): whether a child has the class of a row; deviations (1, CHILDREN): the targets.
    """
    colors = pair.colors.astype(np.int32)
    x = torch.from_numpy(features_of(*lists, colors, pair.ages.astype(np.int32), pair.k))  # (N, 2, F)
    data = pairs_of(x.swapaxes(0, 1)[None], torch.from_numpy(colors).long()[None], pair.k)
    taken = np.concatenate([pair.origin == 0, pair.origin == 1], 1).T.copy()
    data["node"].taken = torch.from_numpy(taken)
    data.deviations = torch.from_numpy(pair.deviations[None].astype(np.float32))
    return data
