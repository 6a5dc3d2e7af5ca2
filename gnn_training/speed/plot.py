"""Time and memory of a step against its size, as measured and by formula."""

from collections.abc import Sequence

from matplotlib.figure import Figure

MIB = 2**20


def draw(measured: Sequence[dict]) -> Figure:
    """Two panels on double logarithmic axes; a point is a step, its color the nodes of its graphs."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    of_time, of_memory = figure.subplots(1, 2)
    points = _panel(of_time, measured, "seconds", 1, ("rounds", "free_rounds"))
    of_time.set(xlabel="nodes x colors x rounds", ylabel="seconds of a step")
    _panel(of_memory, measured, "bytes", MIB, ("rounds",))
    of_memory.set(xlabel="nodes x colors x rounds with gradient", ylabel="MiB at the peak of a step")
    figure.colorbar(points, label="nodes of a graph")
    return figure


def _panel(axes, measured: Sequence[dict], what: str, unit: float, rounds: tuple[str, ...]):
    shapes = [row["shape"] for row in measured]
    x = [
        shape["graphs"] * shape["nodes"] * shape["colors"] * sum(row[name] for name in rounds)
        for shape, row in zip(shapes, measured, strict=True)
    ]
    points = axes.scatter(x, [row[what] / unit for row in measured], c=[s["nodes"] for s in shapes], label="measured")
    axes.scatter(x, [row[f"predicted_{what}"] / unit for row in measured], marker="x", c="#888888", label="formula")
    axes.set(xscale="log", yscale="log")
    axes.legend()
    return points
