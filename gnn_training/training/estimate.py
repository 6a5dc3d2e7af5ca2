"""What a training will take: a few small steps measured here, a formula fitted to them, and the plan of the whole."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from gnn_training.data.packed import PackedGraphs
from gnn_training.runtime import join
from gnn_training.settings import TrainSettings
from gnn_training.training import growth
from gnn_training.training.batches import BatchPlan
from gnn_training.training.compiling import obstacle
from gnn_training.training.cost import Formula, formula
from gnn_training.training.learner import Learner
from gnn_training.training.rounds import SPREAD, mean_free_rounds

SECONDS = 3.0  # to measure
CPU_CELLS = 8_000  # a GPU preset's batch would take minutes on a CPU; the formula knows how its cells count
HEADROOM = 1.3  # peak memory over what is kept for the backward pass
COMPILED = 0.5  # time of a compiled step over one that is not: 2.1 times as fast on two cores of an EPYC with bf16
JITTER = 0.05  # by which sizes drawn from a sample vary: copies would fit each other without padding


@dataclass(frozen=True)
class Estimate:
    """Of every rank: bytes at the peak beside what torch itself takes, seconds a step; of the group: steps an epoch.

    recomputes: the backward pass makes the rounds again, because memory is too little to keep them all.
    """

    peak_bytes: float
    seconds_per_step: float
    steps_per_epoch: int
    recomputes: bool


def estimate(settings: TrainSettings, data: PackedGraphs, share: float, ranks: int, threads: int) -> Estimate:
    """Measure a few steps, uncompiled, and sum the formula over the plan of the settings.

    data: the graphs, or a sample that is `share` of them; threads: of a rank, on a CPU.
    """
    torch.set_num_threads(threads)
    with join(settings.device) as rt:
        cells = settings.batch_cells if rt.device.type == "cuda" else min(settings.batch_cells, CPU_CELLS)
        learner = Learner(settings.model_copy(update={"batch_cells": cells, "accumulate": 1}), data, rt)
        fitted = formula(growth.measure(learner, SECONDS, _kept_bytes))
    compiled = settings.compile and obstacle(rt.device) is None
    graphs = round(len(learner.plan.indices) / share)
    whole = plan(*sizes(data, learner.known + learner.reach, graphs, settings.seed), settings, ranks)
    return Estimate(
        peak_bytes=HEADROOM * max(fitted.bytes(bucket.shape, settings.rounds + SPREAD) for bucket in whole.buckets),
        seconds_per_step=(COMPILED if compiled else 1) * epoch_seconds(whole, settings, fitted) / whole.steps_per_epoch,
        steps_per_epoch=whole.steps_per_epoch,
        recomputes=learner.network.recompute,
    )


def sizes(data: PackedGraphs, colors: np.ndarray, graphs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and colors of `graphs` training graphs: those there are, or like them (a smoothed bootstrap)."""
    train = data.indices("train")
    if graphs <= len(train):
        return data.num_nodes[train], colors[train]
    rng = np.random.default_rng(seed)
    drawn = rng.choice(train, graphs)
    nodes, most = (
        np.maximum(1, (x[drawn] * np.exp(JITTER * rng.standard_normal(graphs))).round()).astype(int)
        for x in (data.num_nodes, colors)
    )
    return nodes, most


def plan(nodes: np.ndarray, colors: np.ndarray, settings: TrainSettings, ranks: int) -> BatchPlan:
    """The batches of graphs of these sizes for so many ranks."""
    parts = ranks * settings.accumulate
    return BatchPlan(np.arange(len(nodes)), nodes, colors, settings.batch_cells, parts, settings.seed)


def epoch_seconds(plan: BatchPlan, settings: TrainSettings, formula: Formula) -> float:
    """Time of an epoch's steps on every rank, without what ranks tell each other."""
    rounds, free_rounds = settings.rounds, mean_free_rounds(settings.rounds)
    return settings.accumulate * sum(b.steps * formula.seconds(b.shape, rounds, free_rounds) for b in plan.buckets)


def _kept_bytes(learner: Learner) -> int:
    """Take a step; the bytes that it keeps for the backward pass."""
    with (kept := Kept()):
        growth.advance(learner)
    return kept.bytes


class Kept(saved_tensors_hooks):
    """Counts the bytes that autograd keeps for the backward pass."""

    def __init__(self):
        super().__init__(self._count, lambda tensor: tensor)
        self.bytes = 0
        self._seen: set[int] = set()

    def __enter__(self) -> None:
        self._seen.clear()  # between steps the same addresses are given out again
        super().__enter__()

    def _count(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        return tensor
