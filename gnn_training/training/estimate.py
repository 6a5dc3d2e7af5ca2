"""What a training will take, from a few of its steps done here."""

import time
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from gnn_training.data.packed import PackedGraphs
from gnn_training.runtime import join
from gnn_training.settings import TrainSettings
from gnn_training.training.batches import cost
from gnn_training.training.learner import Learner

STEPS = 2  # measured, after one that warms up
CPU_CELLS = 8_000  # a GPU preset's batch would take minutes on a CPU; time and memory are proportional to its cells
PADDING = 1.1  # cells of the padded batches over those of their graphs
HEADROOM = 1.3  # peak memory over what is kept for the backward pass


@dataclass(frozen=True)
class Estimate:
    """Of every rank: bytes at the peak beside what torch itself takes, seconds a step; of the group: steps an epoch."""

    peak_bytes: float
    seconds_per_step: float
    steps_per_epoch: int


def estimate(settings: TrainSettings, data: PackedGraphs, share: float, ranks: int, threads: int) -> Estimate:
    """Measure a few steps and scale them to full batches.

    data: the graphs, or a sample that is `share` of them; threads: of a rank, on a CPU.
    """
    torch.set_num_threads(threads)
    with join(settings.device) as rt:
        cells = settings.batch_cells if rt.device.type == "cuda" else min(settings.batch_cells, CPU_CELLS)
        with closing(Learner(settings.model_copy(update={"batch_cells": cells, "accumulate": 1}), data, rt)) as learner:
            bytes_per_cell, seconds_per_cell = _measure(learner)
    train = data.indices("train")
    costs = cost(data.num_nodes[train].astype(float), data.num_colors[train] + 2.0)
    epoch = PADDING * costs.sum() / share
    steps = max(1, round(epoch / (settings.batch_cells * settings.accumulate * ranks)))
    return Estimate(
        peak_bytes=HEADROOM * bytes_per_cell * max(settings.batch_cells, costs.max()),
        seconds_per_step=seconds_per_cell * epoch / steps / ranks,
        steps_per_epoch=steps,
    )


def _measure(learner: Learner) -> tuple[float, float]:
    """Bytes kept for the backward pass and seconds, both per cell of a batch."""
    data, plan, wanted = learner.data, learner.plan, learner.settings.batch_cells
    batches = [plan.at(step)[0] for step in range(plan.steps_per_epoch)]
    cells = np.array([len(b) * cost(float(data.num_nodes[b].max()), data.num_colors[b].max() + 2.0) for b in batches])
    chosen = np.argsort(np.abs(cells - wanted), kind="stable")[:STEPS]
    kept, seconds = Kept(), 0.0
    for number, step in enumerate([chosen[0], *chosen]):
        learner.step = int(step)
        started = time.monotonic()
        with kept:
            learner.update()
        seconds += (time.monotonic() - started) * (number > 0)
    measured = cells[chosen].sum()
    return kept.bytes / (measured + cells[chosen[0]]), seconds / measured


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
