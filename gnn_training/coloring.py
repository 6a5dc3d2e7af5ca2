"""Colorings: conflicts, decoding of the network's logits, and files of solutions."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gnn_training import files
from gnn_training.graph import Graph


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


def write_solution(path: Path, colors: np.ndarray, names: Sequence[Any] = (), is_new: bool = False) -> None:
    """Write colors (N,) that count from 0. names (N,): of the nodes; without, they are numbers from 0. `.csv` has a
    line `node,color` per node, `.json` an object from node to color, colors as they are. Other files are DIMACS
    solutions: `s col K`, then `l v c` per node, both counted from 1; a comment has each name that is not v.
    is_new: replace no file. StorageError if the system refuses.
    """
    pairs = list(zip(map(str, names or range(len(colors))), colors.tolist(), strict=True))
    if path.suffix == ".json":
        text = json.dumps(dict(pairs), indent=0, ensure_ascii=False)
    elif path.suffix == ".csv":
        csv.writer(table := io.StringIO(), lineterminator="\n").writerows([("node", "color"), *pairs])
        text = table.getvalue()
    else:
        lines = [f"l {node} {color + 1}" for node, (_, color) in enumerate(pairs, 1)]
        if names and names != range(1, len(colors) + 1):
            lines += [f"c {node} {' '.join(name.split())}" for node, (name, _) in enumerate(pairs, 1)]
        text = "\n".join([f"s col {num_colors(colors)}", *lines])
    files.write_text(path, text.rstrip("\n") + "\n", is_new)
