"""Numbers of colors next to each other: one row per graph, what the rows sum up to, and both as tables to read."""
# DOC What an evaluation found, as curves: mean gap over the best known against time, and against rounds.

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean, median

from matplotlib.figure import Figure
from rich import box
from rich.table import Table

METHODS = {"dsatur": "DSATUR", "rlf": "RLF", "tabucol": "TabuCol", "one_call": "one call", "search": "search"}


@dataclass(frozen=True)
class Row:
    """One graph. None is what nobody knows, was not asked for, or would have taken too much time or memory."""

    name: str
    family: str | None
    num_nodes: int
    num_edges: int
    best_known: int | None
    clique: int
    """A lower bound; the search stops there."""
    dsatur: int
    dsatur_seconds: float
    rlf: int | None = None
    rlf_seconds: float | None = None
    tabucol: int | None = None
    """Colors of TabuCol from DSATUR, without the network, in one thread and as much time as the search has."""
    tabucol_seconds: float | None = None
    tabucol_progress: tuple[tuple[float, int], ...] = ()
    """Seconds from its start and colors, each time it had fewer; DSATUR's come first."""
    one_call: int | None = None
    """Colors of one three-input call, decoded as callers do it."""
    one_call_seconds: float | None = None
    conflicts: int | None = None
    """Edges with equal ends in the plain call's classes, before decoding."""
    chromatic: float | None = None
    """Number of colors the file says the graph needs."""
    search: int | None = None
    """Colors within the time budget, the plain call included."""
    search_seconds: float | None = None
    search_progress: tuple[tuple[float, int], ...] = ()
    """Seconds and colors, each time it had fewer; the plain call's come first."""
    rounds: tuple[tuple[int, int], ...] = ()
    """Refinement rounds of one call and its colors, for the plot."""


def summarize(rows: Sequence[Row]) -> dict:
    """Sum up rows: each method over the graphs it colored, the estimate over those with a best known number."""
    known = [row for row in rows if row.best_known is not None]
    return {
        "graphs": len(rows),
        "with_best_known": len(known),
        "chromatic_mae": _mean(abs(row.chromatic - row.best_known) for row in known if row.chromatic is not None),
        "methods": {method: scores for method in METHODS if (scores := _method(rows, method))},
    }


def by_family(rows: Sequence[Row]) -> dict[str, dict]:
    """The same per family; empty if no row has one."""
    families = sorted({row.family for row in rows if row.family is not None})
    return {family: summarize([row for row in rows if row.family == family]) for family in families}


def _method(rows: Sequence[Row], method: str) -> dict | None:
    done = [(getattr(row, method), row) for row in rows if getattr(row, method) is not None]
    if not done:
        return None
    known = [(colors, row) for colors, row in done if row.best_known is not None]
    return {
        "graphs": len(done),
        "mean_colors": _mean(colors for colors, _ in done),
        "mean_gap": _mean(colors - row.best_known for colors, row in known),
        # A method that leaves large graphs out looks better than it is; this is what it compares with.
        "dsatur_gap_there": _mean(row.dsatur - row.best_known for _, row in known),
        "at_best_known": sum(colors <= row.best_known for colors, row in known) if known else None,
        "wins": sum(colors < row.dsatur for colors, row in done),
        "ties": sum(colors == row.dsatur for colors, row in done),
        "losses": sum(colors > row.dsatur for colors, row in done),
        "median_seconds": median(getattr(row, f"{method}_seconds") for _, row in done),
    }


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return fmean(values) if values else None


def graphs_table(rows: Sequence[Row]) -> Table:
    """A line per graph."""
    return _table(
        {
            "graph": [row.name for row in rows],
            "nodes": [row.num_nodes for row in rows],
            "edges": [row.num_edges for row in rows],
            "best known": [row.best_known for row in rows],
            **{name: [getattr(row, method) for row in rows] for method, name in METHODS.items()},
            "conflicts": [row.conflicts for row in rows],
            "chromatic": [row.chromatic for row in rows],
            "call s": [row.one_call_seconds for row in rows],
            "search s": [row.search_seconds for row in rows],
        }
    )


def methods_table(summary: dict) -> Table:
    """A line per method; wins, ties and losses are against DSATUR."""
    methods = summary["methods"]
    names = {
        "graphs": "graphs", "mean colors": "mean_colors", "mean gap": "mean_gap",
        "DSATUR there": "dsatur_gap_there", "at best known": "at_best_known",
        "wins": "wins", "ties": "ties", "losses": "losses", "median s": "median_seconds",
    }  # fmt: skip
    columns = {name: [scores[key] for scores in methods.values()] for name, key in names.items()}
    return _table({"method": [METHODS[method] for method in methods], **columns})


def families_table(families: dict[str, dict]) -> Table:
    """A line per family with the mean gap of every method."""
    summaries = families.values()
    gap = {
        f"gap {name}": [summary["methods"].get(method, {}).get("mean_gap") for summary in summaries]
        for method, name in METHODS.items()
    }
    return _table(
        {
            "family": list(families),
            "graphs": [summary["graphs"] for summary in summaries],
            **gap,
            "chromatic MAE": [summary["chromatic_mae"] for summary in summaries],
        }
    )


def _table(columns: dict[str, list]) -> Table:
    """Columns of which nothing is known are left out."""
    table = Table(box=box.MARKDOWN)  # reads as well in a log as in a terminal, and pastes into a README
    known = {name: values for name, values in columns.items() if any(value is not None for value in values)}
    for number, name in enumerate(known):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for values in zip(*known.values(), strict=True):
        table.add_row(*map(_text, values))
    return table


def _text(value: str | float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


Curve = list[tuple[float, float]]
COLORS = {method: f"C{number}" for number, method in enumerate(METHODS)}  # the same with and without the others


def draw(rows: Sequence[Row]) -> Figure:
    """Two panels of means over the rows with a best known number, of which there is one at least."""
    rows = [row for row in rows if row.best_known is not None]
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    figure.suptitle(f"{len(rows)} graphs; until a method has colored one, DSATUR's colors count")
    of_time, of_rounds = figure.subplots(1, 2, sharey=True)
    _draw_time(of_time, rows)
    _draw_rounds(of_rounds, rows)
    return figure


def against_time(rows: Sequence[Row], method: str) -> Curve:
    """Every moment at which the method found fewer colors for a graph, in seconds, and the mean gap from then on.

    Before its first coloring a graph counts with DSATUR's colors. Empty if the method was not asked for.
    """
    changes = sorted(
        (seconds, colors - before)
        for row in rows
        for (_, before), (seconds, colors) in pairwise([(0.0, row.dsatur), *_curve_points(row, method)])
    )
    start = sum(row.dsatur - row.best_known for row in rows)
    _, *totals = accumulate((change for _, change in changes), initial=start)
    return [(seconds, total / len(rows)) for (seconds, _), total in zip(changes, totals, strict=True)]


def against_rounds(rows: Sequence[Row]) -> Curve:
    """Refinement rounds and the mean gap of one call with so many; without the call, DSATUR's colors count."""
    numbers = sorted({rounds for row in rows for rounds, _ in row.rounds})
    return [(n, fmean(dict(row.rounds).get(n, row.dsatur) - row.best_known for row in rows)) for n in numbers]


def _curve_points(row: Row, method: str) -> Sequence[tuple[float, int]]:
    """Seconds and colors of the method's colorings of a graph; most methods give one."""
    colors = getattr(row, method)
    once = () if colors is None else ((getattr(row, f"{method}_seconds"), colors),)
    return getattr(row, f"{method}_curve_points", once)


def _draw_time(axes, rows: Sequence[Row]) -> None:
    curves = {method: curve for method in METHODS if (curve := against_time(rows, method))}
    end = max(getattr(row, f"{method}_seconds") or 0.0 for row in rows for method in curves)
    for method, curve in curves.items():
        seconds, gap = zip(*curve, (end, curve[-1][1]), strict=True)
        axes.step(seconds, gap, where="post", color=COLORS[method], label=METHODS[method])
    axes.set(xscale="log", xlabel="seconds for a graph", ylabel="mean colors above the best known")
    axes.legend()


def _draw_rounds(axes, rows: Sequence[Row]) -> None:
    curve = against_rounds(rows)
    numbers = [rounds for rounds, _ in curve]
    axes.plot(numbers, [gap for _, gap in curve], marker="o", color=COLORS["one_call"], label=METHODS["one_call"])
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, [str(rounds) for rounds in numbers])
    axes.set_xlabel("refinement rounds of one call")
    axes.legend()
