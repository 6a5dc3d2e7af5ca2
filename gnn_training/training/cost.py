"""Time and memory of a step by formula: what each grows with is known, how much it takes is fitted to measurements."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnn_training.training.batches import Shape

MOST_KEPT = 0.8  # of the memory that is free


@dataclass(frozen=True)
class Measurement:
    """A step as it was measured; bytes at its peak, beside what lies there between steps."""

    shape: Shape
    rounds: int
    free_rounds: int
    seconds: float
    bytes: float


@dataclass(frozen=True)
class Formula:
    """Nonnegative factors of what `_time` and `_memory` count, and how far off they are at worst where fitted."""

    of_time: tuple[float, ...]
    of_memory: tuple[float, ...]
    time_error: float
    memory_error: float

    def seconds(self, shape: Shape, rounds: float, free_rounds: float) -> float:
        """Time of a step of one part, without the other ranks."""
        return float(np.dot(self.of_time, _time(shape, rounds, free_rounds)))

    def bytes(self, shape: Shape, rounds: float) -> float:
        """Memory of a step of one part at its peak."""
        return float(np.dot(self.of_memory, _memory(shape, rounds)))


def formula(measured: Sequence[Measurement]) -> Formula:
    """The formula that is least off, relative to what was measured."""
    of_time, time_error = _relative(
        [_time(m.shape, m.rounds, m.free_rounds) for m in measured], [m.seconds for m in measured]
    )
    of_memory, memory_error = _relative([_memory(m.shape, m.rounds) for m in measured], [m.bytes for m in measured])
    return Formula(of_time, of_memory, time_error, memory_error)


def _relative(counts: Sequence[tuple[float, ...]], measured: Sequence[float]) -> tuple[tuple[float, ...], float]:
    """Factors of least relative error, and the worst relative error."""
    shares = np.array(counts) / np.array(measured)[:, None]  # (M, C)
    factors = fit(shares, np.ones(len(shares)))
    return tuple(factors.tolist()), float(np.abs(shares @ factors - 1).max())


def _time(shape: Shape, rounds: float, free_rounds: float) -> tuple[float, ...]:
    """A step; a round with gradient, its cells, its cells by nodes; the same for a free round."""
    cells = shape.graphs * shape.nodes * shape.colors
    return (1.0, *(count * size for count in (rounds, free_rounds) for size in (1, cells, cells * shape.nodes)))


def _memory(shape: Shape, rounds: float) -> tuple[float, ...]:
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


def must_recompute(shape: Shape, rounds: int, number_bytes: int, free_bytes: float) -> bool:
    """Whether a step keeps too much for its backward pass; number_bytes: of the precision that its products have."""
    per_cell = 240 + 160 * number_bytes  # as fitted to uncompiled steps: docs/SPEED.md
    return per_cell * rounds * shape.graphs * shape.nodes * shape.colors > MOST_KEPT * free_bytes
