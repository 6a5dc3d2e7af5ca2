"""What a training will take, measured: all ranks take a few real steps, and the plan of the epoch does the rest."""

import math
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime, join
from gnn_training.launch.ranks import launch
from gnn_training.settings import TrainSettings
from gnn_training.training.learner import Learner
from gnn_training.training.loader import NO_GRADIENT_SHARE, GraphLoader, StepBatch
from gnn_training.training.sampler import Bucket, EqualCostSampler
from gnn_training.training.validation import Validation

JITTER = 0.05  # by which sizes drawn from a sample vary: exact copies would fit each other without padding


@dataclass(frozen=True)
class Estimate:
    """peak_bytes: memory of a rank; seconds: of an epoch, of all training steps, and of all evaluations."""

    peak_bytes: float
    steps_per_epoch: int
    epoch_seconds: float
    training_seconds: float
    evaluation_seconds: float


def estimate(settings: TrainSettings, data: PackedGraphs, share: float, num_ranks: int) -> Estimate:
    """Take a few steps of the training and part of an evaluation on `num_ranks` ranks of this machine. data: the
    graphs, or a sample that is `share` of them. Raises UserError if a rank fails, as training would.
    """
    return launch(_measure, (settings, data.folder, share), num_ranks)


def _measure(trial: tuple[TrainSettings, Path, float]) -> Estimate:
    """On every rank: time the median and the largest bucket, and take time to be linear in the cost."""
    settings, folder, share = trial
    with join(settings.device) as rt:
        loader, learner = GraphLoader(settings, PackedGraphs.open(folder), rt), Learner(settings, rt)
        learner.recompute_if_memory_is_short(loader)
        if settings.compile:
            learner.compile(loader)
        buckets = sorted(loader.sampler.buckets, key=lambda bucket: bucket.shape.cost)
        median, largest = buckets[len(buckets) // 2], buckets[-1]
        times = [_seconds(rt, partial(_step, learner, loader, bucket)) for bucket in (median, largest)]
        planned = _planned(loader, share, settings, rt.world_size).buckets
        extra_cost = largest.shape.cost - median.shape.cost
        slope = max(0.0, times[1] - times[0]) / extra_cost if extra_cost else 0.0
        costs = np.array([bucket.shape.cost for bucket in planned])
        per_step = np.maximum(0, times[0] + slope * (costs - median.shape.cost))
        steps = np.array([bucket.steps for bucket in planned])
        epoch = float(steps @ per_step)
        return Estimate(
            peak_bytes=_peak_bytes(rt),
            steps_per_epoch=int(steps.sum()),
            epoch_seconds=epoch,
            training_seconds=epoch / int(steps.sum()) * settings.steps,
            evaluation_seconds=_evaluation_seconds(learner, loader, share, rt),
        )


def _step(learner: Learner, loader: GraphLoader, bucket: Bucket) -> None:
    """A step of usual length on graphs of a bucket, on every rank."""
    settings, ids = loader.settings, bucket.indices[: bucket.shape.graphs]
    batch = loader.dataset.batch(ids, *loader.draw(ids, 0), bucket.shape)
    rounds = round(NO_GRADIENT_SHARE * (4 + 4 * settings.rounds) / 2)  # the mean of those without gradient
    learner.update(StepBatch([batch] * settings.accumulate, len(ids), settings.rounds, rounds))
    learner.reduce()


def _evaluation_seconds(learner: Learner, loader: GraphLoader, share: float, rt: Runtime) -> float:
    """All evaluations of the training, by the batch of median cost."""
    settings = loader.settings
    validation = Validation(settings, loader.dataset, rt)
    order = np.argsort([planned.shape.cost for planned in validation.batches])
    number = int(order[len(order) // 2])
    with learner.averaged_weights() as network:
        seconds = _seconds(rt, lambda: validation.score_batch(network, number), repeats=1)
    total = sum(planned.shape.cost for planned in validation.batches)
    held_out = len(loader.dataset.data.indices("validation")) or len(loader.sampler.indices) // 4
    graphs = min(settings.validation_graphs or math.inf, held_out / share)
    evaluations = settings.steps // settings.evaluate_every + 1
    each = seconds * total / validation.batches[number].shape.cost * graphs / len(validation.ids)
    return evaluations * each


def _seconds(rt: Runtime, work: Callable[[], object], repeats: int = 2) -> float:
    """Time of the fastest repetition after a warm-up, beginning together on all ranks."""
    times = []
    for _ in range(1 + repeats):
        rt.wait()
        started = time.monotonic()
        work()
        if rt.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.monotonic() - started)
    return min(times[1:])


def _peak_bytes(rt: Runtime) -> float:
    """Most memory that this rank has used so far; on a GPU, of the GPU."""
    if rt.device.type == "cuda":
        return torch.cuda.max_memory_reserved()
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _planned(loader: GraphLoader, share: float, settings: TrainSettings, num_ranks: int) -> EqualCostSampler:
    """The batches of the whole data set: its graphs, or, for a sample, graphs like them (a smoothed bootstrap)."""
    sampler = loader.sampler
    if share == 1:
        return sampler
    data, rng = loader.dataset.data, np.random.default_rng(settings.seed)
    drawn = rng.choice(sampler.indices, round(len(sampler.indices) / share))
    nodes, colors = (
        np.maximum(1, (sizes[drawn] * np.exp(JITTER * rng.standard_normal(len(drawn)))).round()).astype(int)
        for sizes in (data.num_nodes, loader.known_colors + loader.color_slack)
    )
    indices = np.arange(len(drawn))
    return EqualCostSampler(indices, nodes, colors, settings.batch_size, num_ranks, 0, 0, settings.accumulate)
