"""The same global batches on one rank and on several, each a process with its own thread or GPU."""

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from gnn_training.data.packed import PackedGraphs
from gnn_training.runtime import join
from gnn_training.settings import TrainSettings
from gnn_training.training.growth import advance, synchronize, warm_up
from gnn_training.training.learner import Learner

RUN = "benchmark"


@dataclass(frozen=True)
class Comparison:
    """Steps of so many ranks, and how many times as fast as one rank they are."""

    ranks: int
    seconds_per_step: float
    speedup: float


def compare(settings: TrainSettings, folder: Path, ranks: int, seconds: float) -> Comparison:
    """Train on one rank for about `seconds`, and take the same steps on `ranks`.

    The one takes the parts of all, one after the other: the same graphs in the same shapes.
    """
    alone = settings.model_copy(update={"accumulate": ranks * settings.accumulate})
    steps, one = _launch(1, alone, folder, seconds, 0)
    _, together = _launch(ranks, settings, folder, 0.0, steps)
    return Comparison(ranks, together / steps, one / together)


def _launch(ranks: int, settings: TrainSettings, folder: Path, seconds: float, steps: int) -> tuple[int, float]:
    config = LaunchConfig(1, 1, ranks, run_id=RUN, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0)
    return elastic_launch(config, _rank)(settings, folder, seconds, steps)[0]


def _rank(settings: TrainSettings, folder: Path, seconds: float, steps: int) -> tuple[int, float]:
    """Train for so many steps or seconds, whichever is more; returns both."""
    torch.set_num_threads(1)
    with join(settings.device) as rt:
        learner = Learner(settings, PackedGraphs.open(folder), rt)
        if settings.compile:
            learner.compile()
        warm_up(learner)
        rt.wait()  # begin together
        start = time.monotonic()
        while learner.step < steps or time.monotonic() - start < seconds:
            advance(learner)
        synchronize(learner)
        return learner.step, time.monotonic() - start
