"""Graphs as the network sees them: a batch padded to one size, with one operation, the sum over neighbours."""

import torch
from torch import Tensor


class DenseGraphs:
    """G graphs padded to N nodes, and what everybody asks of them.

    adjacency (G, N, N) float 0/1, symmetric, empty diagonal; mask (G, N) float, 1 for nodes that exist; num_nodes,
    mean_degree, density (G,); degrees, neighbour_degrees (G, N): own, and mean of the neighbours', 0 without any.
    """

    def __init__(self, adjacency: Tensor, mask: Tensor):
        self.adjacency, self.mask = adjacency, mask
        self.num_nodes = mask.sum(1)
        self.degrees = adjacency.sum(2)
        self.mean_degree = self.degrees.sum(1) / self.num_nodes + 1e-6  # edgeless graphs divide by it
        self.density = self.mean_degree / (self.num_nodes - 1).clamp(min=1)
        self.neighbour_degrees = self.aggregate(self.degrees[:, :, None])[:, :, 0] / self.degrees.clamp(min=1)

    def aggregate(self, x: Tensor) -> Tensor:
        """Sum of the neighbours' rows: (G, N, F) to (G, N, F)."""
        return torch.bmm(self.adjacency, x)

    def triangles(self) -> Tensor:
        """Triangles through every node (G, N)."""
        return (self.aggregate(self.adjacency) * self.adjacency).sum(2) / 2

    def summary(self, k: Tensor) -> Tensor:
        """What a graph and its number of colors k (G,) tell the network: (G, 5)."""
        n = self.num_nodes
        return torch.stack([n.log(), k.log(), self.density, k / n, self.mean_degree.log1p() - k.log()], 1)
