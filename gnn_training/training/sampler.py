"""Which graphs every rank trains on at every step: a DistributedSampler whose batches all cost about the same.

An epoch takes every graph exactly once. Graphs of similar size share a bucket. All batches of a step take graphs of one
bucket and are padded to one shape, so every rank does the same work and few shapes occur. The buckets are those that
make the epoch cheapest, with padding and empty places counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import DistributedSampler

SAMPLER_PURPOSE = 0  # purpose of the random generator, beside those of loader.py
PAIRS_PER_NODE = 60  # what a node costs in a round besides its node-color pairs, in such pairs
ALIGNMENT = 8  # a shape's nodes are a multiple of it, so that there are fewer shapes
STEP_COST = 0.1  # of a full step: what a step costs besides its pairs (launches, the all-reduce, the optimizer)
BUCKET_COST = 0.25  # of a full step: what an additional bucket must save, as few buckets mean few shapes


def cost(num_nodes: Any, num_colors: Any) -> Any:
    """Work of one round in node-color pairs, numbers or arrays, with what every node adds."""
    return num_nodes * (num_colors + PAIRS_PER_NODE)


@dataclass(frozen=True)
class Shape:
    """What the batches of a step are padded to."""

    graphs: int
    nodes: int
    colors: int

    @property
    def cost(self) -> float:
        """Work of one round in node-color pairs."""
        return self.graphs * float(cost(self.nodes, self.colors))


@dataclass(frozen=True)
class Bucket:
    """Graphs (indices) that take `steps` steps of an epoch in one shape."""

    indices: np.ndarray
    shape: Shape
    steps: int


@dataclass(frozen=True)
class PlannedStep:
    """One step of one rank. shape: of every batch of the step on all ranks; micro_batches: graph indices of this rank,
    at most shape.graphs each and perhaps none; num_graphs: graphs of the step on all ranks.
    """

    shape: Shape
    micro_batches: list[np.ndarray]
    num_graphs: int


class EqualCostSampler(DistributedSampler):
    """Yields one PlannedStep after the other; `set_epoch` shuffles, the same way on all ranks.

    Args:
        indices: (G,) the graphs to sample from.
        num_nodes, num_colors: (G,) their sizes, which decide the cost; the colors are the most that a step may allow.
        batch_size: cost that one micro-batch of one rank may hold; larger graphs come alone.
        micro_batches: batches of a rank per step.
    """

    def __init__(
        self, indices: np.ndarray, num_nodes: np.ndarray, num_colors: np.ndarray, batch_size: int, num_replicas: int,
        rank: int, seed: int = 0, micro_batches: int = 1,
    ):  # fmt: skip
        super().__init__(indices, num_replicas, rank, seed=seed)  # type: ignore[arg-type] # it only takes the length
        self.num_parts = num_replicas * micro_batches
        size_class = np.round(6 * np.log(num_nodes))  # sizes within a class differ by a sixth at most
        # Colors ascend in one class and descend in the next: at their border neither size nor colors jump.
        colors = np.where(size_class % 2, -num_colors.astype(int), num_colors)
        order = np.lexsort((indices, colors, size_class))
        self.indices = indices[order]
        self.num_nodes = -(-num_nodes[order].astype(int) // ALIGNMENT) * ALIGNMENT
        self.num_colors = num_colors[order].astype(int)
        self.buckets = self._cheapest_buckets(batch_size)

    def __len__(self) -> int:
        """Steps of an epoch, the same for every epoch."""
        return sum(bucket.steps for bucket in self.buckets)

    @property
    def graphs_per_step(self) -> float:
        """Mean number of graphs of a step on all ranks."""
        return len(self.indices) / len(self)

    def __iter__(self) -> Iterator[PlannedStep]:
        rng = np.random.default_rng([self.seed, self.epoch, SAMPLER_PURPOSE])
        steps = [
            (bucket.shape, graphs)
            for bucket in self.buckets
            for graphs in np.array_split(rng.permutation(bucket.indices), bucket.steps)
        ]
        for i in rng.permutation(len(steps)):
            shape, graphs = steps[i]
            mine = np.array_split(graphs, self.num_parts)[self.rank :: self.num_replicas]
            yield PlannedStep(shape, mine, len(graphs))

    def _cheapest_buckets(self, batch_size: int) -> list[Bucket]:
        """Cut the order where the epoch becomes cheapest: dynamic programming over the places where sizes change."""
        sizes = self.num_nodes * (self.num_colors.max() + 1) + self.num_colors
        places = np.concatenate([[0], np.flatnonzero(np.diff(sizes)) + 1, [len(sizes)]])  # (C + 1,)
        cheapest, cut = np.zeros(len(places)), np.zeros(len(places), dtype=int)
        full = batch_size * self.num_parts
        for end in range(1, len(places)):
            nodes, colors, counts = self._runs(places[: end + 1])
            steps, graphs = self._division(counts, cost(nodes, colors), batch_size)
            spent = steps * (self.num_parts * graphs * cost(nodes, colors) + STEP_COST * full) + BUCKET_COST * full
            total = spent + cheapest[:end]
            cut[end] = total.argmin()
            cheapest[end] = total[cut[end]]
        buckets, end = [], len(places) - 1
        while end:
            buckets.append(self._bucket(places[cut[end]], places[end], batch_size))
            end = cut[end]
        return buckets[::-1]

    def _runs(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Padded nodes, padded colors and number of graphs of the runs from each place to the last."""
        starts, end = places[:-1], places[-1]
        nodes, colors = (
            np.maximum.accumulate(np.maximum.reduceat(x[:end], starts)[::-1])[::-1]
            for x in (self.num_nodes, self.num_colors)
        )
        return nodes, colors, end - starts

    def _division(self, counts: np.ndarray, costs: np.ndarray, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
        """Steps that buckets of so many graphs take, and graphs in a batch."""
        steps = np.ceil(counts / (np.maximum(1, batch_size // costs) * self.num_parts))
        return steps, np.ceil(counts / (steps * self.num_parts))

    def _bucket(self, start: int, end: int, batch_size: int) -> Bucket:
        (nodes,), (colors,), counts = self._runs(np.array([start, end]))
        costs = np.array([cost(nodes, colors)])
        (steps,), (graphs,) = self._division(counts, costs, batch_size)
        return Bucket(self.indices[start:end], Shape(int(graphs), int(nodes), int(colors)), int(steps))
