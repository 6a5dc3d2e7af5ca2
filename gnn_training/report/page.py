"""What people look at: pictures of colored graphs, which need [picture], and the report of a run or of an evaluation as
one HTML file that needs nothing else, which needs [train].
"""

import html
import io
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import networkx as nx
import numpy as np
from matplotlib.figure import Figure

from gnn_training.console import cell, duration
from gnn_training.errors import UserError, printable
from gnn_training.graph import Graph, num_colors
from gnn_training.report.scores import COMPARED_SECONDS, METHODS, PLANTED, tables

DRAWN_NODES, DRAWN_EDGES = 400, 10_000  # most of a picture: with more, it is one dark spot
NUMBERED_NODES = 120  # up to so many nodes, every node is labelled
INK = "#010203"  # ink of a figure, which the page replaces by the color of its text
INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
STYLE: Any = dict.fromkeys(INKED, INK) | {"svg.fonttype": "none", "svg.hashsalt": "page", "legend.frameon": False}
IN_EVERY_PAGE = b"<pre>coloring-gnn color graph.col --model"
SMOOTHED = 0.1  # share of the records that a moving mean covers
Json = dict[str, Any]


def as_networkx(graph: Graph) -> nx.Graph:
    """The same graph, its nodes in order."""
    network = nx.empty_graph(graph.num_nodes)
    network.add_edges_from(graph.edges.tolist())
    return network


def is_drawable(graph: Graph) -> bool:
    """Whether the graph is small enough for a picture."""
    return graph.num_nodes <= DRAWN_NODES and graph.num_edges <= DRAWN_EDGES


def require_drawable(graph: Graph) -> None:
    """Raise UserError if the graph is too large for a picture."""
    if not is_drawable(graph):
        size, limit = f"{graph.num_nodes} nodes and {graph.num_edges} edges", f"{DRAWN_NODES} and {DRAWN_EDGES}"
        raise UserError(f"{graph.name}: {size} are too many for a picture (at most {limit}); leave picture out")


def draw(graph: Graph, colors: np.ndarray, method: str, names: Sequence[Any] = ()) -> Figure:
    """Draw a coloring, colors (N,), titled with the method that found it. The same graph has the same layout. names
    (N,): those of the nodes, to be shown; without names, or if they are a range, the numbers of the colors are shown.
    """
    network, count, color_ids = as_networkx(graph), num_colors(colors), np.unique(colors, return_inverse=True)[1]
    shades = matplotlib.colormaps["tab10" if count <= 10 else "tab20" if count <= 20 else "turbo"]
    shades = shades if count <= 20 else shades.resampled(count)
    is_numbered = graph.num_nodes <= NUMBERED_NODES
    labels = (color_ids + 1).tolist()
    if names and not isinstance(names, range):
        labels = [printable(str(name)).replace("$", r"\$") for name in names]  # $ begins a formula
    opacity = 40 + round(160 * min(1, 200 / max(graph.num_edges, 1)))  # of 255; many edges are paler
    # Springs that start at the spectral layout keep its shape. It says nothing of a graph in several parts.
    start = nx.spectral_layout(network) if len(network) > 2 and nx.is_connected(network) else None
    places = nx.spring_layout(network, pos=start, seed=0, iterations=100)
    figure = Figure(figsize=(4.4, 4.4), layout="constrained")
    axes = figure.subplots()
    axes.set_title(f"{method}: {count} colors", fontsize=11)
    axes.margins(0.02)
    nx.draw(
        network, places, axes, node_size=110 if is_numbered else 40,
        node_color=[shades(i) for i in color_ids], edge_color=f"#808080{opacity:02x}", width=0.6,
        with_labels=is_numbered, labels=dict(enumerate(labels)), font_size=6,
    )  # fmt: skip
    return figure


def pictures(report: Json) -> list[Figure]:
    """Draw the graph that an evaluation has chosen, in the colors of DSATUR and of the network; nothing without one."""
    if not (chosen := report.get("picture")):
        return []
    graph = Graph.from_edges(chosen["num_nodes"], chosen["edges"], chosen["graph"])
    return [draw(graph, np.array(colors), METHODS[method]) for method, colors in chosen["colorings"].items()]


def render(report: Json, manifest: Json | None = None, config: Json | None = None, metrics: Sequence[Json] = ()) -> str:
    """The page of an evaluation, and of the training before it if its manifest, settings and records are given. The
    same numbers give the same page.
    """
    import jinja2  # pictures do not need it

    environment = jinja2.Environment(loader=jinja2.PackageLoader("gnn_training.report", "."), autoescape=True,
                                     trim_blocks=True, undefined=jinja2.StrictUndefined)  # fmt: skip
    environment.filters |= {"duration": duration, "quote": shlex.quote, "number": cell}
    environment.globals["zip"] = zip
    gaps = [scores["mean_gap"] for scores in report["summary"]["methods"].values()]
    with matplotlib.rc_context(STYLE):
        steps, checks = ([record for record in metrics if record["kind"] == k] for k in ("train", "validation"))
        gains = [record for record in checks if "gain" in record]  # records of earlier versions have none
        losses = {name: (steps, name) for name in ("saved", "graph_type", "rounds")}
        curves = {
            "colors that training saves": {"validation graphs": (gains, "gain")},
            "mean gap": {"training graphs": (steps, "gap")},
            "loss of the graph predictions": losses,
        }
        if judged := [record for record in checks if "crossover_gain" in record]:
            curves["R² of crossover by training"] = {"held-out pairs": (judged, "crossover_gain")}
        return environment.get_template("page.html").render(
            report=report, compared_seconds=COMPARED_SECONDS, planted=PLANTED,
            manifest=manifest, config=config, tables=tables(report),
            is_below=any(gap is not None and gap < 0 for gap in gaps), first=checks[0] if checks else None,
            curves="".join(_curves(label, lines) for label, lines in curves.items()) if manifest else "",
            pictures="".join(_svg(figure, figure.axes[0].get_title()) for figure in pictures(report)),
        )  # fmt: skip


def _curves(label: str, curves: Mapping[str, tuple[Sequence[Json], str]]) -> str:
    """A figure of curves over the steps. curves: by name, records and the key of their value. Values with an error get
    a band of one standard error; other values are a pale line behind their moving mean.
    """
    figure = Figure(figsize=(4.4, 3), layout="constrained")
    axes = figure.subplots()
    for number, (name, (records, key)) in enumerate(curves.items()):
        color = f"C{number}"
        step, values = (np.array([record[field] for record in records]) for field in ("step", key))
        if f"{key}_error" in (records[0] if records else ()):
            error = np.array([record[f"{key}_error"] for record in records])
            axes.fill_between(step, values - error, values + error, alpha=0.3)
        elif (width := round(SMOOTHED * len(values)) | 1) > 1:
            axes.plot(step, values, color=color, alpha=0.25)
            sums, counts = (np.convolve(x, np.ones(width), "same") for x in (values, np.ones(len(values))))
            values = sums / counts
        axes.plot(step, values, color=color, label=name)
    axes.set(xlabel="step", ylabel=label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend()
    return _svg(figure, f"{label} over the steps")


def _svg(figure: Figure, label: str) -> str:
    file, nothing = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    _, start, body = file.getvalue().partition("<svg")
    return f'{start} role="img" aria-label="{html.escape(label)}"{body.replace(INK, "currentColor")}'
