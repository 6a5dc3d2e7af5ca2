"""Time and memory of a step by formula: what each grows with is known, how much it takes is fitted to measurements."""
# DOC How time and memory of a step grow with nodes, colors and cells: a grid of shapes, measured to fit the formula to.
# DOC What a training will take: a few small steps measured here, a formula fitted to them, and the plan of the whole.

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, product

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import join
from gnn_training.settings import TrainSettings
from gnn_training.training.learner import Learner, obstacle
from gnn_training.training.loader import SPREAD, mean_no_gradient_rounds, no_gradient_rounds_at, rounds_of
from gnn_training.training.sampler import FEWEST, BatchPlan, Planned, Shape, cost


@dataclass(frozen=True)
class Measurement:
    """A step as it was measured; bytes at its peak, beside what lies there between steps."""

    shape: Shape
    rounds: int
    no_gradient_rounds: int
    seconds: float
    bytes: float


@dataclass(frozen=True)
class Formula:
    """Nonnegative factors of what `_time_terms` and `_memory_terms` count, and how far off they are at worst where fitted."""

    of_time: tuple[float, ...]
    of_memory: tuple[float, ...]
    time_error: float
    memory_error: float

    def seconds(self, shape: Shape, rounds: float, no_gradient_rounds: float) -> float:
        """Time of a step of one part, without the other ranks."""
        return float(np.dot(self.of_time, _time_terms(shape, rounds, no_gradient_rounds)))

    def bytes(self, shape: Shape, rounds: float) -> float:
        """Memory of a step of one part at its peak."""
        return float(np.dot(self.of_memory, _memory_terms(shape, rounds)))


def formula(measured: Sequence[Measurement]) -> Formula:
    """The formula that is least off, relative to what was measured."""
    of_time, time_error = _relative(
        [_time_terms(m.shape, m.rounds, m.no_gradient_rounds) for m in measured], [m.seconds for m in measured]
    )
    of_memory, memory_error = _relative(
        [_memory_terms(m.shape, m.rounds) for m in measured], [m.bytes for m in measured]
    )
    return Formula(of_time, of_memory, time_error, memory_error)


def _relative(counts: Sequence[tuple[float, ...]], measured: Sequence[float]) -> tuple[tuple[float, ...], float]:
    """Factors of least relative error, and the worst relative error."""
    shares = np.array(counts) / np.array(measured)[:, None]  # (M, C)
    factors = fit(shares, np.ones(len(shares)))
    return tuple(factors.tolist()), float(np.abs(shares @ factors - 1).max())


def _time_terms(shape: Shape, rounds: float, no_gradient_rounds: float) -> tuple[float, ...]:
    """A step; a round with gradient, its cells, its cells by nodes; the same for a free round."""
    cells = shape.graphs * shape.nodes * shape.colors
    return (1.0, *(count * size for count in (rounds, no_gradient_rounds) for size in (1, cells, cells * shape.nodes)))


def _memory_terms(shape: Shape, rounds: float) -> tuple[float, ...]:
    """A step; pairs of nodes; cells of one round; what all rounds with gradient keep of their cells and nodes."""
    rows = shape.graphs * shape.nodes
    cells = rows * shape.colors
    return (1.0, rows * shape.nodes, cells, rounds * cells, rounds * rows)


def fit(counts: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Factors (C,), none negative, for which counts (M, C) @ factors is nearest to measured (M,) in squares."""
    scale = counts.max(0)  # else a factor of 1e-9 would pass for none
    used = scale > 0
    while True:
        factors = np.zeros(len(scale))
        factors[used] = np.linalg.lstsq(counts[:, used] / scale[used], measured, rcond=None)[0]
        if (factors >= 0).all():
            return np.divide(factors, scale, out=factors, where=used)
        used &= factors > factors.min()


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
        for rounds, no_gradient_rounds in ((mean - SPREAD, 0), (mean + SPREAD, mean)):  # few, and many of either kind
            bucket = next(i for i in numbers if rounds_of(i, mean, learner.settings.seed) == rounds)
            with repeating(learner, shape, bucket):
                measured.append(_measure(learner, shape, rounds, no_gradient_rounds, peak_bytes))
    return measured


def _expected(shape: Shape, measured: list[Measurement]) -> float:
    """Seconds to measure a shape, by the pace of the costliest so far."""
    costliest = max(measured, key=lambda m: m.shape.cost * m.rounds)
    return 2 * (1 + REPEATS) * costliest.seconds * shape.cost / costliest.shape.cost


def _measure(learner: Learner, shape: Shape, rounds: int, wanted: int, peak_bytes: Callable) -> Measurement:
    mean, seed = learner.settings.rounds, learner.settings.seed
    step = min(range(DRAWS), key=lambda step: abs(no_gradient_rounds_at(step, mean, seed) - wanted))
    learner.step = step
    num_bytes = peak_bytes(learner)  # warms up, too
    seconds = min(_timed(learner, step) for _ in range(REPEATS))
    return Measurement(shape, rounds, no_gradient_rounds_at(step, mean, seed), seconds, num_bytes)


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
        Shape(max(FEWEST, round(share * learner.settings.batch_size / cost(n, k))), n, k)
        for n, k, share in product(nodes.tolist(), colors.tolist(), CELLS)
    }  # a set: some are the same
    cheapest, *others = sorted(grid, key=lambda shape: (shape.cost, shape.nodes, shape.colors))
    return [cheapest, *reversed(others)]


def warm_up(learner: Learner) -> None:
    """Take steps until an epoch meets nothing new: where a GPU records them, every form is recorded at its second."""
    mean, seed, plan = learner.settings.rounds, learner.settings.seed, learner.plan
    steps = range(WARM_UPS)
    if learner.recorder:
        forms = {(plan.at(i).bucket, no_gradient_rounds_at(i, mean, seed) > 0): i for i in range(plan.steps_per_epoch)}
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


SECONDS = 3.0  # to measure
CPU_CELLS = 8_000  # a GPU preset's batch would take minutes on a CPU; the formula knows how its cells count
HEADROOM = 1.3  # peak memory over what is kept for the backward pass
COMPILED = 0.5  # time of a compiled step over one that is not: 2.1 times as fast on two cores of an EPYC with bf16
JITTER = 0.05  # by which sizes drawn from a sample vary: copies would fit each other without padding


@dataclass(frozen=True)
class Estimate:
    """Of every rank: bytes at the peak beside what torch itself takes, seconds a step; of the group: steps an epoch.

    recomputes: the backward pass makes the rounds again, because memory is too little to keep them all.
    """

    peak_bytes: float
    seconds_per_step: float
    steps_per_epoch: int
    recomputes: bool


def estimate(settings: TrainSettings, data: PackedGraphs, share: float, ranks: int, threads: int) -> Estimate:
    """Measure a few steps, uncompiled, and sum the formula over the plan of the settings.

    data: the graphs, or a sample that is `share` of them; threads: of a rank, on a CPU.
    """
    torch.set_num_threads(threads)
    with join(settings.device) as rt:
        cells = settings.batch_size if rt.device.type == "cuda" else min(settings.batch_size, CPU_CELLS)
        learner = Learner(settings.model_copy(update={"batch_size": cells, "accumulate": 1}), data, rt)
        fitted = formula(measure(learner, SECONDS, _kept_bytes))
    compiled = settings.compile and obstacle(rt.device) is None
    graphs = round(len(learner.plan.indices) / share)
    whole = plan(*sizes(data, learner.known + learner.reach, graphs, settings.seed), settings, ranks)
    return Estimate(
        peak_bytes=HEADROOM * max(fitted.bytes(bucket.shape, settings.rounds + SPREAD) for bucket in whole.buckets),
        seconds_per_step=(COMPILED if compiled else 1) * epoch_seconds(whole, settings, fitted) / whole.steps_per_epoch,
        steps_per_epoch=whole.steps_per_epoch,
        recomputes=learner.network.recompute,
    )


def sizes(data: PackedGraphs, colors: np.ndarray, graphs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and colors of `graphs` training graphs: those there are, or like them (a smoothed bootstrap)."""
    train = data.indices("train")
    if graphs <= len(train):
        return data.num_nodes[train], colors[train]
    rng = np.random.default_rng(seed)
    drawn = rng.choice(train, graphs)
    nodes, most = (
        np.maximum(1, (x[drawn] * np.exp(JITTER * rng.standard_normal(graphs))).round()).astype(int)
        for x in (data.num_nodes, colors)
    )
    return nodes, most


def plan(nodes: np.ndarray, colors: np.ndarray, settings: TrainSettings, ranks: int) -> BatchPlan:
    """The batches of graphs of these sizes for so many ranks."""
    parts = ranks * settings.accumulate
    return BatchPlan(np.arange(len(nodes)), nodes, colors, settings.batch_size, parts, settings.seed)


def epoch_seconds(plan: BatchPlan, settings: TrainSettings, formula: Formula) -> float:
    """Time of an epoch's steps on every rank, without what ranks tell each other."""
    rounds, no_gradient_rounds = settings.rounds, mean_no_gradient_rounds(settings.rounds)
    return settings.accumulate * sum(
        b.steps * formula.seconds(b.shape, rounds, no_gradient_rounds) for b in plan.buckets
    )


def _kept_bytes(learner: Learner) -> int:
    """Take a step; the bytes that it keeps for the backward pass."""
    with (kept := Kept()):
        advance(learner)
    return kept.bytes


class Kept(saved_tensors_hooks):
    """Counts the bytes that autograd keeps for the backward pass."""

    def __init__(self):
        super().__init__(self._count, lambda tensor: tensor)
        self.bytes = 0
        self._seen: set[int] = set()

    def __enter__(self) -> None:
        self._seen.clear()  # between steps the same addresses are given out again
        super().__enter__()

    def _count(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        return tensor
