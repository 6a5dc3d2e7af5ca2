"""Our training, measured: pace, memory, and where the time goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from gnn_training.speed.roofline import Ceilings, step_seconds
from gnn_training.training.batches import BatchPlan, Planned, Shape
from gnn_training.training.learner import Learner
from gnn_training.training.rounds import mean_free_rounds, rounds_at

PHASES = ("data", "forward", "backward", "all_reduce", "optimizer")
BACKWARD = 2  # work of a round's backward pass, in rounds forward


@dataclass(frozen=True)
class Steps:
    """Steps taken without a pause: shape, rounds and free rounds of each, and the seconds of all."""

    taken: list[tuple[Shape, int, int]]
    seconds: float


def take(learner: Learner, seconds: float) -> Steps:
    """Train for about `seconds`, or an epoch if that is shorter."""
    first, start = learner.step, time.monotonic()
    while learner.step - first < learner.plan.steps_per_epoch and time.monotonic() - start < seconds:
        advance(learner)
    synchronize(learner)
    elapsed = time.monotonic() - start
    settings = learner.settings
    drawn = [rounds_at(step, settings.rounds, settings.seed) for step in range(first, learner.step)]
    return Steps([(learner.plan.at(first + i).shape, *rounds) for i, rounds in enumerate(drawn)], elapsed)


def graphs_per_second(learner: Learner, steps: Steps) -> float:
    """Of the whole data set and all draws of rounds.

    Steps differ in size and in the rounds that they draw. So it is their work that is counted, and divided by the work
    of an epoch.
    """
    mean = learner.settings.rounds
    work = sum(shape.cost * ((1 + BACKWARD) * rounds + free_rounds) for shape, rounds, free_rounds in steps.taken)
    epoch = sum(bucket.steps * bucket.shape.cost for bucket in learner.plan.buckets)
    epoch *= (1 + BACKWARD) * mean + mean_free_rounds(mean)
    return work / epoch * len(learner.plan.indices) / steps.seconds


def roofline_share(learner: Learner, steps: Steps, limits: Ceilings) -> float:
    """The least time that the rounds of these steps can take over the time they took."""
    form = learner.settings.width, learner.settings.hidden, learner.precision.itemsize
    return sum(step_seconds(*step, *form, limits) for step in steps.taken) / steps.seconds


def advance(learner: Learner) -> None:
    """One step as training takes it."""
    learner.update()
    learner.heard()


def synchronize(learner: Learner) -> None:
    """Wait for the device."""
    if learner.rt.device.type == "cuda":
        torch.cuda.synchronize(learner.rt.device)


def phases(learner: Learner, steps: int) -> dict[str, float]:
    """Seconds of a step by phase, from a profile of some steps."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if learner.rt.device.type == "cuda" else [])]
    with profile(activities=activities, acc_events=True) as seen:
        for _ in range(steps):
            advance(learner)
        synchronize(learner)
    clock = "device_time_total" if learner.rt.device.type == "cuda" else "cpu_time_total"
    spent = {event.key: getattr(event, clock) / 1e6 / steps for event in seen.key_averages()}
    return {phase: spent.get(phase, 0.0) for phase in PHASES}


def peak_bytes(learner: Learner) -> int:
    """Bytes that a step allocates at its peak, beside what lies there before it."""
    if learner.rt.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        advance(learner)
        synchronize(learner)
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        advance(learner)
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(accumulate((event.nbytes() for event in events), initial=0))


class Only:
    """A plan of one step, again and again."""

    def __init__(self, planned: Planned):
        self.planned = planned

    def at(self, step: int) -> Planned:
        """The step, whichever is asked for."""
        return self.planned


def only(learner: Learner, shape: Shape) -> Only:
    """Steps of one shape. An empty place costs what a graph costs, so one graph a part will do."""
    train = learner.plan.indices
    smallest = train[np.argmin(learner.data.num_nodes[train])]
    return Only(Planned(shape, [np.array([smallest])] * learner.plan.parts))


@contextmanager
def following(learner: Learner, plan: BatchPlan | Only) -> Iterator[None]:
    """Let a learner follow another plan for a while."""
    own, learner.plan = learner.plan, plan
    try:
        yield
    finally:
        learner.plan = own
