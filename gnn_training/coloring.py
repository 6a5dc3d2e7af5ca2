"""Colorings: conflicts, first fit, decoding of the network's logits, DIMACS solutions, and an independent check."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
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


def count_conflicts_and_colors(pairs: Iterable[tuple[int, int]], colors: Sequence[int]) -> tuple[int, int]:
    """Count the conflicting edges and the colors of a coloring: a check that shares no code with what made it. pairs:
    edges as nodes counted from 0; loops are ignored. colors: one integer per node; IndexError if one is missing.
    """
    colors = [int(color) for color in colors]
    conflicting = set()
    for a, b in pairs:
        if min(a, b) < 0 or max(a, b) >= len(colors):
            raise IndexError(f"edge {a}-{b}, counted from 0: a node has no color, only {len(colors)} nodes have one")
        if a != b and colors[a] == colors[b]:
            conflicting.add((min(a, b), max(a, b)))
    return len(conflicting), len(set(colors))


def read_dimacs_pairs(path: Path) -> Iterator[tuple[int, int]]:
    """The edges of a plain-text DIMACS .col file as pairs of nodes counted from 0; independent of the .col reader."""
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            words = line.split()
            if words and words[0] == "e":
                yield int(words[1]) - 1, int(words[2]) - 1
