"""Compare the methods of `color` in equal time: all of them, all but one, and two of them alone.

    python -m benchmarks.portfolio --record FILE

Every search has one thread and the same CPU seconds, from DSATUR's coloring, on random graphs of all families that are
not optimal yet. FILE keeps what was measured; the same command again continues. The tables are printed.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import numpy as np
import tyro

from gnn_training.console import as_text, markdown_table
from gnn_training.contract import SHIPPED_MODEL
from gnn_training.data.families import FAMILIES, Recipe, draws
from gnn_training.data.packed import spread
from gnn_training.graph import NeighbourLists
from gnn_training.onnx_program.session import Model
from gnn_training.search import kernels
from gnn_training.search.engine import FOREVER, Budget, Coloring, Method, Portfolio, Trained
from gnn_training.search.first_colorings import clique_size
from gnn_training.search.portfolio import compile_all, methods_for, tabu_search, trained_rule


@dataclass(frozen=True)
class Options:
    """What to measure."""

    record: Path
    """JSON Lines file with the searches so far."""
    seconds: float = 10.0
    """CPU seconds of a search."""
    shown: tuple[float, ...] = (1.0, 10.0)
    """CPU seconds after which to compare, up to `seconds`."""
    bounds: tuple[int, ...] = (100, 250, 500, 1000, 2000)
    """Numbers of nodes between which the graphs lie."""
    graphs: int = 12
    """Graphs between every two bounds."""
    seed: int = 30_000
    """Seed of the graphs."""


class Trial(NamedTuple):
    """A graph, and the methods to try on it."""

    graph: str  # its name
    lists: NeighbourLists
    family: str
    bounds: str
    clique: int
    first: Coloring  # DSATUR's
    portfolio: Mapping[Method, float]


def trials(options: Options, trained: Trained) -> Iterator[Trial]:
    """Graphs of all families whose first coloring may not be optimal."""
    for low, high in pairwise(options.bounds):
        recipe, found = Recipe(dict.fromkeys(FAMILIES, 1), ((low, high, 1.0),), 0), []
        for draw in draws(recipe, options.seed, 2 * max(options.graphs, len(FAMILIES))):
            graph = draw.load().graph
            lists = graph.csr()
            clique, colors = clique_size(lists), kernels.dsatur(*lists, np.zeros(1, np.uint8))
            first = Coloring("DSATUR", colors, int(colors.max()) + 1)
            if first.num_colors > clique:
                methods = methods_for(lists, first, clique, trained)
                found.append(Trial(graph.name, lists, draw.family, f"{low} to {high}", clique, first, methods))
        yield from (found[i] for i in spread(len(found), options.graphs))


def variants(trial: Trial) -> dict[str, Mapping[Method, float]]:
    """What to compare on a graph, by name."""
    all_methods = dict(trial.portfolio)
    without = {
        f"without {method.__name__.replace('_', ' ')}": {m: s for m, s in all_methods.items() if m is not method}
        for method in all_methods
    }
    return {"portfolio": all_methods, **without, "trained rule": {trained_rule: 1}, "TabuCol": {tabu_search: 1}}


def search(trial: Trial, methods: Mapping[Method, float], trained: Trained, seconds: float) -> list[tuple[float, int]]:
    """CPU seconds and number of colors of every better coloring."""
    start = time.process_time()
    run = Portfolio(trial.lists, trial.first.colors, Budget(math.inf, trial.clique), trained)

    def stop_in_time() -> None:
        while time.process_time() < start + seconds and not run.is_over:
            time.sleep(0.01)
        run.is_over = True
        run.workers[0].stop[0] = 1

    Thread(target=stop_in_time, daemon=True).start()
    found = [(time.process_time() - start, coloring.num_colors) for coloring in run.run(methods, FOREVER)]
    return [(0.0, trial.first.num_colors), *found]


def main(options: Options) -> None:
    """Measure what is missing, then print the tables."""
    trained = Model(SHIPPED_MODEL, 1).trained
    compile_all()
    options.record.touch()
    lines = [json.loads(line) for line in options.record.read_text().splitlines()]
    done = {(line["graph"], line["bounds"], line["variant"]): line for line in lines}
    for trial in trials(options, trained):
        for variant, methods in variants(trial).items():
            key = {"graph": trial.graph, "bounds": trial.bounds, "variant": variant}
            if tuple(key.values()) not in done:
                line = {**key, "family": trial.family, "found": search(trial, methods, trained, options.seconds)}
                done[trial.graph, trial.bounds, variant] = line
                with options.record.open("a") as file:
                    file.write(json.dumps(line) + "\n")
    for seconds in options.shown:
        print(f"\nColors more than the portfolio after {seconds:g} s:\n\n{compared(list(done.values()), seconds)}")


def compared(lines: list[dict], seconds: float) -> str:
    """A table: mean differences to the portfolio after so many seconds, in sum, by size and by family."""
    colors = {
        (line["bounds"], line["graph"], line["variant"]): min(k for moment, k in line["found"] if moment <= seconds)
        for line in lines
    }
    names = list(dict.fromkeys(line["variant"] for line in lines if line["variant"] != "portfolio"))
    columns: dict[str, list[object]] = {"graphs": [], **{name: [] for name in names}}
    groups = ["all", *dict.fromkeys(line["bounds"] for line in lines), *sorted({line["family"] for line in lines})]
    for group in groups:
        inside = {(line["bounds"], line["graph"]) for line in lines if group in ("all", line["bounds"], line["family"])}
        columns["graphs"].append(len(inside))
        for name in names:
            more = np.array(
                [colors[*one, name] - colors[*one, "portfolio"] for one in inside if (*one, name) in colors]
            )
            error = more.std() / math.sqrt(max(1, len(more)))
            columns[name].append(f"{more.mean():+.2f} ± {error:.2f}" if len(more) else "-")
    return as_text(markdown_table({"": groups, **columns}))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
