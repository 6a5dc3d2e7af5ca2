"""From packed graphs to the batches of a training step.

The whole data set lies on the device as bits. A batch is gathered and unpacked there; the host looks at no graph.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, islice

import numpy as np
import torch
from torch import Tensor

from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime
from gnn_training.model.graphs import DenseGraphs, SparseGraph, is_sparse
from gnn_training.model.loss import Batch
from gnn_training.settings import TrainSettings
from gnn_training.training.sampler import ALIGNMENT, EqualCostSampler, PlannedStep, Shape

ROUNDS, COLORS, NO_GRADIENT_ROUNDS = 1, 2, 3  # purposes of the random generator; 0 is the sampler's
ROUNDS_SPREAD = 3
NO_GRADIENT_SHARE = 0.6  # of the steps begin with rounds without gradient
MIN_COLOR_SLACK = 2  # colors above the best known that a step may allow, at least
NO_GRAPH = -1  # the index of an empty place in a batch


@dataclass(frozen=True)
class StepBatch:
    """What one rank needs for one optimizer step. num_graphs: graphs of the step on all ranks; no_gradient_rounds come
    before the rounds with gradient.
    """

    micro_batches: list[Batch]
    num_graphs: int
    rounds: int
    no_gradient_rounds: int


class GraphLoader:
    """Yields the batches of this rank: every graph once per epoch across all ranks."""

    def __init__(self, settings: TrainSettings, data: PackedGraphs, rt: Runtime):
        self.settings = settings
        self.dataset = DeviceDataset(data, rt.device)
        self.known_colors = data.num_colors.astype(np.int64)
        # From one color too few to halfway up to DSATUR's number, where the descent of the exported program begins.
        self.color_slack = np.maximum(MIN_COLOR_SLACK, (data.dsatur_colors - self.known_colors) // 2)
        train = data.indices("train")
        nodes, colors = data.num_nodes[train], (self.known_colors + self.color_slack)[train]
        self.sampler = EqualCostSampler(
            train, nodes, colors, settings.batch_size, rt.world_size, rt.rank, settings.seed, settings.accumulate,
            singleton=self.dataset.is_sparse[train],
        )  # fmt: skip

    def starting_at(self, step: int) -> Iterator[StepBatch]:
        """Yield the batches of optimizer step `step`, counted over all epochs, and of all that follow, without end."""
        first_epoch, skipped = divmod(step, len(self.sampler))
        for epoch in count(first_epoch):
            self.sampler.set_epoch(epoch)
            for planned in islice(self.sampler, skipped, None):
                yield self.load(planned, step)
                step += 1
            skipped = 0

    def load(self, planned: PlannedStep, step: int) -> StepBatch:
        """The batches of a planned step, with colors, noise and rounds drawn for optimizer step `step`."""
        mean, seed = self.settings.rounds, self.settings.seed
        return StepBatch(
            [self.dataset.batch(ids, *self.draw(ids, step), planned.shape) for ids in planned.micro_batches],
            planned.num_graphs,
            rounds_of(planned.bucket, mean, seed),
            no_gradient_rounds_at(step, mean, seed),
        )

    def draw(self, ids: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray]:
        """For each graph of `ids`, the number of colors and the noise seed, drawn by (seed, step, graph)."""
        rng, num_graphs = np.random.default_rng([self.settings.seed, step, COLORS]), len(self.known_colors)
        draw, seeds = rng.random(num_graphs)[ids], rng.integers(0, 2**31, num_graphs)[ids]
        k = self.known_colors[ids] - 1 + (draw * (self.color_slack[ids] + 2)).astype(np.int64)
        return np.maximum(k, 1), seeds


def rounds_of(bucket: int, mean: int, seed: int) -> int:
    """Rounds with gradient, within ROUNDS_SPREAD of `mean`: fixed for a bucket, so that a step's form is too."""
    rng = np.random.default_rng([seed, bucket, ROUNDS])
    return mean + int(rng.integers(-ROUNDS_SPREAD, ROUNDS_SPREAD, endpoint=True))


def no_gradient_rounds_at(step: int, mean: int, seed: int) -> int:
    """Rounds without gradient at the beginning of a step: up to 4 * mean in most steps, else none."""
    rng = np.random.default_rng([seed, step, NO_GRADIENT_ROUNDS])
    return int(rng.integers(4, 4 * mean, endpoint=True)) if rng.random() < NO_GRADIENT_SHARE else 0


def mean_no_gradient_rounds(mean: int) -> float:
    """Rounds without gradient of a step, on average over all draws of `no_gradient_rounds_at`."""
    return NO_GRADIENT_SHARE * (4 + 4 * mean) / 2


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
        self.is_sparse = np.asarray(is_sparse(data.num_nodes, data.num_edges))

    def batch(self, ids: np.ndarray, k: np.ndarray, seeds: np.ndarray, shape: Shape) -> Batch:
        """The graphs `ids` with k colors and noise seeds (each (G,), at most shape.graphs), padded to `shape`. Places
        that are left over hold a graph of one node that counts nothing.
        """
        shape = shape if len(ids) else replace(shape, nodes=ALIGNMENT)
        indices = np.tile(np.array([[NO_GRAPH], [1], [0]]), shape.graphs)  # (3, G)
        indices[:, : len(ids)] = ids, k, seeds
        where, colors, noise_seeds = self._tensor(indices, torch.int64)
        exists, i = where != NO_GRAPH, where.clamp(min=0)
        is_sparse = len(ids) == 1 == shape.graphs and self.is_sparse[ids[0]]
        return Batch(
            graphs=self.sparse(ids[0]) if is_sparse else self.dense(i, exists, shape.nodes),
            num_colors=torch.where(exists, self.num_colors[i], 1),
            lower=torch.where(exists, self.lower[i], 1.0),
            upper=torch.where(exists, self.upper[i], 1.0),
            graph_type=self.graph_type[i],
            difficulty=self.difficulty[i],
            seeds=noise_seeds,
            k=colors,
            graph_mask=exists.float(),
            max_colors=shape.colors,
        )

    def dense(self, i: Tensor, exists: Tensor, num_nodes: int) -> DenseGraphs:
        """The graphs i (G,) int64 padded to so many nodes; a single node instead where exists (G,) is False."""
        nodes = torch.arange(num_nodes, device=self.device)  # (N,)
        octets = torch.arange(-(-num_nodes // 8), device=self.device)  # (W,)
        sizes = torch.where(exists, self.num_nodes[i], 1)[:, None]  # (G, 1)
        mask, width = nodes < sizes, (sizes + 7) // 8  # (G, N), (G, 1)
        inside = (mask & exists[:, None])[:, :, None] & (octets < width)[:, None]  # (G, N, W)
        place = self.offset[i][:, None, None] + nodes[:, None] * width[:, None] + octets  # (G, N, W)
        packed = self.bits[torch.where(inside, place, 0)] * inside  # (G, N, W)
        shifts = torch.arange(8, device=self.device, dtype=torch.uint8)
        bits = (packed[..., None] >> shifts & 1).flatten(2)[:, :, :num_nodes]  # (G, N, N)
        return DenseGraphs(bits.float(), mask.float())

    def sparse(self, i: int) -> SparseGraph:
        """Graph i by its edges; such graphs are large and rare, so the host may look at them."""
        edge_index = torch.from_numpy(self.data.graph(i).edge_index()).to(self.device)
        return SparseGraph(edge_index, int(self.data.num_nodes[i]))

    def _tensor(self, x: np.ndarray, dtype: torch.dtype) -> Tensor:
        tensor = torch.from_numpy(np.array(x)).to(dtype)
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()  # else the copy would wait for everything before it
        return tensor.to(self.device, non_blocking=True)
