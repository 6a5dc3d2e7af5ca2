"""Gap and CPU time of networkx, gcol and `color` on the DIMACS graphs of a folder, one thread each:
python -m benchmarks.libraries FOLDER --seconds 5

networkx's strategies and gcol's constructions end by themselves. gcol's local searches count iterations, so trials tell
how many fill the seconds. `color` takes the seconds.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import fmean

import gcol
import networkx as nx
import tyro

import gnn_training
from gnn_training.console import markdown_table, print_tables
from gnn_training.data import suites
from gnn_training.data.sources import read
from gnn_training.report.page import as_networkx
from gnn_training.search.portfolio import compile_all

TRIAL, MOST = 100, 1_000_000  # fewest and most iterations of a local search
STRATEGIES = (
    "random_sequential", "connected_sequential_bfs", "independent_set", "largest_first", "smallest_last", "DSATUR",
)  # fmt: skip
LOCAL_SEARCHES = {"TabuCol": 2, "HEA": 4}  # gcol's opt_alg


def measured(color: Callable[[], dict]) -> tuple[int, float]:
    """Number of colors, and CPU seconds."""
    start = time.process_time()
    colors = color()
    return len(set(colors.values())), time.process_time() - start


def iterations(search: Callable[..., dict], seconds: float) -> int:
    """The number of iterations with which a local search of gcol fills the seconds, clique and DSATUR included. It is
    scaled up from a trial that takes a fifth; MOST if the search ends before.
    """
    start, limit, spent = measured(partial(search, it_limit=0))[1], TRIAL, 0.0
    while spent < seconds / 5 and limit < MOST:
        limit *= 2
        spent = measured(partial(search, it_limit=limit))[1] - start
    return max(TRIAL, int(limit * (seconds - start) / spent)) if spent >= seconds / 5 else MOST


def methods(graph: nx.Graph, seconds: float) -> Iterator[tuple[str, Callable[[], dict]]]:
    """Every method and the function that colors with it."""
    for strategy in STRATEGIES:
        yield f"networkx {strategy}", partial(nx.greedy_color, graph, strategy)
    for strategy in ("welsh_powell", "dsatur", "rlf"):
        yield f"gcol {strategy}", partial(gcol.node_coloring, graph, strategy)
    for name, algorithm in LOCAL_SEARCHES.items():
        search = partial(gcol.node_coloring, graph, opt_alg=algorithm)
        yield f"gcol {name}", partial(search, it_limit=iterations(search, seconds))
    for limit in (0, 1, seconds):
        yield f"color, {limit:g} s", partial(gnn_training.color, graph, limit, threads=1)


def main(folder: tyro.conf.Positional[Path], seconds: float = 5.0) -> None:
    """Print a line per graph and method, then the table."""
    compile_all()
    best_known = suites.best_known()
    gaps: dict[str, list[int]] = {}
    taken: dict[str, list[float]] = {}
    for path in sorted(folder.glob("*.col")):
        source = read(path).graph
        graph = as_networkx(source)
        for name, color in methods(graph, seconds):
            colors, spent = measured(color)
            print(f"{path.stem},{name},{colors},{spent:.2f}", flush=True)
            gaps.setdefault(name, []).append(colors - best_known[path.stem])
            taken.setdefault(name, []).append(spent)
    columns: dict[str, list[object]] = {"method": [*gaps], "mean gap": [fmean(gap) for gap in gaps.values()]}
    columns["at best known"] = [gap.count(0) for gap in gaps.values()]
    columns["seconds"] = [fmean(each) for each in taken.values()]
    print_tables(markdown_table(columns))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
