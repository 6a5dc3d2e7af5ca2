"""What an evaluation found, as curves: mean excess over the best known against time, and against rounds."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import fmean

from matplotlib.figure import Figure

from gnn_training.scores import METHODS, Row

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
    """Every moment at which the method found fewer colors for a graph, in seconds, and the mean excess from then on.

    Before its first coloring a graph counts with DSATUR's colors. Empty if the method was not asked for.
    """
    changes = sorted(
        (seconds, colors - before)
        for row in rows
        for (_, before), (seconds, colors) in pairwise([(0.0, row.dsatur), *_progress(row, method)])
    )
    start = sum(row.dsatur - row.best_known for row in rows)
    _, *totals = accumulate((change for _, change in changes), initial=start)
    return [(seconds, total / len(rows)) for (seconds, _), total in zip(changes, totals, strict=True)]


def against_rounds(rows: Sequence[Row]) -> Curve:
    """Refinement rounds and the mean excess of one call with so many; without the call, DSATUR's colors count."""
    numbers = sorted({rounds for row in rows for rounds, _ in row.rounds})
    return [(n, fmean(dict(row.rounds).get(n, row.dsatur) - row.best_known for row in rows)) for n in numbers]


def _progress(row: Row, method: str) -> Sequence[tuple[float, int]]:
    """Seconds and colors of the method's colorings of a graph; most methods give one."""
    colors = getattr(row, method)
    once = () if colors is None else ((getattr(row, f"{method}_seconds"), colors),)
    return getattr(row, f"{method}_progress", once)


def _draw_time(axes, rows: Sequence[Row]) -> None:
    curves = {method: curve for method in METHODS if (curve := against_time(rows, method))}
    end = max(getattr(row, f"{method}_seconds") or 0.0 for row in rows for method in curves)
    for method, curve in curves.items():
        seconds, excess = zip(*curve, (end, curve[-1][1]), strict=True)
        axes.step(seconds, excess, where="post", color=COLORS[method], label=METHODS[method])
    axes.set(xscale="log", xlabel="seconds for a graph", ylabel="mean colors above the best known")
    axes.legend()


def _draw_rounds(axes, rows: Sequence[Row]) -> None:
    curve = against_rounds(rows)
    numbers = [rounds for rounds, _ in curve]
    axes.plot(numbers, [excess for _, excess in curve], marker="o", color=COLORS["plain"], label=METHODS["plain"])
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, [str(rounds) for rounds in numbers])
    axes.set_xlabel("refinement rounds of one call")
    axes.legend()
