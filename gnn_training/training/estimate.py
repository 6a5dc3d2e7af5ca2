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
from gnn_training.training.self_check import largest_step, self_check
from gnn_training.training.validation import Validation

STEPS = 12  # that are timed
JITTER = 0.05  # by which sizes drawn from a sample vary: exact copies would fit each other without padding


@dataclass(frozen=True)
class Estimate:
    """peak_bytes: memory of a rank; steps: of the training; seconds: of an epoch, of all steps, of all evaluations."""

    peak_bytes: float
    steps: int
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
        self_check(learner, loader, rt)
        _take(learner, loader, largest_step(loader), 0)
        work, started = 0.0, time.monotonic()
        for step, planned in enumerate(islice(loader.sampler, STEPS)):  # of all shapes, as memory is slow where new
            work += _take(learner, loader, planned, step)
        per_work = (time.monotonic() - started) / work
        planned_buckets = _planned(loader, share, settings, rt.world_size).buckets
        steps = sum(bucket.steps for bucket in planned_buckets)
        costs = settings.accumulate * sum(bucket.steps * bucket.shape.cost for bucket in planned_buckets)
        epoch, num_steps = per_work * costs, settings.num_steps(steps)
        evaluations = num_steps // settings.evaluate_every + 1  # one before the first step
        return Estimate(
            peak_bytes=_peak_bytes(rt),
            steps=num_steps,
            steps_per_epoch=steps,
            epoch_seconds=epoch,
            training_seconds=epoch / steps * num_steps,
            evaluation_seconds=evaluations * _evaluation_seconds(learner, loader, share, rt),
        )


def _take(learner: Learner, loader: GraphLoader, planned: PlannedStep, step: int) -> float:
    """Take a step and wait for it; return its work."""
    batch = loader.load(planned, step)
    learner.update(batch)
    learner.reduce()
    return len(planned.micro_batches) * planned.shape.cost


def _evaluation_seconds(learner: Learner, loader: GraphLoader, share: float, rt: Runtime) -> float:
    """One evaluation, by the batch of median cost of this rank; 0 if the other ranks have all graphs."""
    settings = loader.settings
    validation = Validation(settings, loader.dataset, learner.search, rt)
    costs = [planned.shape.cost for planned in validation.batches]
    number = int(np.argsort(costs)[len(costs) // 2]) if costs else None
    with learner.averaged_weights() as network:
        for _ in range(2):  # the first time, graphs are prepared
            rt.wait()
            started = time.monotonic()
            if number is not None:
                validation.score_batch(network, number).tolist()
    if number is None:
        return 0.0
    seconds = time.monotonic() - started
    held_out = len(loader.dataset.data.indices("validation")) or len(loader.sampler.indices) // 4
    graphs = min(settings.validation_graphs or math.inf, held_out / share)
    return seconds * sum(costs) / costs[number] * graphs / len(validation.ids)


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
