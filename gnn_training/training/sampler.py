"""Which graphs every rank trains on at every step: planned by cost, from the seed, the same on all ranks.

An epoch takes every graph exactly once. Graphs of similar size share a bucket; all parts of a step take graphs of one
bucket in one shape, so every rank does the same work, and few shapes occur. The buckets are those that make the epoch
cheapest, padding and empty places counted.
"""

from dataclasses import dataclass

import numpy as np

PLAN = 0  # purpose of the random generator, beside those of learner.py and rounds.py
NODES_PER_CELL = 128  # a cell costs ~2,300 multiply-adds a round, plus ~17 for every node of its graph
ALIGNMENT = 8  # nodes of a shape are a multiple: matrix units and octets of the packed rows want it
FEWEST = 2  # graphs in a shape, unless one stands alone: a batch of one would be compiled in a form of its own
STEP_COST = 0.1  # of a full step, what a step costs besides its cells: launches, the all-reduce, the optimizer
BUCKET_COST = 0.25  # of a full step, what a bucket of its own must save: shapes are few, company is new


def cost(num_nodes: np.ndarray | int, num_colors: np.ndarray | int) -> np.ndarray | float:
    """Work of one round in cells (node-color pairs), counting what the dense aggregation adds with size."""
    return num_nodes * num_colors * (1 + num_nodes / NODES_PER_CELL)


@dataclass(frozen=True)
class Shape:
    """What a part of a step is padded to."""

    graphs: int
    nodes: int
    colors: int

    @property
    def cost(self) -> float:
        """Work of one round in cells."""
        return self.graphs * cost(self.nodes, self.colors)


@dataclass(frozen=True)
class Planned:
    """One step: number of its bucket, shape of all its parts, graph indices of each, at most shape.graphs or none."""

    bucket: int
    shape: Shape
    parts: list[np.ndarray]


@dataclass(frozen=True)
class Bucket:
    """Graphs (indices) that take `steps` steps of an epoch in one shape."""

    indices: np.ndarray
    shape: Shape
    steps: int


class BatchPlan:
    """Batches of graphs for a group of ranks.

    Args:
        indices: (G,) the graphs to train on.
        num_nodes, num_colors: (G,) their sizes, which decide the cost; colors: the most that a step may allow.
        cells: cost that one part (one micro-batch of one rank) may hold; graphs above half of it come in pairs.
        parts: ranks times micro-batches per step.
        alone: (G,) bool, graphs that take no company, because their form has no padding.
    """

    def __init__(
        self,
        indices: np.ndarray,
        num_nodes: np.ndarray,
        num_colors: np.ndarray,
        cells: int,
        parts: int,
        seed: int,
        alone: np.ndarray | bool = False,
    ):
        alone = np.broadcast_to(alone, indices.shape)
        shelf = np.round(6 * np.log(num_nodes))  # sizes within a shelf differ by a sixth at most
        # Up one shelf and down the next: at their border neither size nor colors jump, which would be padding.
        order = np.lexsort((indices, np.where(shelf % 2, -num_colors.astype(int), num_colors), shelf, alone))
        self.indices, self.alone, self.parts, self.seed = indices[order], alone[order], parts, seed
        self.num_nodes = -(-num_nodes[order].astype(int) // ALIGNMENT) * ALIGNMENT
        self.num_colors = num_colors[order].astype(int)
        self.buckets = self._buckets(cells)
        self._epoch: tuple[int, list[Planned]] = (-1, [])

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps that take every graph once; the same for every epoch."""
        return sum(bucket.steps for bucket in self.buckets)

    def at(self, step: int) -> Planned:
        """Optimizer step `step`, counted over all epochs."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self.epoch(epoch))
        return self._epoch[1][place]

    def epoch(self, epoch: int) -> list[Planned]:
        """All steps of an epoch: graphs of a bucket in new company, steps in a new order."""
        rng = np.random.default_rng([self.seed, epoch, PLAN])
        steps = [
            Planned(number, bucket.shape, np.array_split(step, self.parts))
            for number, bucket in enumerate(self.buckets)
            for step in np.array_split(rng.permutation(bucket.indices), bucket.steps)
        ]
        return [steps[i] for i in rng.permutation(len(steps))]

    def _buckets(self, cells: int) -> list[Bucket]:
        """Cut the order where the epoch becomes cheapest: dynamic programming over the places where sizes change."""
        sizes = (self.num_nodes * (self.num_colors.max() + 1) + self.num_colors) * np.where(self.alone, -1, 1)
        places = np.concatenate([[0], np.flatnonzero(np.diff(sizes)) + 1, [len(sizes)]])  # (C + 1,)
        cheapest, cut = np.zeros(len(places)), np.zeros(len(places), dtype=int)
        for end in range(1, len(places)):
            nodes, colors, counts = self._runs(places[: end + 1])
            alone = self.alone[places[:end]]
            steps, graphs = self._division(counts, cost(nodes, colors), alone, cells)
            full = cells * self.parts
            spent = steps * (self.parts * graphs * cost(nodes, colors) + STEP_COST * full) + BUCKET_COST * full
            whole = np.where(alone == self.alone[places[end] - 1], spent + cheapest[:end], np.inf)
            cut[end] = whole.argmin()
            cheapest[end] = whole[cut[end]]
        buckets, end = [], len(places) - 1
        while end:
            buckets.append(self._bucket(places[cut[end]], places[end], cells))
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

    def _division(
        self, counts: np.ndarray, costs: np.ndarray, alone: np.ndarray, cells: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Steps that buckets of so many graphs take, and graphs in a part."""
        fewest = np.where(alone, 1, FEWEST)
        most = np.where(alone, 1, np.maximum(fewest, cells // costs))
        steps = np.ceil(counts / (most * self.parts))
        return steps, np.maximum(fewest, np.ceil(counts / (steps * self.parts)))

    def _bucket(self, start: int, end: int, cells: int) -> Bucket:
        (nodes,), (colors,), counts = self._runs(np.array([start, end]))
        costs = np.array([cost(nodes, colors)])
        (steps,), (graphs,) = self._division(counts, costs, self.alone[start : start + 1], cells)
        return Bucket(self.indices[start:end], Shape(int(graphs), int(nodes), int(colors)), int(steps))
