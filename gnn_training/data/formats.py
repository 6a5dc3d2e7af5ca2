"""Readers of graph files: bytes to Instance. UserError says what is wrong, with the line or the key.

DIMACS `.col` has `p edge N M`, then `e u v` per edge, nodes counted from 1 (DIMACS challenge format, 1993). In edge
lists and GraphML, nodes may have any labels: whole numbers are sorted, others keep the order in which they appear.
The JSON of PRISM's generator has one object per graph, in one of two schemas:
writer's: adjacency {shape: [n, n], data: flat}, node_features {shape: [n, 16], data: flat}, coloring,
    chromatic_number, graph_type, difficulty_score, metadata {name}
older:    n, adjacency {data: flat}, node_features: n lists of 16,
    ground_truth {node_colors, chromatic_number, graph_type_id, difficulty}
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from reprlib import repr as brief

import numpy as np

from gnn_training.contract import GRAPH_TYPES
from gnn_training.errors import UserError
from gnn_training.graph import Graph, Instance

MAX_READ_NODES = 1_000_000  # a header that claims more is wrong, or the graph is too large to color
WRITER_KEYS = ("coloring", "graph_type")
OLDER_KEYS = ("node_colors", "graph_type_id")
# Class ids by name, without case and punctuation. The queen and geometric families share one id.
TYPE_IDS = {name.replace("_", ""): i for i, name in enumerate(GRAPH_TYPES)}
TYPE_IDS |= {"registerallocation": 2, "interval": 2, "queen": 4, "geometric": 4}


def checked_size(num_nodes: int) -> int:
    """Return `num_nodes`; UserError if it is below 1 or above MAX_READ_NODES."""
    if not 1 <= num_nodes <= MAX_READ_NODES:
        raise UserError(f"the graph has {num_nodes} nodes; it needs at least one; at most {MAX_READ_NODES} are read")
    return num_nodes


def parse_dimacs(content: bytes) -> Instance:
    """Read one graph. Repeated edges and loops are dropped. A wrong M gives a note, because many files have one."""
    num_nodes = stated_edges = 0
    pairs: list[tuple[int, int]] = []
    for number, line in enumerate(content.splitlines(), 1):
        words = line.split()
        try:
            if not words or words[0][:1] == b"c":
                continue
            if words[0] == b"e":
                u, v = int(words[1]), int(words[2])
                if not num_nodes:
                    raise UserError(f"edge {u}-{v} comes before the header `p edge N M`; move the header up")
                if not (0 < u <= num_nodes and 0 < v <= num_nodes):
                    raise UserError(f"edge {u}-{v} is outside the nodes 1..{num_nodes} of the header; correct it")
                pairs.append((u - 1, v - 1))
            elif words[0] == b"p" and not num_nodes and words[1] in (b"edge", b"edges", b"col"):
                num_nodes, stated_edges = checked_size(int(words[2])), int(words[3])
            elif words[0] not in (b"n", b"d", b"v", b"x"):  # node values, dimensions, coordinates, parameters
                raise ValueError
        except UserError as error:
            raise UserError(f"line {number}: {error}") from None
        except (ValueError, IndexError):
            shown = line[:40].decode("ascii", "replace")
            raise UserError(f"line {number}: {shown!r} is neither `c`, one `p edge N M` nor `e u v`; fix it") from None
    if not num_nodes:
        raise UserError("there is no line `p edge N M`; a .col file begins with one")
    graph = Graph.from_edges(num_nodes, pairs)
    right = stated_edges in (len(pairs), graph.num_edges)
    note = "" if right else f"the header says {stated_edges} edges, the file has {graph.num_edges}; these are used"
    return Instance(graph, note=note)


def parse_edge_list(content: bytes) -> Instance:
    """Read two labels per line, separated by blanks or commas. Further words are ignored; # and % begin a comment."""
    pairs: list[tuple[str, str]] = []  # networkx would skip broken lines silently
    for number, line in enumerate(content.splitlines(), 1):
        try:
            words = line.decode("utf-8-sig").replace(",", " ").split()
        except UnicodeDecodeError:
            raise UserError(f"line {number}: has bytes that are not UTF-8 text; is this an edge list?") from None
        if not words or words[0][0] in "#%":
            continue
        if len(words) == 1:
            raise UserError(f"line {number}: {words[0][:40]!r} is alone; an edge list has two nodes per line")
        pairs.append((words[0], words[1]))
    if not pairs:
        raise UserError("there is no edge; an edge list has two nodes per line")
    return Instance(_numbered((label for pair in pairs for label in pair), pairs))


def parse_graphml(content: bytes) -> Instance:
    """Read the first graph with networkx. Directions and parallel edges become one edge."""
    import networkx as nx

    def node_id(text: str | None) -> str:
        if text is None:
            raise ValueError("a node, or an end of an edge, has no id")
        return text

    try:
        graph = nx.parse_graphml(content, node_type=node_id)
    except SyntaxError as error:  # xml.etree's ParseError
        line = error.position[0] if hasattr(error, "position") else 1
        raise UserError(f"line {line}: broken XML ({error}); write the file again") from error
    except Exception as error:  # networkx does not check its input: a damaged file raises anything
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"networkx cannot read this GraphML ({words}); write the file again") from error
    return Instance(_numbered(graph.nodes, graph.edges()))


def _numbered(labels: Iterable[str], pairs: Iterable[tuple[str, str]]) -> Graph:
    order = list(dict.fromkeys(labels))
    checked_size(len(order))
    with suppress(ValueError):
        order.sort(key=int)
    position = {label: index for index, label in enumerate(order)}
    return Graph.from_edges(len(order), [(position[a], position[b]) for a, b in pairs])


def parse_prism_json(content: bytes) -> Instance:
    """Read one graph with its coloring and its graph type; each may be missing or null. UserError names a wrong entry.
    Chromatic number, difficulty and node features are ignored, because they are computed again.
    """
    document = _document(content)
    older = "ground_truth" in document
    labels = _object(document, "ground_truth") if older else document
    coloring, graph_type = OLDER_KEYS if older else WRITER_KEYS
    graph = Graph.from_adjacency(_adjacency(document))
    colors, type_id = _coloring(labels, coloring, graph.num_nodes), _graph_type(labels, graph_type)
    if type_id is None:
        return Instance(graph, colors)
    return Instance(graph, colors, family=GRAPH_TYPES[type_id], graph_type=type_id)


def _document(content: bytes) -> dict:
    try:
        document = json.loads(content)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(error.doc.rstrip())
        what = "the JSON ends in the middle" if cut else f"broken JSON ({error.msg}, column {error.colno})"
        raise UserError(f"line {error.lineno}: {what}; write the file again") from error
    except (ValueError, RecursionError) as error:  # bytes that are not text, numbers of 5,000 digits, 1,000 brackets
        raise UserError(f"line 1: is not the JSON of a graph ({error}); write the file again") from error
    if not isinstance(document, dict) or "adjacency" not in document:
        raise UserError("is JSON without the key `adjacency`, which both schemas have; name files of graphs")
    return document


def _object(document: dict, key: str) -> dict:
    found = document.get(key)
    if not isinstance(found, dict):
        raise UserError(f"`{key}` is {brief(found)}; it must be an object")
    return found


def _adjacency(document: dict) -> np.ndarray:
    adjacency = _object(document, "adjacency")
    shape = adjacency.get("shape", [document.get("n")] * 2)
    if not isinstance(shape, list) or len(shape) != 2 or any(type(side) is not int for side in shape):
        raise UserError(f"the shape of `adjacency` is {brief(shape)}; it must be [n, n]")
    if shape[0] != shape[1] or document.get("n", shape[0]) != shape[0]:
        raise UserError(f"`adjacency` is {shape[0]} by {shape[1]}; it must be square, with a row per node")
    matrix = _floats(adjacency.get("data"), (checked_size(shape[0]), shape[0]), "adjacency")
    for i, j in np.argwhere((matrix != 0) & (matrix != 1)):
        raise UserError(f"`adjacency` entry ({i}, {j}) is {matrix[i, j]:g}; entries are 0 or 1")
    for i, j in np.argwhere(matrix != matrix.T):
        raise UserError(f"`adjacency` is not symmetric: ({i}, {j}) is {matrix[i, j]:g}, ({j}, {i}) is not; set both")
    return matrix


def _coloring(labels: dict, key: str, num_nodes: int) -> np.ndarray | None:
    """Colors (N,) int64 within 0..N-1, perhaps not proper."""
    if labels.get(key) is None:
        return None
    colors = _floats(labels[key], (num_nodes,), key)
    whole = (colors >= 0) & (colors < num_nodes) & (colors == np.floor(colors))
    for node in np.flatnonzero(~whole):
        raise UserError(f"`{key}` of node {node} is {colors[node]:g}; colors are whole numbers in 0..{num_nodes - 1}")
    return colors.astype(np.int64)


def _graph_type(labels: dict, key: str) -> int | None:
    """Class id, given as a number or as a name in any spelling: RandomSparse, random_sparse, ..."""
    value = labels.get(key)
    if value is None or value != value:
        return None
    if isinstance(value, str):
        value = TYPE_IDS.get("".join(filter(str.isalnum, value)).lower())
    if type(value) not in (int, float) or value not in range(len(GRAPH_TYPES)):
        known = f"one of {', '.join(GRAPH_TYPES)}, a number in 0..{len(GRAPH_TYPES) - 1}"
        raise UserError(f"`{key}` is {brief(labels[key])}; it must be {known}, or left out")
    return int(value)  # type: ignore[arg-type]


def _floats(values: object, shape: tuple[int, ...], key: str) -> np.ndarray:
    """Numbers in `shape`, given flat or nested; null becomes NaN."""
    try:
        array = np.asarray(values if isinstance(values, list) else None)
        if array.ndim == 0 or array.dtype.kind not in "biufO":
            raise TypeError
        array = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"`{key}` is not a list of numbers, or its rows are uneven: {brief(values)}") from None
    if array.shape not in (shape, (int(np.prod(shape)),)):
        raise UserError(f"`{key}` has {array.size} numbers; {shape[0]} nodes need {' x '.join(map(str, shape))}")
    return array.reshape(shape)
