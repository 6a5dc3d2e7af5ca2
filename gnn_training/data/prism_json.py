"""Reader of the training files of PRISM's generator: one JSON object per graph, in one of two schemas.

writer's: adjacency {shape: [n, n], data: flat}, node_features {shape: [n, 16], data: flat}, coloring,
    chromatic_number, graph_type, difficulty_score, metadata {name}
older:    n, adjacency {data: flat}, node_features: n lists of 16,
    ground_truth {node_colors, chromatic_number, graph_type_id, difficulty}
"""

import json
from reprlib import repr as brief

import numpy as np

from gnn_training.contract import GRAPH_TYPES, NUM_FEATURES
from gnn_training.data.formats import checked_size
from gnn_training.errors import UserError
from gnn_training.graph import Graph, Instance

WRITER_KEYS = ("coloring", "graph_type", "difficulty_score")
OLDER_KEYS = ("node_colors", "graph_type_id", "difficulty")
# Class ids by name, without case and punctuation. The queen and geometric families share one id.
TYPE_IDS = {name.replace("_", ""): i for i, name in enumerate(GRAPH_TYPES)}
TYPE_IDS |= {"registerallocation": 2, "interval": 2, "queen": 4, "geometric": 4}


def parse_prism_json(content: bytes) -> Instance:
    """Read one graph with its coloring and its graph type; each may be missing or null. UserError names a wrong entry.

    Chromatic number, difficulty and node features are checked and dropped, because they are computed again.
    """
    document = _document(content)
    older = "ground_truth" in document
    labels = _object(document, "ground_truth") if older else document
    coloring, graph_type, difficulty = OLDER_KEYS if older else WRITER_KEYS
    graph = Graph.from_adjacency(_adjacency(document))
    _check_features(document.get("node_features"), graph)
    _number(labels, "chromatic_number", 1, graph.num_nodes, whole=True)
    _number(labels, difficulty, 0, 100)
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


def _check_features(features: object, graph: Graph) -> None:
    if features is None:
        return
    values = features.get("data") if isinstance(features, dict) else features
    matrix = _floats(values, (graph.num_nodes, NUM_FEATURES), "node_features")
    for node, column in np.argwhere(~np.isfinite(matrix)) if graph.num_edges else ():  # without edges, 0/0 is written
        where = f"`node_features` of node {node}, column {column}, is {matrix[node, column]}"
        raise UserError(f"{where}; put a number there, or leave the key out, as features are computed again")


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
    if not isinstance(value, str):
        number = _number(labels, key, 0, len(GRAPH_TYPES) - 1, whole=True)
        return None if number is None else int(number)
    spelled = "".join(filter(str.isalnum, value)).lower()
    if spelled not in TYPE_IDS:
        raise UserError(f"`{key}` is {brief(value)}; it must be one of {', '.join(GRAPH_TYPES)}, a number, or left out")
    return TYPE_IDS[spelled]


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


def _number(labels: dict, key: str, low: int, high: int, whole: bool = False) -> float | None:
    value = labels.get(key)
    if value is None or value != value:
        return None
    if type(value) not in (int, float) or not low <= value <= high:
        raise UserError(f"`{key}` is {brief(value)}; it must be a number in {low}..{high}, or left out")
    if whole and value != int(value):
        raise UserError(f"`{key}` is {value:g}; it must be a whole number")
    return value
