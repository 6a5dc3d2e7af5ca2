"""The network of ours as PyG users write it: the nodes of all graphs in a row, every sum by scatter.

Letters in shapes: N nodes of all graphs together, E directed edges, G graphs, K colors (padded), D width of the state.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, silu, smooth_l1_loss
from torch_geometric.data import Batch
from torch_geometric.utils import scatter

from gnn_training.contract import UNKNOWN_TYPE
from gnn_training.model.graphs import Graphs
from gnn_training.model.network import SHARPNESS
from gnn_training.model.noise import STRIDE, noise
from gnn_training.model.objective import ColoringNetwork


class Rows:
    """What `Graphs` holds padded, of graphs in a row: degrees, neighbour_degrees (N,); the others (G,)."""

    summary = Graphs.summary

    def __init__(self, edge_index: Tensor, batch: Tensor, num_graphs: int):
        self.edge_index, self.batch, self.num_graphs = edge_index, batch, num_graphs
        ones = torch.ones(len(batch), device=batch.device)
        self.num_nodes = self.over_graphs(ones)
        self.degrees = self.aggregate(ones)
        self.mean_degree = self.over_graphs(self.degrees) / self.num_nodes + 1e-6
        self.density = self.mean_degree / (self.num_nodes - 1).clamp(min=1)
        self.neighbour_degrees = self.aggregate(self.degrees) / self.degrees.clamp(min=1)

    def aggregate(self, x: Tensor) -> Tensor:
        """Sum of the neighbours' rows: (N, ...) to (N, ...)."""
        source, target = self.edge_index
        return scatter(x[source], target, 0, len(x), "sum")

    def over_graphs(self, x: Tensor, reduce: str = "sum") -> Tensor:
        """Sum over the nodes of every graph: (N, ...) to (G, ...)."""
        return scatter(x, self.batch, 0, self.num_graphs, reduce)

    def invariants(self, k: Tensor) -> Tensor:
        """As model.network.invariants: (N, 9), for k (G,) colors."""
        d, k, n, mean = self.degrees, k[self.batch], self.num_nodes[self.batch], self.mean_degree[self.batch]
        own = [d.log1p() - k.log(), d / mean - 1, d / n, self.neighbour_degrees / mean - 1, (-d / k).exp()]
        return torch.stack([*own, k / n, self.density[self.batch], k.log(), n.log()], 1)


class ScatterNetwork(nn.Module):
    """The weights and the loss of a ColoringNetwork, called on a batch of PyG's."""

    def __init__(self, network: ColoringNetwork):
        super().__init__()
        self.refiner, self.reader, self.damping = network.refiner, network.reader, network.damping

    def forward(self, data: Batch, free_rounds: int, rounds: int) -> dict[str, Tensor]:
        """Loss terms, each a sum over the graphs; `data` has what `model.objective.Batch` has, and triangles (N,)."""
        rows = Rows(data.edge_index, data.batch, data.num_graphs)
        chromatic, types, difficulty = self._readings(rows, data)
        known, room = data.num_colors.float(), (data.upper - data.lower).clamp(min=1)
        return {
            "conflicts": self._conflicts(rows, data, free_rounds, rounds),
            "chromatic": smooth_l1_loss(chromatic / room, known / room, reduction="sum", beta=0.1),
            "family": cross_entropy(types, data.graph_type, ignore_index=UNKNOWN_TYPE, reduction="sum"),
            "difficulty": smooth_l1_loss(difficulty / 100, data.difficulty / 100, reduction="sum", beta=0.1),
        }

    def _conflicts(self, rows: Rows, data: Batch, free_rounds: int, rounds: int) -> Tensor:
        palette = (torch.arange(int(data.k.max()), device=data.k.device) < data.k[:, None]).float()  # (G, K)
        place = torch.arange(len(rows.batch), device=rows.batch.device) - data.ptr[rows.batch]  # (N,)

        def z(t: int) -> Tensor:
            return noise(data.seed + STRIDE * t, int(place.max()) + 1, palette.shape[1])[rows.batch, place]  # (N, K)

        fixed = rows.invariants(palette.sum(1))  # (N, 9)
        every = fixed[:, None, :].expand(-1, palette.shape[1], -1)  # (N, K, 9)
        h = self.refiner.normal(self.refiner.first(torch.cat([every, z(0)[..., None]], 2)))  # (N, K, D)
        with torch.no_grad():
            for t in range(free_rounds):
                h, _ = self._round(h, self._soft_colors(h, rows, palette), rows, palette, z(t), fixed)
        p = self._soft_colors(h, rows, palette)  # (N, K)
        loss = torch.zeros_like(rows.num_nodes)  # (G,)
        for t in range(rounds):
            h, conflicts = self._round(h, p, rows, palette, z(free_rounds + t), fixed)
            loss = loss + (t / rounds) ** 2 * conflicts
            p = self._soft_colors(h, rows, palette)
            h = self.damping * h + (1 - self.damping) * h.detach()
        loss = loss + rows.over_graphs((p * rows.aggregate(p)).sum(1)) / 2
        return (loss / rows.num_nodes).sum() / sum((t / rounds) ** 2 for t in range(rounds + 1))

    def _soft_colors(self, h: Tensor, rows: Rows, palette: Tensor) -> Tensor:
        scores = SHARPNESS * self.refiner.score(h)[..., 0]  # (N, K)
        return torch.softmax(scores.masked_fill(palette[rows.batch] == 0, -1e4), 1)

    def _round(
        self, h: Tensor, p: Tensor, rows: Rows, palette: Tensor, z: Tensor, fixed: Tensor
    ) -> tuple[Tensor, Tensor]:
        """State h (N, K, D) and its soft colors p (N, K) to the next state, and the expected conflicts (G,) of p."""
        refiner, usable = self.refiner, palette[rows.batch]  # (N, K)
        k, n = palette.sum(1), rows.num_nodes  # (G,), (G,)
        ph = p[..., None] * h  # (N, K, D)
        around = rows.aggregate(torch.cat([ph, p[..., None]], 2))  # (N, K, D + 1)
        e = around[..., -1]  # (N, K)
        m = around[..., :-1] / (1 + e)[..., None]  # (N, K, D)
        own = (p * e).sum(1, keepdim=True)  # (N, 1)
        log_e, log_own, ease = e.log1p(), own.log1p(), (-e).exp()
        cell = [p, log_e, ease, log_own - log_e, (e - own).clamp(-3, 3), z, 0.2 * (p + 1e-4).log()]
        free = (ease * usable).sum(1, keepdim=True).log1p()  # (N, 1)
        mean_h = (h * usable[..., None]).sum(1) / k[rows.batch, None]  # (N, D)
        node = [mean_h, ph.sum(1), fixed, own, log_own, free, p.max(1, keepdim=True).values]
        size, spent = (rows.over_graphs(x)[..., None] for x in (p, p * e))  # (G, K, 1)
        share = (k / n)[:, None, None]  # (G, 1, 1)
        color = [rows.over_graphs(ph) / (1 + size), size * share - 1, spent.log1p(), spent / (1 + size)]
        total = rows.over_graphs(own)  # (G, 1)
        rate = total / n[:, None]  # (G, 1)
        graph = [rows.over_graphs(mean_h) / n[:, None], rows.summary(k), rate, rate.log1p()]
        of_graph = refiner.of_color(torch.cat(color, 2)) + refiner.of_graph(torch.cat(graph, 1))[:, None]
        y = (
            refiner.of_cell(torch.cat([h, m, torch.stack(cell, 2)], 2))
            + refiner.of_node(torch.cat(node, 1))[:, None]
            + of_graph[rows.batch]
        )  # (N, K, H)
        gate, change = refiner.update(silu(y)).chunk(2, 2)  # (N, K, D) each
        return refiner.normal(h + gate.sigmoid() * change), total[:, 0] / 2

    def _readings(self, rows: Rows, data: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """As model.readings.Reader: chromatic (G,), type logits (G, 8) and difficulty (G,)."""
        d, of, n = rows.degrees, rows.batch, rows.num_nodes[:, None]  # (G, 1)
        mean, wedges = rows.mean_degree[of], d * (d - 1) / 2  # (N,)
        clustering = data.triangles / wedges.clamp(min=1)  # (N,)
        node = [d.log1p(), d / mean - 1, d / n[of, 0], rows.neighbour_degrees / mean - 1, clustering]
        x = self.reader.node(torch.stack(node, 1))  # (N, H)
        center = rows.over_graphs(x) / n  # (G, H)
        spread = (rows.over_graphs((x - center[of]) ** 2) / n + 1e-6).sqrt()  # (G, H)
        variance = rows.over_graphs((d - mean) ** 2) / rows.num_nodes  # (G,)
        transitivity = rows.over_graphs(data.triangles) / rows.over_graphs(wedges).clamp(min=1)  # (G,)
        lower, upper = data.lower, data.upper  # (G,)
        facts = [
            rows.num_nodes.log(),
            rows.density,
            rows.mean_degree.log1p(),
            variance.sqrt() / rows.mean_degree,
            transitivity,
            lower.log(),
            upper.log(),
            lower / upper,
            rows.num_nodes / upper / 10,
        ]
        read = torch.cat([center, spread, rows.over_graphs(x, "max"), torch.stack(facts, 1)], 1)  # (G, 3 H + 9)
        y = self.reader.head(silu(self.reader.graph(read)))  # (G, 10)
        return lower + (upper - lower) * y[:, 0].sigmoid(), y[:, 1:-1], 100 * y[:, -1].sigmoid()
