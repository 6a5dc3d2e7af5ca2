"""An undirected simple graph, the one form that readers produce and everything else consumes."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Graph:
    """N nodes and M undirected edges.

    edges (M, 2) int32, 0-based, every row u < v, rows sorted and unique: no loops, no doubles.
    """

    num_nodes: int
    edges: np.ndarray
    name: str = ""

    @classmethod
    def from_edges(cls, num_nodes: int, edges, name: str = "") -> "Graph":
        """Build from any list of pairs: loops are dropped, directions and repeats folded into one edge.

        Raises:
            ValueError: an end lies outside 0..num_nodes-1, or num_nodes is below 1.
        """
        if num_nodes < 1:
            raise ValueError(f"a graph needs at least one node, not {num_nodes}")
        pairs = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
        if pairs.size and (pairs.min() < 0 or pairs.max() >= num_nodes):
            bad = pairs[(pairs.min(1) < 0) | (pairs.max(1) >= num_nodes)][0]
            raise ValueError(f"edge {bad[0]}-{bad[1]} leaves the nodes 0..{num_nodes - 1}")
        pairs = np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1)
        keys = np.sort(pairs[:, 0] * num_nodes + pairs[:, 1])
        keys = keys[np.diff(keys, prepend=-1) != 0]  # a tenth of the time of np.unique
        unique = np.stack([keys // num_nodes, keys % num_nodes], axis=1).astype(np.int32)
        return cls(num_nodes, unique, name)

    @classmethod
    def from_adjacency(cls, matrix: np.ndarray, name: str = "") -> "Graph":
        """Build from a square 0/1 matrix (N, N); only the upper triangle is read."""
        return cls.from_edges(matrix.shape[0], np.argwhere(np.triu(matrix, 1)), name)

    @property
    def num_edges(self) -> int:
        return len(self.edges)

    @property
    def density(self) -> float:
        """Edges over possible edges, 0 for a single node."""
        return 2 * self.num_edges / max(1, self.num_nodes * (self.num_nodes - 1))

    def degrees(self) -> np.ndarray:
        """(N,) int64 number of neighbours."""
        return np.bincount(self.edges.ravel(), minlength=self.num_nodes)

    def adjacency(self) -> np.ndarray:
        """(N, N) bool, symmetric, empty diagonal."""
        matrix = np.zeros((self.num_nodes, self.num_nodes), dtype=bool)
        matrix[self.edges[:, 0], self.edges[:, 1]] = True
        return matrix | matrix.T

    def csr(self) -> tuple[np.ndarray, np.ndarray]:
        """Neighbour lists: offsets (N + 1,) int64 and neighbours (2M,) int32, sorted per node."""
        both = np.concatenate([self.edges, self.edges[:, ::-1]])
        both = both[np.lexsort((both[:, 1], both[:, 0]))]
        offsets = np.zeros(self.num_nodes + 1, dtype=np.int64)
        np.cumsum(np.bincount(both[:, 0], minlength=self.num_nodes), out=offsets[1:])
        return offsets, np.ascontiguousarray(both[:, 1], dtype=np.int32)

    def edge_index(self) -> np.ndarray:
        """(2, 2M) int64: row 0 sources, row 1 targets, both directions of every edge."""
        pairs = np.concatenate([self.edges, self.edges[:, ::-1]]).astype(np.int64)
        return np.ascontiguousarray(pairs.T)
