"""The report of a run or of an evaluation as one HTML file that needs nothing else; its libraries are of [train]."""

import io
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from gnn_training.console import cell, duration
from gnn_training.graph import Graph
from gnn_training.report import picture
from gnn_training.report.scores import METHODS, tables

INK = "#010203"  # in a figure; on the page it is the color of the text, dark or light
INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
STYLE: Any = dict.fromkeys(INKED, INK) | {"svg.fonttype": "none", "svg.hashsalt": "page", "legend.frameon": False}
IN_EVERY_PAGE = b"<pre>coloring-gnn color graph.col --model"
SMOOTHED = 0.1  # share of the records that a mean is over
Json = dict[str, Any]


def page(report: Json, manifest: Json | None = None, config: Json | None = None, metrics: Sequence[Json] = ()) -> str:
    """Return the page of an evaluation, and of the training before it if its manifest, settings and records are given.
    The same numbers give the same page.
    """
    environment = jinja2.Environment(loader=jinja2.PackageLoader("gnn_training", "report"), autoescape=True,
                                     trim_blocks=True, undefined=jinja2.StrictUndefined)  # fmt: skip
    environment.filters |= {"duration": duration, "quote": shlex.quote, "number": cell}
    environment.globals["zip"] = zip
    example = report.get("example")  # that of an earlier version has none
    values: Json = {"report": report, "example": example, "manifest": manifest, "config": config}
    values["tables"] = tables(report)
    gaps = [scores["mean_gap"] for scores in report["summary"]["methods"].values()]
    values["is_below"] = any(gap is not None and gap < 0 for gap in gaps)
    with matplotlib.rc_context(STYLE):
        if manifest:
            steps, checks = ([record for record in metrics if record["kind"] == k] for k in ("train", "validation"))
            gains = [record for record in checks if "gain" in record]  # not in those of earlier versions
            losses = {name: (steps, name) for name in ("saved", "family", "rounds")}
            curves = _curves("colors that training saves", {"validation graphs": (gains, "gain")})
            curves += _curves("mean gap", {"training graphs": (steps, "gap")})
            curves += _curves("loss of the graph predictions", losses)
            values |= {"first": checks[0] if checks else None, "curves": curves}
        if example:
            values["pictures"] = Markup().join(_svg(figure, method) for method, figure in pictures(example).items())
    return environment.get_template("page.html").render(values)


def pictures(example: Json) -> dict[str, Figure]:
    """Drawings of the example of a report, by the method that colored it."""
    graph = Graph.from_edges(example["num_nodes"], example["edges"], example["name"])
    colorings = {METHODS[method]: np.array(colors) for method, colors in example["colorings"].items()}
    return {method: picture.draw(graph, colors, method) for method, colors in colorings.items()}


def _curves(label: str, curves: Mapping[str, tuple[Sequence[Json], str]]) -> Markup:
    """A figure over the steps; curves: records and what to take of them, by name. What has an error gets a band of one
    standard error; of what every step has, the mean of the records around it stands before their own pale line.
    """
    figure = Figure(figsize=(4.4, 3), layout="constrained")
    axes = figure.subplots()
    for name, (records, key) in curves.items():
        step, values = (np.array([record[field] for record in records]) for field in ("step", key))
        if f"{key}_error" in (records[0] if records else ()):
            error = np.array([record[f"{key}_error"] for record in records])
            axes.fill_between(step, values - error, values + error, alpha=0.3)
        elif (width := round(SMOOTHED * len(values)) | 1) > 1:
            axes.plot(step, values, color=f"C{len(axes.lines) // 2}", alpha=0.25)
            sums, counts = (np.convolve(x, np.ones(width), "same") for x in (values, np.ones(len(values))))
            axes.plot(step, sums / counts, color=f"C{len(axes.lines) // 2}", label=name)
            continue
        axes.plot(step, values, label=name)
    axes.set(xlabel="step", ylabel=label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend()
    return _svg(figure, f"{label} over the steps")


def _svg(figure: Figure, label: str) -> Markup:
    file, nothing = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    _, start, body = file.getvalue().partition("<svg")
    return Markup(f'{start} role="img" aria-label="{escape(label)}"{body.replace(INK, "currentColor")}')
