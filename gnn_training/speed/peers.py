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
from gnn_training.host.memory import available_bytes
from gnn_training.model.graphs import batch_of
from gnn_training.model.objective import WEIGHTS
from gnn_training.speed.scatter_form import ScatterNetwork
from gnn_training.speed.strata import expected, spread

Loss = Callable[[Batch], Tensor]
Load = Callable[[int, int, int], tuple[float, float]]  # messages, nodes and colors of a batch to work and bytes
BATCH_SIZES = {"cpu": (1, 4), "cuda": (16, 64)}
MOST_MEMORY = 0.5  # of what is free, for a step


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
        return cross_entropy(self.last(h), data.y.clamp(max=MAX_COLORS - 1))  # as wide as the replaced system's


@dataclass(frozen=True)
class Rate:
    """Graphs of the whole data set per second at the batch size that is best.

    timed_share: of an epoch's time; beyond_share: of it in steps larger than any that was timed, which therefore count
    with the pace of that one.
    """

    graphs_per_second: float
    batch_size: int
    timed_share: float
    beyond_share: float


def colors(data: PackedGraphs, seed: int) -> np.ndarray:
    """Colors (G,) that every graph of a data set may use, drawn once, from the range that training draws from."""
    known, dsatur = data.num_colors.astype(int), data.dsatur_colors.astype(int)
    rng = np.random.default_rng(seed)
    return np.maximum(1, rng.integers(known - 1, known + np.maximum(2, (dsatur - known) // 2), endpoint=True))


def as_list(data: PackedGraphs, ids: np.ndarray, k: np.ndarray) -> list[Data]:
    """The graphs `ids` with all that the peers want to know, each with its k of (G,) colors and noise of its own."""
    return [_data(data, i, int(k[i]), seed=int(i)) for i in ids]


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


def scatter_load(rounds: int) -> Load:
    """Work of cells and messages: every node of a batch has as many colors as the graph that needs most."""

    def load(messages: int, nodes: int, colors: int) -> tuple[float, float]:
        return colors * messages, colors * (64 * messages + 880 * rounds * nodes)  # bytes as measured at the peak

    return load


def attention_load(messages: int, nodes: int, colors: int) -> tuple[float, float]:
    """Work of messages, one from every node to itself among them."""
    return messages, 22_400 * messages  # bytes as measured at the peak


def fastest(
    network: nn.Module, loss: Loss, load: Load, data: PackedGraphs, ids: np.ndarray, seconds: float, seed: int
) -> Rate:
    """Train on the graphs `ids` at each of a few batch sizes, `seconds` each, and take the fastest."""
    device, k = next(network.parameters()).device, colors(data, seed)
    optimizer = torch.optim.AdamW(network.parameters())

    def step(batch: np.ndarray) -> float:
        graphs = as_list(data, batch, k)  # the peers hold them in memory: it is no part of their time
        start = time.monotonic()
        loss(next(iter(DataLoader(graphs, len(graphs)))).to(device)).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize() if device.type == "cuda" else None
        return time.monotonic() - start

    rates, free = [], torch.cuda.mem_get_info()[0] if device.type == "cuda" else available_bytes()
    for size in BATCH_SIZES[device.type]:
        order = np.random.default_rng(seed).permutation(ids)
        epoch = [order[start : start + size] for start in range(0, len(order), size)]
        nodes, edges = (np.array([x[batch].sum() for batch in epoch]) for x in (data.num_nodes, data.num_edges))
        loads = [load(n + 2 * e, n, k[batch].max()) for n, e, batch in zip(nodes, edges, epoch, strict=True)]
        works, num_bytes = np.array(loads, dtype=float).T
        rates.append(_rate(step, epoch, works, num_bytes < MOST_MEMORY * free, seconds, seed))
    return max(rates, key=lambda rate: rate.graphs_per_second)


def _rate(
    step: Callable[[np.ndarray], float],
    epoch: list[np.ndarray],
    works: np.ndarray,
    fits: np.ndarray,
    seconds: float,
    seed: int,
) -> Rate:
    """Take steps of an epoch that fit into memory (fits), as many as `seconds` allow.

    A few graphs hold most of the work, and one of them alone can take a minute. So one of the largest steps that half
    of the time allows comes first, then others, spread evenly over the work. A step that is not taken counts with the
    pace of those taken that have as much work, one larger than all of them with the pace of the largest. That is in
    favour of the peers: their pace falls as their messages outgrow the caches.
    """
    times, first = np.full(len(epoch), np.nan), int(works.argsort(kind="stable")[len(epoch) // 4])
    step(epoch[first])  # warms up
    times[first] = step(epoch[first])
    affordable = np.flatnonzero(fits & (expected(works, times, works) < seconds / 2))
    largest = affordable[works[affordable].argmax()] if len(affordable) else first
    for i in (largest, *spread(works, seed)):
        left = seconds - np.nansum(times)
        if fits[i] and np.isnan(times[i]) and expected(works, times, works[i]) < left:
            times[i] = step(epoch[i])
    each, taken = expected(works, times, works), np.isfinite(times)
    beyond = each[works > works[taken].max()].sum()
    whole, graphs = each.sum(), sum(map(len, epoch))
    return Rate(float(graphs / whole), len(epoch[0]), float(times[taken].sum() / whole), float(beyond / whole))
