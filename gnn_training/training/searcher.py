"""Searches with given weights, as training and evaluation need them: many graphs, each several times.

A CPU searches graph after graph in compiled loops. A GPU searches all at once, in tensors, and is faster the fewer
kernels the host has to launch: a round is "eager" (250 kernels) or "compiled" (45).
"""

from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import torch
import torch._dynamo
import torch.fx.experimental._config
from torch import Tensor

from gnn_training.model import search
from gnn_training.model.program import limits
from gnn_training.model.search import Fixed, State
from gnn_training.solve.search_kernel import noise_table, search_graph
from gnn_training.training.loss import Batch


@torch.no_grad()
def search_on_cpu(weights: Tensor, batch: Batch, rounds: int) -> tuple[Tensor, Tensor]:
    """Search graph after graph, on as many threads as torch may use; see `Search`."""
    table, stop = noise_table(batch.max_colors), np.zeros(1, np.uint8)

    def run(place: tuple[int, int]) -> tuple[int, float]:
        _, i = place
        offsets, neighbours = batch.lists[i]
        first = batch.first[i, : len(offsets) - 1].int().numpy()
        lower, seed = int(batch.lower[i]), int(batch.seeds[i])
        _, fewest, conflicts = search_graph(
            offsets, neighbours, first, 0, lower, weights[place].numpy(), table, seed, rounds, stop
        )
        return fewest, conflicts if fewest > lower else 0

    weights = weights.detach()
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        results = pool.map(run, product(range(len(weights)), range(len(batch.lists))))
        fewest, conflicts = torch.tensor(list(results), dtype=torch.float32).T
    return fewest.view(weights.shape[:2]), conflicts.view(weights.shape[:2])


class GpuSearcher:
    """Searches on a GPU; `mode` is "eager" or "compiled"."""

    def __init__(self) -> None:
        # Sizes of one make eight forms of a round. More than the limit would run uncompiled without a word.
        torch._dynamo.config.recompile_limit, torch._dynamo.config.fail_on_recompile_limit_hit = 64, True
        torch.fx.experimental._config.use_duck_shape = False  # sizes that are equal by chance make no form of their own
        self._compiled = torch.compile(search.one_round, dynamic=True)
        self.mode = "eager"

    @torch.no_grad()
    def __call__(self, weights: Tensor, batch: Batch, rounds: int) -> tuple[Tensor, Tensor]:
        """Search; see `Search`."""
        one_round = search.one_round if self.mode == "eager" else self._compiled
        with torch.autocast("cuda", enabled=False):
            state, fixed = begin(weights, batch)
            for _ in range(rounds):  # nothing here waits for the GPU
                state = one_round(state, fixed)
        best = state.best
        conflicts = torch.where(best.num_colors > fixed.lower, best.conflicts, 0)
        return best.num_colors.view(weights.shape[:2]), conflicts.view(weights.shape[:2])


def begin(weights: Tensor, batch: Batch) -> tuple[State, Fixed]:
    """All searches before their first round; weights (S, G, NUM_WEIGHTS)."""
    first, lower = batch.first, batch.lower
    sizes = limits(torch.tensor(first.shape[1]), torch.tensor(batch.max_colors))
    sizes = search.Limits(*(torch.arange(len(ids), device=first.device) for ids in sizes))
    graph = torch.arange(len(lower), device=first.device).repeat(len(weights))
    task = search.Task(first, lower, 0 * lower, graph, batch.seeds.repeat(len(weights)))
    return search.begin(search.split(weights.flatten(0, 1)), batch.graphs, task, sizes)
