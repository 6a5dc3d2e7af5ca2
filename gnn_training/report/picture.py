"""Pictures of colored graphs; needs the extra [picture]."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import networkx as nx
import numpy as np
from matplotlib.figure import Figure

from gnn_training.coloring import num_colors
from gnn_training.errors import UserError, printable
from gnn_training.graph import Graph

MAX_NODES, MAX_EDGES = 400, 10_000  # above, a picture is one dark spot
NUMBERED_NODES = 120  # up to which the number of its color stands in a node


def require_drawable(graph: Graph) -> None:
    """Raise UserError if the graph is too large for a picture."""
    if graph.num_nodes > MAX_NODES or graph.num_edges > MAX_EDGES:
        size, limit = f"{graph.num_nodes} nodes and {graph.num_edges} edges", f"{MAX_NODES} and {MAX_EDGES}"
        raise UserError(f"{graph.name}: {size} are too many for a picture (at most {limit}); leave picture out")


def draw(graph: Graph, colors: np.ndarray, method: str, names: Sequence[Any] = ()) -> Figure:
    """Draw a coloring, colors (N,), titled with the method that found it. The same graph has the same layout. names
    (N,): of the nodes, to be shown; numbers are not: those of the colors are shown instead.
    """
    network = nx.empty_graph(graph.num_nodes)
    network.add_edges_from(graph.edges.tolist())
    count, color_ids = num_colors(colors), np.unique(colors, return_inverse=True)[1]
    shades = matplotlib.colormaps["tab10" if count <= 10 else "tab20" if count <= 20 else "turbo"]
    shades = shades if count <= 20 else shades.resampled(count)
    is_numbered = graph.num_nodes <= NUMBERED_NODES
    labels = (color_ids + 1).tolist()
    if names and not isinstance(names, range):
        labels = [printable(str(name)).replace("$", r"\$") for name in names]  # which begins a formula
    opacity = 40 + round(160 * min(1, 200 / max(graph.num_edges, 1)))  # of 255; many edges are paler
    # Springs that start there keep its shape. It says nothing of a graph in several parts.
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
