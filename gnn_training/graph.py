"""A graph, and a graph with what is known about its coloring, which all readers and generators produce; conflicts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gnn_training.contract import UNKNOWN_TYPE

MAX_NODES = 1_000_000  # of any graph: one that claims more is wrong, or too large to color
UNNAMED_FAMILY = "imported"  # family of graphs whose file does not name a graph type
PLANTED_COLORING = {"planted", "leighton"}  # families whose label is a planted coloring, which searches rarely find


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
    """Graph of one of the objects that docs/COLOR.md lists; it may have no nodes. Nodes keep their order. num_nodes
    is for an edge array only; without it, the largest node of an edge is the last. TypeError for another kind of
    object, ValueError for an array of another shape or an edge to a missing node.
    """
    if isinstance(source, Graph):
        return source
    names = node_names(source)
    is_data, is_igraph = hasattr(source, "edge_index"), hasattr(source, "get_edgelist")
    if num_nodes is not None and (names is not None or is_data or is_igraph or hasattr(source, "tocoo")):
        raise TypeError("num_nodes is for an edge array only: a graph object knows its own number of nodes")
    if names is not None:
        index = {node: number for number, node in enumerate(names)}
        pairs = np.array([(index[u], index[v]) for u, v in _named_edges(source)], dtype=np.int64).reshape(-1, 2)
        num_nodes = len(index)
    elif hasattr(source, "edge_types"):
        raise TypeError("a HeteroData has several kinds of nodes: give data.to_homogeneous()")
    elif is_data:
        pairs = _edge_index(source.edge_index)
        num_nodes = getattr(source, "num_nodes", None)
    elif is_igraph:
        pairs, num_nodes = np.array(source.get_edgelist(), dtype=np.int64).reshape(-1, 2), source.vcount()
    elif hasattr(source, "tocoo"):
        entries = source.tocoo()
        num_nodes, pairs = _side(entries.shape), np.column_stack([entries.row, entries.col])[entries.data != 0]
    else:
        pairs, side = _edge_array(source)
        num_nodes = side if num_nodes is None else num_nodes
    num_nodes = int(pairs.max(initial=-1)) + 1 if num_nodes is None else int(num_nodes)
    return Graph.from_edges(num_nodes, pairs) if num_nodes or len(pairs) else Graph(0, np.empty((0, 2), dtype=np.int32))


def node_names(source: Any) -> list | None:
    """The nodes of a networkx graph, of a dict from node to neighbours, or of a rustworkx graph, whose node indices may
    have gaps; None for other graphs, whose nodes are numbers from 0.
    """
    if isinstance(source, Mapping):
        if wrong := [
            node for node, others in source.items() if isinstance(others, str) or not isinstance(others, Iterable)
        ]:
            raise TypeError(f"the neighbours of node {wrong[0]!r} are {source[wrong[0]]!r}: give a list")
        return list(dict.fromkeys([*source, *chain.from_iterable(source.values())]))
    if hasattr(source, "is_multigraph"):
        return list(source)
    return list(source.node_indices()) if hasattr(source, "node_indices") else None


def is_one_graph(source: Any) -> bool:
    """Whether this is a graph of any kind, and no list of graphs."""
    if isinstance(source, list | tuple | np.ndarray):
        return len(source) > 0 and isinstance(source[0], list | tuple | np.ndarray) and np.ndim(source[0]) == 1
    kinds = "is_multigraph", "edge_index", "edge_types", "get_edgelist", "node_indices", "tocoo"
    return isinstance(source, Graph | Mapping) or any(hasattr(source, kind) for kind in kinds)


def _named_edges(source: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(source, Mapping):
        return ((node, other) for node, others in source.items() for other in others)
    return source.edges() if hasattr(source, "is_multigraph") else source.edge_list()


def _edge_index(tensor: Any) -> np.ndarray:
    """The edges (E, 2) of an edge_index (2, E), as PyTorch Geometric has it."""
    if tensor is None:
        raise ValueError("this Data has no edge_index: set it, with shape (2, 0) for a graph without edges")
    index = np.asarray(tensor.cpu() if hasattr(tensor, "cpu") else tensor)
    if index.ndim != 2 or index.shape[0] != 2:
        way_out = "transpose it" if index.ndim == 2 and index.shape[1] == 2 else "give two nodes per edge"
        raise ValueError(f"edge_index has shape {index.shape}; it must be (2, E): {way_out}")
    if not np.issubdtype(index.dtype, np.integer):
        raise TypeError(f"edge_index has numbers of type {index.dtype}; they must be integers")
    return index.T


def _edge_array(source: Any) -> tuple[np.ndarray, int | None]:
    """The edges (E, 2) of an array of edges, or of a matrix (N, N) and its side."""
    try:
        array = np.asarray(source)
    except (TypeError, ValueError):  # rows of different lengths, a tensor on a GPU
        array = np.array(source, dtype=object)
    if array.size == 0 and array.ndim:
        return np.empty((0, 2), dtype=np.int64), None
    is_number = array.dtype == bool or np.issubdtype(array.dtype, np.number)
    is_edges = array.ndim == 2 and array.shape[1] == 2 and np.issubdtype(array.dtype, np.integer)
    if is_number and array.ndim == 2 and array.shape[0] == array.shape[1] and not is_edges:
        if not np.isin(array, (0, 1)).all():
            shape = f"an array {array.shape} is an adjacency matrix, whose numbers must be 0 and 1"
            raise ValueError(f"{shape}: give matrix != 0, or an array of two nodes per edge")
        if (array != array.T).any():
            raise ValueError("an adjacency matrix is not symmetric: give matrix + matrix.T != 0")
        return np.argwhere(array), len(array)
    if not np.issubdtype(array.dtype, np.integer):
        kinds = "a graph is a networkx graph, an edge array (E, 2) of integers or another object of docs/COLOR.md"
        raise TypeError(f"{kinds}, not {type(source).__name__} of {array.dtype}")
    if not is_edges:
        raise ValueError(f"an edge array has the shape (E, 2), not {array.shape}: give one row per edge")
    return array.astype(np.int64), None


def _side(shape: tuple[int, ...]) -> int:
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"an adjacency matrix is square, not {shape}")
    return shape[0]


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
    from gnn_training.search.kernels import first_fit  # here, because numba takes half a second to import

    return first_fit(*graph.csr(), np.argsort(np.argmax(logits, axis=1), kind="stable"))
