"""Families of graphs that people color: timetables, measurements, derivatives, frequencies, registers, puzzles.

Every family is a function draw(rng, n) that returns an Instance of about n nodes. Where two nodes conflict because they
need the same resource, the graph comes from a matrix of nodes and resources.
"""

import math
from collections.abc import Sequence
from itertools import combinations, pairwise

import networkx as nx
import numpy as np
from numpy.random import Generator

from gnn_training.graph import Graph, Instance


def conflict_graph(uses: np.ndarray) -> Graph:
    """The conflict graph of the rows of a matrix (N, R): two rows are adjacent if some column is nonzero in both."""
    used = (uses != 0).astype(np.float32)
    return Graph.from_adjacency(used @ used.T > 0)


def sharing_links(network: nx.Graph, paths: Sequence[Sequence[int]]) -> Graph:
    """The conflict graph of paths, sequences of nodes of a network: two are adjacent if they share a link."""
    link = {frozenset(edge): number for number, edge in enumerate(network.edges)}
    uses = np.zeros((len(paths), len(link)))
    for row, path in zip(uses, paths, strict=True):
        row[[link[frozenset(hop)] for hop in pairwise(path)]] = 1
    return conflict_graph(uses)


def log_uniform(rng: Generator, low: float, high: float) -> float:
    """Draw a number between `low` and `high` whose logarithm is uniformly distributed."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def exam_timetable(rng: Generator, n: int) -> Instance:
    """Exams, adjacent if a student takes both. A student takes two to seven exams, most of them of one programme, and
    popular exams more often. Modelled on Carter, Laporte and Lee, Examination timetabling (1996).
    """
    num_programmes, num_students = max(1, round(n / log_uniform(rng, 12, 100))), round(n * log_uniform(rng, 3, 24))
    programme = rng.integers(num_programmes, size=n)
    attraction = np.log(rng.pareto(log_uniform(rng, 2, 20), n) + 0.1)
    of_student = rng.integers(num_programmes, size=num_students)
    elsewhere = math.log(log_uniform(rng, 0.01, 0.3))
    score = attraction + np.where(of_student[:, None] == programme, 0, elsewhere) + rng.gumbel(size=(num_students, n))
    rank = np.argsort(-score, axis=1)[:, :7]
    takes = np.zeros((n, num_students), dtype=np.float32)
    for place in range(min(7, n)):
        taken = rng.integers(2, 8, size=num_students) > place
        takes[rank[taken, place], np.flatnonzero(taken)] = 1
    return Instance(conflict_graph(takes))


def course_timetable(rng: Generator, n: int) -> Instance:
    """Lectures, adjacent if they have the same course, curriculum or teacher. As in the second timetabling competition
    (Di Gaspero, McCollum and Schaerf, ITC-2007, track 3); curricula also get random courses, as students' own choices.
    """
    course = np.repeat(np.arange(n), rng.integers(1, 7, size=n))[:n]
    num_courses = int(course[-1]) + 1
    teacher = rng.integers(max(1, round(num_courses * rng.uniform(0.4, 0.9))), size=num_courses)
    num_sets = max(1, round(num_courses * rng.uniform(0.4, 1.6)))
    department = rng.integers(max(1, num_courses // int(rng.integers(10, 40))), size=num_courses)
    member = np.zeros((num_courses, num_sets))
    for curriculum in member.T:
        inside = np.flatnonzero(department == department[rng.integers(num_courses)])
        curriculum[rng.permutation(inside)[: rng.integers(3, 9)]] = 1
        curriculum[rng.integers(num_courses, size=rng.integers(0, 3))] = 1
    teaches = teacher[:, None] == np.arange(num_courses)
    return Instance(conflict_graph(np.concatenate([np.eye(num_courses), teaches, member], axis=1)[course]))


def pauli_strings(rng: Generator, n: int) -> Instance:
    """Products of Pauli matrices on a few qubits each, adjacent if they do not commute, or not on some qubit. Products
    of one color are measured at once. As in Verteletskyi, Yen and Izmaylov, Measurement optimization (2020).
    """
    num_qubits = int(rng.integers(6, 25))
    size = rng.integers(1, int(rng.integers(3, num_qubits + 1)) + 1, size=3 * n)
    chosen = rng.random((3 * n, num_qubits)).argsort(axis=1) < size[:, None]
    letters = np.unique(np.where(chosen, rng.integers(1, 4, size=chosen.shape), 0), axis=0)
    return _commuting(rng, rng.permutation(letters)[:n])


def molecule_strings(rng: Generator, n: int) -> Instance:
    """Pauli strings of a molecule: the one- and two-body terms that conserve spin, after the transformation of Jordan
    and Wigner (1928). Random terms are left out, as chemists leave out small integrals. As in Gokhale and others,
    Minimizing state preparations (2019).
    """
    num_orbitals = next(m for m in range(6, 40, 2) if m**4 / 12 > n * 1.2)
    num_orbitals += 2 * int(rng.integers(0, 3))
    signs = np.array([xy for xy in np.ndindex(2, 2, 2, 2) if sum(xy) % 2 == 0])  # 0 for X, 1 for Y
    z = np.diag(np.full(num_orbitals, 3))  # one row per orbital, with a Z on that orbital
    strings = []
    for p, q in combinations(range(num_orbitals), 2):
        strings.append(z[[p]] + z[q])
        if (p - q) % 2 == 0:  # even orbitals have one spin, odd ones the other
            for letter in (1, 2):
                string = z[p + 1 : q].sum(0)
                string[[p, q]] = letter
                strings += [string[None], string ^ np.delete(z, [p, q], axis=0)]  # Z times Z is the identity
    for p, q, r, s in combinations(range(num_orbitals), 4):
        if (p + q + r + s) % 2 == 0:
            block = np.tile(z[p + 1 : q].sum(0) + z[r + 1 : s].sum(0), (len(signs), 1))
            block[:, [p, q, r, s]] = 1 + signs
            strings.append(block)
    letters = np.unique(np.concatenate(strings), axis=0)
    return _commuting(rng, letters[rng.permutation(len(letters))[:n]])


def _commuting(rng: Generator, letters: np.ndarray) -> Instance:
    """The graph of Pauli strings that do not commute. letters (N, qubits): 0 for I, 1 for X, 2 for Y and 3 for Z."""
    x, z = ((letters == 1) | (letters == 2)).astype(np.float32), (letters >= 2).astype(np.float32)
    if rng.random() < 0.5:
        return Instance(Graph.from_adjacency((x @ z.T + z @ x.T) % 2 == 1))
    one = [(letters == letter).astype(np.float32) for letter in (1, 2, 3)]
    return Instance(Graph.from_adjacency(sum(a @ (sum(one) - a).T for a in one) > 0))


def jacobian(rng: Generator, n: int) -> Instance:
    """Columns of a sparse matrix, adjacent if they share a row: one evaluation gives all columns of a color (Coleman
    and More 1983; Gebremedhin, Manne and Pothen 2005). The matrix is a stencil on a grid with holes, a band, or random.
    """
    kind = rng.integers(3)
    if kind == 0:
        dimensions = int(rng.integers(2, 4))
        side = math.ceil((1.2 * n) ** (1 / dimensions))
        points = np.stack(np.unravel_index(np.sort(rng.permutation(side**dimensions)[:n]), [side] * dimensions), axis=1)
        steps = abs(points[:, None] - points[None])
        reach, is_star = int(rng.integers(1, 3)), rng.random() < 0.5
        pattern = (steps.sum(2) if is_star else steps.max(2)) <= reach
    elif kind == 1:
        width = log_uniform(rng, 3, max(4, n / 12))
        away = abs(np.arange(n)[:, None] - np.arange(n))
        pattern = (away == 0) | ((away <= width) & (rng.random((n, n)) < rng.uniform(0.1, 0.6)))
        pattern |= rng.random((n, n)) < rng.uniform(0, 1 / n)
    else:
        pattern = rng.random((n, round(n * rng.uniform(0.5, 2)))) < rng.uniform(2, 8) / n
    return Instance(conflict_graph(pattern))


def frequencies(rng: Generator, n: int) -> Instance:
    """Radio stations in towns, adjacent if they are within reach; hills shorten or extend the reach. In a quarter of
    the graphs, stations with a common neighbour are adjacent, too (Hale, Frequency assignment, 1980).
    """
    towns = rng.random((max(1, round(n / log_uniform(rng, 5, 100))), 2))
    place = towns[rng.integers(len(towns), size=n)] + rng.normal(0, log_uniform(rng, 0.02, 0.3), (n, 2))
    lonely = rng.random(n) < 0.3
    place[lonely] = rng.random((int(lonely.sum()), 2))
    reach, hills = np.exp(rng.normal(0, rng.uniform(0, 0.5), n)), np.triu(rng.normal(0, rng.uniform(0, 0.4), (n, n)), 1)
    away = np.hypot(*(place[:, None] - place[None]).transpose(2, 0, 1)) / (reach[:, None] + reach)
    away *= np.exp(hills + hills.T)
    is_squared = rng.random() < 0.25
    degree = n * (log_uniform(rng, 0.01, 0.06) if is_squared else log_uniform(rng, 0.06, 0.4))
    is_adjacent = away <= np.sort(away, axis=None)[min(n * n - 1, n + round(degree * n))]
    return Instance(conflict_graph(is_adjacent) if is_squared else Graph.from_adjacency(is_adjacent))


def lightpaths(rng: Generator, n: int) -> Instance:
    """Shortest paths between cities on a Gabriel graph; large cities have more paths. Paths are adjacent if they share
    a link, because they need different wavelengths there (Zang, Jue and Mukherjee 2000).
    """
    size = int(rng.integers(8, max(12, min(60, n // 3))))
    place, people = rng.random((size, 2)), rng.dirichlet(np.full(size, 0.5)) + 1e-3
    away = ((place[:, None] - place) ** 2).sum(2)
    is_between = away[:, None, :] + away[None] < away[:, :, None]  # a third city in the circle whose diameter joins two
    network = nx.from_numpy_array(np.where(is_between.any(2), 0, np.sqrt(away)))
    paths = dict(nx.all_pairs_dijkstra_path(network))
    city_pairs = (rng.choice(size, 2, replace=False, p=people / people.sum()).tolist() for _ in range(n))
    return Instance(sharing_links(network, [paths[source][target] for source, target in city_pairs]))


def registers(rng: Generator, n: int) -> Instance:
    """Variables of a program, adjacent if both are live at some time. In a loop, live ranges wrap around a circle
    (Hendren and others 1993); elsewhere they have up to four pieces (Chaitin 1982). So the graph is not chordal.
    """
    times, is_loop = np.arange(4 * n), rng.random() < 0.5
    length = np.minimum(rng.exponential(4 * n * log_uniform(rng, 0.02, 0.25), (n, 1)), 3 * n) + 1
    start = rng.integers(4 * n, size=(n, 1))
    live = (times - start) % (4 * n) < length if is_loop else np.zeros((n, 4 * n), dtype=bool)
    if not is_loop:
        pieces = rng.integers(1, 5, size=(n, 1))
        last = start.astype(float)
        for piece in range(4):
            begin = last + rng.exponential(0.5 * n, (n, 1))
            last = begin + length / pieces
            live |= (piece < pieces) & (times >= begin) & (times < last)
    return Instance(conflict_graph(live))


def matches(rng: Generator, n: int) -> Instance:
    """Matches of leagues and a cup, adjacent if they share a team or a stadium, so that they need different rounds.
    After Lewis and Thompson, Round-robin sports scheduling (2011).
    """
    num_teams = 2 * int(rng.integers(3, max(4, min(20, math.isqrt(2 * n) // 2))))
    pairs = np.array(list(combinations(range(num_teams), 2)))
    season = np.concatenate([pairs, pairs[:, ::-1]])[: len(pairs) * int(rng.integers(1, 3))]
    num_leagues = max(1, round(n / len(season)))
    teams = num_leagues * num_teams
    league = rng.permutation((season + num_teams * np.arange(num_leagues)[:, None, None]).reshape(-1, 2))
    cup = rng.integers(teams, size=(round(n * rng.uniform(0, 0.3)), 2))
    games = np.concatenate([cup[cup[:, 0] != cup[:, 1]], league])[:n]
    stadium = np.where(rng.random(teams) < rng.uniform(0, 1), np.arange(teams) // 2 * 2, np.arange(teams))
    uses, rows = np.zeros((len(games), 2 * teams)), np.arange(len(games))
    uses[rows, games[:, 0]] = uses[rows, games[:, 1]] = uses[rows, teams + stadium[games[:, 0]]] = 1
    return Instance(conflict_graph(uses))


def sudoku(rng: Generator, n: int) -> Instance:
    """Cells of a Sudoku of any size, some left out, adjacent in a row, a column or a box (Herzberg and Murty 2007)."""
    sizes = [(rows, columns) for rows in range(2, 8) for columns in range(rows, 9) if n <= (rows * columns) ** 2]
    least = min((rows * columns) ** 2 for rows, columns in sizes)
    sizes = [size for size in sizes if (size[0] * size[1]) ** 2 <= 1.3 * least]
    rows, columns = sizes[rng.integers(len(sizes))]
    side = rows * columns
    row, column = np.divmod(rng.permutation(side * side)[:n], side)
    coloring = (columns * (row % rows) + row // rows + column) % side
    box = row // rows * rows + column // columns
    matrix = (row[:, None] == row) | (column[:, None] == column) | (box[:, None] == box)
    return Instance(Graph.from_adjacency(matrix), coloring.astype(np.int16))
