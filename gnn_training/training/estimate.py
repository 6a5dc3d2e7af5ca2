"""What a training will take, measured: all ranks take a few real steps, and the plan of the epoch does the rest."""

import math
import resource
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime, join
from gnn_training.launch.ranks import launch
from gnn_training.settings import TrainSettings
from gnn_training.training.learner import Learner
from gnn_training.training.loader import GraphLoader
from gnn_training.training.sampler import EqualCostSampler, PlannedStep
from gnn_training.training.validation import Validation

STEPS = 12  # that are timed
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
    """On every rank: take the largest step, then some of an epoch, whose time is taken to be linear in their work."""
    settings, folder, share = trial
    with join(settings.device) as rt:
        loader, learner = GraphLoader(settings, PackedGraphs.open(folder), rt), Learner(settings, rt)
        if settings.compile and rt.device.type == "cuda":
            learner.compile()
        largest = max(loader.sampler.buckets, key=lambda bucket: bucket.shape.cost)
        batches = np.array_split(largest.indices[: settings.accumulate * largest.shape.graphs], settings.accumulate)
        _take(learner, loader, PlannedStep(0, largest.shape, batches, len(largest.indices)), 0)
        work, started = 0.0, time.monotonic()
        for step, planned in enumerate(islice(loader.sampler, STEPS)):  # of all shapes, as memory is slow where new
            work += _take(learner, loader, planned, step)
        per_work = (time.monotonic() - started) / work
        planned_buckets = _planned(loader, share, settings, rt.world_size).buckets
        steps = sum(bucket.steps for bucket in planned_buckets)
        costs = settings.accumulate * sum(bucket.steps * bucket.shape.cost for bucket in planned_buckets)
        epoch = per_work * costs
        return Estimate(
            peak_bytes=_peak_bytes(rt),
            steps_per_epoch=steps,
            epoch_seconds=epoch,
            training_seconds=epoch / steps * settings.steps,
            evaluation_seconds=_evaluation_seconds(learner, loader, share, rt),
        )


def _take(learner: Learner, loader: GraphLoader, planned: PlannedStep, step: int) -> float:
    """Take a step and wait for it; return its work."""
    batch = loader.load(planned, step)
    learner.update(batch)
    learner.reduce()
    return len(planned.micro_batches) * planned.shape.cost


def _evaluation_seconds(learner: Learner, loader: GraphLoader, share: float, rt: Runtime) -> float:
    """All evaluations of the training, by the batch of median cost."""
    settings = loader.settings
    validation = Validation(settings, loader.dataset, rt)
    order = np.argsort([planned.shape.cost for planned in validation.batches])
    number = int(order[len(order) // 2])
    with learner.averaged_weights() as network:
        for _ in range(2):  # the first time, graphs are prepared
            rt.wait()
            started = time.monotonic()
            validation.score_batch(network, number).tolist()
    seconds = time.monotonic() - started
    total = sum(planned.shape.cost for planned in validation.batches)
    held_out = len(loader.dataset.data.indices("validation")) or len(loader.sampler.indices) // 4
    graphs = min(settings.validation_graphs or math.inf, held_out / share)
    evaluations = settings.steps // settings.evaluate_every + 1  # one before the first step
    each = seconds * total / validation.batches[number].shape.cost * graphs / len(validation.ids)
    return evaluations * each


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
        for sizes in (data.num_nodes, data.dsatur_colors.astype(int))
    )
    indices = np.arange(len(drawn))
    return EqualCostSampler(indices, nodes, colors, settings.batch_size, num_ranks, 0, 0, settings.accumulate)
