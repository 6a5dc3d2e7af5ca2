"""What needs no network: iterated greedy, independent sets and TabuCol from a coloring that is there."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np

from gnn_training.solve.kernels import greedy_passes, independent_set, tabucol

_CELLS_PER_SLICE = 4_000_000  # nodes times iterations between two looks at the clock, about 20 ms
FOREVER = 2**62  # iterations: the clock alone ends the search


def _without_smallest_class(colors: np.ndarray, k: int) -> np.ndarray:
    """Colors 0..k-2: the smallest class takes colors by turns, the last class its number."""
    smallest = np.bincount(colors, minlength=k).argmin()
    fewer = np.where(colors == k - 1, smallest, colors).astype(np.int32)
    orphans = np.flatnonzero(colors == smallest)
    fewer[orphans] = np.arange(len(orphans)) % (k - 1)
    return fewer


def iterated_greedy(
    neighbour_lists: tuple[np.ndarray, np.ndarray],
    colors: np.ndarray,
    lower: int,
    passes: int,
    seconds: float,
    seed: int,
) -> np.ndarray:
    """Improve a proper coloring (N,) without gaps by iterated greedy: (N,) int32, never more colors.

    It stops at `lower`, after `passes`, or after `seconds`. Without reaching the time limit the result depends on the
    arguments alone.
    """
    deadline = time.monotonic() + seconds
    best, used, rng = colors.astype(np.int32), int(colors.max()) + 1, seeded(seed, len(colors))
    stride = max(1, _CELLS_PER_SLICE // (len(colors) + len(neighbour_lists[1])))
    while used > lower and passes > 0 and time.monotonic() < deadline:
        used = greedy_passes(*neighbour_lists, best, rng, min(stride, passes))
        passes -= stride
    return best


def with_fewer(
    neighbour_lists: tuple[np.ndarray, np.ndarray],
    colors: np.ndarray,
    iterations: int,
    rng: np.ndarray,
    is_over: Callable[[], bool],
) -> tuple[np.ndarray, int]:
    """Look with TabuCol for a coloring with one color less than `colors` (N,) int32 has, proper and without gaps.

    rng (1,) uint64 goes on. `is_over` is asked every 20 ms or so. Returns the coloring (N,) int32 and the iterations
    it took; -1 if it is not proper.
    """
    k = int(colors.max()) + 1
    trial = _without_smallest_class(colors, k)
    tabu = np.zeros((len(colors), k - 1), dtype=np.int64)
    stride = max(100, _CELLS_PER_SLICE // len(colors))
    solved, first = -1, 0
    while solved < 0 and first < iterations and not is_over():
        last = min(first + stride, iterations)
        solved = tabucol(*neighbour_lists, trial, tabu, rng, first, last)
        first = last
    return trial, solved


def descend(
    neighbour_lists: tuple[np.ndarray, np.ndarray],
    colors: np.ndarray,
    lower: int,
    iterations: int,
    seconds: float,
    seed: int,
) -> tuple[np.ndarray, int]:
    """Fewest colors that TabuCol reaches from a proper coloring: the last of `descents`, or where they would begin.

    Returns the coloring (N,) int32 with colors from 0 and the iterations it took to reach it.
    """
    found = colors.astype(np.int32), 0
    for found in descents(neighbour_lists, colors, lower, iterations, seconds, seed):  # noqa: B007
        pass
    return found


def descents(
    neighbour_lists: tuple[np.ndarray, np.ndarray],
    colors: np.ndarray,
    lower: int,
    iterations: int,
    seconds: float,
    seed: int,
) -> Iterator[tuple[np.ndarray, int]]:
    """Yield what TabuCol reaches from a proper coloring, one color less at a time, with the iterations so far.

    It stops at `lower`, when a number of colors resists for `iterations`, or after `seconds`. Without reaching the
    time limit the result depends on the arguments alone. The colorings are (N,) int32 with colors from 0.
    """
    deadline = time.monotonic() + seconds
    best, effort, rng = colors.astype(np.int32), 0, seeded(seed, len(colors))
    while best.max() + 1 > max(lower, 1):
        best, solved = with_fewer(neighbour_lists, best, iterations, rng, lambda: time.monotonic() >= deadline)
        if solved < 0:
            return
        effort += solved
        yield best, effort


def seeded(*words: int) -> np.ndarray:
    """State (1,) uint64 for what takes an `rng` here."""
    return np.random.default_rng(words).integers(1, 2**63, size=1, dtype=np.uint64)


FIRST_MOVES, LAST_MOVES = 300, 19_200  # for every set of the first coloring, and of the seventh and later ones


def extractions(neighbour_lists: tuple[np.ndarray, np.ndarray], *seed: int) -> Iterator[np.ndarray | None]:
    """Yield proper colorings (N,) int32 without end, each made of one large independent set after the other, with twice
    the moves every time up to LAST_MOVES; and None after every set, for a look at the clock.
    """
    num_nodes, moves = len(neighbour_lists[0]) - 1, FIRST_MOVES
    rng = seeded(*seed, num_nodes)
    while True:
        colors, color = np.full(num_nodes, -1, dtype=np.int32), 0
        while (colors < 0).any():
            colors[independent_set(*neighbour_lists, colors < 0, moves, rng)] = color
            color += 1
            yield None
        yield colors
        moves = min(2 * moves, LAST_MOVES)


Lists = tuple[np.ndarray, np.ndarray]  # Graph.csr()
PASSES = 2_000  # of iterated greedy before TabuCol,
SHARE = 0.25  # for at most this part of the time: large graphs; as much for independent sets
EXTRACTIONS = 7  # colorings out of independent sets that every thread makes in a turn, if there is time
GROUP = 200  # nodes in the color classes that TabuCol colors anew in every second thread
ITERATIONS = 100_000  # of TabuCol on one group
CHANCE = 0.25  # by how much the groups differ in the classes they take


class SetSearch:
    """Colorings made of large independent sets, by turns; every turn goes on where the last one stopped."""

    def __init__(self, lists: Lists, seed: int, threads: int):
        self._searches = [extractions(lists, seed, number) for number in range(threads)]

    def turn(self, deadline: float) -> np.ndarray | None:
        """The best proper coloring (N,) int32 that became ready before `deadline`, of time.monotonic(), if any did."""
        with ThreadPoolExecutor(len(self._searches)) as pool:
            ready = sum(pool.map(lambda search: _ready(search, deadline), self._searches), [])
        return min(ready, key=np.max, default=None)


def _ready(search: Iterator[np.ndarray | None], deadline: float) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    while len(found) < EXTRACTIONS and time.monotonic() < deadline:
        if (colors := next(search)) is not None:
            found.append(colors)
    return found


def local_search(
    lists: Lists, colors: np.ndarray, deadline: float, lower: int, threads: int, seed: int, polish: bool
) -> Iterator[np.ndarray]:
    """Yield proper colorings (N,) int32 with ever fewer colors than the proper `colors`, which has no gaps.

    Iterated greedy has the time until `deadline`, of time.monotonic(), or with `polish` the first part of it, large
    independent sets the next and TabuCol the rest. It ends early at `lower`.
    """
    left = deadline - time.monotonic()
    passes, seconds = (PASSES, SHARE * left) if polish else (FOREVER, left)
    best = iterated_greedy(lists, colors, lower, passes, seconds, seed)
    if best.max() < colors.max():
        yield best
    if not polish or best.max() < lower:
        return
    sets = SetSearch(lists, seed, threads).turn(time.monotonic() + SHARE * left)
    if sets is not None and sets.max() < best.max():
        best = sets
        yield best
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
    """One color less, by whichever thread finds it first; None if none does in time.

    Every second thread looks at groups of classes instead of the whole graph, which is too much of it for TabuCol when
    it is large.
    """
    over = Event()

    def is_over() -> bool:
        return over.is_set() or time.monotonic() >= deadline

    def look(number: int) -> np.ndarray | None:
        rng = seeded(seed, number, len(colors), int(colors.max()))
        way = _in_groups if number % 2 and len(colors) > GROUP else _in_the_whole
        found = way(lists, colors, rng, is_over)
        if found is not None:
            over.set()
        return found

    try:
        return next((found for found in list(pool.map(look, range(threads))) if found is not None), None)
    finally:
        over.set()  # on Ctrl-C too: the pool waits for its threads


def _in_the_whole(lists: Lists, colors: np.ndarray, rng: np.ndarray, is_over: Callable[[], bool]) -> np.ndarray | None:
    found, iterations = with_fewer(lists, colors, FOREVER, rng, is_over)
    return found if iterations >= 0 else None


def _in_groups(lists: Lists, colors: np.ndarray, rng: np.ndarray, is_over: Callable[[], bool]) -> np.ndarray | None:
    """Color some classes with one color less, one group after the other, of the smaller classes rather."""
    sizes, chance = np.bincount(colors), np.random.default_rng(rng)
    while not is_over():
        order = (sizes * np.exp(CHANCE * chance.standard_normal(len(sizes)))).argsort()
        names = np.sort(order[: max(2, (sizes[order].cumsum() <= GROUP).sum())])
        nodes = np.flatnonzero(np.isin(colors, names))
        group = np.searchsorted(names, colors[nodes]).astype(np.int32)
        found, iterations = with_fewer(_induced(lists, nodes), group, ITERATIONS, rng, is_over)
        if iterations >= 0:
            fewer = colors.copy()
            fewer[nodes] = names[found]
            fewer[fewer == len(sizes) - 1] = names[-1]  # which is free now
            return fewer
    return None


def _induced(lists: Lists, nodes: np.ndarray) -> Lists:
    """Neighbour lists of the graph among `nodes`, which ascend."""
    offsets, neighbours = lists
    place = np.full(len(offsets) - 1, -1, dtype=np.int32)
    place[nodes] = np.arange(len(nodes))
    inner = [found[found >= 0] for found in (place[neighbours[offsets[v] : offsets[v + 1]]] for v in nodes)]
    return np.concatenate([[0], np.cumsum([len(found) for found in inner])]), np.concatenate(inner)
