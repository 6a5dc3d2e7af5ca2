"""What an evaluation found: one row per graph, their summary, tables, and curves over time and rounds.

The gap of a coloring is its number of colors above the best known.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from rich.table import Table

from gnn_training.console import markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METHODS = {"dsatur": "DSATUR", "rlf": "RLF", "tabucol": "TabuCol", "one_call": "one call", "search": "search"}
PLOT_COLORS = {method: f"C{number}" for number, method in enumerate(METHODS)}  # the same in every plot
Progress = tuple[tuple[float, int], ...]  # seconds and number of colors, each time it fell
Curve = list[tuple[float, float]]


@dataclass(frozen=True)
class Row:
    """One graph. None stands for what is not known, was not asked for, or would have taken too much time or memory."""

    name: str
    family: str | None
    num_nodes: int
    num_edges: int
    best_known: int | None
    clique: int  # a lower bound, at which the search stops
    dsatur: int
    dsatur_seconds: float
    rlf: int | None = None
    rlf_seconds: float | None = None
    tabucol: int | None = None  # from DSATUR's colors, without the network, in one thread and the search's time
    tabucol_seconds: float | None = None
    tabucol_progress: Progress = ()  # DSATUR's colors come first
    one_call: int | None = None  # colors of one three-input call, decoded as callers do it
    one_call_seconds: float | None = None
    conflicts: int | None = None  # edges whose ends have the same class in that call, before decoding
    chromatic: float | None = None  # number of colors that the network says the graph needs
    search: int | None = None  # colors within the time budget, the one call included
    search_seconds: float | None = None
    search_progress: Progress = ()  # the colors of the one call come first
    rounds: tuple[tuple[int, int], ...] = ()  # refinement rounds of one call and its colors, for the plot

    def seconds(self, method: str) -> float | None:
        """Time that a method, a key of METHODS, took for the graph."""
        return getattr(self, f"{method}_seconds")

    def progress(self, method: str) -> Progress:
        """Seconds and colors each time the method had fewer; most methods give one coloring."""
        colors, seconds = getattr(self, method), self.seconds(method)
        return getattr(self, f"{method}_progress", () if seconds is None else ((seconds, colors),))


def summarize(rows: Sequence[Row]) -> dict[str, Any]:
    """Sum up rows: each method over the graphs it colored, the estimate over those with a best known number."""
    errors = [
        abs(row.chromatic - row.best_known) for row in rows if row.best_known is not None and row.chromatic is not None
    ]
    return {
        "graphs": len(rows),
        "with_best_known": sum(row.best_known is not None for row in rows),
        "chromatic_mae": _mean(errors),
        "methods": {method: scores for method in METHODS if (scores := _scores(rows, method))},
    }


def by_family(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """The summary of every family; empty if no row has one."""
    families = sorted({row.family for row in rows if row.family is not None})
    return {family: summarize([row for row in rows if row.family == family]) for family in families}


def _scores(rows: Sequence[Row], method: str) -> dict[str, Any] | None:
    done = [(colors, row) for row in rows if (colors := getattr(row, method)) is not None]
    if not done:
        return None
    gaps = [
        (colors - row.best_known, row.dsatur - row.best_known) for colors, row in done if row.best_known is not None
    ]
    return {
        "graphs": len(done),
        "mean_colors": _mean(colors for colors, _ in done),
        "mean_gap": _mean(gap for gap, _ in gaps),
        # A method that leaves large graphs out looks better than it is; compare it with DSATUR on the same graphs.
        "dsatur_gap_there": _mean(gap for _, gap in gaps),
        "at_best_known": sum(gap <= 0 for gap, _ in gaps) if gaps else None,
        "wins": sum(colors < row.dsatur for colors, row in done),
        "ties": sum(colors == row.dsatur for colors, row in done),
        "losses": sum(colors > row.dsatur for colors, row in done),
        "median_seconds": median(row.seconds(method) or 0.0 for _, row in done),
    }


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return fmean(values) if values else None


def graphs_table(rows: Sequence[Row]) -> Table:
    """A line per graph."""
    return markdown_table(
        {
            "graph": [row.name for row in rows],
            "nodes": [row.num_nodes for row in rows],
            "edges": [row.num_edges for row in rows],
            "best known": [row.best_known for row in rows],
            **{title: [getattr(row, method) for row in rows] for method, title in METHODS.items()},
            "conflicts": [row.conflicts for row in rows],
            "chromatic": [row.chromatic for row in rows],
            "call s": [row.one_call_seconds for row in rows],
            "search s": [row.search_seconds for row in rows],
        }
    )


def methods_table(summary: dict[str, Any]) -> Table:
    """A line per method. Wins, ties and losses are against DSATUR, whose gap on the same graphs has a column."""
    methods = summary["methods"]
    titles = {
        "graphs": "graphs", "mean_colors": "mean colors", "mean_gap": "mean gap", "dsatur_gap_there": "DSATUR there",
        "at_best_known": "at best known", "wins": "wins", "ties": "ties", "losses": "losses",
        "median_seconds": "median s",
    }  # fmt: skip
    columns = {title: [scores[key] for scores in methods.values()] for key, title in titles.items()}
    return markdown_table({"method": [METHODS[method] for method in methods], **columns})


def families_table(families: dict[str, dict[str, Any]]) -> Table:
    """A line per family with the mean gap of every method."""
    summaries = families.values()
    gaps = {
        f"gap {title}": [summary["methods"].get(method, {}).get("mean_gap") for summary in summaries]
        for method, title in METHODS.items()
    }
    graphs = [summary["graphs"] for summary in summaries]
    errors = [summary["chromatic_mae"] for summary in summaries]
    return markdown_table({"family": list(families), "graphs": graphs, **gaps, "chromatic MAE": errors})


def over_time(rows: Sequence[Row], method: str) -> Curve:
    """Seconds at which the method found fewer colors for some graph, and the mean gap from then on.

    Every row has a best known number. Before its first coloring a graph counts with DSATUR's colors. The curve is empty
    if the method was not asked for.
    """
    changes = sorted(
        (seconds, colors - before)
        for row in rows
        for (_, before), (seconds, colors) in pairwise([(0.0, row.dsatur), *row.progress(method)])
    )
    totals = accumulate((change for _, change in changes), initial=sum(_gap(row, row.dsatur) for row in rows))
    next(totals)
    return [(seconds, total / len(rows)) for (seconds, _), total in zip(changes, totals, strict=True)]


def over_rounds(rows: Sequence[Row]) -> Curve:
    """Refinement rounds and the mean gap of one call with so many. Without that call, DSATUR's colors count."""
    numbers = sorted({rounds for row in rows for rounds, _ in row.rounds})
    return [(n, fmean(_gap(row, dict(row.rounds).get(n, row.dsatur)) for row in rows)) for n in numbers]


def _gap(row: Row, colors: int) -> int:
    assert row.best_known is not None
    return colors - row.best_known


def draw(rows: Sequence[Row]) -> "Figure":
    """Two panels of means over the rows with a best known number, of which there is at least one."""
    from matplotlib.figure import Figure  # for the plot only

    rows = [row for row in rows if row.best_known is not None]
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    figure.suptitle(f"{len(rows)} graphs; until a method has colored one, DSATUR's colors count")
    left, right = figure.subplots(1, 2, sharey=True)
    _draw_time(left, rows)
    _draw_rounds(right, rows)
    return figure


def _draw_time(axes: "Axes", rows: Sequence[Row]) -> None:
    curves = {method: curve for method in METHODS if (curve := over_time(rows, method))}
    end = max(row.seconds(method) or 0.0 for row in rows for method in curves)
    for method, curve in curves.items():
        seconds, gaps = zip(*curve, (end, curve[-1][1]), strict=True)
        axes.step(seconds, gaps, where="post", color=PLOT_COLORS[method], label=METHODS[method])
    axes.set(xscale="log", xlabel="seconds for a graph", ylabel="mean gap (colors above the best known)")
    axes.legend()


def _draw_rounds(axes: "Axes", rows: Sequence[Row]) -> None:
    curve = over_rounds(rows)
    numbers = [rounds for rounds, _ in curve]
    gaps = [gap for _, gap in curve]
    axes.plot(numbers, gaps, marker="o", color=PLOT_COLORS["one_call"], label=METHODS["one_call"])
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, [str(rounds) for rounds in numbers])
    axes.set_xlabel("refinement rounds of one call")
    axes.legend()
