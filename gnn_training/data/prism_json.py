"""Training files of PRISM's generator: one JSON object per graph, in the writer's schema or in the older reader's.

writer's: adjacency {shape: [n, n], data: flat}, node_features {shape: [n, 16], data: flat}, coloring,
    chromatic_number, graph_type, difficulty_score, metadata {name}
older:    n, adjacency {data: flat}, node_features: n lists of 16,
    ground_truth {node_colors, chromatic_number, graph_type_id, difficulty}
"""

import json
import logging
from pathlib import Path
from reprlib import repr as brief
from typing import NamedTuple

import numpy as np

from gnn_training.contract import GRAPH_TYPES, NUM_FEATURES
from gnn_training.data.formats import ReadGraph, checked_size
from gnn_training.errors import UserError
from gnn_training.graph import Graph

logger = logging.getLogger(__name__)
METADATA = "metadata.json"  # beside the folder of graphs: statistics, no graph


class LabelKeys(NamedTuple):
    """What a schema calls its labels."""

    coloring: str
    graph_type: str
    difficulty: str


WRITER = LabelKeys("coloring", "graph_type", "difficulty_score")
OLDER = LabelKeys("node_colors", "graph_type_id", "difficulty")
# Names of class ids without case and punctuation; the queen and geometric families share one id.
TYPE_NAMES = {name.replace("_", ""): i for i, name in enumerate(GRAPH_TYPES)}
TYPE_NAMES |= {"registerallocation": 2, "interval": 2, "queen": 4, "geometric": 4}


def parse_prism_json(content: bytes) -> ReadGraph:
    """Read one graph with its labels, each of which may be missing or null.

    Node features are looked at and left out, as the network computes its own: null or NaN is what the writer puts for
    a graph without edges and a fault in any other.

    Raises:
        UserError: "line N: ..." for broken JSON, otherwise the key, node or entry that is wrong.
    """
    document = _document(content)
    older = "ground_truth" in document
    labels, keys = (_object(document, "ground_truth"), OLDER) if older else (document, WRITER)
    graph = Graph.from_adjacency(_adjacency(document))
    _check_features(document.get("node_features"), graph)
    return ReadGraph(
        graph,
        coloring=_coloring(labels, keys.coloring, graph.num_nodes),
        num_colors=_whole(labels, "chromatic_number", 1, graph.num_nodes),
        graph_type=_graph_type(labels, keys.graph_type),
        difficulty=_number(labels, keys.difficulty, 0, 100),
    )


def _graph_type(labels: dict, key: str) -> int | None:
    """Class id, given as a number or by name in any spelling: RandomSparse, random_sparse, ..."""
    value = labels.get(key)
    if isinstance(value, str):
        spelled = "".join(filter(str.isalnum, value)).lower()
        if spelled not in TYPE_NAMES:
            known = ", ".join(GRAPH_TYPES)
            raise UserError(f"`{key}` is {brief(value)}; it must be one of {known}, a number, or left out")
        return TYPE_NAMES[spelled]
    return _whole(labels, key, 0, len(GRAPH_TYPES) - 1)


def compare_with_metadata(folder: Path) -> None:
    """Log it if `folder`/metadata.json counts other graphs than lie below; the generator itself is off by one."""
    try:
        stated = json.loads((folder / METADATA).read_bytes())["total_graphs"]
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        return
    num_files = sum(path.name != METADATA for path in folder.rglob("*.json"))
    if stated != num_files:
        logger.warning("%s says %s graphs, %d are there; taking those", folder / METADATA, brief(stated), num_files)


def _document(content: bytes) -> dict:
    try:
        document = json.loads(content)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(error.doc.rstrip())
        what = "the JSON ends in the middle" if cut else f"broken JSON ({error.msg}, column {error.colno})"
        raise UserError(f"line {error.lineno}: {what}; write the file again") from error
    except (ValueError, RecursionError) as error:  # bytes that are no text, numbers of 5,000 digits, 1,000 brackets
        raise UserError(f"line 1: is no JSON of a graph ({error}); write the file again") from error
    if not isinstance(document, dict) or "adjacency" not in document:
        raise UserError("is JSON without the key `adjacency`, so none of the two schemas for graphs")
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
        raise UserError(f"`adjacency` is {shape[0]} by {shape[1]}; it must be square, with a side per node")
    num_nodes = checked_size(shape[0])
    matrix = _floats(adjacency.get("data"), (num_nodes, num_nodes), "adjacency")
    if len(bad := np.argwhere((matrix != 0) & (matrix != 1))):
        i, j = bad[0]
        raise UserError(f"`adjacency` entry ({i}, {j}) is {matrix[i, j]:g}; entries are 0 or 1")
    if len(bad := np.argwhere(matrix != matrix.T)):
        i, j = bad[0]
        raise UserError(f"`adjacency` is not symmetric: ({i}, {j}) is {matrix[i, j]:g}, ({j}, {i}) is not; set both")
    return matrix


def _check_features(features: object, graph: Graph) -> None:
    if features is None:
        return
    values = features.get("data") if isinstance(features, dict) else features
    matrix = _floats(values, (graph.num_nodes, NUM_FEATURES), "node_features")
    if graph.num_edges and len(bad := np.argwhere(~np.isfinite(matrix))):
        node, column = bad[0]
        raise UserError(
            f"`node_features` of node {node}, column {column}, is {matrix[node, column]}; "
            "put a number there, or leave the key out, as features are computed anew"
        )


def _coloring(labels: dict, key: str, num_nodes: int) -> np.ndarray | None:
    if labels.get(key) is None:
        return None
    colors = _floats(labels[key], (num_nodes,), key)
    whole = (colors >= 0) & (colors < num_nodes) & (colors == np.floor(colors))
    if not whole.all():
        node = int(np.argmin(whole))
        raise UserError(f"`{key}` of node {node} is {colors[node]:g}; colors are whole numbers in 0..{num_nodes - 1}")
    return colors.astype(np.int64)


def _floats(values: object, shape: tuple[int, ...], key: str) -> np.ndarray:
    """Numbers in `shape`, given flat or nested; null becomes NaN."""
    try:
        array = np.asarray(values if isinstance(values, list) else None)
        if array.ndim == 0 or array.dtype.kind not in "biufO":
            raise TypeError
        array = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"`{key}` is no list of numbers, or one of uneven rows: {brief(values)}") from None
    if array.shape not in (shape, (int(np.prod(shape)),)):
        wanted = " x ".join(map(str, shape))
        raise UserError(f"`{key}` holds {array.size} numbers; {shape[0]} nodes need {wanted}")
    return array.reshape(shape)


def _whole(labels: dict, key: str, low: int, high: int) -> int | None:
    number = _number(labels, key, low, high)
    if number is not None and number != int(number):
        raise UserError(f"`{key}` is {number:g}; it must be a whole number")
    return None if number is None else int(number)


def _number(labels: dict, key: str, low: int, high: int) -> float | None:
    value = labels.get(key)
    if value is None or value != value:
        return None
    if type(value) not in (int, float) or not low <= value <= high:
        raise UserError(f"`{key}` is {brief(value)}; it must be a number in {low}..{high}, or left out")
    return float(value)
