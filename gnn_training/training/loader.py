"""How many refinement rounds a step takes: drawn from the seed, the same on all ranks."""
# DOC The whole data set on the device, as bits; batches are gathered and unpacked there, without a look at any graph.

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gnn_training.data.packed import PackedGraphs
from gnn_training.model.graphs import DenseGraphs, SparseGraph, is_sparse
from gnn_training.model.loss import Batch
from gnn_training.training.sampler import ALIGNMENT, Shape

ROUNDS_PURPOSE, FREE_ROUNDS_PURPOSE = (
    1,
    3,
)  # purposes of the random generator; 0 is the batch plan, 2 the colors and noise of a step
SPREAD = 3
FREE_SHARE = 0.6  # of the steps begin with rounds that pass no gradient back


def rounds_of(bucket: int, mean: int, seed: int) -> int:
    """Rounds with gradient, within SPREAD of `mean`: fixed for a bucket, so that a GPU can record its step once."""
    return mean + int(np.random.default_rng([seed, bucket, ROUNDS_PURPOSE]).integers(-SPREAD, SPREAD, endpoint=True))


def no_gradient_rounds_at(step: int, mean: int, seed: int) -> int:
    """Rounds before those, without gradient: in most steps up to 4 * mean."""
    rng = np.random.default_rng([seed, step, FREE_ROUNDS_PURPOSE])
    return int(rng.integers(4, 4 * mean, endpoint=True)) if rng.random() < FREE_SHARE else 0


def mean_no_gradient_rounds(mean: int) -> float:
    """Free rounds of a step, on average over all draws."""
    return FREE_SHARE * (4 + 4 * mean) / 2


EMPTY = -1  # the number of a graph that is not there


class DeviceDataset:
    """Packed graphs and their labels as tensors on a device."""

    def __init__(self, data: PackedGraphs, device: torch.device):
        self.data, self.device = data, device
        self.bits = self._tensor(data.adjacency_bits, torch.uint8)
        self.offset = self._tensor(data.adjacency_offset[:-1], torch.int64)
        self.num_nodes = self._tensor(data.num_nodes, torch.int64)
        self.num_colors = self._tensor(data.num_colors, torch.int64)
        self.lower = self._tensor(data.lower_bound, torch.float32)
        self.upper = self._tensor(data.dsatur_colors, torch.float32)
        self.graph_type = self._tensor(data.graph_type, torch.int64)
        self.difficulty = self._tensor(data.difficulty, torch.float32)
        self.is_sparse = is_sparse(data.num_nodes, data.num_edges)

    def batch(self, ids: np.ndarray, k: np.ndarray, seeds: np.ndarray, shape: Shape) -> Batch:
        """The graphs `ids` with k colors and seeds (each (G,) at most shape.graphs), in a batch of this shape.

        Places that are left over hold a graph of one node that counts nothing.
        """
        shape = shape if len(ids) else replace(shape, nodes=ALIGNMENT)
        alone = len(ids) == 1 == shape.graphs and self.is_sparse[ids[0]]
        return self.unpack(shape, self.numbers(ids, k, seeds, shape.graphs), self.sparse(ids[0]) if alone else None)

    def numbers(self, ids: np.ndarray, k: np.ndarray, seeds: np.ndarray, places: int) -> Tensor:
        """All that a batch has to be told: ids, k and seeds (3, G) int64 on the device, filled up to so many places."""
        numbers = np.tile(np.array([[EMPTY], [1], [0]]), places)
        numbers[:, : len(ids)] = ids, k, seeds
        return self._tensor(numbers, torch.int64)

    def unpack(self, shape: Shape, numbers: Tensor, graphs: SparseGraph | None = None) -> Batch:
        """The batch of these numbers (3, G), with nothing but launches; graphs: its graph, where that is at hand."""
        where, k, seeds = numbers
        present, i = where != EMPTY, where.clamp(min=0)
        return Batch(
            graphs=graphs or self.dense(i, present, shape.nodes),
            num_colors=torch.where(present, self.num_colors[i], 1),
            lower=torch.where(present, self.lower[i], 1.0),
            upper=torch.where(present, self.upper[i], 1.0),
            graph_type=self.graph_type[i],
            difficulty=self.difficulty[i],
            seeds=seeds,
            k=k,
            present=present.float(),
            max_colors=shape.colors,
        )

    def dense(self, i: Tensor, present: Tensor, num_nodes: int) -> DenseGraphs:
        """The graphs i (G,) int64 padded to so many nodes; where present (G,) is False a single node instead."""
        nodes = torch.arange(num_nodes, device=self.device)  # (N,)
        octets = torch.arange(-(-num_nodes // 8), device=self.device)  # (W,)
        sizes = torch.where(present, self.num_nodes[i], 1)[:, None]  # (G, 1)
        mask, width = nodes < sizes, (sizes + 7) // 8  # (G, N), (G, 1)
        inside = (mask & present[:, None])[:, :, None] & (octets < width)[:, None]  # (G, N, W)
        place = self.offset[i][:, None, None] + nodes[:, None] * width[:, None] + octets  # (G, N, W)
        packed = self.bits[torch.where(inside, place, 0)] * inside  # (G, N, W)
        shifts = torch.arange(8, device=self.device, dtype=torch.uint8)
        bits = (packed[..., None] >> shifts & 1).flatten(2)[:, :, :num_nodes]  # (G, N, N)
        return DenseGraphs(bits.float(), mask.float())

    def sparse(self, i: int) -> SparseGraph:
        """Graph i by its edges; it is as rare as large, so the host may look at it."""
        return SparseGraph(torch.from_numpy(self.data.graph(i).edge_index()).to(self.device), self.data.num_nodes[i])

    def _tensor(self, x: np.ndarray, dtype: torch.dtype) -> Tensor:
        tensor = torch.from_numpy(np.array(x)).to(dtype)
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()  # else the copy would wait for everything before it
        return tensor.to(self.device, non_blocking=True)
