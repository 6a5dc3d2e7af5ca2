"""A second opinion on a coloring, in plain Python over pairs, sharing nothing with the code that made it."""

from collections.abc import Iterable, Sequence
from pathlib import Path


def prove(graph: Path | Iterable[tuple[int, int]], colors: Sequence[int]) -> tuple[int, int]:
    """Count what is wrong with a coloring.

    graph: a plain-text DIMACS .col file (nodes counted from 1), or pairs of nodes counted from 0; loops bind nobody.
    colors: one integer per node, in the order of the nodes.

    Returns:
        (different edges whose ends share a color, different colors in use); the coloring is proper if the first is 0.

    Raises:
        IndexError: an edge names a node that has no color.
    """
    colors = [int(color) for color in colors]
    clashing = set()
    for a, b in pairs(graph) if isinstance(graph, Path) else graph:
        if min(a, b) < 0 or max(a, b) >= len(colors):
            raise IndexError(f"edge {a}-{b}, counted from 0, has an end without a color; {len(colors)} nodes have one")
        if a != b and colors[a] == colors[b]:
            clashing.add((min(a, b), max(a, b)))
    return len(clashing), len(set(colors))


def pairs(path: Path) -> Iterable[tuple[int, int]]:
    """Edges of a plain-text DIMACS .col file as pairs of nodes counted from 0, in its order."""
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            words = line.split()
            if words and words[0] == "e":
                yield int(words[1]) - 1, int(words[2]) - 1
