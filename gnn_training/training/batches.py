"""Which graphs every rank trains on at every step: planned by cost, from the seed, the same on all ranks.

An epoch takes every graph exactly once. A global batch holds graphs of similar size, so that padding is small, and is
dealt to the ranks by the longest-processing-time rule (Graham 1969), so that all of them finish together.
"""

import heapq

import numpy as np

PLAN = 0  # purpose of the random generator, beside those of objective.py
STRAY = 2  # batches that a graph may stray from its place: new company every epoch
NODES_PER_CELL = 128  # a cell costs ~2,300 multiply-adds a round, plus ~17 for every node of its graph


def cost(num_nodes: np.ndarray, num_colors: np.ndarray) -> np.ndarray:
    """Work of one round in cells (node-color pairs), counting what the dense aggregation adds with size."""
    return num_nodes * num_colors * (1 + num_nodes / NODES_PER_CELL)


def deal(costs: np.ndarray, parts: int) -> list[np.ndarray]:
    """Split positions 0..len(costs)-1 into `parts` of nearly equal cost; parts can be empty when there are too few."""
    loads, dealt = [(0.0, part) for part in range(parts)], [[] for _ in range(parts)]
    for position in np.argsort(-costs, kind="stable"):
        load, part = heapq.heappop(loads)
        dealt[part].append(position)
        heapq.heappush(loads, (load + costs[position], part))
    return [np.array(sorted(positions), dtype=np.int64) for positions in dealt]


class BatchPlan:
    """Batches of graphs for a group of ranks.

    Args:
        indices: (G,) the graphs to train on.
        num_nodes, num_colors: (G,) their sizes, which decide the cost.
        cells: cost that one part (one micro-batch of one rank) may hold; a graph above it stands alone.
        parts: ranks times micro-batches per step.
    """

    def __init__(
        self, indices: np.ndarray, num_nodes: np.ndarray, num_colors: np.ndarray, cells: int, parts: int, seed: int
    ):
        shelf = np.round(6 * np.log(num_nodes))  # sizes within a shelf differ by a sixth at most
        # Up one shelf and down the next: at their border neither size nor colors jump, which would be padding.
        order = np.lexsort((indices, np.where(shelf % 2, -num_colors.astype(int), num_colors), shelf))
        self.indices = indices[order]
        self.num_nodes = num_nodes[order].astype(float)
        self.num_colors = num_colors[order] + 2.0  # training draws up to two colors more than the best known
        self.parts, self.seed = parts, seed
        self.cuts = self._cut(cells)
        self._epoch = (-1, [])

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps that take every graph once; the same for every epoch."""
        return len(self.cuts) - 1

    def at(self, step: int) -> list[np.ndarray]:
        """The graph indices of every part at optimizer step `step`, counted over all epochs."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self.epoch(epoch))
        return self._epoch[1][place]

    def epoch(self, epoch: int) -> list[list[np.ndarray]]:
        """All steps of an epoch, each a list of parts, each an array of graph indices."""
        rng = np.random.default_rng([self.seed, epoch, PLAN])
        place = np.interp(np.arange(len(self.indices)), self.cuts, np.arange(len(self.cuts)))  # in batches
        order = np.argsort(place + STRAY * rng.random(len(place)), kind="stable")
        costs = cost(self.num_nodes, self.num_colors)
        runs = [order[a:b] for a, b in zip(self.cuts[:-1], self.cuts[1:], strict=True)]
        steps = [[self.indices[run[part]] for part in deal(costs[run], self.parts)] for run in runs]
        return [steps[i] for i in rng.permutation(len(steps))]

    def _cut(self, cells: int) -> list[int]:
        """Where global batches begin and end: padded cost at most cells * parts, but one graph a part at least."""
        cuts, start = [0], 0
        for end in range(1, len(self.indices) + 1):
            n, k = self.num_nodes[start:end].max(), self.num_colors[start:end].max()
            full = (end - start) * cost(n, k) > cells * self.parts
            if full and end - start > self.parts:
                cuts.append(end - 1)
                start = end - 1
        return [*cuts, len(self.indices)]
