"""Our training, measured: pace, memory, and where the time goes."""

import time
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from gnn_training.speed.roofline import Ceilings, step_seconds
from gnn_training.speed.strata import spread
from gnn_training.training.batches import Shape
from gnn_training.training.growth import advance, synchronize
from gnn_training.training.learner import Learner
from gnn_training.training.rounds import free_rounds_at, mean_free_rounds, rounds_of

PHASES = ("data", "forward", "backward", "all_reduce", "optimizer")
BACKWARD = 2  # work of a round's backward pass, in rounds forward


@dataclass(frozen=True)
class Steps:
    """Steps taken without a pause: shape, rounds and free rounds of each, and the seconds of all."""

    taken: list[tuple[Shape, int, int]]
    seconds: float


def take(learner: Learner, seconds: float) -> Steps:
    """Train for about `seconds` on steps of an epoch, a sample spread evenly over their work, or on all of them."""
    sample, taken = _sample(learner), []
    start = time.monotonic()
    for step, drawn in sample:
        if taken and time.monotonic() - start > seconds:
            break
        learner.step = step
        advance(learner)
        taken.append(drawn)
    synchronize(learner)
    return Steps(taken, time.monotonic() - start)


def _sample(learner: Learner) -> list[tuple[int, tuple[Shape, int, int]]]:
    """Steps of an epoch with their shape and rounds, in an order of which every beginning stands for all."""
    drawn = [_drawn(learner, step) for step in range(learner.plan.steps_per_epoch)]
    order = spread(np.array([_work(*step) for step in drawn]), learner.settings.seed)
    return [(int(step), drawn[step]) for step in order]


def _drawn(learner: Learner, step: int) -> tuple[Shape, int, int]:
    planned, mean, seed = learner.plan.at(step), learner.settings.rounds, learner.settings.seed
    return planned.shape, rounds_of(planned.bucket, mean, seed), free_rounds_at(step, mean, seed)


def _work(shape: Shape, rounds: float, free_rounds: float) -> float:
    return shape.cost * ((1 + BACKWARD) * rounds + free_rounds)


def graphs_per_second(learner: Learner, steps: Steps) -> float:
    """Of the whole data set and all draws of rounds.

    Steps differ in size and in the rounds that they draw. So it is their work that is counted, and divided by the work
    of an epoch.
    """
    mean = learner.settings.rounds
    epoch = sum(bucket.steps * _work(bucket.shape, mean, mean_free_rounds(mean)) for bucket in learner.plan.buckets)
    return sum(_work(*step) for step in steps.taken) / epoch * len(learner.plan.indices) / steps.seconds


def roofline_share(learner: Learner, steps: Steps, limits: Ceilings) -> float:
    """The least time that the rounds of these steps can take over the time they took."""
    form = learner.settings.width, 2 * learner.settings.width, learner.precision.itemsize
    return sum(step_seconds(*step, *form, limits) for step in steps.taken) / steps.seconds


def phases(learner: Learner, steps: int) -> dict[str, float]:
    """Seconds of a step by phase, from a profile of some steps that stand for an epoch, launched one by one."""
    recorder, learner.recorder = learner.recorder, None  # a recorded step does not tell its phases
    sample = _sample(learner)[:steps]
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if learner.rt.device.type == "cuda" else [])]
    with profile(activities=activities, acc_events=True) as seen:
        for learner.step, _ in sample:
            advance(learner)
        synchronize(learner)
    learner.recorder = recorder
    clock = "device_time_total" if learner.rt.device.type == "cuda" else "cpu_time_total"
    spent = {event.key: getattr(event, clock) / 1e6 / len(sample) for event in seen.key_averages()}
    return {phase: spent.get(phase, 0.0) for phase in PHASES}


def peak_bytes(learner: Learner) -> int:
    """Bytes that a step allocates at its peak, beside what lies there before it."""
    if learner.rt.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        advance(learner)
        synchronize(learner)
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        advance(learner)
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(accumulate((event.nbytes() for event in events), initial=0))
