"""Threads that search the same graph and share the best coloring so far.

A method is a generator. Between two `yield`s it does a slice of work, some 30 ms, and it yields the amount of this work
in visits of a neighbour. Every thread has some of the methods. It continues the method that has just found a better
coloring, or else the method that has done the least work for its share. Work is counted, not timed, so one thread with
a limit of work always finds the same colorings.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from threading import Lock
from typing import NamedTuple

import numpy as np

from gnn_training.graph import NeighbourLists
from gnn_training.machine import available_bytes
from gnn_training.network.crossover_weights import CrossoverWeights, zero_weights
from gnn_training.processes import interrupts
from gnn_training.search import kernels
from gnn_training.search.crossover import Individual
from gnn_training.search.first_colorings import SIGNAL_SECONDS, seeded

log = logging.getLogger(__name__)
FOREVER = 2**62  # more work than any search does: only the clock ends a search
SEARCH_BYTES = 12  # memory of a search by the rule for each pair of a node and a color; TabuCol needs 8 bytes
MINOR = 0.5  # a method with a smaller share runs only in the first thread, beside other methods
EMPTY_SLICE = 10_000  # work that is added to the visits of every slice


class Coloring(NamedTuple):
    """A proper coloring and the method that found it."""

    method: str
    colors: np.ndarray  # (N,) int32, without gaps
    lower_bound: int = 1  # no coloring of the graph has fewer colors

    @property
    def num_colors(self) -> int:
        """Number of colors."""
        return int(self.colors.max()) + 1


class SearchWeights(NamedTuple):
    """The weights that a search takes from a model file."""

    rule: np.ndarray | None = None  # (NUM_WEIGHTS,) float32
    crossover: CrossoverWeights = zero_weights()


UNTRAINED = SearchWeights()


class Budget(NamedTuple):
    """The limits of a search, and its seed."""

    deadline: float  # a time of time.monotonic()
    lower: int = 1  # the search ends early with this number of colors, such as the size of a clique
    threads: int = 1
    seed: int = 0
    gpus: tuple[int, ...] = ()


def improvements(
    lists: NeighbourLists, colors: np.ndarray, budget: Budget, methods: "Mapping[Method, float]",
    trained: SearchWeights = UNTRAINED, patience: int = FOREVER, extra: "Sequence[ExtraWorker]" = (),
) -> Iterator[Coloring]:  # fmt: skip
    """Yield colorings with fewer and fewer colors than the proper coloring `colors` (N,), which has no gaps, until the
    budget is spent or every thread has done `patience` work without a better one. extra: searches in threads of their
    own. With one thread, no extra and no deadline, the colorings depend on the arguments alone.
    """
    need = SEARCH_BYTES * budget.threads * len(colors) * (int(colors.max()) + 8)
    if time.monotonic() >= budget.deadline or colors.max() < budget.lower:
        return
    if need > available_bytes():
        log.warning("a search needs %.1f GiB, more than are free: this coloring is the last", need / 2**30)
        return
    yield from Portfolio(lists, colors, budget, trained).run(methods, patience, extra)


def renumbered(colors: np.ndarray) -> np.ndarray:
    """The same classes (N,) int32 with colors from 0 without gaps."""
    return np.unique(colors, return_inverse=True)[1].astype(np.int32)


class Portfolio:
    """The best coloring known of a graph, and the threads that look for a better one."""

    def __init__(self, lists: NeighbourLists, colors: np.ndarray, budget: Budget, trained: SearchWeights):
        self.lists, self.best, self.budget, self.trained = lists, colors.astype(np.int32), budget, trained
        self.workers, self.is_over, self._lock = list[Worker](), False, Lock()
        self._events: SimpleQueue[Coloring | BaseException | None] = SimpleQueue()  # None: a thread has ended

    @property
    def num_colors(self) -> int:
        """Fewest colors so far."""
        return int(self.best.max()) + 1

    @property
    def is_running(self) -> bool:
        """Whether the search still looks for fewer colors."""
        return not self.is_over and self.num_colors > self.budget.lower

    def run(
        self, methods: "Mapping[Method, float]", patience: int, extra: "Sequence[ExtraWorker]"
    ) -> Iterator[Coloring]:
        """Start the threads, and yield each better coloring that one of them finds, as `improvements` says."""
        running, shares = self.budget.threads, [each for each in methods.items() if each[1] >= MINOR]
        minor = {method: share for method, share in methods.items() if share < MINOR}
        workers = [Worker(self, number) for number in range(running + len(extra))]
        with ThreadPoolExecutor(len(workers)) as pool:
            try:
                for search, worker in zip(extra, workers[running:], strict=True):
                    pool.submit(search, worker)
                for i, worker in enumerate(workers[:running]):  # each gets a part of the methods, at least one
                    part = dict(shares[i::running] or [shares[i % len(shares)]]) | (minor if i == 0 else {})
                    thread = pool.submit(worker.run, part, patience)
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
                    if event is None:
                        running -= 1
                    else:
                        yield event
            finally:
                self.finish()

    def offer(self, colors: np.ndarray, method: str) -> None:
        """Take a proper coloring (N,) with fewer colors than the best, and stop workers that look for no fewer."""
        colors = renumbered(colors)
        with self._lock:
            if colors.max() < self.best.max():
                self._events.put(Coloring(method, colors))  # before other threads see it and end the search
                self.best = colors
                for worker in self.workers:
                    worker.stop[0] |= worker.target >= self.num_colors

    def prove(self, method: str) -> None:
        """End the search, because no coloring has fewer colors than the best."""
        with self._lock:
            self._events.put(Coloring(method, self.best, self.num_colors))
        self.finish()

    def finish(self) -> None:
        """Stop all threads."""
        self.is_over = True  # set before the stops, see Worker.look_for
        for worker in self.workers:
            worker.stop[0] = 1


class Worker:
    """A thread of a search, and the operations that its methods have in common."""

    def __init__(self, search: Portfolio, number: int):
        self.search, self.lists, self.rng = search, search.lists, seeded(search.budget.seed, number)
        self.stop, self.target = np.zeros(1, dtype=np.uint8), 0  # stop: ends a loop that looks for `target` colors
        self.method, self.work = "", 0
        search.workers.append(self)

    def run(self, methods: "Mapping[Method, float]", patience: int) -> None:
        """Run the methods in turn. The method that has just found a better coloring continues, which makes the first
        descent fast; otherwise the method with the least work for its share is next.
        """
        search = self.search
        turns, done = {method: method(self) for method in methods}, dict.fromkeys(methods, 0.0)
        best, since, method = search.best, 0, next(iter(methods))
        while self.work - since < patience and search.is_running:
            self.method = method.__name__.replace("_", " ")
            work = next(turns[method])
            done[method] += work / methods[method]
            self.work += work
            if search.best is not best:
                best, since = search.best, self.work
            else:
                method = min(done, key=done.__getitem__)

    def look_for(self, num_colors: int) -> None:
        """Let the next compiled loop run until any thread has found a coloring with at most `num_colors` colors."""
        self.target, self.stop[0] = num_colors, 0  # before the check, because the best coloring may change at any time
        self.stop[0] |= self.search.is_over or self.search.num_colors <= num_colors

    def offer(self, colors: np.ndarray) -> None:
        """Offer a proper coloring (N,) to the search."""
        self.search.offer(colors, self.method)

    def tabucol(self, colors: np.ndarray, k: int, moves: int) -> kernels.TabuResult:
        """Run `kernels.tabucol`, and offer a proper coloring. Nodes without a color, -1, get one first."""
        self.look_for(k)
        kernels.complete(*self.lists, colors, k, self.rng, self.stop)
        result = kernels.tabucol(*self.lists, colors, k, moves, self.rng, self.stop)
        if result.conflicts == 0:
            self.offer(result.colors)
        return result._replace(work=result.work + EMPTY_SLICE)

    def on_generation(self, parents: Sequence[Individual], k: int) -> None:
        """A hook for subclasses, called after every generation of crossover search with the parents of the next one."""


Method = Callable[[Worker], Iterator[int]]
ExtraWorker = Callable[[Worker], None]  # must not raise an error
