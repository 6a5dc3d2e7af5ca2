"""Compare rules on fresh graphs of families that people color, and of families that no training has seen.

    python -m benchmarks.families                                       # the shipped file against TabuCol
    python -m benchmarks.families --models models/coloring_gnn.onnx     # and other files, or run folders

Prints a Markdown table: mean colors that a rule saves over the untrained one, which is TabuCol, from the same first
coloring, in equal rounds and in equal time, with one standard error. docs/SCALING.md says what both are.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro

from gnn_training.console import markdown_table, print_tables
from gnn_training.contract import SHIPPED_MODEL
from gnn_training.data import applications
from gnn_training.data.applications import conflict_graph
from gnn_training.data.families import FAMILIES, Generator, Instance
from gnn_training.graph import Graph, NeighbourLists
from gnn_training.network import rule
from gnn_training.search.first_colorings import clique_size, first_coloring
from gnn_training.search.portfolio import compile_all
from gnn_training.search.search_kernel import SearchTask, search_graph
from gnn_training.training import checkpoint

ROUNDS, SEARCH_SEEDS = 2500, (0, 1)
REALISTIC = tuple(name for name in FAMILIES if hasattr(applications, name))
RANDOM = ("er_sparse", "er_light", "er_dense", "er_heavy", "planted", "leighton", "clique_union", "geometric")


@dataclass(frozen=True)
class Options:
    """What to compare."""

    models: tuple[Path, ...] = (SHIPPED_MODEL,)
    """Exported files, run folders or checkpoints."""
    graphs: int = 12
    """Graphs of every family."""
    seed: int = 30_000
    """Seed of the graphs."""
    sizes: tuple[int, int] = (150, 1000)
    """Fewest and most nodes."""


def latin_square(rng: Generator, n: int) -> Instance:
    """Cells of a partly filled Latin square, adjacent if they share a row, a column or a symbol."""
    side = math.ceil(math.sqrt(n / rng.uniform(0.6, 1)))
    row, column = np.divmod(rng.permutation(side * side)[:n], side)
    group = (row + column * int(rng.integers(1, 3))) % side
    return Instance(
        Graph.from_adjacency((row[:, None] == row) | (column[:, None] == column) | (group[:, None] == group))
    )


def code_words(rng: Generator, n: int) -> Instance:
    """Binary words, adjacent if they differ in few places: a color is a code that corrects errors (Sloane 2000)."""
    length = math.ceil(math.log2(n)) + int(rng.integers(1, 4))
    words = rng.permutation(1 << length)[:n]
    bits = ((words[:, None] >> np.arange(length)) & 1).astype(np.float32)
    distance = bits @ (1 - bits).T + (1 - bits) @ bits.T
    return Instance(Graph.from_adjacency(distance <= int(rng.integers(2, 5))))


def open_shop(rng: Generator, n: int) -> Instance:
    """Tasks of one hour that need a machine, a job and sometimes a tool (Gonzalez and Sahni 1976)."""
    kinds = [rng.integers(max(2, round(n / rng.uniform(8, 40))), size=n) for _ in range(3)]
    kinds[2] = np.where(rng.random(n) < 0.7, kinds[2], np.arange(n) + n)
    return Instance(conflict_graph(np.concatenate([each[:, None] == np.unique(each) for each in kinds], axis=1)))


class OpenGraph(NamedTuple):
    """A graph whose first coloring has more colors than a clique."""

    lists: NeighbourLists
    first: np.ndarray  # (N,) int32, coloring to start with
    clique: int


KEPT_OUT = {function.__name__: function for function in (latin_square, code_words, open_shop)}


def open_graph(graph: Graph) -> OpenGraph | None:
    """This graph, unless its first coloring needs no search."""
    lists = graph.csr()
    first, clique = first_coloring(lists).astype(np.int32), clique_size(lists)
    return OpenGraph(lists, first, clique) if first.max() >= clique else None


def graphs_of(family: str, options: Options) -> Iterator[OpenGraph]:
    """Fresh open graphs of a family."""
    draw = KEPT_OUT.get(family) or FAMILIES[family].draw
    for index in range(options.graphs):
        rng = np.random.default_rng([options.seed, *family.encode(), index])
        if graph := open_graph(draw(rng, int(rng.integers(options.sizes[0], options.sizes[1] + 1))).graph):
            yield graph


def timed_search(graph: OpenGraph, weights: np.ndarray, rounds: int, seed: int) -> tuple[int, float]:
    """Colors found in so many rounds, and the seconds of this thread."""
    started = time.thread_time()
    result = search_graph(graph.lists, SearchTask(graph.first, rounds, seed, graph.clique), weights)
    return result.num_colors, time.thread_time() - started


def savings(graph: OpenGraph, weights: np.ndarray, seed: int) -> tuple[int, int]:
    """Colors that these weights save over the untrained rule, in equal rounds and in equal time."""
    before, allowed = timed_search(graph, rule.untrained(), ROUNDS, seed)
    colors, taken = timed_search(graph, weights, ROUNDS, seed)
    fitting = min(math.ceil(ROUNDS * allowed / max(taken, 1e-6)), 4 * ROUNDS)
    return before - colors, before - timed_search(graph, weights, fitting, seed)[0]


def mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means over graphs, the first dimension, and their standard errors."""
    return values.mean(0), values.std(0) / math.sqrt(len(values))


def main(options: Options) -> None:
    """Search and print the table."""
    compile_all()
    rules = [checkpoint.read_weights(path)["rule"].numpy() for path in options.models]
    saved: dict[str, np.ndarray] = {}  # by family: (graphs, models, 2), 0 for a graph without a search
    for family in (*REALISTIC, *KEPT_OUT, *RANDOM):
        rows = np.zeros((options.graphs, len(rules), 2))
        for row, graph in zip(rows, graphs_of(family, options), strict=False):
            row[:] = np.mean([[savings(graph, rule, seed) for rule in rules] for seed in SEARCH_SEEDS], 0)
        saved[family] = rows
        print(family, saved[family].mean(0).round(2).tolist(), flush=True)
    groups = {
        "mean of those that people color": REALISTIC,
        "mean of those kept out": tuple(KEPT_OUT),
        "mean of others": RANDOM,
    }
    for name, families in groups.items():
        saved[name] = np.concatenate([saved[family] for family in families])
    columns: dict[str, list[object]] = {"family": list(saved)}
    for i, path in enumerate(options.models):
        for j, kind in enumerate(("rounds", "time")):
            title = f"{path.parent.name}/{path.name}, equal {kind}"
            columns[title] = ["{:.2f} ± {:.2f}".format(*mean_and_error(rows[:, i, j])) for rows in saved.values()]
    print_tables(markdown_table(columns))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
