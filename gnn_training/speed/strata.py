"""Samples of an epoch that stand for all of it: in what order to take its steps, and what the rest would take."""

import numpy as np

GOLDEN = (5**0.5 - 1) / 2


def spread(works: np.ndarray, seed: int) -> np.ndarray:
    """An order of all places such that every beginning of it is spread evenly over the ranking by work.

    Ranks follow the additive recurrence of the golden ratio from a random start: no two neighbours in the ranking are
    taken before the gaps around them are as small as elsewhere.
    """
    points = (np.random.default_rng(seed).random() + GOLDEN * np.arange(len(works))) % 1
    return np.argsort(works, kind="stable")[points.argsort().argsort()]


def expected(works: np.ndarray, times: np.ndarray, at: np.ndarray | float) -> np.ndarray:
    """Seconds of steps with the work `at`, from those that were timed (times is not nan).

    Their seconds per unit of work are interpolated; beyond the largest timed step it is that step's.
    """
    timed = np.flatnonzero(np.isfinite(times))
    timed = timed[works[timed].argsort(kind="stable")]
    return np.interp(at, works[timed], times[timed] / works[timed]) * at
