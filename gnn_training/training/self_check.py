"""Before the first step: does this GPU find what a CPU finds, and has it room for the largest step?"""

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
GRAPHS, ROUNDS = 16, 200  # of a batch that is compared, and of a search
MIN_AGREEMENT = 0.98  # share of searches that must find the same: rounding may make one go another way


def self_check(learner: Learner, loader: GraphLoader, rt: Runtime) -> list[dict]:
    """Search two batches twice on every GPU, compare with the CPU, and take the largest step of the training, all
    without changing anything. Return what every rank found; nothing on CPUs. Raises MachineError on all ranks: a GPU
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
    """Share of the searches in two batches that find the colors and conflicts of a CPU, both times."""
    ids, rule, right = loader.sampler.indices, learner.network.rule.detach(), []
    ids = ids[np.linspace(0, len(ids) - 1, 2 * GRAPHS).astype(int)]
    for number in (0, 1, 0, 1):  # what is left from one launch would show in the next
        batch = loader.dataset.graphs(ids[number::2], GRAPHS, step=number)
        weights = rule + SIGMA * torch.stack([batch.epsilon, -batch.epsilon])
        outcomes, expected = (search(weights, batch, ROUNDS) for search in (learner.search, search_on_cpu))
        right.append((torch.stack(outcomes) == torch.stack(expected)).all(0).flatten().cpu())
    return torch.cat(right).float().mean().item()


def try_largest_step(learner: Learner, loader: GraphLoader) -> None:
    """Try a step with the graphs, states and pairs that take most."""
    settings, ranks, pairs = learner.settings, learner.rt.world_size, None
    if settings.self_play:
        pairs = trial_pairs(loader.dataset, loader.sampler.indices, settings.batch_pairs, ranks)
    try_step(learner, *loader.largest(), pairs)


def try_step(learner: Learner, graphs: GraphBatch, states: StateBatch | None, pairs: PairBatch | None = None) -> None:
    """Take a step, for the memory and the compiled code that it needs, and leave everything as it was."""
    before = deepcopy(learner.state())
    learner.update(graphs, states, pairs)
    learner.load_state(before)
