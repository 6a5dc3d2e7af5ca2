"""Families of random graphs that the network learns from, and recipes: how many graphs of each family, how large.

Deterministic graphs of the public benchmarks are left out, because the trained network is measured on them: square
queen graphs, Mycielskians of K2, insertion graphs, Latin squares.
"""

import heapq
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, count
from typing import NamedTuple

import networkx as nx
import numpy as np
from numpy.random import Generator

from gnn_training.contract import GRAPH_TYPES
from gnn_training.data import applications
from gnn_training.graph import Graph, Instance
from gnn_training.graph_objects import as_graph


def _networkx(
    model: Callable[..., nx.Graph], ranges: Sequence[tuple], rng: Generator, n: int, complement: bool = False
) -> Instance:
    """A random graph of a networkx model. Its parameters are drawn from `ranges`, of integers or of floats."""
    parameters = [rng.integers(*each) if isinstance(each[0], int) else rng.uniform(*each) for each in ranges]
    graph = as_graph(model(n, *parameters, seed=int(rng.integers(2**32))))
    return Instance(Graph.from_adjacency(~graph.adjacency()) if complement else graph)


def _interval(rng: Generator, n: int) -> Instance:
    """Live ranges of variables. Coloring them by start is optimal: it needs as many colors as ranges overlap."""
    start = np.sort(rng.uniform(0, 1, n))
    end = start + rng.exponential(applications.log_uniform(rng, 0.01, 0.3), n)
    coloring = np.zeros(n, dtype=np.int16)
    busy: list[tuple[float, int]] = []  # a heap of (end of the range, color)
    for node in range(n):
        free = busy and busy[0][0] <= start[node]
        coloring[node] = heapq.heappop(busy)[1] if free else len(busy)
        heapq.heappush(busy, (end[node], int(coloring[node])))
    overlap = start[None, :] < end[:, None]  # i < j overlap when j starts before i ends
    return Instance(Graph.from_adjacency(overlap), coloring, optimal=True)


def _leighton(rng: Generator, n: int) -> Instance:
    """Cliques across k classes. The first clique has a node of every class, so k is the chromatic number. After
    Leighton, A graph coloring algorithm for large scheduling problems (1979).
    """
    k = int(rng.integers(4, max(6, min(45, n // 3))))
    color = rng.permutation(np.arange(n) % k)
    size = rng.integers(2, k + 1, size=n * n)
    num_edges = rng.uniform(0.02, 0.35) * n * (n - 1) / 2
    size = size[: int(np.searchsorted(np.cumsum(size * (size - 1) / 2), num_edges)) + 1]
    size[0] = k
    inside = rng.random((len(size), k)).argsort(axis=1) < size[:, None]  # (cliques, k) whether it has a node of a class
    member = np.stack([rng.choice(np.flatnonzero(color == c), len(size)) for c in range(k)], axis=1)
    matrix = np.zeros((n, n), dtype=bool)
    for a, b in combinations(range(k), 2):
        both = inside[:, a] & inside[:, b]
        matrix[member[both, a], member[both, b]] = True
    return Instance(Graph.from_adjacency(matrix | matrix.T), color.astype(np.int16), optimal=True)


def _mycielski(rng: Generator, n: int) -> Instance:
    """Iterated Mycielskian of a random graph: each iteration adds one color and no larger clique."""
    largest = int(rng.integers(8, 40))
    times = next(times for times in count(1) if (n + 1) // 2**times - 1 <= largest)
    size = max(6, (n + 1) // 2**times - 1)  # smaller ones could be the myciel benchmarks
    base = nx.gnp_random_graph(size, rng.uniform(0.15, 0.7), seed=int(rng.integers(2**32)))
    colors = nx.greedy_color(base, strategy="DSATUR")
    coloring = np.array([colors[v] for v in range(size)], dtype=np.int16)
    optimal = max(map(len, nx.find_cliques(base))) == coloring.max() + 1
    for _ in range(times):
        coloring = np.concatenate([coloring, coloring, [coloring.max() + 1]])
    return Instance(as_graph(nx.mycielskian(base, times)), coloring, optimal)


def _planted(rng: Generator, n: int) -> Instance:
    """k equal classes, edges between classes only. In half of the graphs, degrees into all classes are equal."""
    p = rng.uniform(0.1, 0.9)
    # k is near the chromatic number of a random graph of this density, n log(1 / (1 - p)) / (2 log n).
    k = min(max(3, round(rng.uniform(0.4, 1.1) * n * -math.log1p(-p) / (2 * math.log(n)))), n // 2)
    size = -(-n // k)
    degree = round(p * size)
    if rng.random() < 0.5 and 0 < degree < size:
        met = rng.random((k, k, 1, size)).argsort(axis=3) < degree
        row, column = rng.random((2, k, k, size)).argsort(axis=3)
        turn = (row[:, :, :, None] + column[:, :, None, :]) % size  # (k, k, size, size): a Latin square per two classes
        matrix = np.take_along_axis(met, turn, axis=3).transpose(0, 2, 1, 3).reshape(k * size, k * size)
    else:
        matrix = rng.random((k * size, k * size)) < p
    color = np.arange(k * size) // size
    matrix &= color[:, None] < color[None, :]
    keep = rng.permutation(k * size)[:n]
    return Instance(Graph.from_adjacency((matrix | matrix.T)[np.ix_(keep, keep)]), color[keep].astype(np.int16))


def _chess(rng: Generator, n: int, queen: bool) -> Instance:
    """Squares of an m x n chess board, m < n, adjacent where a queen or a rook moves. Half of the boards have holes."""
    holes = rng.uniform(0, 0.3) * int(rng.integers(2))
    squares = n / (1 - holes)
    rows = int(rng.integers(3, max(4, math.isqrt(int(squares)) + 1)))
    columns = max(rows + 1, round(squares / rows))
    columns += (rows, columns) == (8, 12)  # queen8_12 is a benchmark
    row, column = np.divmod(rng.permutation(rows * columns)[: max(4, round(rows * columns * (1 - holes)))], columns)
    across, down = row[:, None] - row, column[:, None] - column
    diagonal = abs(across) == abs(down)
    return Instance(Graph.from_adjacency((across == 0) | (down == 0) | (queen & diagonal)))


def _wavelength(rng: Generator, n: int) -> Instance:
    """Shortest paths on a ring with chords. Two paths that share a link need different wavelengths."""
    size = int(rng.integers(8, max(12, min(60, n // 3))))
    network = nx.cycle_graph(size)
    chords = rng.integers(size, size=(int(rng.integers(size // 4, size)), 2))
    network.add_edges_from((int(a), int(b)) for a, b in chords if a != b)
    paths = [nx.shortest_path(network, *rng.choice(size, 2, replace=False).tolist()) for _ in range(n)]
    return Instance(applications.sharing_links(network, paths))


def _clique_union(rng: Generator, n: int) -> Instance:
    """Overlapping random cliques, as in timetables and in graphs of people who meet."""
    largest = int(rng.integers(3, max(5, min(40, n // 2))))
    matrix = np.zeros((n, n), dtype=bool)
    for _ in range(int(rng.uniform(0.3, 3) * n / math.sqrt(largest)) + 1):
        clique = rng.choice(n, size=int(rng.integers(2, largest + 1)), replace=False)
        matrix[np.ix_(clique, clique)] = True
    return Instance(Graph.from_adjacency(matrix))


class Family(NamedTuple):
    """A distribution of graphs, and how many of them the recipes `full` and `cpu` take."""

    graph_type: str
    draw: Callable[[Generator, int], Instance]  # draw(rng, n): about n nodes
    full: int
    cpu: int


FAMILIES = {
    "er_sparse": Family("random_sparse", partial(_networkx, nx.gnp_random_graph, [(0.01, 0.05)]), 600, 25),
    "er_light": Family("random_sparse", partial(_networkx, nx.gnp_random_graph, [(0.05, 0.4)]), 500, 35),
    "er_dense": Family("random_dense", partial(_networkx, nx.gnp_random_graph, [(0.4, 0.7)]), 900, 60),
    "er_heavy": Family("random_dense", partial(_networkx, nx.gnp_random_graph, [(0.7, 0.95)]), 800, 55),
    "planted": Family("random_dense", _planted, 600, 45),
    "interval": Family("register", _interval, 100, 5),
    "wavelength": Family("register", _wavelength, 50, 5),
    "leighton": Family("leighton", _leighton, 700, 70),
    "clique_union": Family("leighton", _clique_union, 300, 25),
    "geometric": Family("queen_geometric", partial(_networkx, nx.random_geometric_graph, [(0.08, 0.55)]), 400, 50),
    "geometric_complement": Family(
        "queen_geometric", partial(_networkx, nx.random_geometric_graph, [(0.08, 0.9)], complement=True), 200, 25
    ),
    "queen": Family("queen_geometric", partial(_chess, queen=True), 100, 15),
    "rook": Family("queen_geometric", partial(_chess, queen=False), 50, 4),
    "mycielski": Family("mycielski", _mycielski, 100, 5),
    "barabasi_albert": Family("scale_free", partial(_networkx, nx.barabasi_albert_graph, [(2, 6)]), 100, 5),
    "watts_strogatz": Family("small_world", partial(_networkx, nx.watts_strogatz_graph, [(4, 10), (0.1, 0.3)]), 50, 6),
    "exam_timetable": Family("leighton", applications.exam_timetable, 2000, 165),
    "course_timetable": Family("leighton", applications.course_timetable, 1500, 125),
    "pauli_strings": Family("random_dense", applications.pauli_strings, 1700, 140),
    "molecule_strings": Family("random_dense", applications.molecule_strings, 1000, 90),
    "jacobian": Family("small_world", applications.jacobian, 1000, 85),
    "frequencies": Family("queen_geometric", applications.frequencies, 1300, 110),
    "lightpaths": Family("register", applications.lightpaths, 100, 10),
    "registers": Family("register", applications.registers, 600, 50),
    "matches": Family("leighton", applications.matches, 100, 15),
    "sudoku": Family("queen_geometric", applications.sudoku, 150, 25),
}


def draw(seed: int, family: str, index: int, n: int) -> Instance:
    """Graph `index` of a family, of about n nodes. It depends on the arguments alone."""
    rng = np.random.default_rng([seed, zlib.crc32(family.encode()), index])
    instance = FAMILIES[family].draw(rng, n)
    graph = replace(instance.graph, name=f"{family}-{index:05d}")
    return replace(instance, graph=graph, family=family, graph_type=GRAPH_TYPES.index(FAMILIES[family].graph_type))


Sizes = tuple[tuple[int, int, float], ...]  # (fewest nodes, most nodes, share of the graphs)


@dataclass(frozen=True)
class Recipe:
    """A set of graphs to generate: numbers of graphs per family, and sizes. moves: the search for a label gives up
    after so many without a gain. long_search_every: one in so many graphs gets a long search; 0 for none.
    """

    counts: dict[str, int]
    sizes: Sizes
    moves: int
    long_search_every: int = 0

    @property
    def num_graphs(self) -> int:
        """Graphs of all families, for training and validation."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class GraphSpec:
    """Graph `index` of a family, before it is drawn."""

    seed: int
    family: str
    index: int
    sizes: Sizes

    def instance(self) -> Instance:
        """Draw the graph. It depends on the fields alone."""
        return draw(self.seed, self.family, self.index, self.num_nodes)

    @property
    def num_nodes(self) -> int:
        """Size to ask the family for. A golden ratio sequence keeps the shares of the sizes in any run of indices."""
        bounds = np.cumsum([share for *_, share in self.sizes[:-1]])
        low, high, _ = self.sizes[np.searchsorted(bounds, self.index * 0.6180339887498949 % 1, side="right")]
        rng = np.random.default_rng([self.seed, zlib.crc32(self.family.encode()), self.index, high])
        return int(rng.integers(low, high + 1))


def graph_specs(recipe: Recipe, seed: int, graphs: int = 0) -> Iterator[GraphSpec]:
    """Yield the graphs of a recipe. graphs: another total with the same shares of the families, if above 0."""
    total, before = recipe.num_graphs, 0
    requested = graphs or total
    for family, number in recipe.counts.items():
        for index in range((before + number) * requested // total - before * requested // total):
            yield GraphSpec(seed, family, index, recipe.sizes)
        before += number


RECIPES = {
    "full": Recipe(
        counts={name: family.full for name, family in FAMILIES.items()},
        sizes=((10, 49, 0.30), (50, 199, 0.40), (200, 499, 0.25), (500, 999, 0.05)),
        moves=200_000,
        long_search_every=5,
    ),
    "cpu": Recipe(
        counts={name: family.cpu for name, family in FAMILIES.items()},
        sizes=((100, 249, 0.4), (250, 499, 0.35), (500, 1000, 0.25)),
        moves=20_000,
        long_search_every=24,
    ),
    "smoke": Recipe(dict.fromkeys(FAMILIES, 8), ((10, 60, 1.0),), moves=5_000, long_search_every=2),
}
