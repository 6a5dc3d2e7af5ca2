"""What training is compared with: two ways in which one writes it with PyTorch Geometric, on a list of its Data."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATv2Conv

from gnn_training.contract import MAX_COLORS, NUM_FEATURES
from gnn_training.data.packed import PackedGraphs
from gnn_training.model.graphs import batch_of
from gnn_training.model.objective import WEIGHTS
from gnn_training.speed.scatter_form import ScatterNetwork

Loss = Callable[[Batch], Tensor]
Work = Callable[[list[Data]], float]
BATCH_SIZES = {"cpu": (1, 4), "cuda": (16, 64)}


class GATv2(nn.Module):
    """Six attention layers of width 256 and 8 heads (Brody et al. 2022) that classify nodes by color."""

    def __init__(self, width: int = 256, layers: int = 6, heads: int = 8):
        super().__init__()
        self.first = nn.Linear(NUM_FEATURES, width)
        self.layers = nn.ModuleList(GATv2Conv(width, width // heads, heads) for _ in range(layers))
        self.last = nn.Linear(width, MAX_COLORS)

    def forward(self, data: Batch) -> Tensor:
        """Cross-entropy with the stored colors, the mean over nodes."""
        h = self.first(data.x)  # (N, D)
        for layer in self.layers:
            h = h + layer(h, data.edge_index).relu()
        return cross_entropy(self.last(h), data.y)


@dataclass(frozen=True)
class Rate:
    """Graphs of the whole data set per second at the batch size that is best, and how much of an epoch was timed."""

    graphs_per_second: float
    batch_size: int
    timed_share: float


def as_list(data: PackedGraphs, ids: np.ndarray, seed: int) -> list[Data]:
    """The graphs `ids` with all that the peers want to know, each with k colors and noise drawn once."""
    rng = np.random.default_rng(seed)
    known, dsatur = data.num_colors[ids].astype(int), data.dsatur_colors[ids].astype(int)
    k = np.maximum(1, rng.integers(known - 1, known + np.maximum(2, (dsatur - known) // 2), endpoint=True))
    seeds = rng.integers(0, 2**31, len(ids))
    return [_data(data, i, int(k[row]), int(seeds[row])) for row, i in enumerate(ids)]


def _data(data: PackedGraphs, i: int, k: int, seed: int) -> Data:
    graph = data.graph(i)
    return Data(
        x=torch.zeros(graph.num_nodes, NUM_FEATURES),
        edge_index=torch.from_numpy(graph.edge_index()),
        y=torch.from_numpy(data.label(i).coloring.astype(np.int64)),
        triangles=batch_of([graph]).triangles()[0],
        num_colors=int(data.num_colors[i]),
        lower=float(data.lower_bound[i]),
        upper=float(data.dsatur_colors[i]),
        graph_type=int(data.graph_type[i]),
        difficulty=float(data.difficulty[i]),
        k=k,
        seed=seed,
    )


def scatter_loss(network: ScatterNetwork, rounds: int, free_rounds: int) -> Loss:
    """What training minimizes, as a mean over the graphs of a batch."""

    def loss(batch: Batch) -> Tensor:
        terms = network(batch, free_rounds, rounds)
        return sum(weight * terms[name] for name, weight in WEIGHTS.items()) / batch.num_graphs

    return loss


def scatter_work(graphs: list[Data]) -> float:
    """Cells and messages: every node of a batch has as many colors as the graph that needs most."""
    return max(graph.k for graph in graphs) * attention_work(graphs)


def attention_work(graphs: list[Data]) -> float:
    """Messages, one from every node to itself among them."""
    return sum(graph.num_nodes + graph.num_edges for graph in graphs)


def fastest(network: nn.Module, loss: Loss, work: Work, graphs: list[Data], seconds: float, seed: int) -> Rate:
    """Train at each of a few batch sizes, for `seconds` in all, and take the fastest."""
    device = next(network.parameters()).device
    sizes = BATCH_SIZES[device.type]
    optimizer = torch.optim.AdamW(network.parameters())

    def step(batch: list[Data]) -> float:
        start = time.monotonic()
        loss(next(iter(DataLoader(batch, len(batch)))).to(device)).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize() if device.type == "cuda" else None
        return time.monotonic() - start

    rates = [_rate(step, work, graphs, size, seconds / len(sizes), seed) for size in sizes]
    return max(rates, key=lambda rate: rate.graphs_per_second)


def _rate(
    step: Callable[[list[Data]], float], work: Work, graphs: list[Data], size: int, seconds: float, seed: int
) -> Rate:
    """Take those steps of an epoch, in random order, that fit into `seconds`.

    A few graphs hold most of the work, and one of them alone can take a minute. A step that is not taken counts with
    the pace of those taken that have as much work, one larger than all of them with the pace of the largest. That is
    in favour of the peers: their pace falls as their messages outgrow the caches.
    """
    order = np.random.default_rng(seed).permutation(len(graphs))
    epoch = [[graphs[i] for i in order[start : start + size]] for start in range(0, len(order), size)]
    epoch.sort(key=work)
    works = np.array([work(batch) for batch in epoch], dtype=float)
    step(epoch[0])  # warms up
    times = np.full(len(epoch), np.nan)
    times[len(epoch) // 4] = step(epoch[len(epoch) // 4])
    for i in np.random.default_rng(seed).permutation(len(epoch)):
        taken = np.isfinite(times)
        if np.interp(works[i], works[taken], times[taken] / works[taken]) * works[i] < seconds - times[taken].sum():
            times[i] = step(epoch[i])
    taken = np.isfinite(times)
    whole = (np.interp(works, works[taken], times[taken] / works[taken]) * works).sum()
    return Rate(float(len(graphs) / whole), size, float(times[taken].sum() / whole))
