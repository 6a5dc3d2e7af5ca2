"""Graphs from objects of Python: of networkx, PyTorch Geometric, pandas, scipy, rustworkx, igraph, dicts, arrays."""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np

from gnn_training.graph import Graph

COLUMNS = "A.T @ A with A = matrix != 0 colors the columns of another matrix, so that no two of a color share a row"
NOT_SYMMETRIC = f"an adjacency matrix is not symmetric: give matrix + matrix.T != 0; {COLUMNS}"


def as_graph(source: Any) -> Graph:
    """Graph of one of the objects that docs/COLOR.md lists, see `named_graph`."""
    return named_graph(source)[0]


def named_graph(source: Any, num_nodes: int | None = None) -> tuple[Graph, list | None]:
    """Return the graph of an object that docs/COLOR.md lists, and the names of its nodes in their order. Objects of
    networkx and rustworkx, dicts and DataFrames have names. Other objects number their nodes from 0; the names are
    None. num_nodes: for an edge array, by default its largest node + 1. TypeError for another kind of object,
    ValueError for an array of another shape, a matrix that is not symmetric, lists that may be edges or neighbours, or
    an edge to a missing node. The graph may have no nodes.
    """
    if isinstance(source, Graph):
        return source, None
    if num_nodes is not None and _is_object(source):
        raise TypeError("num_nodes is for an edge array only: a graph object knows its own number of nodes")
    names, size, edges = _read(source, num_nodes)
    size = int(edges.max(initial=-1)) + 1 if size is None else int(size)
    if size or len(edges):
        return Graph.from_edges(size, edges), names
    return Graph(0, np.empty((0, 2), dtype=np.int32)), names


def _read(source: Any, num_nodes: int | None) -> tuple[list | None, int | None, np.ndarray]:
    """Return the node names, number of nodes and edges (E, 2) of any object but a Graph. None: not known."""
    if named := _names_and_edges(source):
        names, pairs = named
        index = {node: number for number, node in enumerate(names)}
        edges = np.array([(index[u], index[v]) for u, v in pairs], dtype=np.int64)
        return names, len(names), edges.reshape(-1, 2)
    if _is_frame(source):
        names, edges = _labelled_matrix(source)
        return names, len(names), edges
    if hasattr(source, "edge_types"):
        raise TypeError("a HeteroData has several kinds of nodes: give data.to_homogeneous()")
    if hasattr(source, "edge_index"):
        return None, getattr(source, "num_nodes", None), _edge_index(source.edge_index)
    if hasattr(source, "get_edgelist"):  # igraph
        return None, source.vcount(), np.array(source.get_edgelist(), dtype=np.int64).reshape(-1, 2)
    if hasattr(source, "tocoo"):
        entries = source.tocoo()
        return None, entries.shape[0], _sparse_matrix(entries)
    edges, side = _edge_array(source, has_side=num_nodes is not None)
    return None, side if num_nodes is None else num_nodes, edges


def is_one_graph(source: Any) -> bool:
    """Whether an object is a single graph of any kind, not a list of graphs."""
    if isinstance(source, list | tuple):  # an empty list is a graph without nodes
        source = next((row for row in source if not isinstance(row, list | tuple) or row), None)
        if isinstance(source, list | tuple):
            return not isinstance(source[0], list | tuple | np.ndarray)
        return isinstance(source, np.ndarray) and source.ndim == 1
    return source.ndim == 2 if isinstance(source, np.ndarray) else _is_object(source)


def _is_object(source: Any) -> bool:
    """Whether an object defines its own nodes, unlike an array."""
    kinds = "is_multigraph", "edge_index", "edge_types", "get_edgelist", "node_indices", "tocoo"
    return (
        isinstance(source, Graph | Mapping)
        or _is_view(source)
        or _is_frame(source)
        or any(hasattr(source, kind) for kind in kinds)
    )


def _is_view(source: Any) -> bool:
    """Whether an object is a view of a networkx graph, such as G.edges."""
    return type(source).__module__.startswith("networkx.") and not hasattr(source, "is_multigraph")


def _is_frame(source: Any) -> bool:
    """Whether an object is a DataFrame of pandas."""
    return all(hasattr(source, name) for name in ("index", "columns", "to_numpy"))


def _names_and_edges(source: Any) -> tuple[list, Iterable[tuple[Any, Any]]] | None:
    """The nodes and edges of a graph whose nodes have names; None for other graphs."""
    if hasattr(source, "is_multigraph"):
        return list(source), source.edges()
    if _is_view(source) and "Adjacency" not in (kind := type(source).__name__):
        if "Edge" not in kind:
            raise TypeError(f"{kind} of networkx is no graph: give the graph itself, its edges or its adj")
        pairs = [edge[:2] for edge in source]  # without data and keys
        return list(dict.fromkeys(chain.from_iterable(pairs))), pairs
    if isinstance(source, Mapping) and not hasattr(source, "tocoo"):  # scipy's dok_array has tocoo
        return _neighbour_dict(source)
    return (list(source.node_indices()), source.edge_list()) if hasattr(source, "node_indices") else None


def _neighbour_dict(source: Mapping) -> tuple[list, Iterable[tuple[Any, Any]]]:
    """The nodes and edges of a dict from node to neighbours. TypeError for a dict of columns or of other data."""
    for node, others in source.items():
        if isinstance(others, str) or not isinstance(others, Iterable):
            raise TypeError(f"the neighbours of node {node!r} are {others!r}: give a list")
        for other, weight in others.items() if isinstance(others, Mapping) else ():
            if isinstance(weight, int | float) and not (weight < 0 or weight > 0):  # such as NaN
                raise TypeError(f"node {node!r} has the neighbour {other!r} with {weight}: leave out what is no edge")
    lists = {node: list(others) for node, others in source.items()}  # once, because a value may be an iterator
    hint = "give edges as networkx.Graph(edges), or each node with the list of its neighbours"
    here = "a dict goes from node to neighbours, and here"
    try:
        names = list(dict.fromkeys([*lists, *chain.from_iterable(lists.values())]))
    except TypeError as error:
        raise TypeError(f"{here} a neighbour has an {error}: {hint}") from None
    if len(names) > len(lists) and not any(other in lists for others in lists.values() for other in others):
        raise TypeError(f"{here} no neighbour is a key: {hint}")
    if len(lists) > 2 and all(len(others) == len(lists) and {0, 1}.issuperset(others) for others in lists.values()):
        raise TypeError(f"{here} are rows of 0 and 1: give the matrix")
    return names, ((node, other) for node, others in lists.items() for other in others)


def _labelled_matrix(frame: Any) -> tuple[list, np.ndarray]:
    """The labels of a DataFrame that is an adjacency matrix, and its edges (E, 2)."""
    names, place = list(frame.index), {label: number for number, label in enumerate(frame.columns)}
    if not len(names) == len(frame.columns) == len(place) or place.keys() != set(names):
        what = f"a {type(frame).__name__} is an adjacency matrix with the same labels in rows and columns, each once"
        raise ValueError(f"{what}: give that, or the edges as networkx.from_pandas_edgelist(frame, column, column)")
    return names, _matrix(frame, frame.to_numpy()[:, [place[name] for name in names]])


def _edge_index(tensor: Any) -> np.ndarray:
    """The edges (E, 2) of an edge_index (2, E), as PyTorch Geometric has it."""
    if tensor is None:
        raise ValueError("this Data has no edge_index: set it, with shape (2, 0) for a graph without edges")
    index = np.asarray(tensor.cpu() if hasattr(tensor, "cpu") else tensor)
    if index.ndim != 2 or index.shape[0] != 2:
        hint = "transpose it" if index.ndim == 2 and index.shape[1] == 2 else "give two nodes per edge"
        raise ValueError(f"edge_index has shape {index.shape}; it must be (2, E): {hint}")
    if not np.issubdtype(index.dtype, np.integer):
        raise TypeError(f"edge_index has numbers of type {index.dtype}; they must be integers")
    return index.T


def _edge_array(source: Any, has_side: bool) -> tuple[np.ndarray, int | None]:
    """Return edges (E, 2) of an edge array or a matrix (N, N), and N, None for an edge array. has_side: N is known."""
    if isinstance(source, list | tuple) and source and _is_object(source[0]):  # networkx graphs are sequences to numpy
        raise TypeError(f"a {type(source).__name__} of graphs is not one graph: call color_many")
    try:
        array = np.asarray(source)
    except (TypeError, ValueError):  # rows of different lengths, a tensor on a GPU
        array = np.array(source, dtype=object)
    if array.ndim and not len(array):
        return np.empty((0, 2), dtype=np.int64), None
    is_edges = array.ndim == 2 and array.shape[1] == 2 and np.issubdtype(array.dtype, np.integer)
    if array.ndim == 2 and array.shape[0] == array.shape[1] and not is_edges:
        return _matrix(source, array), len(array)
    if not array.ndim or not np.issubdtype(array.dtype, np.integer):
        raise _no_graph(source, array)
    if not is_edges:
        ways = "give one row per edge, or dict(enumerate(lists)) for lists of neighbours"
        raise ValueError(f"an edge array has the shape (E, 2), not {array.shape}: {ways}")
    array = array.astype(np.int64)
    if isinstance(source, list | tuple) and not has_side and _may_be_neighbours(array):
        what = f"{len(array)} lists of two numbers may be edges or the neighbours of {len(array)} nodes"
        raise ValueError(f"{what}: give np.array(edges) or dict(enumerate(lists))")
    return array, None


def _may_be_neighbours(array: np.ndarray) -> bool:
    """Whether rows (E, 2) could also be lists of the two neighbours of each of E nodes, which make another graph."""
    size, (first, second) = len(array), array.T
    nodes = np.arange(size)
    if array.min() < 0 or array.max() >= size or ((first == nodes) | (second == nodes) | (first == second)).any():
        return False
    lists = Graph.from_edges(size, np.column_stack([np.repeat(nodes, 2), array.ravel()]))
    # Every edge is in the lists of both its ends if there are half as many edges as entries.
    return lists.num_edges == size and not np.array_equal(lists.edges, Graph.from_edges(size, array).edges)


def _matrix(source: Any, array: np.ndarray) -> np.ndarray:
    """The edges (E, 2) of an adjacency matrix (N, N)."""
    if array.dtype != bool and not np.issubdtype(array.dtype, np.number):
        raise _no_graph(source, array)
    if not np.isin(array, (0, 1)).all():
        shape = f"an array {array.shape} is an adjacency matrix, whose numbers must be 0 and 1"
        raise ValueError(f"{shape}: give matrix != 0, or an array of two nodes per edge")
    if (array != array.T).any():
        raise ValueError(NOT_SYMMETRIC)
    return np.argwhere(array)


def _sparse_matrix(entries: Any) -> np.ndarray:
    """The edges (E, 2) of a symmetric sparse matrix of scipy in COO format."""
    if len(entries.shape) != 2 or entries.shape[0] != entries.shape[1]:
        raise ValueError(f"an adjacency matrix is square, not {entries.shape}: {COLUMNS}")
    side = max(1, entries.shape[0])
    keys = entries.row.astype(np.int64) * side + entries.col
    order = np.argsort(keys, kind="stable")
    first = np.flatnonzero(np.diff(keys[order], prepend=-1))  # entries with the same row and column are added
    values = np.add.reduceat(entries.data[order], first) if len(first) else entries.data
    keys, values = keys[order][first][values != 0], values[values != 0]
    row, col = np.divmod(keys, side)
    turned = np.lexsort((row, col))
    if not (np.array_equal((col * side + row)[turned], keys) and np.array_equal(values[turned], values)):
        raise ValueError(NOT_SYMMETRIC)
    return np.column_stack([row, col])


def _no_graph(source: Any, array: np.ndarray) -> TypeError:
    """The error for an object that is no graph. array: what numpy has made of the object."""
    kinds = "a graph is a networkx graph, an edge array (E, 2) of integers or another object of docs/COLOR.md"
    what = f"{type(source).__name__} of {array.dtype}" if array.ndim else type(source).__name__
    ways = ": give networkx.Graph(edges) for edges between names, dict(enumerate(lists)) for lists of neighbours"
    return TypeError(f"{kinds}, not {what}{ways if isinstance(source, list | tuple) else ''}")
