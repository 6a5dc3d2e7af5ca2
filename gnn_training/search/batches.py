"""Batches of searches with given weights, for training and evaluation: many graphs, each searched several times.

The cores of a CPU search graph after graph in compiled loops. An NVIDIA GPU runs hundreds of searches at once, one per
thread block, and makes the same moves. With any other GPU, the cores of the CPU do the searches.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gnn_training.graph import NeighbourLists
from gnn_training.search.search_kernel import SearchTask, search_graph


@dataclass(frozen=True)
class SearchBatch:
    """G graphs to search, all tensors on one device."""

    ids: np.ndarray  # (G,) int64, positions in the packed graphs
    lists: Callable[[int], NeighbourLists]  # gives the lists of the graph in a row of the batch
    first: Sequence[np.ndarray]  # for each graph the coloring (N,) int16 that its search begins with
    lower: Tensor  # (G,) int64, lower bounds on the chromatic number
    seeds: Tensor  # (G,) int64


class GraphStore(Protocol):
    """The store of the graphs of all batches, such as PackedGraphs."""

    num_nodes: np.ndarray
    num_edges: np.ndarray


# Search every graph S times, with weights (S, G, NUM_WEIGHTS), for a number of rounds. Return the fewest colors and
# the fewest conflicts with one color less, both (S, G) float. The conflicts are 0 where the lower bound is reached.
Searcher = Callable[[Tensor, SearchBatch, int], tuple[Tensor, Tensor]]


def has_kernels(device: torch.device) -> bool:
    """Whether searches can run on a device in thread blocks."""
    return device.type == "cuda" and not torch.version.hip and find_spec("numba_cuda") is not None


@torch.no_grad()
def search_on_cpu(
    weights: Tensor, batch: SearchBatch, rounds: int, rows: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Search graph after graph, on as many threads as torch may use; see `Searcher`. rows: the graphs, None for all."""
    rows, device = range(len(batch.ids)) if rows is None else rows, weights.device
    weights, lower, seeds = (values.detach().cpu() for values in (weights, batch.lower, batch.seeds))

    def run(place: tuple[int, int]) -> tuple[int, float]:
        _, i = place
        task = SearchTask(batch.first[i], rounds, int(seeds[i]), int(lower[i]))
        end = search_graph(batch.lists(i), task, weights[place].numpy())
        return end.num_colors, end.conflicts if end.num_colors > task.lower else 0

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        results = list(pool.map(run, product(range(len(weights)), rows)))
    outcomes = torch.tensor(results, dtype=torch.float32, device=device).view(len(weights), len(rows), 2)
    return outcomes[..., 0], outcomes[..., 1]


def copied_to(device: torch.device, values: np.ndarray) -> Tensor:
    """Return values as a tensor: copied to a GPU without waiting for it, or on a CPU in the same memory."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
