"""Graphs as the network sees them: a padded batch whose one operation is the sum over neighbours, in two forms."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.utils import scatter

from gnn_training.graph import Graph

SPARSE_FROM = 2048  # nodes; below, a dense product is faster than a scatter even for trees
SPARSE_BELOW = 0.01  # density; a scattered edge costs about as much as a hundred products of a dense row


def is_sparse(num_nodes: np.ndarray | int, num_edges: np.ndarray | int) -> np.ndarray:
    """Whether a graph of such a size is large and sparse enough for SparseGraph to be faster."""
    n = np.asarray(num_nodes, dtype=float)
    return (n >= SPARSE_FROM) & (2 * num_edges / np.maximum(1, n * (n - 1)) < SPARSE_BELOW)


class Graphs:
    """G graphs padded to N nodes. Its subclasses add `aggregate` and `triangles`. mask (G, N) float is 1 for nodes that
    exist; num_nodes, mean_degree and density are (G,); degrees (G, N) and neighbour_degrees (G, N), the mean over the
    neighbours, are 0 for nodes without neighbours.
    """

    def __init__(self, mask: Tensor):
        self.mask = mask
        self.num_nodes = mask.sum(1)
        self.degrees = self.aggregate(mask[:, :, None]).sum(2)  # no view: torch.compile would look at its base
        self.mean_degree = self.degrees.sum(1) / self.num_nodes + 1e-6  # a divisor, also for edgeless graphs
        self.density = self.mean_degree / (self.num_nodes - 1).clamp(min=1)
        self.neighbour_degrees = self.aggregate(self.degrees[:, :, None]).sum(2) / self.degrees.clamp(min=1)

    def aggregate(self, x: Tensor) -> Tensor:
        """Sum of the neighbours' rows: (G, N, F) to (G, N, F)."""
        raise NotImplementedError

    def triangles(self) -> Tensor:
        """Triangles through every node (G, N)."""
        raise NotImplementedError

    def to(self, dtype: torch.dtype) -> None:
        """Store the adjacency in this type. Its zeros and ones stay exact."""

    def summary(self, k: Tensor) -> Tensor:
        """Features (G, 5) of every graph and its number of colors k (G,)."""
        n = self.num_nodes
        return torch.stack([n.log(), k.log(), self.density, k / n, self.mean_degree.log1p() - k.log()], 1)


class DenseGraphs(Graphs):
    """Graphs by their adjacency (G, N, N) float of 0 and 1, symmetric, with an empty diagonal."""
    def __init__(self, adjacency: Tensor, mask: Tensor):
        self.adjacency = adjacency
        super().__init__(mask)

    def aggregate(self, x: Tensor) -> Tensor:
        return torch.bmm(self.adjacency, x.to(self.adjacency.dtype)).float()

    def triangles(self) -> Tensor:
        return (self.aggregate(self.adjacency) * self.adjacency).sum(2) / 2

    def to(self, dtype: torch.dtype) -> None:
        self.adjacency = self.adjacency.to(dtype)


class SparseGraph(Graphs):
    """One large graph (G = 1) by its edges (2, E), both directions."""
    def __init__(self, edge_index: Tensor, num_nodes: int):
        self.edge_index = edge_index
        super().__init__(torch.ones(1, num_nodes, device=edge_index.device))

    def aggregate(self, x: Tensor) -> Tensor:
        source, target = self.edge_index
        return scatter(x[0, source], target, dim=0, dim_size=x.shape[1], reduce="sum")[None]

    def triangles(self) -> Tensor:
        n, ones = self.mask.shape[1], torch.ones(self.edge_index.shape[1], device=self.edge_index.device)
        adjacency = torch.sparse_coo_tensor(self.edge_index, ones, (n, n)).coalesce()
        return torch.sparse.sum(torch.sparse.mm(adjacency, adjacency) * adjacency, 1).to_dense()[None] / 2


def concatenated(graphs: Sequence[Graph], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Graphs one after the other, as the contract has them: edge_index (2, E) and batch (N,)."""
    data = [Data(edge_index=torch.from_numpy(graph.edge_index()), num_nodes=graph.num_nodes) for graph in graphs]
    batch = Batch.from_data_list(data).to(device)
    return batch.edge_index, batch.batch
