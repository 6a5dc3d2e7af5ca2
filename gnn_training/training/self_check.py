"""Before the first step on GPUs, every rank tries what the training needs: memory, and compiled searches."""

import logging
import time
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gnn_training.distributed import Runtime
from gnn_training.training.learner import Learner
from gnn_training.training.loader import GraphLoader
from gnn_training.training.loss import SPREAD, Batch
from gnn_training.training.sampler import PlannedStep
from gnn_training.training.searcher import GpuSearcher

log = logging.getLogger(__name__)
ROUNDS = 60  # of a search that is tried
MIN_AGREEMENT = 0.9  # share of searches that must find the same: rounding makes a few go another way


def self_check(learner: Learner, loader: GraphLoader, rt: Runtime) -> list[dict]:
    """Take the largest step of the training, without changing anything, and let the searcher use compiled rounds if
    they are wanted and work on all ranks. Returns for every rank what was tried and chosen; nothing on CPUs.
    """
    if not isinstance(learner.search, GpuSearcher):
        return []
    step = loader.load(largest_step(loader), 0)
    batch = step.micro_batches[0]
    weights = learner.network.move_rule.detach() + SPREAD * torch.stack([batch.change, -batch.change])
    milliseconds = _choose(Trial(learner.search, weights, batch), loader.settings.compile, rt)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()  # of other ways to search
    learner.try_step(step)
    ranks = report(learner, rt, milliseconds)
    if rt.is_main:
        log.info(
            "self-check: a round takes %s; the largest batch takes %.1f of %.0f GiB; searches run %s on all %d ranks",
            ", ".join(f"{mode} {time:.2f} ms" for mode, time in milliseconds.items()),
            max(rank["peak_gib"] for rank in ranks), ranks[0]["total_gib"], learner.search.mode, rt.world_size,
        )  # fmt: skip
    return ranks


def report(learner: Learner, rt: Runtime, milliseconds: dict[str, float]) -> list[dict]:
    """How every rank searches on its GPU, and the memory it has needed so far."""
    assert isinstance(learner.search, GpuSearcher)
    return rt.gather(
        {
            "rank": rt.rank,
            "device": rt.device_name,
            "precision": str(learner.precision).removeprefix("torch."),
            "searches": learner.search.mode,
            "milliseconds_per_round": milliseconds,
            "peak_gib": round(torch.cuda.max_memory_reserved() / 2**30, 3),
            "total_gib": round(torch.cuda.mem_get_info()[1] / 2**30, 1),
        }
    )


def largest_step(loader: GraphLoader) -> PlannedStep:
    """A step of the most costly batches that the training has."""
    bucket = max(loader.sampler.buckets, key=lambda bucket: bucket.shape.cost)
    by_edges = bucket.indices[np.argsort(-loader.dataset.data.num_edges[bucket.indices])]
    batch = by_edges[: bucket.shape.graphs]
    return PlannedStep(bucket.shape, [batch] * loader.settings.accumulate, loader.sampler.num_parts * len(batch))


class Trial(NamedTuple):
    """Short searches that are run in every mode."""

    searcher: GpuSearcher
    weights: Tensor  # (S, G, NUM_WEIGHTS)
    batch: Batch

    def run(self) -> tuple[Tensor, float]:
        """Colors and conflicts (2, S G) that are found, and milliseconds per round."""
        torch.cuda.synchronize()
        started = time.perf_counter()
        fewest, conflicts = self.searcher(self.weights, self.batch, ROUNDS)
        torch.cuda.synchronize()
        return torch.stack([fewest.flatten(), conflicts.flatten()]), 1000 * (time.perf_counter() - started) / ROUNDS


def _choose(trial: Trial, is_compiled: bool, rt: Runtime) -> dict[str, float]:
    """Let the searcher use compiled rounds, unless they fail on some rank; return milliseconds per round of each mode.
    The first rank of a machine compiles, and the others find its kernels in the cache.
    """
    searcher, problem = trial.searcher, None
    expected, eager = trial.run()
    milliseconds = {"eager": eager}
    if is_compiled:
        for is_first in (True, False):
            if rt.is_first_of_machine == is_first:
                searcher.mode = "compiled"
                problem, milliseconds["compiled"] = _attempt(trial, expected)
            rt.wait()
        if problem:
            log.warning("rank %d: searches cannot be compiled: %s", rt.rank, problem)
        if any(rt.any(problem is not None)):
            searcher.mode = "eager"
            if rt.is_main:
                log.warning("searching uncompiled, about half as fast, on all ranks alike")
            del milliseconds["compiled"]
    return {mode: round(time, 3) for mode, time in milliseconds.items()}


def _attempt(trial: Trial, expected: Tensor) -> tuple[str | None, float]:
    """What is wrong with compiled rounds, if anything, and milliseconds per round."""
    try:
        trial.run()  # compiles
        found, milliseconds = trial.run()
        agreement = (found == expected).all(0).float().mean().item()
    except Exception as error:  # any failure of a compiler or a driver means the same: do without
        lines = str(error).strip().split("\n")
        told = " ".join(lines[: 1 + lines[0].endswith("raised:")])  # after which Dynamo tells the cause
        return f"{type(error).__name__}: {told}", 0.0
    if agreement < MIN_AGREEMENT:
        return f"only {agreement:.0%} of {found.shape[1]} searches find what uncompiled ones find", 0.0
    return None, milliseconds
