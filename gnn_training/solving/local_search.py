"""What needs no network: iterated greedy and TabuCol from a coloring that is there."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np

from gnn_training.data.search import FOREVER, iterated_greedy, seeded, with_fewer

Lists = tuple[np.ndarray, np.ndarray]  # Graph.csr()

PASSES = 2_000  # of iterated greedy before TabuCol,
SHARE = 0.25  # for at most this part of the time: large graphs


def local_search(
    lists: Lists, colors: np.ndarray, deadline: float, lower: int, threads: int, seed: int, polish: bool
) -> Iterator[np.ndarray]:
    """Yield proper colorings (N,) int32 with ever fewer colors than the proper `colors`, which has no gaps.

    Iterated greedy has the time until `deadline`, of time.monotonic(), or with `polish` the first part of it and
    TabuCol the rest. It ends early at `lower`.
    """
    left = deadline - time.monotonic()
    passes, seconds = (PASSES, SHARE * left) if polish else (FOREVER, left)
    best = iterated_greedy(lists, colors, lower, passes, seconds, seed)
    if best.max() < colors.max():
        yield best
    if polish:
        yield from _tabucol(lists, best, deadline, lower, threads, seed)


def _tabucol(
    lists: Lists, colors: np.ndarray, deadline: float, lower: int, threads: int, seed: int
) -> Iterator[np.ndarray]:
    """Yield proper colorings, each with one color less than the one before, beginning below `colors`.

    All threads look for the same number of colors, each with a seed of its own; from what one finds, all go on. With
    one thread only the end depends on the clock; with several, also which of them is first.
    """
    with ThreadPoolExecutor(threads) as pool:
        while colors.max() + 1 > max(lower, 1):
            found = _race(pool, lists, colors, deadline, threads, seed)
            if found is None:
                return
            colors = found
            yield colors


def _race(
    pool: ThreadPoolExecutor, lists: Lists, colors: np.ndarray, deadline: float, threads: int, seed: int
) -> np.ndarray | None:
    """One color less, by whichever thread finds it first; None if none does in time."""
    over = Event()

    def look(number: int) -> np.ndarray | None:
        rng = seeded(seed, number, len(colors), int(colors.max()))
        found, iterations = with_fewer(
            lists, colors, FOREVER, rng, lambda: over.is_set() or time.monotonic() >= deadline
        )
        if iterations < 0:
            return None
        over.set()
        return found

    try:
        return next((found for found in list(pool.map(look, range(threads))) if found is not None), None)
    finally:
        over.set()  # on Ctrl-C too: the pool waits for its threads
