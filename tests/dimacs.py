"""Queen graphs, and files of graphs and solutions."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from fuzzing import col

from gnn_training.graph import Graph
from gnn_training.graph_objects import as_graph


def queens(rows: int, columns: int) -> Graph:
    """The DIMACS graph queenR_C: the squares of a chess board, edges where a queen attacks one from the other."""
    down, right = (abs(place[:, None] - place) for place in np.divmod(np.arange(rows * columns), columns))
    graph = Graph.from_adjacency((down == 0) | (right == 0) | (down == right))
    return replace(graph, name=f"queen{rows}_{columns}")


def write_col(folder: Path, source: Any, name: str = "") -> Path:
    """Write a graph, which may be one of networkx, as a DIMACS file of this name or its own."""
    graph = as_graph(source)
    path = folder / f"{name or graph.name}.col"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(col((graph.num_nodes, graph.edges.tolist())))
    return path


def json_graph(graph: Graph, colors: Sequence[int], older: bool = False, graph_type: object = 3, **changes) -> dict:
    """A graph with its labels in the schema that PRISM's generator writes, or in its older one."""
    n, cells = graph.num_nodes, graph.adjacency().astype(int).ravel().tolist()
    labels = {"chromatic_number": 3, "node_colors" if older else "coloring": list(map(int, colors))}
    if older:
        labels |= {"graph_type_id": graph_type, "difficulty": 42.5}
        document = {"n": n, "adjacency": {"data": cells}, "node_features": [[0.5] * 16] * n, "ground_truth": labels}
    else:
        features = {"shape": [n, 16], "data": [None] * 16 * n}  # without edges they are 0/0
        document = {"adjacency": {"shape": [n, n], "data": cells}, "node_features": features, **labels}
        document |= {"graph_type": graph_type, "difficulty_score": 42.5, "metadata": {"name": "graph_7"}}
    return document | changes


def assert_proper(path: Path, colors: np.ndarray) -> None:
    """Every node of a .col file has a color, and no edge two ends of one color. The package's readers are not used."""
    (_, _, num_nodes, _), *edges = (line.split() for line in path.read_text().splitlines() if line[:1] != "c")
    assert len(colors) == int(num_nodes) and colors.min() >= 0
    assert all(colors[int(u) - 1] != colors[int(v) - 1] for _, u, v in edges)


def read_solution(path: Path) -> np.ndarray:
    """The colors (N,) of a DIMACS solution file, counted from 0."""
    lines = [line.split() for line in path.read_text().splitlines() if line[:1] != "c"]
    (s, col, count), *lines = lines
    assert (s, col) == ("s", "col")
    assert [(word, int(node)) for word, node, _ in lines] == [("l", number) for number in range(1, len(lines) + 1)]
    colors = np.array([int(color) for *_, color in lines]) - 1
    assert colors.min() >= 0 and len(set(colors.tolist())) == int(count)
    return colors
