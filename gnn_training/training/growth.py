"""How time and memory of a step grow with nodes, colors and cells: a grid of shapes, measured to fit the formula to."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, product

import numpy as np
import torch

from gnn_training.training.batches import FEWEST, Planned, Shape, cost
from gnn_training.training.cost import Measurement
from gnn_training.training.learner import Learner
from gnn_training.training.rounds import SPREAD, free_rounds_at, rounds_of

NODES, COLORS, CELLS = 4, 3, (0.25, 1.0)  # places in the grid; cells as shares of a full batch
REPEATS = 2  # the faster one counts: what else the machine does is no part of the formula
WARM_UPS = 3  # steps
DRAWS = 1000  # steps to choose one from for its free rounds


def measure(learner: Learner, seconds: float, peak_bytes: Callable[[Learner], float]) -> list[Measurement]:
    """Measure shapes between the smallest and the largest of the plan: the cheapest, and then the costliest first.

    Those that would take more than half of what is left of `seconds` are left out: what grows fastest shows in large
    shapes, but one alone tells little. peak_bytes: takes a step, tells its bytes.
    """
    end, measured, mean = time.monotonic() + seconds, [], learner.settings.rounds
    numbers = count(len(learner.plan.buckets))  # of buckets that the plan does not have
    for shape in _grid(learner):
        if measured and _expected(shape, measured) > (end - time.monotonic()) / 2:
            continue
        for rounds, free_rounds in ((mean - SPREAD, 0), (mean + SPREAD, mean)):  # few, and many of either kind
            bucket = next(i for i in numbers if rounds_of(i, mean, learner.settings.seed) == rounds)
            with repeating(learner, shape, bucket):
                measured.append(_measure(learner, shape, rounds, free_rounds, peak_bytes))
    return measured


def _expected(shape: Shape, measured: list[Measurement]) -> float:
    """Seconds to measure a shape, by the pace of the costliest so far."""
    costliest = max(measured, key=lambda m: m.shape.cost * m.rounds)
    return 2 * (1 + REPEATS) * costliest.seconds * shape.cost / costliest.shape.cost


def _measure(learner: Learner, shape: Shape, rounds: int, wanted: int, peak_bytes: Callable) -> Measurement:
    mean, seed = learner.settings.rounds, learner.settings.seed
    step = min(range(DRAWS), key=lambda step: abs(free_rounds_at(step, mean, seed) - wanted))
    learner.step = step
    num_bytes = peak_bytes(learner)  # warms up, too
    seconds = min(_timed(learner, step) for _ in range(REPEATS))
    return Measurement(shape, rounds, free_rounds_at(step, mean, seed), seconds, num_bytes)


def _timed(learner: Learner, step: int) -> float:
    learner.step, start = step, time.monotonic()
    advance(learner)
    synchronize(learner)
    return time.monotonic() - start


def _grid(learner: Learner) -> list[Shape]:
    shapes = [bucket.shape for bucket in learner.plan.buckets]
    nodes, colors = (
        np.geomspace(min(sizes), max(sizes), number).round().astype(int)
        for sizes, number in (([shape.nodes for shape in shapes], NODES), ([shape.colors for shape in shapes], COLORS))
    )
    grid = {
        Shape(max(FEWEST, round(share * learner.settings.batch_cells / cost(n, k))), n, k)
        for n, k, share in product(nodes.tolist(), colors.tolist(), CELLS)
    }  # a set: some are the same
    cheapest, *others = sorted(grid, key=lambda shape: (shape.cost, shape.nodes, shape.colors))
    return [cheapest, *reversed(others)]


def warm_up(learner: Learner) -> None:
    """Take steps until an epoch meets nothing new: where a GPU records them, every form is recorded at its second."""
    mean, seed, plan = learner.settings.rounds, learner.settings.seed, learner.plan
    steps = range(WARM_UPS)
    if learner.recorder:
        forms = {(plan.at(i).bucket, free_rounds_at(i, mean, seed) > 0): i for i in range(plan.steps_per_epoch)}
        steps = [*forms.values(), *forms.values()]
    for learner.step in steps:
        advance(learner)
    synchronize(learner)
    learner.step = 0


def advance(learner: Learner) -> None:
    """One step as training takes it."""
    learner.update()
    learner.heard()


def synchronize(learner: Learner) -> None:
    """Wait for the device."""
    if learner.rt.device.type == "cuda":
        torch.cuda.synchronize(learner.rt.device)


class Repeated:
    """A plan of one step, again and again."""

    def __init__(self, planned: Planned):
        self.planned = planned

    def at(self, step: int) -> Planned:
        """The step, whichever is asked for."""
        return self.planned


@contextmanager
def repeating(learner: Learner, shape: Shape, bucket: int) -> Iterator[None]:
    """Let a learner take steps of one shape only. An empty place costs what a graph costs: one graph a part will do."""
    plan, train = learner.plan, learner.plan.indices
    smallest = train[np.argmin(learner.data.num_nodes[train])]
    learner.plan = Repeated(Planned(bucket, shape, [np.array([smallest])] * plan.parts))
    try:
        yield
    finally:
        learner.plan = plan
