"""How many refinement rounds a step takes: drawn from the seed, the same on all ranks."""

import numpy as np

ROUNDS, FREE_ROUNDS = 1, 3  # purposes of the random generator; 0 is the batch plan, 2 the colors and noise of a step
SPREAD = 3
FREE_SHARE = 0.6  # of the steps begin with rounds that pass no gradient back


def rounds_of(bucket: int, mean: int, seed: int) -> int:
    """Rounds with gradient, within SPREAD of `mean`: fixed for a bucket, so that a GPU can record its step once."""
    return mean + int(np.random.default_rng([seed, bucket, ROUNDS]).integers(-SPREAD, SPREAD, endpoint=True))


def free_rounds_at(step: int, mean: int, seed: int) -> int:
    """Rounds before those, without gradient: in most steps up to 4 * mean."""
    rng = np.random.default_rng([seed, step, FREE_ROUNDS])
    return int(rng.integers(4, 4 * mean, endpoint=True)) if rng.random() < FREE_SHARE else 0


def mean_free_rounds(mean: int) -> float:
    """Free rounds of a step, on average over all draws."""
    return FREE_SHARE * (4 + 4 * mean) / 2
