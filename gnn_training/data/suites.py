"""Public benchmarks to evaluate on: their graphs and what others have published about them. None is for training."""

import csv
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import networkx as nx
import numpy as np

from gnn_training.graph import Graph, as_graph

# Fewest colors known for graphs of the DIMACS/COLOR collection; a planted coloring counts.
DIMACS = Path(__file__).with_name("dimacs.csv")
# A column per solver, a digit per graph, 1 if the solver found q colors: ids 1 to 20 of the files in results_evaluation
# of https://github.com/ArtLabBocconi/RandCSPBench (MIT license).
Q_COLORING = Path(__file__).with_name("q_coloring.csv")
GRAPHS_PER_FAMILY = 10  # of GraphBench


@dataclass(frozen=True)
class Case:
    """A graph to color and what is known about it."""

    graph: Graph
    best_known: int | None = None
    family: str | None = None
    target: int = 1  # number of colors at which a search ends
    published: dict[str, bool] = field(default_factory=dict)  # by solver: whether it reached the best known number


def q_coloring() -> Iterator[Case]:
    """Random graphs with mean degrees around the threshold of q colors (Skenderi et al. 2026, arXiv 2602.18419): those
    of up to 256 nodes that a published solver could color with q colors.
    """
    with open(Q_COLORING, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            q, nodes, edges = (int(row.pop(name)) for name in ("q", "num_nodes", "num_edges"))
            rng = random.Random(1)  # the seed of the test set: the graphs of a size follow in turn
            for number, digits in enumerate(zip(*row.values(), strict=True), 1):
                graph = as_graph(nx.gnm_random_graph(nodes, edges, seed=rng))
                published = {solver: digit == "1" for solver, digit in zip(row, digits, strict=True)}
                if any(published.values()):
                    name, family = f"q{q}_n{nodes}_m{edges}_{number}", f"q = {q}, n = {nodes}"
                    yield Case(replace(graph, name=name), q, family, target=q, published=published)


def graphbench() -> Iterator[Case]:
    """Graphs as in the coloring task of GraphBench (Stoll et al. 2025, arXiv 2512.04475): ten of each model, with the
    default parameters of the public generator. It draws without a seed, so the published graphs are others.
    """
    rng = np.random.default_rng(1)
    for number in range(1, GRAPHS_PER_FAMILY + 1):
        nodes, seed = int(rng.integers(700, 801)), int(rng.integers(2**32))
        graphs = {
            "Barabási-Albert": as_graph(nx.barabasi_albert_graph(nodes, 2, seed=seed)),
            "Erdős-Rényi": as_graph(nx.fast_gnp_random_graph(nodes, 0.15, seed=seed)),
            "RB": Graph.from_adjacency(_rb_adjacency(rng)),
        }
        for family, graph in graphs.items():
            yield Case(replace(graph, name=f"{family}_{number}"), family=family)


def _rb_adjacency(rng: np.random.Generator) -> np.ndarray:
    """Adjacency (N, N) of n cliques of k nodes, 200 to 300 nodes in all. Again and again, a share p of the pairs
    between two cliques become edges. Xu et al., A simple model to generate hard satisfiable instances (2005).
    """
    while True:
        n, k, p = int(rng.integers(20, 26)), int(rng.integers(5, 13)), rng.uniform(0.3, 1)
        if 200 <= n * k <= 300:
            break
    cliques = np.arange(n * k).reshape(n, k)
    matrix = np.kron(np.eye(n, dtype=bool), ~np.eye(k, dtype=bool))
    for _ in range(int(n * math.log(k) / -math.log1p(-p) - 1)):
        a, b = cliques[rng.choice(n, 2, replace=False)]
        free = rng.permutation(np.argwhere(~matrix[np.ix_(a, b)]))[: int(p * k * k)]
        matrix[a[free[:, 0]], b[free[:, 1]]] = True
    return matrix | matrix.T


GENERATED = {"q-coloring": q_coloring, "graphbench": graphbench}
