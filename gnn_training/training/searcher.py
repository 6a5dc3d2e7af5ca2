"""Searches with given weights, as training and evaluation need them: many graphs, each several times.

The cores of a CPU search graph after graph in compiled loops. An NVIDIA GPU runs hundreds of searches at once, one per
thread block, and makes the same moves, which a self-check shows before the first step. Other GPUs leave the searches to
the cores.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import product

import numpy as np
import torch
from torch import Tensor

from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime
from gnn_training.errors import MachineError
from gnn_training.search.search_kernel import NO_TIMES, noise_table, search_graph
from gnn_training.training.learner import SIGMA, Learner
from gnn_training.training.loader import Batch, GraphLoader, Searcher

log = logging.getLogger(__name__)
GRAPHS, ROUNDS = 16, 200  # of a batch that is compared, and of a search
MIN_AGREEMENT = 0.98  # share of searches that must find the same: rounding may make one go another way


def searcher_for(data: PackedGraphs, device: torch.device) -> Searcher:
    """The fastest way to search on a device."""
    if device.type == "cpu":
        return search_on_cpu
    if torch.version.hip or not find_spec("numba_cuda"):
        log.warning("the cores of the CPU do the searches: on GPUs, they need NVIDIA's and the package numba-cuda")
        return search_on_cpu
    from gnn_training.training.block_searcher import BlockSearcher  # loads numba's CUDA

    return BlockSearcher(data, device, search_on_cpu)


@torch.no_grad()
def search_on_cpu(
    weights: Tensor, batch: Batch, rounds: int, rows: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Search graph after graph, on as many threads as torch may use; see `Searcher`. rows: only these graphs."""
    rows = range(len(batch.ids)) if rows is None else rows
    device, stop = weights.device, np.zeros(1, np.uint8)
    weights, lower, seeds = (values.detach().cpu() for values in (weights, batch.lower, batch.seeds))
    table = noise_table(max((int(batch.first[i].max()) + 1 for i in rows), default=1))

    def run(place: tuple[int, int]) -> tuple[int, float]:
        i, fewest_needed = place[1], int(lower[place[1]])
        arguments = weights[place].numpy(), table, int(seeds[i]), rounds, stop, NO_TIMES
        first = batch.first[i].astype(np.int32)
        _, fewest, conflicts, *_ = search_graph(*batch.lists(i), first, 0, fewest_needed, *arguments)
        return fewest, conflicts if fewest > fewest_needed else 0

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        results = list(pool.map(run, product(range(len(weights)), rows)))
    outcomes = torch.tensor(results, dtype=torch.float32, device=device).view(len(weights), len(rows), 2)
    return outcomes[..., 0], outcomes[..., 1]


def self_check(learner: Learner, loader: GraphLoader, rt: Runtime) -> list[dict]:
    """Search two batches twice on every GPU, compare with the CPU, and take the largest step of the training, all
    without changing anything. Return what every rank found; nothing on CPUs. Raises MachineError on all ranks: a GPU
    searches wrongly.
    """
    if rt.device.type == "cpu":
        return []
    agreement = agreement_with_cpu(learner, loader)
    torch.cuda.reset_peak_memory_stats()
    learner.try_step(loader.largest())
    ranks = rt.gather(
        {
            "rank": rt.rank,
            "device": rt.device_name,
            "precision": str(learner.precision).removeprefix("torch."),
            "agreement": agreement,
            "peak_gib": round(torch.cuda.max_memory_reserved() / 2**30, 3),
            "total_gib": round(torch.cuda.mem_get_info()[1] / 2**30, 1),
        }
    )
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
    ids, rule, right = loader.sampler.indices, learner.network.move_rule.detach(), []
    ids = ids[np.linspace(0, len(ids) - 1, 2 * GRAPHS).astype(int)]
    for number in (0, 1, 0, 1):  # what is left from one launch would show in the next
        batch = loader.dataset.batch(ids[number::2], GRAPHS, step=number)
        weights = rule + SIGMA * torch.stack([batch.change, -batch.change])
        outcomes, expected = (search(weights, batch, ROUNDS) for search in (learner.search, search_on_cpu))
        right.append((torch.stack(outcomes) == torch.stack(expected)).all(0).flatten().cpu())
    return torch.cat(right).float().mean().item()
