"""A colored graph to look at."""

import networkx as nx
import numpy as np
from matplotlib.figure import Figure

from gnn_training.graph import Graph


def draw(graph: Graph, classes: np.ndarray, title: str) -> Figure:
    """Nodes in the color of their class (N,), edges within a class in red."""
    figure = Figure(figsize=(7, 7), layout="tight")
    axes = figure.subplots()
    axes.set_axis_off()
    axes.set_title(title)
    drawn = nx.empty_graph(graph.num_nodes)
    drawn.add_edges_from(graph.edges.tolist())
    clash = classes[graph.edges[:, 0]] == classes[graph.edges[:, 1]]
    places = nx.spring_layout(drawn, seed=0)
    nx.draw_networkx_edges(drawn, places, graph.edges[~clash].tolist(), ax=axes, edge_color="#cccccc", width=0.6)
    nx.draw_networkx_edges(drawn, places, graph.edges[clash].tolist(), ax=axes, edge_color="#d62728", width=2)
    nx.draw_networkx_nodes(drawn, places, ax=axes, node_color=classes, cmap="tab20", node_size=90, edgecolors="white")
    return figure
