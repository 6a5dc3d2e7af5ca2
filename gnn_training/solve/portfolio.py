"""The search that improves a coloring: a portfolio of methods that share the best coloring known.

A method is a generator. From one `yield` to the next it does a slice of work, some 30 ms, and yields its amount in
visits of a neighbour. Every thread has a share of the methods. It continues the one that has just found a better
coloring, else the one that has done least. Work is counted, not timed, so one thread with a limit of work always finds
the same.
"""

import fcntl
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import count
from operator import itemgetter
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gnn_training.contract import SETS_FROM, SETS_UP_TO
from gnn_training.graph import Graph, NeighbourLists, is_proper
from gnn_training.machine import available_bytes
from gnn_training.model.rule import NUM_WEIGHTS
from gnn_training.processes import interrupts
from gnn_training.solve import kernels
from gnn_training.solve.search_kernel import noise_table, search_graph

if TYPE_CHECKING:
    from gnn_training.model.session import Model

logger = logging.getLogger(__name__)
FOREVER = 2**62  # moves: only the clock ends the search
CLIQUE_STARTS = 1000  # all nodes of most graphs; takes milliseconds
CLIQUE_SHARE = 0.2  # of the time, for cliques
FIRST_SECONDS = 0.06  # for cliques, and for DSATUR, even if there is no time
PROOF_NODES, PROOF_BRANCHES = 150, 5_000  # of branch and bound: largest graph, and branches of its first run
SLICE = 20_000  # moves of TabuCol
GENERATION = 5_000  # moves of TabuCol on a child
ELITE = 10  # generations after which the best child of an earlier such period returns
ALIKE = 0.99  # share of the nodes with the same color in two parents, from which on one of them begins again
RATIOS = (0.5, 0.6, 0.7, 0.8, 0.9)  # of the present number of colors that `fewer_colors` asks for
FIRST_MOVES = 20_000  # of TabuCol on each of them; doubled after all of them
SET_MOVES, LAST_SET_MOVES = 600, 19_200  # of the search for an independent set, at first and at last
PART_WORK = 2  # of recombination, for that of the sets before it
PART_NODES, PART_SHARE = 500, 0.25  # nodes that independent sets leave: so many, or a larger share
SETS_NODES = 700  # from which independent sets help later, in graphs of density SETS_FROM
FIRST_SET_MOVES = 100  # of the search for each independent set of a first coloring, as in the exported file
FEWEST_MOVES, MOST_MOVES = 4, 1024  # the same in a search with a deadline: powers of two
SPARSEST = 0.02  # density from which such a search begins with independent sets
SET_SHARE, SET_STOP = 0.5, 0.75  # of the time: sets are given moves for the first, and stop at the second
VISIT_SECONDS = 1e-8  # of a core, in this search
RANDOM_RATIO = 2.0  # of DSATUR's colors and a clique: below it, as in geometric graphs, they do not
FIRST_ROUNDS = 2_000  # of the trained rule in its shortest runs
SEARCH_BYTES = 12  # of a search by the rule for every pair of a node and a color; TabuCol takes 8
SIGNAL_SECONDS = 0.2  # between two looks whether a signal has come, while other graphs are colored
EMPTY_SLICE = 10_000  # the work of a slice besides its visits
VISITS_PER_ROUND = 11, 40  # work of a round of the trained rule: per mean degree, and besides


class Coloring(NamedTuple):
    """A proper coloring and the method that found it."""

    method: str
    colors: np.ndarray  # (N,) int32, 0 to num_colors - 1
    num_colors: int
    lower_bound: int = 1  # no coloring of the graph has fewer colors


class Budget(NamedTuple):
    """What a search may use."""

    deadline: float  # of time.monotonic()
    lower: int = 1  # number of colors at which it ends early, such as the size of a clique
    threads: int = 1
    seed: int = 0


def seeded(*numbers: int) -> np.ndarray:
    """State (1,) uint64 of a random generator for the kernels."""
    return np.random.default_rng(numbers).integers(1, 2**63, size=1, dtype=np.uint64)


def in_time(deadline: float, kernel: Callable[..., Any], *arguments: Any) -> Any:
    """What a compiled loop returns, whose last argument is `stop`: that is set at the deadline of time.monotonic(). The
    loop runs in its own thread, because a signal would wait for it in this one.
    """
    stop = np.zeros(1, dtype=np.uint8)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(kernel, *arguments, stop)
        try:
            while not interrupts and (left := deadline - time.monotonic()) > 0 and not future.done():
                wait([future], min(left, SIGNAL_SECONDS))  # a signal reaches the main thread only
        finally:
            stop[0] = 1  # on Ctrl-C, too: the pool waits for its thread
        return future.result()


@cache
def compile_all() -> None:
    """Compile the loops, or load them from the disk, before a clock starts."""
    stop, weights = np.zeros(1, dtype=np.uint8), np.zeros(NUM_WEIGHTS, dtype=np.float32)
    path = NeighbourLists(np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1], dtype=np.int32))
    in_time(0, kernels.greedy_clique, *path, np.arange(3))
    in_time(0, kernels.dsatur, *path)
    kernels.first_fit(*path, np.arange(3))
    [two] = improvements(path, np.arange(3), Budget(math.inf, lower=2), {tabu_search: 1})
    kernels.crossover(two.colors, two.colors, 2)
    kernels.branch_and_bound(*path, two.colors, 1, 1, stop)
    kernels.balance(*path, two.colors.copy(), np.ones(3, dtype=np.int64), 3, 1, seeded(0), stop)
    set_coloring(*path, 0, 1, stop)
    search_graph(*path, two.colors, 0, 2, weights, noise_table(2), 0, 1, stop)  # the last one, see is_compiled


def is_compiled() -> bool:
    """Whether the loops have been compiled, in this process or by another one for the disk; by another version, too."""
    on_disk = Path(search_graph.stats.cache_path).glob("search_kernel.search_graph-*.nbi")
    return compile_all.cache_info().currsize > 0 or any(on_disk)


def compile_elsewhere() -> None:
    """Load the loops from the disk, or let another process compile them, some 15 s. It goes on when this one ends: the
    next search then finds them.
    """
    if is_compiled() or not sys.executable:
        return compile_all()
    logger.info("first use: the network file colors, while another process compiles the searches for the next time")
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    subprocess.Popen(
        [sys.executable, "-P", "-c", "from gnn_training.solve import portfolio; portfolio.compile_alone()"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def compile_alone() -> None:
    """Compile the loops, unless another process does."""
    with open(__file__) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError:  # a file system without locks
            pass
        compile_all()


def clique_size(lists: NeighbourLists, deadline: float = math.inf) -> int:
    """Size of a clique, grown greedily from the nodes of highest degree: no coloring has fewer colors."""
    by_degree = np.argsort(-np.diff(lists.offsets), kind="stable")
    return int(_first_loop(kernels.greedy_clique, deadline, *lists, by_degree[:CLIQUE_STARTS]))


def first_coloring(lists: NeighbourLists) -> np.ndarray:
    """A greedy coloring (N,) int16 like that of the exported file: by DSATUR or, in dense graphs, independent sets."""
    colors = kernels.dsatur(*lists)
    if density(lists) >= SETS_FROM and len(colors) <= SETS_UP_TO:
        colors = min(colors, set_coloring(*lists, 0, FIRST_SET_MOVES, np.zeros(1, dtype=np.uint8)), key=np.max)
    return colors.astype(np.int16)


def density(lists: NeighbourLists) -> float:
    """Share of all pairs of nodes that are edges."""
    n = len(lists.offsets) - 1
    return len(lists.neighbours) / max(1, n * (n - 1))


def set_moves(lists: NeighbourLists, num_colors: int, seconds: float) -> int:
    """Moves for each independent set, so that all sets take about so many seconds; 0 if they are not worth their time.
    num_colors: of a coloring. For a set, all nodes are looked at three times, and the neighbours of one in every move.
    A power of two, so that the same seed and time mostly give the same.
    """
    n = len(lists.offsets) - 1
    visits = seconds / (VISIT_SECONDS * num_colors)  # for every set
    moves = int(min(MOST_MOVES, (visits - 3 * n) / max(1, len(lists.neighbours) / n)))
    return 1 << moves.bit_length() - 1 if moves >= FEWEST_MOVES and density(lists) >= SPARSEST else 0


def set_coloring(offsets: np.ndarray, neighbours: np.ndarray, seed: int, moves: int, stop: np.ndarray) -> np.ndarray:
    """Color the nodes with large independent sets, one after the other, each searched with so many moves: (N,) int32,
    -1 for what `stop` leaves.
    """
    degree = np.diff(offsets)
    colors, rng = np.full(len(degree), -1, dtype=np.int32), seeded(seed, len(degree))
    while not stop[0] and colors.min() < 0:
        kernels.color_independent_set(offsets, neighbours, colors, degree, moves, rng, stop)
    return colors


def completed(lists: NeighbourLists, colors: np.ndarray) -> np.ndarray:
    """A coloring (N,) int32 with colors also for the nodes that have none, -1, because the time was over."""
    if colors.min() < 0:
        first_fit = kernels.first_fit if is_compiled() else kernels.first_fit.py_func
        colors = first_fit(*lists, np.argsort(np.where(colors < 0, len(colors), colors), kind="stable"))
    return colors.astype(np.int32)


def _first_loop(kernel: Any, deadline: float, *arguments: Any) -> Any:
    """What `in_time` returns of a loop that a search begins with: for FIRST_SECONDS at least, and as Python's own loop
    for no longer, if it is not compiled yet.
    """
    least = time.monotonic() + FIRST_SECONDS
    if is_compiled():
        return in_time(max(deadline, least), kernel, *arguments)
    return in_time(least, kernel.py_func, *arguments)


def colorings(
    graph: Graph, rule: np.ndarray | None, budget: Budget, clique: int = 0, model: "Model | None" = None
) -> Iterator[Coloring]:
    """Yield proper colorings with ever fewer colors, DSATUR's first, until the budget is spent or one has `lower`
    colors. The last one may be yielded again, because it is proven optimal. rule (NUM_WEIGHTS,): weights of the trained
    rule, if there is one. clique: size of one, 0 to look for it. model: colors until the loops are compiled; without,
    they are compiled first.
    """
    if model is None:
        compile_all()
    lists = graph.csr()
    now = time.monotonic()
    clique = clique or clique_size(lists, now + CLIQUE_SHARE * (budget.deadline - now))
    budget = budget._replace(lower=max(clique, budget.lower))
    colors = _first_loop(kernels.dsatur, budget.deadline, *lists)
    colors = completed(lists, colors)
    first = Coloring("DSATUR", colors, int(colors.max()) + 1)
    for coloring in _better_ones(graph, lists, rule, budget, clique, model, first):
        if not is_proper(graph, coloring.colors):
            raise RuntimeError(f"{graph.name}: the coloring by {coloring.method} is not proper")
        yield coloring._replace(lower_bound=max(clique, coloring.lower_bound))


def _better_ones(
    graph: Graph, lists: NeighbourLists, rule: np.ndarray | None, budget: Budget, clique: int, model: "Model | None",
    best: Coloring,
) -> Iterator[Coloring]:  # fmt: skip
    """Yield the first coloring and better ones: those of calls of the network file, as long as the loops are not
    compiled, then that of independent sets if there is time for them, and those of the search.
    """
    yield best
    methods = methods_for(lists, best, clique, rule)
    for seed in count(budget.seed % 2**31):
        left = budget.deadline - time.monotonic()
        if model is None or is_compiled() or left <= 0 or best.num_colors <= budget.lower:
            break
        try:
            colors = model.predict(graph, seed=seed, seconds=left).logits[0].argmax(1)
        except (MemoryError, TimeoutError):
            break
        colors = np.unique(colors, return_inverse=True)[1].astype(np.int32)
        if colors.max() + 1 < best.num_colors and is_proper(graph, colors):
            best = Coloring("network file", colors, int(colors.max()) + 1)
            yield best
    now = time.monotonic()
    left = budget.deadline - now
    moves = set_moves(lists, best.num_colors, SET_SHARE * left)
    if moves and best.num_colors > budget.lower:
        colors = completed(lists, in_time(now + SET_STOP * left, set_coloring, *lists, budget.seed, moves))
        if colors.max() + 1 < best.num_colors:
            best = Coloring("independent sets", colors, int(colors.max()) + 1)
            yield best
    yield from improvements(lists, best.colors, budget, methods, rule)


def improvements(
    lists: NeighbourLists, colors: np.ndarray, budget: Budget, methods: "Mapping[Method, float]",
    rule: np.ndarray | None = None, patience: int = FOREVER,
) -> Iterator[Coloring]:  # fmt: skip
    """Yield colorings with ever fewer colors than the proper `colors` (N,), which has no gaps, until the budget is
    spent or every thread has done `patience` work in vain. With one thread and no deadline they depend on the arguments
    alone.
    """
    need = SEARCH_BYTES * budget.threads * len(colors) * (int(colors.max()) + 8)
    if time.monotonic() >= budget.deadline or colors.max() < budget.lower:
        return
    if need > available_bytes():
        logger.warning("a search needs %.1f GiB, more than are free: this coloring is the last", need / 2**30)
        return
    yield from Search(lists, colors, budget, rule).run(methods, patience)


class Search:
    """The best coloring known of a graph, and the threads that look for a better one."""

    def __init__(self, lists: NeighbourLists, colors: np.ndarray, budget: Budget, rule: np.ndarray | None):
        self.lists, self.best, self.budget, self.rule = lists, colors.astype(np.int32), budget, rule
        self.workers = [Worker(self, number) for number in range(budget.threads)]
        self.is_over, self._lock = False, Lock()
        self._events: SimpleQueue[Coloring | BaseException | None] = SimpleQueue()  # None: a thread has ended

    @property
    def num_colors(self) -> int:
        """Fewest colors so far."""
        return int(self.best.max()) + 1

    def run(self, methods: "Mapping[Method, float]", patience: int) -> Iterator[Coloring]:
        """Yield what `improvements` does."""
        running, shares = len(self.workers), list(methods.items())
        with ThreadPoolExecutor(running) as pool:
            try:
                for i, worker in enumerate(self.workers):  # each with its part of the methods, or one of them
                    thread = pool.submit(worker.run, dict(shares[i::running] or [shares[i % len(shares)]]), patience)
                    thread.add_done_callback(lambda ended: self._events.put(ended.exception()))
                while running:
                    left = max(0.0, self.budget.deadline - time.monotonic())
                    try:
                        event = self._events.get(timeout=min(left, SIGNAL_SECONDS))
                    except Empty:
                        if interrupts or not left:
                            return
                        continue
                    if isinstance(event, BaseException):
                        raise event
                    running -= event is None
                    if event is not None:
                        yield event
            finally:
                self.finish()

    def offer(self, colors: np.ndarray, method: str) -> None:
        """Take a proper coloring (N,) if it has fewer colors than the best, and stop all who look for no fewer."""
        colors = np.unique(colors, return_inverse=True)[1].astype(np.int32)
        with self._lock:
            if colors.max() < self.best.max():
                self.best = colors
                self._events.put(Coloring(method, colors, self.num_colors))
                for worker in self.workers:
                    worker.stop[0] |= worker.target >= self.num_colors

    def prove(self, method: str) -> None:
        """End the search, because no coloring has fewer colors than the best."""
        with self._lock:
            self._events.put(Coloring(method, self.best, self.num_colors, self.num_colors))
        self.finish()

    def finish(self) -> None:
        """Stop all threads."""
        self.is_over = True  # before the stops, see Worker.look_for
        for worker in self.workers:
            worker.stop[0] = 1


class Worker:
    """A thread of a search, and what its methods do."""

    def __init__(self, search: Search, number: int):
        self.search, self.lists, self.rng = search, search.lists, seeded(search.budget.seed, number)
        self.stop, self.target = np.zeros(1, dtype=np.uint8), 0  # stops who looks for `target` colors
        self.method, self.work = "", 0

    def run(self, methods: "Mapping[Method, float]", patience: int) -> None:
        """Continue the method that has just found a better coloring, which makes the first descent fast; else the one
        that has done least for its share.
        """
        search, lower = self.search, self.search.budget.lower
        turns, done = {method: method(self) for method in methods}, dict.fromkeys(methods, 0.0)
        best, since, method = search.best, 0, next(iter(methods))
        while self.work - since < patience and not search.is_over and search.num_colors > lower:
            self.method = method.__name__.replace("_", " ")
            work = next(turns[method])
            done[method] += work / methods[method]
            self.work += work
            if search.best is not best:
                best, since = search.best, self.work
            else:
                method = min(done, key=done.__getitem__)

    def look_for(self, num_colors: int) -> None:
        """Let the next compiled loop run until others have found as few as `num_colors`."""
        self.target, self.stop[0] = num_colors, 0  # first, because the best coloring may change now
        self.stop[0] |= self.search.is_over or self.search.num_colors <= num_colors

    def offer(self, colors: np.ndarray) -> None:
        """Tell the others of a proper coloring (N,)."""
        self.search.offer(colors, self.method)

    def tabucol(self, colors: np.ndarray, k: int, moves: int) -> tuple[np.ndarray, int, int, int]:
        """What `kernels.tabucol` returns. Nodes of colors (N,) without one, -1, get one first."""
        self.look_for(k)
        kernels.complete(*self.lists, colors, k, self.rng, self.stop)
        best, conflicts, made, work = kernels.tabucol(*self.lists, colors, k, moves, self.rng, self.stop)
        if conflicts == 0:
            self.offer(best)
        return best, conflicts, made, work + EMPTY_SLICE

    def uncolored(self) -> np.ndarray:
        """-1 for every node: (N,) int32."""
        return np.full(len(self.search.best), -1, dtype=np.int32)


Method = Callable[[Worker], Iterator[int]]


def largest_classes(colors: np.ndarray, k: int) -> np.ndarray:
    """The k largest classes of colors (N,) as 0..k-1, and -1 for all other nodes: (N,) int32."""
    color_ids = np.argsort(-np.bincount(colors), kind="stable")[:k]
    rank = np.full(int(colors.max()) + 1, -1, dtype=np.int32)
    rank[color_ids] = np.arange(len(color_ids))
    return rank[colors]


def branch_and_bound(worker: Worker) -> Iterator[int]:
    """DSATUR branch and bound from the best coloring known, with ever more branches, until it proves it optimal."""
    for branches in (PROOF_BRANCHES << run for run in count()):
        best = worker.search.best
        worker.look_for(int(best.max()))
        arguments = best, worker.search.budget.lower, branches, worker.stop
        colors, is_proven, left = kernels.branch_and_bound(*worker.lists, *arguments)
        worker.offer(colors)
        if is_proven:
            worker.search.prove(worker.method)
        yield (branches - left) * len(best) + EMPTY_SLICE


def tabu_search(worker: Worker) -> Iterator[int]:
    """TabuCol on the best coloring known without its smallest class."""
    while True:
        best = worker.search.best
        k = int(best.max())
        colors = largest_classes(best, k)
        while worker.search.best is best:
            *_, work = worker.tabucol(colors, k, SLICE)
            yield work


def fewer_colors(worker: Worker) -> Iterator[int]:
    """TabuCol from scratch with far fewer colors than known, for ever more moves. That finds the classes of planted
    graphs, from which saving one color at a time leads away.
    """
    moves = FIRST_MOVES
    while True:
        for ratio in RATIOS:
            k, left = int(ratio * worker.search.num_colors), moves
            colors = worker.uncolored()
            while left > 0 and max(1, worker.search.budget.lower - 1) < k < worker.search.num_colors:
                *_, made, work = worker.tabucol(colors, k, min(left, SLICE))
                left -= made
                yield work
            yield EMPTY_SLICE
        moves *= 2


def recombination(worker: Worker) -> Iterator[int]:
    """HEAD (Moalic and Gondran 2018): crossover of two colorings both ways, and TabuCol on the two children. After a
    better coloring is known, it and the second parent lose classes and are the next parents.
    """
    second = worker.uncolored()
    while True:
        best = worker.search.best
        k = int(best.max())
        starts = [largest_classes(best, k), second if second.max() < k else largest_classes(second, k)]
        elite: list[tuple[int, np.ndarray]] = []  # the best child of the last ELITE generations, and of those before
        for generation in count(1):
            parents = []
            for colors in starts:
                child, conflicts, _, work = worker.tabucol(colors, k, GENERATION)
                parents.append((conflicts, child))
                yield work
                if worker.search.best is not best:
                    break
            if worker.search.best is not best:
                break
            top = min(parents, key=itemgetter(0))
            elite = elite or [top, top]
            elite[0] = min(elite[0], top, key=itemgetter(0))
            if generation % ELITE == 0:
                parents[0] = elite[1]
                elite = [top, elite[0]]
            (_, first), (_, second) = parents
            same = np.bincount(first * k + second, minlength=k * k).reshape(k, k).max(1).sum()
            if same > ALIKE * len(first):
                starts = [first, worker.uncolored()]
            else:
                starts = [kernels.crossover(first, second, k), kernels.crossover(second, first, k)]


def trained_rule(worker: Worker) -> Iterator[int]:
    """The trained rule on the best coloring known: runs of 1, 2, 1, 4, 1, 2, 1, 8 .. times FIRST_ROUNDS."""
    best, weights = worker.search.best, worker.search.rule
    table = noise_table(int(best.max()) + 1)
    per_degree, besides = VISITS_PER_ROUND
    visits = per_degree * len(worker.lists.neighbours) // len(worker.search.best) + besides
    for number in count(1):
        best, rounds = worker.search.best, FIRST_ROUNDS * (number & -number)
        worker.look_for(int(best.max()))
        seed = int(worker.rng[0] % 4093) + number
        arguments = best, 0, worker.search.budget.lower, weights, table, seed, rounds
        colors, *_ = search_graph(*worker.lists, *arguments, worker.stop)
        worker.offer(colors)
        yield visits * rounds


class Part(Worker):
    """A thread's search in a part of the graph, whose colorings become colorings of the whole graph."""

    def __init__(self, worker: Worker, colors: np.ndarray):
        """colors (N,): -1 for the nodes of the part."""
        self.parent, self.colors, self.nodes = worker, colors, np.flatnonzero(colors < 0)
        lists = subgraph(worker.lists, self.nodes)
        search = Search(lists, kernels.dsatur(*lists, np.zeros(1, dtype=np.uint8)), Budget(math.inf), None)
        super().__init__(search, 0)
        search.workers, self.rng, self.stop = [], worker.rng, worker.stop

    def look_for(self, num_colors: int) -> None:
        """Let the next compiled loop run, even if others have found fewer colors."""
        self.parent.look_for(0)

    def offer(self, colors: np.ndarray) -> None:
        """Tell the others of a proper coloring of the part."""
        super().offer(colors)
        combined = self.colors.copy()
        combined[self.nodes] = colors + combined.max() + 1
        self.parent.offer(combined)


def subgraph(lists: NeighbourLists, nodes: np.ndarray) -> NeighbourLists:
    """Neighbour lists of the graph among `nodes`, which are sorted."""
    place = np.full(len(lists.offsets) - 1, -1, dtype=np.int32)
    place[nodes] = np.arange(len(nodes))
    source, target = np.repeat(place, np.diff(lists.offsets)), place[lists.neighbours]
    is_inside = (source >= 0) & (target >= 0)
    degrees = np.bincount(source[is_inside], minlength=len(nodes))
    return NeighbourLists(np.concatenate([[0], np.cumsum(degrees)]), target[is_inside])


def extraction(worker: Worker) -> Iterator[int]:
    """EXTRACOL (Wu and Hao 2012): large independent sets become classes, and recombination colors the rest. Each time
    with three times the moves for a set.
    """
    num_nodes, moves = len(worker.search.best), SET_MOVES
    while True:
        colors, degree, spent, done = worker.uncolored(), np.diff(worker.lists.offsets), 0, 0
        while (colors < 0).sum() > max(PART_SHARE * num_nodes, min(PART_NODES, 0.75 * num_nodes)):
            worker.look_for(0)
            work = kernels.color_independent_set(*worker.lists, colors, degree, moves, worker.rng, worker.stop)
            spent += work
            yield work
        if colors.min() >= 0:
            worker.offer(colors)
        else:
            part = Part(worker, colors)
            part.offer(part.search.best)
            turns = recombination(part)
            while done <= PART_WORK * spent and part.search.num_colors > 1:
                work = next(turns)
                done += work
                yield work
        moves = min(3 * moves, LAST_SET_MOVES)


def methods_for(lists: NeighbourLists, first: Coloring, clique: int, rule: np.ndarray | None) -> dict[Method, float]:
    """The portfolio for a graph with a first coloring: methods and their shares of the work. The first one begins."""
    n, is_random = len(first.colors), first.num_colors >= RANDOM_RATIO * clique
    methods: dict[Method, float] = {recombination: 2, trained_rule: 2, fewer_colors: 0.5}
    if n <= PROOF_NODES:
        methods = {branch_and_bound: 1, **methods}
    if is_random and density(lists) >= SETS_FROM and n >= SETS_NODES:
        methods = {recombination: 2, extraction: 4, fewer_colors: 0.5, trained_rule: 0.5}
    return {method: share for method, share in methods.items() if method is not trained_rule or rule is not None}
