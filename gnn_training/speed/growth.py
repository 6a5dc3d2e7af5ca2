"""How time and memory of a step grow with nodes, colors and cells: a grid of shapes, measured and fitted."""

import time
from collections.abc import Iterator
from itertools import product

import numpy as np

from gnn_training.speed.pace import advance, following, only, peak_bytes, synchronize
from gnn_training.training.batches import Shape, cost
from gnn_training.training.cost import Measurement
from gnn_training.training.learner import Learner
from gnn_training.training.rounds import SPREAD, rounds_at

NODES, COLORS, CELLS = 4, 3, (0.25, 1.0)  # places in the grid; cells as shares of a full batch
DRAWS = 1000  # steps to choose from


def measure(learner: Learner, seconds: float) -> list[Measurement]:
    """Measure shapes between the smallest and the largest of the plan, in random order, until the time is over."""
    start, steps, measured = time.monotonic(), _steps(learner), []
    for shape in _grid(learner):
        if measured and time.monotonic() - start > seconds:
            break
        with following(learner, only(learner, shape)):
            measured += [_measure(learner, shape, step) for step in steps]
    return measured


def _measure(learner: Learner, shape: Shape, step: int) -> Measurement:
    learner.step = step
    num_bytes = peak_bytes(learner)  # warms up, too
    learner.step, start = step, time.monotonic()
    advance(learner)
    synchronize(learner)
    rounds = rounds_at(step, learner.settings.rounds, learner.settings.seed)
    return Measurement(shape, *rounds, time.monotonic() - start, num_bytes)


def _grid(learner: Learner) -> Iterator[Shape]:
    shapes = [bucket.shape for bucket in learner.plan.buckets]
    nodes, colors = (
        np.geomspace(min(sizes), max(sizes), count).round().astype(int)
        for sizes, count in (([shape.nodes for shape in shapes], NODES), ([shape.colors for shape in shapes], COLORS))
    )
    grid = list(product(nodes.tolist(), colors.tolist(), CELLS))
    for i in np.random.default_rng(learner.settings.seed).permutation(len(grid)):
        n, k, share = grid[i]
        yield Shape(max(1, round(share * learner.settings.batch_cells / cost(n, k))), n, k)


def _steps(learner: Learner) -> list[int]:
    """A step of few rounds, all with gradient, and one of many of either kind."""
    mean = learner.settings.rounds
    drawn = np.array([rounds_at(step, mean, learner.settings.seed) for step in range(DRAWS)])  # (S, 2)
    wanted = (mean - SPREAD, 0), (mean + SPREAD, mean)
    return [int(np.abs(drawn - rounds).sum(1).argmin()) for rounds in wanted]
