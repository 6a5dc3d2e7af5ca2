"""The methods that look for better colorings, as generators; see `search/engine.py`."""

import math
from collections.abc import Iterator
from itertools import count

import numpy as np

from gnn_training.contract import SETS_MIN_DENSITY
from gnn_training.graph import NeighbourLists
from gnn_training.search import kernels, proofs
from gnn_training.search.crossover import GENERATION, Individual, children
from gnn_training.search.engine import (
    EMPTY_SLICE,
    Budget,
    Coloring,
    Method,
    Portfolio,
    SearchWeights,
    Worker,
    renumbered,
)
from gnn_training.search.first_colorings import density
from gnn_training.search.islands import Island, largest_classes, uncolored
from gnn_training.search.search_kernel import SearchTask, search_graph

FIRST_CLIQUE_WORK = 5_000_000  # visits of branch and bound for a clique in its first run, some 25 ms
PROOF_NODES, PROOF_BRANCHES = 150, 5_000  # graphs of up to so many nodes: branches of the first run for a coloring
PROOF_SHARE, PROOF_WORK = 0.1, 5_000_000  # larger graphs: branch and bound's share of the work, visits of its first run
SLICE = 20_000  # moves of TabuCol
RATIOS = (0.5, 0.6, 0.7, 0.8, 0.9)  # the numbers of colors of `fewer_colors`, relative to the best coloring
FIRST_MOVES = 20_000  # moves of TabuCol for each ratio; they double after all ratios
SET_MOVES, LAST_SET_MOVES = 600, 19_200  # moves of the search for an independent set, at first and at most
PART_WORK = 2  # work of crossover search, relative to the work of the independent sets before it
PART_NODES, PART_SHARE = 500, 0.25  # nodes that independent sets leave: this number or this share, the larger one
SETS_NODES = 700  # from so many nodes on, independent sets help later, in graphs of density SETS_MIN_DENSITY
RANDOM_RATIO = 2.0  # first coloring's colors to a clique's size: below it, as in geometric graphs, sets do not help
FIRST_ROUNDS = 2_000  # rounds of the trained rule in its shortest runs
VISITS_PER_ROUND = 11, 40  # work of a round of the trained rule: a multiple of the mean degree, plus a constant


def open_parts(lists: NeighbourLists, cores: np.ndarray, colors: np.ndarray, k: int) -> list[np.ndarray]:
    """The nodes of each part that decides whether k colors suffice, the smallest part first. The parts are the
    components of the k-core that have more than k of the colors (N,). The k-core remains when nodes with fewer than k
    neighbours are removed again and again. cores (N,): core numbers.
    """
    inside, base = np.flatnonzero(cores >= k), int(colors.max()) + 1
    component = proofs.components(*lists.subgraph(inside))
    num_colors = np.bincount(np.unique(component * base + colors[inside]) // base)
    offsets = np.cumsum(np.bincount(component))[:-1]
    parts = np.split(inside[np.argsort(component, kind="stable")], offsets)
    return sorted((parts[i] for i in np.flatnonzero(num_colors > k)), key=len)


def smallest_last(
    lists: NeighbourLists, order: np.ndarray, cores: np.ndarray, colors: np.ndarray, k: int
) -> np.ndarray:
    """Extend a coloring of the k-core, colors (N,), to one of all nodes (N,) int32 with k colors at most. Other nodes
    follow in reverse order of their removal: each has fewer than k neighbours before it (Matula and Beck 1983).
    """
    inside = np.flatnonzero(cores >= k)
    inside = inside[np.argsort(colors[inside], kind="stable")]
    others = order[: len(order) - len(inside)][::-1]
    return kernels.first_fit(*lists, np.concatenate([inside, others]))


def branch_and_bound(worker: Worker) -> Iterator[int]:
    """DSATUR branch and bound for one color fewer than the best coloring has. It begins with a large clique of every
    open part, and has more branches in every run, until it proves that there is no such coloring.
    """
    lists, stop, run = worker.lists, worker.stop, 0
    order, cores = proofs.removal_order(*lists)
    while True:
        best = worker.search.best
        k, colors, num_open, work = int(best.max()), best.copy(), 0, EMPTY_SLICE
        worker.look_for(k)
        for nodes in open_parts(lists, cores, best, k):
            part, visits = lists.subgraph(nodes), FIRST_CLIQUE_WORK << run
            branches = (PROOF_BRANCHES if len(best) <= PROOF_NODES else PROOF_WORK // len(nodes)) << run
            clique, _, visits_left = proofs.largest_clique(*part, k + 1, visits, stop)
            arguments = renumbered(best[nodes]), clique, k, branches, stop
            colors[nodes], is_proven, branches_left = kernels.branch_and_bound(*part, *arguments)
            if is_proven:
                worker.search.prove(worker.method)
            num_open += colors[nodes].max() == k
            work += (branches - branches_left) * len(nodes) + visits - visits_left
        if not num_open:
            worker.offer(smallest_last(lists, order, cores, colors, k))
        yield work
        run = run + 1 if worker.search.best is best else 0


def tabu_search(worker: Worker) -> Iterator[int]:
    """TabuCol from the best coloring so far without its smallest class."""
    while True:
        best = worker.search.best
        k = int(best.max())
        colors = largest_classes(best, k)
        while worker.search.best is best:
            yield worker.tabucol(colors, k, SLICE).work


def fewer_colors(worker: Worker) -> Iterator[int]:
    """TabuCol from scratch with far fewer colors than the best coloring has, in longer and longer runs. This finds the
    classes of planted graphs, while saving one color at a time leads away from them.
    """
    moves = FIRST_MOVES
    while True:
        for ratio in RATIOS:
            k, left = int(ratio * worker.search.num_colors), moves
            colors = uncolored(worker.lists)
            while left > 0 and max(1, worker.search.budget.lower - 1) < k < worker.search.num_colors:
                result = worker.tabucol(colors, k, min(left, SLICE))
                left -= result.moves
                yield result.work
            yield EMPTY_SLICE
        moves *= 2


def crossover_search(worker: Worker) -> Iterator[int]:
    """HEAD (Moalic and Gondran 2018) with TabuCol, from the best coloring so far; see `Island`."""
    island, weights = Island(worker.lists), worker.search.trained.crossover
    while True:
        best = worker.search.best
        island.begin(best, int(best.max()))
        while worker.search.best is best:
            parents = []
            for colors in island.starts:
                child = worker.tabucol(colors, island.k, GENERATION)
                parents.append(Individual(child.conflicts, child.colors, child.ages))
                yield child.work
                if worker.search.best is not best:
                    break
            else:
                island.take(parents)
                worker.on_generation(parents, island.k)
                if island.choose_starts(parents, int(worker.rng[0]) >> 16):
                    island.starts = children(worker.lists, parents, island.k, weights, island.by_network)


def trained_rule(worker: Worker) -> Iterator[int]:
    """The trained rule on the best coloring known: runs of 1, 2, 1, 4, 1, 2, 1, 8 .. times FIRST_ROUNDS."""
    weights = worker.search.trained.rule
    assert weights is not None
    per_degree, besides = VISITS_PER_ROUND
    visits = per_degree * len(worker.lists.neighbours) // len(worker.search.best) + besides
    for number in count(1):
        best, rounds = worker.search.best, FIRST_ROUNDS * (number & -number)
        worker.look_for(int(best.max()))
        task = SearchTask(best, rounds, int(worker.rng[0] % 4093) + number, worker.search.budget.lower)
        worker.offer(search_graph(worker.lists, task, weights, worker.stop).best)
        yield visits * rounds


class SubgraphWorker(Worker):
    """A thread's search in a part of the graph, whose colorings become colorings of the whole graph."""

    def __init__(self, worker: Worker, colors: np.ndarray):
        """colors (N,): a coloring of the whole graph, in which the nodes of the part have -1."""
        self.parent, self.colors, self.nodes = worker, colors, np.flatnonzero(colors < 0)
        lists = worker.lists.subgraph(self.nodes)
        super().__init__(Portfolio(lists, kernels.dsatur(*lists), Budget(math.inf), worker.search.trained), 0)
        self.rng, self.stop = worker.rng, worker.stop

    def look_for(self, num_colors: int) -> None:
        """Let the next compiled loop run, even if others have found fewer colors."""
        self.parent.look_for(0)

    def offer(self, colors: np.ndarray) -> None:
        """Offer a proper coloring of the part, and with it one of the whole graph."""
        super().offer(colors)
        combined = self.colors.copy()
        combined[self.nodes] = colors + combined.max() + 1
        self.parent.offer(combined)


def independent_sets(worker: Worker) -> Iterator[int]:
    """EXTRACOL (Wu and Hao 2012): large independent sets become classes, and crossover search colors the other nodes.
    Every repetition has three times as many moves for a set, up to LAST_SET_MOVES.
    """
    num_nodes, moves = len(worker.search.best), SET_MOVES
    while True:
        colors, degree = uncolored(worker.lists), np.diff(worker.lists.offsets)
        set_work = part_work = 0
        while (colors < 0).sum() > max(PART_SHARE * num_nodes, min(PART_NODES, 0.75 * num_nodes)):
            worker.look_for(0)
            work = kernels.color_independent_set(*worker.lists, colors, degree, moves, worker.rng, worker.stop)
            set_work += work
            yield work
        if colors.min() >= 0:
            worker.offer(colors)
        else:
            part = SubgraphWorker(worker, colors)
            part.offer(part.search.best)
            turns = crossover_search(part)
            while part_work <= PART_WORK * set_work and part.search.num_colors > 1:
                work = next(turns)
                part_work += work
                yield work
        moves = min(3 * moves, LAST_SET_MOVES)


def methods_for(lists: NeighbourLists, first: Coloring, clique: int, trained: SearchWeights) -> dict[Method, float]:
    """Return the methods for a graph with a first coloring, and their shares of the work. The first method begins."""
    n, is_random = len(first.colors), first.num_colors >= RANDOM_RATIO * clique
    proof = 1 if n <= PROOF_NODES else PROOF_SHARE
    methods: dict[Method, float] = {branch_and_bound: proof, crossover_search: 2, trained_rule: 2, fewer_colors: 0.5}
    if is_random and density(lists) >= SETS_MIN_DENSITY and n >= SETS_NODES:  # no proof succeeds here
        methods = {crossover_search: 2, independent_sets: 4, fewer_colors: 0.5, trained_rule: 0.5}
    if trained.rule is None:
        del methods[trained_rule]
    return methods
