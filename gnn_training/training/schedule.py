"""The learning rate as a pure function of the step, and how it grows with the number of ranks."""

import math

SCALINGS = {"none": lambda ranks: 1.0, "sqrt": math.sqrt, "linear": float}


def learning_rate(step: int, peak: float, warmup_steps: int, steps: int) -> float:
    """Linear warm-up to `peak`, then half a cosine down to zero at `steps` (Loshchilov and Hutter 2017)."""
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1, steps - warmup_steps)))


def peak_rate(base: float, scaling: str, ranks: int) -> float:
    """Highest learning rate of `ranks` ranks: base times 1, sqrt(ranks) or ranks."""
    return base * SCALINGS[scaling](ranks)
