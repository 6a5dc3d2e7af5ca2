"""Searches with given weights, as training and evaluation need them: many graphs, each several times.

The cores of a CPU search graph after graph in compiled loops. An NVIDIA GPU runs hundreds of searches at once, one per
thread block, and makes the same moves. Other GPUs leave the searches to the cores.
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
from gnn_training.solve.search_kernel import noise_table, search_graph
from gnn_training.training.loss import Batch, Search

log = logging.getLogger(__name__)


def searcher_for(data: PackedGraphs, device: torch.device) -> Search:
    """The fastest way to search on a device."""
    if device.type == "cpu":
        return search_on_cpu
    if torch.version.hip or not find_spec("numba_cuda"):
        log.warning("the cores of the CPU do the searches: on GPUs, they need NVIDIA's and the package numba-cuda")
        return search_on_cpu
    from gnn_training.training.block_searcher import BlockSearcher  # loads numba's CUDA

    return BlockSearcher(data, device)


@torch.no_grad()
def search_on_cpu(
    weights: Tensor, batch: Batch, rounds: int, rows: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Search graph after graph, on as many threads as torch may use; see `Search`. rows: only these graphs."""
    rows = range(len(batch.ids)) if rows is None else rows
    device, stop = weights.device, np.zeros(1, np.uint8)
    weights, lower, seeds = (values.detach().cpu() for values in (weights, batch.lower, batch.seeds))
    table = noise_table(max((int(batch.first[i].max()) + 1 for i in rows), default=1))

    def run(place: tuple[int, int]) -> tuple[int, float]:
        i, fewest_needed = place[1], int(lower[place[1]])
        arguments = weights[place].numpy(), table, int(seeds[i]), rounds, stop
        first = batch.first[i].astype(np.int32)
        _, fewest, conflicts = search_graph(*batch.lists(i), first, 0, fewest_needed, *arguments)
        return fewest, conflicts if fewest > fewest_needed else 0

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        results = list(pool.map(run, product(range(len(weights)), rows)))
    found = torch.tensor(results, dtype=torch.float32, device=device).view(len(weights), len(rows), 2)
    return found[..., 0], found[..., 1]
