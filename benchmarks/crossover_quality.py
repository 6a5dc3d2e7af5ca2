"""Measure the network that says which classes a child of two colorings takes; `coloring-gnn train` trains it.

    python -m benchmarks.crossover_quality colors --weights runs/cpu           # that are left after some seconds
    python -m benchmarks.crossover_quality graphs --out graphs.pkl --seed 1    # where crossover decides, and their k
    python -m benchmarks.crossover_quality measure --graphs graphs.pkl --weights runs/cpu

`colors` compares what is reached in the same time. `graphs` looks for graphs and k for which HEAD needs 10 to 100
generations; `measure` counts moves and seconds until they are solved. Weights are run folders, checkpoints or exported
files.
"""

import math
import pickle
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import networkx as nx
import numpy as np
import tyro

from benchmarks.families import OpenGraph, latin_square, mean_and_error, open_graph
from gnn_training.console import markdown_table, print_tables
from gnn_training.data import applications, families
from gnn_training.graph import Instance, NeighbourLists
from gnn_training.graph_objects import as_graph
from gnn_training.network.crossover_weights import CrossoverWeights, zero_weights
from gnn_training.network.network import ColoringNetwork
from gnn_training.search import kernels
from gnn_training.search.crossover import GENERATION
from gnn_training.search.engine import Budget, Portfolio, SearchWeights, Worker
from gnn_training.search.methods import crossover_search
from gnn_training.settings import SHIPPED
from gnn_training.training import checkpoint


def gnp(p: float, rng: np.random.Generator, n: int) -> Instance:
    """A random graph with an edge between two nodes with probability p."""
    return Instance(as_graph(nx.gnp_random_graph(n, p, seed=int(rng.integers(2**32)))))


KINDS = {f"G(n,{p})": partial(gnp, p) for p in (0.3, 0.5, 0.7, 0.9)} | {
    "course timetables": applications.course_timetable, "Pauli strings": applications.pauli_strings,
    "exam timetables": applications.exam_timetable, "geometric": families.FAMILIES["geometric"].draw,
    "Leighton": families.FAMILIES["leighton"].draw, "Latin squares": latin_square,
}  # fmt: skip
GENERATIONS = 10, 100  # fewest and most that HEAD may need on a measured graph
LIMIT = 60  # generations of a measured search; one without a solution counts as twice as many
CHOOSING = range(1000, 1003)  # seeds of the searches that choose k; others measure


class Task(NamedTuple):
    """A graph to color with k colors."""

    kind: str
    lists: NeighbourLists
    k: int


class Watched(Worker):
    """A thread of a search that counts its moves."""

    def __init__(self, lists: NeighbourLists, colors: np.ndarray, weights: CrossoverWeights, seed: int):
        """colors (N,): a coloring without gaps, whose number of colors the search lowers."""
        super().__init__(Portfolio(lists, colors, Budget(math.inf, seed=seed), SearchWeights(None, weights)), seed)
        self.moves = 0

    def tabucol(self, colors: np.ndarray, k: int, moves: int) -> kernels.TabuResult:
        """Run TabuCol and count its moves."""
        result = super().tabucol(colors, k, moves)
        self.moves += result.moves
        return result


def solve(task: Task, weights: CrossoverWeights, seed: int, limit: int = LIMIT) -> tuple[float, float, bool]:
    """Moves and seconds until a graph has k colors, and whether it has; if not, twice those of `limit` generations."""
    n, start = task.lists.num_nodes, time.process_time()
    worker = Watched(task.lists, np.arange(n) % (task.k + 1), weights, seed)  # no better than a random coloring
    turns = crossover_search(worker)
    for _ in range(2 * limit):
        next(turns)
        if worker.search.num_colors <= task.k:
            return worker.moves, time.process_time() - start, True
    return 2 * worker.moves, 2 * (time.process_time() - start), False


@dataclass(frozen=True)
class Graphs:
    """Look for graphs where crossover decides."""

    out: Path
    seed: int
    sizes: tuple[int, int] = (150, 400)
    seconds: float = 60.0
    """For each kind of graph."""
    kinds: tuple[str, ...] = tuple(KINDS)

    def run(self) -> None:
        """Write the tasks."""
        tasks = []
        for kind in self.kinds:
            start, index, before = time.monotonic(), 0, len(tasks)
            while time.monotonic() - start < self.seconds:
                rng = np.random.default_rng([self.seed, *kind.encode(), index])
                lists = KINDS[kind](rng, int(rng.integers(*self.sizes))).graph.csr()
                k = self.colors(kind, lists)
                tasks += [Task(kind, lists, k)] if k else []
                index += 1
            print(f"{kind}: {len(tasks) - before} of {index} graphs", flush=True)
        self.out.write_bytes(pickle.dumps(tasks))

    def colors(self, kind: str, lists: NeighbourLists) -> int | None:
        """The largest k for which the median of three searches needs GENERATIONS; None if there is no such k."""
        fewest, most = GENERATIONS
        k = int(kernels.dsatur(*lists).max()) + 1
        step = max(1, k // 12)
        while k > 2:
            limit = most if step == 1 else fewest
            task = Task(kind, lists, k - step)
            moves, _, is_solved = sorted(solve(task, zero_weights(), seed, limit) for seed in CHOOSING)[1]
            if moves < 2 * fewest * GENERATION:
                k -= step
            elif step > 1:
                step = max(1, step // 2)
            else:
                return k - 1 if is_solved else None
        return None


def any_graph(rng: np.random.Generator, sizes: tuple[int, int]) -> OpenGraph:
    """An open graph of KINDS or of a family that training has."""
    kinds = [*KINDS.values(), *(family.draw for family in families.FAMILIES.values())]
    while True:
        nodes = round(np.exp(rng.uniform(*np.log(sizes))))
        if graph := open_graph(kinds[rng.integers(len(kinds))](rng, nodes).graph):
            return graph


def colors_after(seconds: float, graph: OpenGraph, weights: CrossoverWeights, seed: int) -> int:
    """Colors that crossover search alone reaches in some seconds of a core."""
    worker = Watched(graph.lists, graph.first, weights, seed)
    end, turns = time.process_time() + seconds, crossover_search(worker)
    while time.process_time() < end and worker.search.num_colors > max(2, graph.clique):
        next(turns)
    return worker.search.num_colors


@dataclass(frozen=True)
class Colors:
    """Compare networks with HEAD, where every node is worth 1: colors after the same seconds of a core, of this method
    alone, on new graphs.
    """

    weights: tuple[Path, ...] = ()
    """Of networks, instead of the one that ships."""
    sizes: tuple[int, int] = (150, 1000)
    searches: int = 2
    """Of every graph, each with a seed of its own."""
    seed: int = 1
    seconds: float = 3.0
    graphs: int = 100

    def run(self) -> None:
        """Print the mean colors of every network less those of HEAD, with one standard error over graphs."""
        arms, means = arms_of(self.weights), []
        for number in range(self.graphs):
            graph, seeds = any_graph(np.random.default_rng([self.seed, number]), self.sizes), range(self.searches)
            each = [[colors_after(self.seconds, graph, arm, seed) for seed in seeds] for arm in arms]
            means.append(np.mean(each, 1))
            saved = mean_and_error(np.array(means) - np.array(means)[:, :1])
            print(len(means), *map("{:+.3f} ± {:.3f}".format, *saved), flush=True)


@dataclass(frozen=True)
class Measure:
    """Compare networks with HEAD, where every node is worth 1: moves and seconds until a graph is solved."""

    graphs: Path
    weights: tuple[Path, ...] = ()
    """Of networks, instead of the one that ships."""
    graphs_per_kind: int = 20
    searches: int = 3
    """Of every graph, each with a seed of its own."""

    def run(self) -> None:
        """Print a table: geometric means of ratios to HEAD, with one standard error over graphs."""
        tasks, arms = pickle.loads(self.graphs.read_bytes()), arms_of(self.weights)
        solve(tasks[0], arms[0], 0, 1)  # compiles
        results: dict[str, np.ndarray] = {}  # by kind: (graphs, searches, arms, 3)
        for kind in dict.fromkeys(task.kind for task in tasks):
            chosen = [task for task in tasks if task.kind == kind][: self.graphs_per_kind]
            seeds = range(self.searches)
            results[kind] = np.array([[[solve(task, arm, seed) for arm in arms] for seed in seeds] for task in chosen])
            print(kind, *cells(results[kind]), flush=True)
        results["all"] = np.concatenate(list(results.values()))
        rows = [[kind, *cells(each)] for kind, each in results.items()]
        names = ["kind", "graphs", "solved"]
        names += [f"{what}, network {number}" for number in range(1, len(arms)) for what in ("moves", "seconds")]
        print_tables(markdown_table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))))


def cells(found: np.ndarray) -> list[str]:
    """Number of graphs, shares of solved searches, ratios of moves and seconds; found (graphs, searches, arms, 3)."""
    solved = " / ".join(f"{share:.2f}" for share in found[..., 2].mean((0, 1)))
    return [str(len(found)), solved, *ratios_to_head(np.log(found[..., :2]).mean(1))]


def ratios_to_head(logs: np.ndarray) -> list[str]:
    """Geometric means of the ratios to HEAD, the first arm, with one standard error over graphs. logs (graphs, arms,
    measures): logarithms.
    """
    means, errors = mean_and_error((logs[:, 1:] - logs[:, :1]).reshape(len(logs), -1))
    return [f"{mean:.2f} ± {mean * error:.2f}" for mean, error in zip(np.exp(means), errors, strict=True)]


def arms_of(paths: tuple[Path, ...]) -> list[CrossoverWeights]:
    """Weights of HEAD, with which every node is worth 1, then of the networks in files, or of the one that ships."""
    networks = [ColoringNetwork.from_state(checkpoint.read_weights(path)) for path in paths or (SHIPPED,)]
    return [zero_weights(), *(network.crossover.weights() for network in networks)]


if __name__ == "__main__":
    from benchmarks import crossover_quality as this  # files name its classes, not those of __main__

    tyro.cli(this.Colors | this.Graphs | this.Measure, description=__doc__).run()
