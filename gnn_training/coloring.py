"""Colorings: whether they are proper, the consumer's way from logits to colors, and DIMACS solution files."""
# DOC A second opinion on a coloring, in plain Python over read_pairs, sharing nothing with the code that made it.

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from gnn_training import files
from gnn_training.errors import UserError
from gnn_training.graph import Graph


def conflicts(graph: Graph, colors: np.ndarray) -> int:
    """Edges whose two ends hold the same color; colors (N,) integers."""
    return int(np.count_nonzero(colors[graph.edges[:, 0]] == colors[graph.edges[:, 1]]))


def is_proper(graph: Graph, colors: np.ndarray) -> bool:
    """Whether `colors` gives every node one color, 0 or above, and no edge two equal ends."""
    return len(colors) == graph.num_nodes and colors.min() >= 0 and conflicts(graph, colors) == 0


def num_colors(colors: np.ndarray) -> int:
    """Different colors in use, gaps not counted."""
    return len(np.unique(colors))


def greedy_along(graph: Graph, order: np.ndarray) -> np.ndarray:
    """First fit: each node of `order` (N,) takes the smallest color that no neighbour holds yet.

    Returns:
        colors (N,) int64, proper, without gaps; at most 1 + the largest degree of them.
    """
    assert np.array_equal(np.sort(order), np.arange(graph.num_nodes)), "order names every node once"
    offsets, neighbours = graph.csr()
    uncolored = int(np.diff(offsets).max()) + 1  # above every color that first fit can give
    colors = np.full(graph.num_nodes, uncolored, dtype=np.int64)
    free = np.ones(uncolored + 1, dtype=bool)
    for node in order.tolist():
        taken = colors[neighbours[offsets[node] : offsets[node + 1]]]
        free[taken] = False
        colors[node] = free.argmax()
        free[taken] = True
    return colors


def from_logits(graph: Graph, logits: np.ndarray) -> np.ndarray:
    """What callers of the network do: best class per node, stable sort by class, first fit along that order.

    logits (N, C) -> colors (N,) int64, proper; if the classes already were, no more of them than that.
    """
    return greedy_along(graph, np.argsort(np.argmax(logits, axis=1), kind="stable"))


def write_solution(path: Path, colors: np.ndarray) -> None:
    """Write a DIMACS solution: `s col K`, then `l v c` per node, both counted from 1; colors (N,) counted from 0."""
    lines = [f"s col {num_colors(colors)}", *(f"l {node} {color + 1}" for node, color in enumerate(colors.tolist(), 1))]
    files.write_text(path, "\n".join(lines) + "\n")


def read_solution(path: Path) -> np.ndarray:
    """Read a DIMACS solution file.

    Returns:
        colors (N,) int64 counted from 0, N being the number of `l` lines.

    Raises:
        UserError: not readable, a line that is no `c`, `s col K` or `l v c`, or nodes other than 1..N once each.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({files.reason(error)})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is no text; a solution has lines `s col K` and `l node color`") from error
    colors: dict[int, int] = {}
    for number, line in enumerate(lines, 1):
        match line.split():
            case [] | ["c", *_] | ["s", "col", _]:
                pass
            case ["l", node, color] if _is_count(node) and _is_count(color) and int(node) not in colors:
                colors[int(node)] = int(color) - 1
            case _:
                raise UserError(f"{path}: line {number}: {line[:40]!r} is no new `l node color`, both counted from 1")
    if not colors or max(colors) != len(colors):
        raise UserError(f"{path}: {len(colors)} nodes are colored, the largest is {max(colors, default=0)}; color 1..N")
    return np.array([colors[node] for node in sorted(colors)], dtype=np.int64)


def _is_count(text: str) -> bool:
    return len(text) < 19 and text.isascii() and text.isdecimal() and int(text) > 0


def prove(graph: Path | Iterable[tuple[int, int]], colors: Sequence[int]) -> tuple[int, int]:
    """Count what is wrong with a coloring.

    graph: a plain-text DIMACS .col file (nodes counted from 1), or read_pairs of nodes counted from 0; loops bind nobody.
    colors: one integer per node, in the order of the nodes.

    Returns:
        (different edges whose ends share a color, different colors in use); the coloring is proper if the first is 0.

    Raises:
        IndexError: an edge names a node that has no color.
    """
    colors = [int(color) for color in colors]
    clashing = set()
    for a, b in read_pairs(graph) if isinstance(graph, Path) else graph:
        if min(a, b) < 0 or max(a, b) >= len(colors):
            raise IndexError(f"edge {a}-{b}, counted from 0, has an end without a color; {len(colors)} nodes have one")
        if a != b and colors[a] == colors[b]:
            clashing.add((min(a, b), max(a, b)))
    return len(clashing), len(set(colors))


def read_pairs(path: Path) -> Iterable[tuple[int, int]]:
    """Edges of a plain-text DIMACS .col file as read_pairs of nodes counted from 0, in its order."""
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            words = line.split()
            if words and words[0] == "e":
                yield int(words[1]) - 1, int(words[2]) - 1
