"""Public benchmarks to evaluate on: their graphs and what others have published about them. None is for training."""

import csv
import io
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import networkx as nx

from gnn_training import files
from gnn_training.data.formats import integer
from gnn_training.errors import UserError
from gnn_training.graph import Graph
from gnn_training.graph_objects import as_graph

# Fewest colors known for graphs of the DIMACS/COLOR collection; a planted coloring counts.
DIMACS = Path(__file__).with_name("dimacs.csv")
# A column per solver, a digit per graph, 1 if the solver found q colors: ids 1 to 20 of the files in results_evaluation
# of https://github.com/ArtLabBocconi/RandCSPBench (MIT license).
Q_COLORING = Path(__file__).with_name("q_coloring.csv")

CSV_LIMIT = 10_000_000  # bytes


@dataclass(frozen=True)
class Case:
    """A graph to color and what is known about it."""

    graph: Graph
    best_known: int | None = None
    family: str | None = None
    target: int = 1  # number of colors at which a search ends
    published: dict[str, bool] = field(default_factory=dict)  # by solver: whether it reached the best known number
    was_seen: bool = False  # a training has learned from it, or chosen its weights by it


def best_known(path: Path = DIMACS) -> dict[str, int]:
    """The numbers in column best_known of a CSV, by the name in its column name. UserError if it cannot be read."""
    content = files.read_bytes(path, CSV_LIMIT, "name a CSV that you may read")
    rows = csv.reader(io.StringIO(content.decode("utf-8-sig", "replace"), newline=""), strict=True)
    by_name = {}
    try:
        header = next(rows, [])
        name, value = header.index("name"), header.index("best_known")
        for row in filter(None, rows):
            if number := row[value]:
                by_name[row[name].removesuffix(".col")] = integer(number)
    except (IndexError, ValueError, csv.Error) as error:
        what = f"line {rows.line_num}: {error}; it needs columns name,best_known; best_known is a number or empty"
        raise UserError(f"{path}: {what}") from error
    return by_name


def q_coloring() -> Iterator[Case]:
    """Random graphs with mean degrees around the threshold of q colors (Skenderi et al. 2026, arXiv 2602.18419): those
    of up to 256 nodes that a published solver could color with q colors.
    """
    with open(Q_COLORING, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            q, nodes, edges = (int(row.pop(name)) for name in ("q", "num_nodes", "num_edges"))
            rng = random.Random(1)  # the seed of the test set: the graphs of a size follow in turn
            for number, digits in enumerate(zip(*row.values(), strict=True), 1):
                graph = as_graph(nx.gnm_random_graph(nodes, edges, seed=rng))
                published = {solver: digit == "1" for solver, digit in zip(row, digits, strict=True)}
                if any(published.values()):
                    name, family = f"q{q}_n{nodes}_m{edges}_{number}", f"q = {q}, n = {nodes}"
                    yield Case(replace(graph, name=name), q, family, target=q, published=published)
