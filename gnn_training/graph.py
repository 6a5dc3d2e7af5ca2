"""Graphs, conflicts, and instances, which readers and generators produce: graphs and what is known about them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gnn_training.contract import UNKNOWN_TYPE

MAX_NODES = 1_000_000  # the most nodes of any graph; a file that claims more is wrong, or too large to color
UNNAMED_FAMILY = "imported"  # family of graphs whose file does not name a graph type


class NeighbourLists(NamedTuple):
    """Neighbours of every node: those of v are neighbours[offsets[v] : offsets[v + 1]], sorted."""

    offsets: np.ndarray  # (N + 1,) int64
    neighbours: np.ndarray  # (2M,) int32

    @property
    def num_nodes(self) -> int:
        """Number of nodes, those without neighbours included."""
        return len(self.offsets) - 1

    @property
    def sources(self) -> np.ndarray:
        """The node (2M,) to whose list each entry of `neighbours` belongs."""
        return np.repeat(np.arange(self.num_nodes), np.diff(self.offsets))

    def subgraph(self, nodes: np.ndarray) -> "NeighbourLists":
        """The neighbour lists of the subgraph on `nodes`, which are sorted."""
        place = np.full(self.num_nodes, -1, dtype=np.int32)
        place[nodes] = np.arange(len(nodes))
        begins, sizes = self.offsets[nodes], self.offsets[nodes + 1] - self.offsets[nodes]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        target = place[self.neighbours[np.repeat(begins - offsets[:-1], sizes) + np.arange(offsets[-1])]]
        inside = np.concatenate([[0], np.cumsum(target >= 0)])
        return NeighbourLists(inside[offsets], target[target >= 0])


@dataclass(frozen=True)
class Graph:
    """N nodes, numbered from 0, and M undirected edges (M, 2) int32: rows u < v, sorted and unique."""

    num_nodes: int
    edges: np.ndarray
    name: str = ""

    @classmethod
    def from_edges(cls, num_nodes: int, edges: ArrayLike, name: str = "") -> "Graph":
        """Build a graph from pairs of nodes 0..num_nodes-1, else ValueError. Loops and repeated edges are dropped."""
        if not 1 <= num_nodes <= MAX_NODES:
            raise ValueError(f"a graph has 1 to {MAX_NODES} nodes, not {num_nodes}")
        is_int32 = getattr(edges, "dtype", None) == np.int32  # half the memory
        pairs = np.asarray(edges, dtype=np.int32 if is_int32 else np.int64).reshape(-1, 2)
        if pairs.size and (pairs.min() < 0 or pairs.max() >= num_nodes):
            bad = pairs[(pairs.min(1) < 0) | (pairs.max(1) >= num_nodes)][0]
            raise ValueError(f"edge {bad[0]}-{bad[1]} leaves the nodes 0..{num_nodes - 1}")
        low, high, key = np.minimum(*pairs.T), np.maximum(*pairs.T), _key_type(num_nodes)
        keys = low.astype(key)
        keys *= key(num_nodes)  # in place, because a graph may have 20 million edges
        keys += high.astype(key)
        keys = keys[low != high]
        keys.sort()
        is_last = np.append(keys[1:] != keys[:-1], True)[: len(keys)]
        keys = keys[is_last]  # a tenth of the time of np.unique
        unique = np.empty((len(keys), 2), dtype=np.int32)
        np.floor_divide(keys, num_nodes, out=unique[:, 0], casting="unsafe")
        np.remainder(keys, num_nodes, out=unique[:, 1], casting="unsafe")
        return cls(num_nodes, unique, name)

    @classmethod
    def from_adjacency(cls, matrix: np.ndarray) -> "Graph":
        """Build a graph from a square 0/1 matrix (N, N). Only the upper triangle is read."""
        return cls(len(matrix), np.argwhere(np.triu(matrix, 1)).astype(np.int32))

    @property
    def num_edges(self) -> int:
        """M, the number of undirected edges."""
        return len(self.edges)

    def degrees(self) -> np.ndarray:
        """Number of neighbours of every node: (N,) int64."""
        return np.bincount(self.edges.ravel(), minlength=self.num_nodes)

    def adjacency(self) -> np.ndarray:
        """Adjacency matrix: (N, N) bool, symmetric, False on the diagonal."""
        matrix = np.zeros((self.num_nodes, self.num_nodes), dtype=bool)
        matrix[self.edges[:, 0], self.edges[:, 1]] = True
        return matrix | matrix.T

    def csr(self) -> NeighbourLists:
        """Neighbour lists of all nodes."""
        key = _key_type(self.num_nodes)
        (low, high), n = self.edges.T.astype(key), key(max(1, self.num_nodes))
        keys = np.concatenate([low * n + high, high * n + low])
        keys.sort()  # a fifth of the time of np.lexsort
        keys %= n
        return NeighbourLists(np.concatenate([[0], np.cumsum(self.degrees())]), keys.astype(np.int32))

    def edge_index(self) -> np.ndarray:
        """Both directions of every edge: (2, 2M) int64, sources in row 0 and targets in row 1."""
        return np.concatenate([self.edges, self.edges[:, ::-1]], dtype=np.int64).T.copy()


@dataclass(frozen=True)
class Instance:
    """A graph and what its file or its generator says about it. coloring (N,): proper, colors from 0; None if not
    known. optimal: no coloring has fewer colors. graph_type: a position in contract.GRAPH_TYPES. warning: a sentence
    for the user, such as why the coloring in a file is not used. names (N,): the nodes as the file names them; empty if
    the names are 0 to N - 1. kind: what the file was read as, such as "adjacency matrix".
    """

    graph: Graph
    coloring: np.ndarray | None = None
    optimal: bool = False
    family: str = UNNAMED_FAMILY
    graph_type: int = UNKNOWN_TYPE
    warning: str = ""
    names: Sequence[Any] = ()
    kind: str = ""


def concatenated(graphs: Sequence[Graph]) -> tuple[np.ndarray, np.ndarray]:
    """Graphs one after the other, as the exported file takes them: edge_index (2, E) and batch (N,) int64."""
    sizes = [graph.num_nodes for graph in graphs]
    edges = [graph.edge_index() + first for graph, first in zip(graphs, np.cumsum([0, *sizes]), strict=False)]
    return np.concatenate(edges, axis=1), np.repeat(np.arange(len(graphs)), sizes)


def _key_type(num_nodes: int) -> type[np.unsignedinteger]:
    """The type of u * N + v for an edge u-v: sorting takes half as long in 32 bits."""
    return np.uint32 if num_nodes <= 2**16 else np.uint64


def conflicts(graph: Graph, colors: np.ndarray) -> int:
    """Number of edges whose two ends have the same color; colors (N,) integers."""
    return int(np.count_nonzero(colors[graph.edges[:, 0]] == colors[graph.edges[:, 1]]))


def is_proper(graph: Graph, colors: np.ndarray) -> bool:
    """Whether every node has a color, 0 or above, and no edge has two ends of one color."""
    return len(colors) == graph.num_nodes and colors.min() >= 0 and conflicts(graph, colors) == 0


def num_colors(colors: np.ndarray) -> int:
    """Number of different colors; gaps do not count."""
    return len(np.unique(colors))
