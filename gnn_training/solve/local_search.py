"""The search that needs no network: iterated greedy, independent sets and TabuCol improve a coloring."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import chain
from threading import Event
from typing import NamedTuple

import numpy as np

from gnn_training.graph import NeighbourLists
from gnn_training.machine import available_bytes
from gnn_training.solve import kernels

CLIQUE_STARTS = 1000  # all nodes of most graphs, as in the exported file; takes milliseconds
STEPS_PER_SLICE = 4_000_000  # of a kernel between two looks at the clock, about 20 ms
FOREVER = 2**62  # iterations: only the clock ends the search
FIRST_MOVES, LAST_MOVES = 300, 19_200  # for every set of the first coloring, and of the seventh and later ones
PASSES = 2_000  # of iterated greedy before TabuCol,
SHARE = 0.25  # for at most this part of the time on large graphs; independent sets get as much
COLORINGS_PER_TURN = 7  # that every thread makes of independent sets, if there is time
SMALL_GRAPH = 200  # nodes up to which TabuCol needs no independent sets and no groups of classes
GROUP_NODES = 200  # in the color classes that every second thread of TabuCol colors again
GROUP_ITERATIONS = 100_000  # of TabuCol on one group
TABU_BYTES = 12  # of TabuCol for every pair of a node and a color
GROUP_NOISE = 0.25  # of the class sizes (standard deviation of their logarithm), so that groups differ


class Budget(NamedTuple):
    """What a search may use."""

    deadline: float  # of time.monotonic()
    lower: int = 1  # number of colors at which it ends early, such as the size of a clique
    threads: int = 1
    seed: int = 0


def seeded(*numbers: int) -> np.ndarray:
    """State (1,) uint64 of a random generator for the kernels."""
    return np.random.default_rng(numbers).integers(1, 2**63, size=1, dtype=np.uint64)


def clique_size(lists: NeighbourLists, starts: int = CLIQUE_STARTS) -> int:
    """Size of a clique, grown greedily from the `starts` nodes of highest degree: no coloring has fewer colors."""
    by_degree = np.argsort(-np.diff(lists.offsets), kind="stable")
    return int(kernels.greedy_clique(*lists, by_degree[:starts]))


def iterated_greedy(
    lists: NeighbourLists, colors: np.ndarray, lower: int, passes: int, seconds: float, seed: int
) -> np.ndarray:
    """Improve a proper coloring (N,) without gaps by iterated greedy: (N,) int32, never more colors. It stops at
    `lower` colors, after `passes` or `seconds`. Below the time limit it depends on the arguments alone.
    """
    deadline = time.monotonic() + seconds
    best, used, rng = colors.astype(np.int32), int(colors.max()) + 1, seeded(seed, len(colors))
    stride = max(1, STEPS_PER_SLICE // (len(colors) + len(lists.neighbours)))
    while used > lower and passes > 0 and time.monotonic() < deadline:
        used = kernels.greedy_passes(*lists, best, rng, min(stride, passes))
        passes -= stride
    return best


def remove_color(
    lists: NeighbourLists, colors: np.ndarray, iterations: int, rng: np.ndarray, is_over: Callable[[], bool]
) -> tuple[np.ndarray | None, int]:
    """Look with TabuCol for a coloring with one color less than `colors` (N,) int32, which is proper and without gaps.

    It starts with the nodes of the smallest class in all other classes in turn. `is_over` is asked about every 20 ms.
    Returns the coloring (N,) int32, or None if there was none in time, and the iterations it took.
    """
    k = int(colors.max()) + 1
    smallest = np.bincount(colors, minlength=k).argmin()
    trial = np.where(colors == k - 1, smallest, colors).astype(np.int32)  # the last class takes its number
    orphans = np.flatnonzero(colors == smallest)
    trial[orphans] = np.arange(len(orphans)) % (k - 1)
    tabu = np.zeros((len(colors), k - 1), dtype=np.int64)
    stride = max(100, STEPS_PER_SLICE // len(colors))
    solved, first = -1, 0
    while solved < 0 and first < iterations and not is_over():
        last = min(first + stride, iterations)
        solved = kernels.tabucol(*lists, trial, tabu, rng, first, last)
        first = last
    return (trial if solved >= 0 else None), solved


def descents(
    lists: NeighbourLists, colors: np.ndarray, lower: int, iterations: int, seconds: float, seed: int
) -> Iterator[tuple[np.ndarray, int]]:
    """Yield a proper coloring and what TabuCol makes of it, one color less at a time, with the iterations so far. Stops
    at `lower` colors, when a number of colors resists for `iterations`, or after `seconds`. Below the time limit it
    depends on the arguments alone. The colorings are (N,) int32 with colors from 0.
    """
    deadline = time.monotonic() + seconds
    best, effort, rng = colors.astype(np.int32), 0, seeded(seed, len(colors))
    yield best, effort
    while best.max() + 1 > max(lower, 1):
        found, solved = remove_color(lists, best, iterations, rng, lambda: time.monotonic() >= deadline)
        if found is None:
            return
        best, effort = found, effort + solved
        yield best, effort


def extractions(lists: NeighbourLists, *seed: int) -> Iterator[np.ndarray | None]:
    """Yield proper colorings (N,) int32 without end, made of large independent sets, and a None after every set. Each
    has twice the moves per set of the one before, up to LAST_MOVES.
    """
    num_nodes, moves = len(lists.offsets) - 1, FIRST_MOVES
    rng = seeded(*seed, num_nodes)
    while True:
        colors = np.full(num_nodes, -1, dtype=np.int32)
        while (colors < 0).any():
            colors[kernels.independent_set(*lists, colors < 0, moves, rng)] = colors.max() + 1
            yield None
        yield colors
        moves = min(2 * moves, LAST_MOVES)


def extract_in_threads(searches: Sequence[Iterator[np.ndarray | None]], deadline: float) -> np.ndarray | None:
    """Continue every search in its own thread; return the best coloring that is complete before `deadline`, if any."""

    def complete(search: Iterator[np.ndarray | None]) -> list[np.ndarray]:
        found: list[np.ndarray] = []
        while len(found) < COLORINGS_PER_TURN and time.monotonic() < deadline:
            if (colors := next(search)) is not None:
                found.append(colors)
        return found

    with ThreadPoolExecutor(len(searches)) as pool:
        return min(chain.from_iterable(pool.map(complete, searches)), key=np.max, default=None)


def local_search(lists: NeighbourLists, colors: np.ndarray, budget: Budget) -> Iterator[np.ndarray]:
    """Yield proper colorings (N,) int32 with ever fewer colors than the proper `colors`, which has no gaps: by iterated
    greedy first, then by independent sets and, for most of the time, by TabuCol.
    """
    left = budget.deadline - time.monotonic()
    best = iterated_greedy(lists, colors, budget.lower, PASSES, SHARE * left, budget.seed)
    if best.max() < colors.max():
        yield best
    if best.max() < budget.lower:
        return
    if len(colors) > SMALL_GRAPH:
        searches = [extractions(lists, budget.seed, number) for number in range(budget.threads)]
        sets = extract_in_threads(searches, time.monotonic() + SHARE * left)
        if sets is not None and sets.max() < best.max():
            best = sets
            yield best
    whole = available_bytes() // (TABU_BYTES * len(colors) * (int(best.max()) + 1))
    with ThreadPoolExecutor(budget.threads) as pool:
        while best.max() + 1 > max(budget.lower, 1) and (found := _race(pool, lists, best, budget, whole)) is not None:
            best = found
            yield best


def _race(pool: Executor, lists: NeighbourLists, colors: np.ndarray, budget: Budget, whole: int) -> np.ndarray | None:
    """Return a coloring with one color less from the thread whose TabuCol finds one first; None if none does in time.
    Every thread has its own seed. Every second one looks at groups of classes, because the whole of a large graph is
    too much for TabuCol; so do the others if the memory is enough for `whole` threads only.
    """
    over = Event()

    def is_over() -> bool:
        return over.is_set() or time.monotonic() >= budget.deadline

    def look(number: int) -> np.ndarray | None:
        rng = seeded(budget.seed, number, len(colors), int(colors.max()))
        if len(colors) > SMALL_GRAPH and (number % 2 or number // 2 >= whole):
            found = remove_color_in_groups(lists, colors, rng, is_over)
        else:
            found, _ = remove_color(lists, colors, FOREVER, rng, is_over)
        if found is not None:
            over.set()
        return found

    try:
        return next((found for found in list(pool.map(look, range(budget.threads))) if found is not None), None)
    finally:
        over.set()  # on Ctrl-C too: the pool waits for its threads


def remove_color_in_groups(
    lists: NeighbourLists, colors: np.ndarray, rng: np.ndarray, is_over: Callable[[], bool]
) -> np.ndarray | None:
    """Color groups of mostly small classes until one saves a color: return (N,) int32 without gaps, or None."""
    sizes, noise = np.bincount(colors), np.random.default_rng(rng)
    while not is_over():
        order = (sizes * np.exp(GROUP_NOISE * noise.standard_normal(len(sizes)))).argsort()
        color_ids = np.sort(order[: max(2, (sizes[order].cumsum() <= GROUP_NODES).sum())])
        nodes = np.flatnonzero(np.isin(colors, color_ids))
        group = np.searchsorted(color_ids, colors[nodes]).astype(np.int32)
        found, _ = remove_color(_subgraph(lists, nodes), group, GROUP_ITERATIONS, rng, is_over)
        if found is not None:
            fewer = colors.copy()
            fewer[nodes] = color_ids[found]
            fewer[fewer == len(sizes) - 1] = color_ids[-1]  # which is free now
            return fewer
    return None


def _subgraph(lists: NeighbourLists, nodes: np.ndarray) -> NeighbourLists:
    """Neighbour lists of the graph among `nodes`, which are sorted."""
    offsets, neighbours = lists
    place = np.full(len(offsets) - 1, -1, dtype=np.int32)
    place[nodes] = np.arange(len(nodes))
    inner = [found[found >= 0] for found in (place[neighbours[offsets[v] : offsets[v + 1]]] for v in nodes)]
    return NeighbourLists(np.cumsum([0, *(len(found) for found in inner)]), np.concatenate(inner))
