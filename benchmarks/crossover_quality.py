"""Measure the network that says which classes a child of two colorings takes; `coloring-gnn train` trains it.

    python -m benchmarks.crossover_quality colors --weights runs/cpu           # that are left after some seconds
    python -m benchmarks.crossover_quality target --weights runs/cpu           # until `color` has the colors of HEAD
    python -m benchmarks.crossover_quality graphs --out graphs.pkl --seed 1    # where crossover decides, and their k
    python -m benchmarks.crossover_quality measure --graphs graphs.pkl --weights runs/cpu

`colors` compares what is reached in the same time, `target` the time until the same is reached. `graphs` looks for
graphs and k for which HEAD needs 10 to 100 generations; `measure` counts moves and seconds until they are solved.
Weights are run folders, checkpoints or exported files.
"""

import math
import pickle
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import tyro

from benchmarks.families import latin_square
from gnn_training.console import markdown_table, print_tables
from gnn_training.data import applications, families
from gnn_training.graph import Graph, Instance, NeighbourLists
from gnn_training.graph_objects import as_graph
from gnn_training.network.crossover_weights import CrossoverWeights, zero_weights
from gnn_training.network.network import ColoringNetwork
from gnn_training.search import kernels
from gnn_training.search.crossover import GENERATION
from gnn_training.search.engine import Budget, Portfolio, SearchWeights, Worker
from gnn_training.search.first_colorings import clique_size
from gnn_training.search.methods import crossover_search
from gnn_training.search.portfolio import colorings, compile_all
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
GENERATIONS = 10, 100  # that HEAD needs of the graphs to train and measure on
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
        """colors (N,): a coloring without gaps, whose number of colors is to fall."""
        super().__init__(Portfolio(lists, colors, Budget(math.inf, seed=seed), SearchWeights(None, weights)), seed)
        self.moves = 0

    def tabucol(self, colors: np.ndarray, k: int, moves: int) -> kernels.TabuResult:
        """As in other threads."""
        found = super().tabucol(colors, k, moves)
        self.moves += found.moves
        return found


def solve(task: Task, weights: CrossoverWeights, seed: int, limit: int = LIMIT) -> tuple[float, float, bool]:
    """Moves and seconds until a graph has k colors, and whether it has; twice those of `limit` generations, if not."""
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
        """The most colors for which the median of three searches needs GENERATIONS; None if no number has it."""
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


def any_graph(rng: np.random.Generator, sizes: tuple[int, int]) -> tuple[Graph, np.ndarray, int]:
    """A graph of KINDS or of a family that training has, its coloring by DSATUR, and the size of a clique."""
    kinds = [*KINDS.values(), *(family.draw for family in families.FAMILIES.values())]
    while True:
        nodes = round(np.exp(rng.uniform(*np.log(sizes))))
        graph = kinds[rng.integers(len(kinds))](rng, nodes).graph
        first, clique = kernels.dsatur(*graph.csr()), clique_size(graph.csr())
        if first.max() >= clique:
            return graph, first, clique


def colors_after(seconds: float, lists: NeighbourLists, first: np.ndarray, clique: int, *arm: Any) -> int:
    """Colors that crossover search alone reaches in some seconds of a core. arm: weights and seed."""
    worker = Watched(lists, first, *arm)
    end, turns = time.process_time() + seconds, crossover_search(worker)
    while time.process_time() < end and worker.search.num_colors > max(2, clique):
        next(turns)
    return worker.search.num_colors


@dataclass(frozen=True)
class Comparison:
    """Of networks with HEAD, where every node is worth 1."""

    weights: tuple[Path, ...] = ()
    """Of networks, instead of the one that ships."""
    sizes: tuple[int, int] = (150, 1000)
    searches: int = 2
    """Of every graph, each with a seed of its own."""
    seed: int = 1


@dataclass(frozen=True)
class Colors(Comparison):
    """Compare networks with HEAD: colors after the same seconds of a core, of this method alone, on new graphs."""

    seconds: float = 3.0
    graphs: int = 100

    def run(self) -> None:
        """Print the mean colors of every network less those of HEAD, with one standard error over graphs."""
        arms, found = arms_of(self.weights), []
        for number in range(self.graphs):
            graph, first, clique = any_graph(np.random.default_rng([self.seed, number]), self.sizes)
            start, seeds = (self.seconds, graph.csr(), first, clique), range(self.searches)
            each = [[colors_after(*start, arm, seed) for seed in seeds] for arm in arms]
            found.append(np.mean(each, 1))
            saved = np.array(found) - np.array(found)[:, :1]
            error = saved.std(0) / math.sqrt(len(saved))
            print(len(found), *(f"{m:+.3f} ± {e:.3f}" for m, e in zip(saved.mean(0), error, strict=True)), flush=True)


@dataclass(frozen=True)
class Target(Comparison):
    """Compare networks with HEAD in the whole of `color`: seconds of a core until a graph has as few colors as HEAD's
    crossover alone reaches in `seconds`. A search that has not after `limit` times as many counts as twice that.
    """

    seconds: float = 10.0
    limit: float = 3.0
    graphs: int = 30
    """Where it takes more than `least` seconds."""
    least: float = 1.0

    def run(self) -> None:
        """Print geometric means of the ratios to HEAD, with one standard error over graphs."""
        arms, found, rng = arms_of(self.weights), list[np.ndarray](), np.random.default_rng(self.seed)
        compile_all()
        while len(found) < self.graphs:
            graph, first, clique = any_graph(rng, self.sizes)
            target = colors_after(self.seconds, graph.csr(), first, clique, arms[0], 0)
            seeds = range(self.searches)
            seconds = np.array([[self.seconds_until(target, graph, arm, seed) for arm in arms] for seed in seeds])
            if seconds[:, 0].mean() > self.least:
                found.append(np.log(seconds).mean(0))
                print(len(found), *ratios_to_head(np.array(found)), flush=True)

    def seconds_until(self, target: int, graph: Graph, weights: CrossoverWeights, seed: int) -> float:
        """Seconds of a core until `color` has so few colors."""
        start, most = time.process_time(), self.limit * self.seconds
        for best in colorings(graph, SearchWeights(None, weights), Budget(time.monotonic() + most, seed=seed)):
            if best.num_colors <= target:
                return time.process_time() - start
        return 2 * most


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
        found: dict[str, np.ndarray] = {}  # (graphs, searches, arms, 3)
        for kind in dict.fromkeys(task.kind for task in tasks):
            chosen = [task for task in tasks if task.kind == kind][: self.graphs_per_kind]
            seeds = range(self.searches)
            found[kind] = np.array([[[solve(task, arm, seed) for arm in arms] for seed in seeds] for task in chosen])
            print(kind, *cells(found[kind]), flush=True)
        found["all"] = np.concatenate(list(found.values()))
        rows = [[kind, *cells(each)] for kind, each in found.items()]
        names = ["kind", "graphs", "solved"]
        names += [f"{what}, network {number}" for number in range(1, len(arms)) for what in ("moves", "seconds")]
        print_tables(markdown_table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))))


def cells(found: np.ndarray) -> list[str]:
    """Number of graphs, shares of solved searches, ratios of moves and seconds; found (graphs, searches, arms, 3)."""
    solved = " / ".join(f"{share:.2f}" for share in found[..., 2].mean((0, 1)))
    return [str(len(found)), solved, *ratios_to_head(np.log(found[..., :2]).mean(1))]


def ratios_to_head(logs: np.ndarray) -> list[str]:
    """Geometric means of the ratios to HEAD, the first arm, with one standard error over graphs. logs (graphs, arms) or
    (graphs, arms, measures): logarithms.
    """
    ratios = (logs[:, 1:] - logs[:, :1]).reshape(len(logs), -1)
    means, errors = np.exp(ratios.mean(0)), ratios.std(0) / math.sqrt(len(logs))
    return [f"{mean:.2f} ± {mean * error:.2f}" for mean, error in zip(means, errors, strict=True)]


def arms_of(paths: tuple[Path, ...]) -> list[CrossoverWeights]:
    """Weights of HEAD, with which every node is worth 1, then of the networks in files, or of the one that ships."""
    networks = [ColoringNetwork.from_state(checkpoint.read_weights(path)) for path in paths or (SHIPPED,)]
    return [zero_weights(), *(network.crossover.weights() for network in networks)]


if __name__ == "__main__":
    from benchmarks import crossover_quality as this  # files name its classes, not those of __main__

    tyro.cli(this.Colors | this.Target | this.Graphs | this.Measure, description=__doc__).run()
