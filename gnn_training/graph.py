"""A graph, and a graph with what is known about its coloring, which all readers and generators produce; conflicts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gnn_training.contract import UNKNOWN_TYPE

MAX_NODES = 1_000_000  # of any graph: one that claims more is wrong, or too large to color
UNNAMED_FAMILY = "imported"  # family of graphs whose file does not name a graph type


class NeighbourLists(NamedTuple):
    """Neighbours of every node: those of v are neighbours[offsets[v] : offsets[v + 1]], sorted."""

    offsets: np.ndarray  # (N + 1,) int64
    neighbours: np.ndarray  # (2M,) int32


@dataclass(frozen=True)
class Graph:
    """N nodes and M undirected edges (M, 2) int32. Rows u < v are sorted and unique; nodes count from 0."""

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
        low, high = np.minimum(*pairs.T), np.maximum(*pairs.T)
        keys = low.astype(np.int64)
        keys *= num_nodes  # in place, because a graph may have 20 million edges
        keys += high
        keys = keys[low != high]
        keys.sort()
        keys = keys[np.diff(keys, prepend=-1) != 0]  # a tenth of the time of np.unique
        unique = np.empty((len(keys), 2), dtype=np.int32)
        np.floor_divide(keys, num_nodes, out=unique[:, 0], casting="unsafe")
        np.remainder(keys, num_nodes, out=unique[:, 1], casting="unsafe")
        return cls(num_nodes, unique, name)

    @classmethod
    def from_adjacency(cls, matrix: np.ndarray, name: str = "") -> "Graph":
        """Build a graph from a square 0/1 matrix (N, N). Only the upper triangle is read."""
        return cls(len(matrix), np.argwhere(np.triu(matrix, 1)).astype(np.int32), name)

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
        low, high = self.edges.T.astype(np.int64)
        keys = np.concatenate([low * self.num_nodes + high, high * self.num_nodes + low])
        keys.sort()  # a fifth of the time of np.lexsort
        offsets = np.concatenate([[0], np.cumsum(self.degrees())])
        return NeighbourLists(offsets, (keys % max(1, self.num_nodes)).astype(np.int32))

    def edge_index(self) -> np.ndarray:
        """Both directions of every edge: (2, 2M) int64, sources in row 0 and targets in row 1."""
        return np.concatenate([self.edges, self.edges[:, ::-1]], dtype=np.int64).T.copy()


@dataclass(frozen=True)
class Instance:
    """A graph and what its file or its generator says about it. coloring (N,): proper, colors from 0, if known.
    optimal: no coloring has fewer colors. graph_type: a position in contract.GRAPH_TYPES. note: one sentence for the
    user, such as why the coloring in a file is not used. names (N,): nodes as the file names them; without, 0 to N - 1.
    kind: what the file was read as, such as "adjacency matrix".
    """

    graph: Graph
    coloring: np.ndarray | None = None
    optimal: bool = False
    family: str = UNNAMED_FAMILY
    graph_type: int = UNKNOWN_TYPE
    note: str = ""
    names: Sequence[Any] = ()
    kind: str = ""


def as_graph(source: Any, num_nodes: int | None = None) -> Graph:
    """Graph of a networkx graph, an edge array (E, 2) of integers or a torch_geometric Data; it may have no nodes.
    Nodes keep their order. num_nodes is for an edge array only; without it, the largest node of an edge is the last.
    TypeError for another kind of object; ValueError for an array of another shape or an edge to a missing node.
    """
    if isinstance(source, Graph):
        return source
    is_networkx, is_data = hasattr(source, "is_multigraph"), hasattr(source, "edge_index")
    if num_nodes is not None and (is_networkx or is_data):
        raise TypeError("num_nodes is for an edge array only: a graph object knows its own number of nodes")
    if is_networkx:
        index = {node: number for number, node in enumerate(source)}
        num_nodes, pairs = len(index), np.array([(index[u], index[v]) for u, v in source.edges()], dtype=np.int64)
    elif is_data:
        if source.edge_index is None:
            raise ValueError("this Data has no edge_index: set it, with shape (2, 0) for a graph without edges")
        num_nodes, pairs = source.num_nodes, source.edge_index.T.cpu().numpy()
    else:
        pairs = _edge_array(source)
        num_nodes = int(pairs.max(initial=-1)) + 1 if num_nodes is None else num_nodes
    return Graph.from_edges(num_nodes, pairs) if num_nodes or len(pairs) else Graph(0, np.empty((0, 2), dtype=np.int32))


def _edge_array(source: Any) -> np.ndarray:
    try:
        pairs = np.asarray(source)
    except (TypeError, ValueError):  # rows of different lengths, a tensor on a GPU
        pairs = np.array(source, dtype=object)
    if pairs.size == 0 and pairs.ndim:
        return np.empty((0, 2), dtype=np.int64)
    if not np.issubdtype(pairs.dtype, np.integer):
        kinds = "a graph is a networkx graph, an edge array (E, 2) of integers or a torch_geometric Data"
        raise TypeError(f"{kinds}, not {type(source).__name__} of {pairs.dtype}")
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise ValueError(f"an edge array has the shape (E, 2), not {pairs.shape}: give one row per edge")
    return pairs.astype(np.int64)


def conflicts(graph: Graph, colors: np.ndarray) -> int:
    """Number of edges whose two ends have the same color; colors (N,) integers."""
    return int(np.count_nonzero(colors[graph.edges[:, 0]] == colors[graph.edges[:, 1]]))


def is_proper(graph: Graph, colors: np.ndarray) -> bool:
    """Whether every node has a color, 0 or above, and no edge has two ends of one color."""
    return len(colors) == graph.num_nodes and colors.min() >= 0 and conflicts(graph, colors) == 0


def num_colors(colors: np.ndarray) -> int:
    """Number of different colors; gaps do not count."""
    return len(np.unique(colors))


def from_logits(graph: Graph, logits: np.ndarray) -> np.ndarray:
    """Decode logits (N, C) to proper colors (N,) int64: best class per node, stable sort by class, first fit."""
    from gnn_training.solve.kernels import first_fit  # here, because numba takes half a second to import

    return first_fit(*graph.csr(), np.argsort(np.argmax(logits, axis=1), kind="stable"))
