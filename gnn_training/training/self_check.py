"""Checks before the first step: does this GPU find what a CPU finds, and has it memory for the largest step?"""

import logging
from copy import deepcopy

import numpy as np
import torch

from gnn_training.distributed import Runtime
from gnn_training.errors import MachineError
from gnn_training.search.batches import search_on_cpu
from gnn_training.training.games import PairBatch, trial_pairs
from gnn_training.training.learner import SIGMA, Learner
from gnn_training.training.loader import GraphBatch, GraphLoader, StateBatch

log = logging.getLogger(__name__)
GRAPHS, ROUNDS = 16, 200  # graphs in a batch to compare, rounds of a search
MIN_AGREEMENT = 0.98  # share of searches that must find the same; rounding may make a few differ


def self_check(learner: Learner, loader: GraphLoader, rt: Runtime) -> list[dict]:
    """Search two batches twice on every GPU, compare the results with a CPU, and try the largest step of the training.
    Nothing is changed. Return the reports of all ranks, an empty list on CPUs. MachineError on all ranks if a GPU
    searches wrongly.
    """
    if rt.device.type == "cpu":
        return []
    agreement = agreement_with_cpu(learner, loader)
    torch.cuda.reset_peak_memory_stats()
    try_largest_step(learner, loader)
    report = {
        "rank": rt.rank,
        "device": rt.device_name,
        "precision": str(learner.precision).removeprefix("torch."),
        "agreement": agreement,
        "peak_gib": round(torch.cuda.max_memory_reserved() / 2**30, 3),
        "total_gib": round(torch.cuda.mem_get_info()[1] / 2**30, 1),
    }
    ranks = rt.gather(report)
    for rank in ranks:
        if rank["agreement"] < MIN_AGREEMENT:
            share = f"only {rank['agreement']:.0%} of the searches of rank {rank['rank']} ({rank['device']})"
            raise MachineError(f"{share} find what a CPU finds: take another host, or train with --device cpu")
    if rt.is_main:
        log.info(
            "self-check: at least %.0f%% of the searches on each of %d GPUs find what a CPU finds; the largest batch "
            "takes %.1f of %.0f GiB", 100 * min(rank["agreement"] for rank in ranks), len(ranks),
            max(rank["peak_gib"] for rank in ranks), ranks[0]["total_gib"],
        )  # fmt: skip
    return ranks


def agreement_with_cpu(learner: Learner, loader: GraphLoader) -> float:
    """The share of the searches of two batches, each made twice, that find the colors and conflicts of a CPU."""
    ids, rule, right = loader.sampler.indices, learner.network.rule.detach(), []
    ids = ids[np.linspace(0, len(ids) - 1, 2 * GRAPHS).astype(int)]
    for number in (0, 1, 0, 1):  # data left over from one launch would change the next
        batch = loader.dataset.graphs(ids[number::2], GRAPHS, step=number)
        weights = rule + SIGMA * torch.stack([batch.epsilon, -batch.epsilon])
        outcomes, expected = (search(weights, batch, ROUNDS) for search in (learner.search, search_on_cpu))
        right.append((torch.stack(outcomes) == torch.stack(expected)).all(0).flatten().cpu())
    return torch.cat(right).float().mean().item()


def try_largest_step(learner: Learner, loader: GraphLoader) -> None:
    """Try a step with the most expensive graphs, with pairs of the largest graphs, and with states."""
    settings, ranks, pairs = learner.settings, learner.rt.world_size, None
    if settings.self_play:
        pairs = trial_pairs(loader.dataset, loader.sampler.indices, settings.batch_pairs, ranks)
    try_step(learner, *loader.largest(), pairs)


def try_step(learner: Learner, graphs: GraphBatch, states: StateBatch | None, pairs: PairBatch | None = None) -> None:
    """Take a step, which compiles code and allocates memory, and restore the former state."""
    before = deepcopy(learner.state())
    learner.update(graphs, states, pairs)
    learner.load_state(before)
