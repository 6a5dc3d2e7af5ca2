"""Compiled search for colorings and cliques: DSATUR, greedy cliques, iterated greedy, TabuCol with ever fewer colors.

Every function takes the neighbour lists of Graph.csr(): offsets (N + 1,) int64 and neighbours (2M,) int32, sorted.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numba
import numpy as np


def _private_folder() -> str:
    """A folder that nobody else may put code in, the same for all processes of this user if possible."""
    folder = Path(tempfile.gettempdir(), f"gnn_training-numba-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    return str(folder) if folder.lstat().st_uid == os.getuid() else tempfile.mkdtemp()


if not numba.config.CACHE_DIR and not os.access(Path(__file__).parent, os.W_OK):
    # Installed read-only, perhaps without a home: numba would find no place for compiled code and refuse to work.
    numba.config.CACHE_DIR = _private_folder()

_CELLS_PER_SLICE = 4_000_000  # nodes times iterations between two looks at the clock, about 20 ms
FOREVER = 2**62  # iterations: the clock alone ends the search


@numba.njit(cache=True)
def xorshift(state):
    state ^= state << np.uint64(13)
    state ^= state >> np.uint64(7)
    return state ^ state << np.uint64(17)


@numba.njit(cache=True)
def dsatur(offsets, neighbours):
    """Color the node with most colors around it next, ties by degree then number (Brélaz 1979): (N,) int32."""
    n = len(offsets) - 1
    width = (np.max(np.diff(offsets)) >> 3) + 1  # bytes for colors 0..max degree
    seen = np.zeros((n, width), dtype=np.uint8)
    saturation = np.zeros(n, dtype=np.int64)
    colors = np.full(n, -1, dtype=np.int32)
    for _ in range(n):
        node = -1
        best = -1
        for v in range(n):
            if colors[v] < 0:
                key = saturation[v] * n + offsets[v + 1] - offsets[v]
                if key > best:
                    node, best = v, key
        color = 0
        while seen[node, color >> 3] >> (color & 7) & 1:
            color += 1
        colors[node] = color
        bit = np.uint8(1 << (color & 7))
        for u in neighbours[offsets[node]:offsets[node + 1]]:  # fmt: skip
            if not seen[u, color >> 3] & bit:
                seen[u, color >> 3] |= bit
                saturation[u] += 1
    return colors


@numba.njit(cache=True)
def greedy_clique(offsets, neighbours, starts):
    """Size of the largest clique met when growing one from every start by the candidate of highest degree."""
    n = len(offsets) - 1
    met = np.zeros(n, dtype=np.int64)
    largest = 1
    for start in starts:
        met[:] = 0
        node = start
        size = 0
        while node >= 0:
            size += 1
            best = 0
            step = -1
            met[node] = -1
            for u in neighbours[offsets[node]:offsets[node + 1]]:  # fmt: skip
                if met[u] == size - 1:
                    met[u] = size
                    if offsets[u + 1] - offsets[u] > best:
                        best = offsets[u + 1] - offsets[u]
                        step = u
            node = step
        largest = max(largest, size)
    return largest


@numba.njit(cache=True, nogil=True)
def greedy_passes(offsets, neighbours, colors, rng, passes):
    """Passes of iterated greedy (Culberson 1992): the classes in another order, first fit along them.

    In seven passes of ten, larger classes come earlier, more or less; else the order is turned round. colors (N,)
    int32, proper, without gaps, is changed in place and never needs more colors; rng (1,) uint64 goes on.
    Returns the number of colors.
    """
    n = len(colors)
    k = np.max(colors) + 1
    order = np.empty(n, dtype=np.int64)
    taken = np.empty(n + 1, dtype=np.int64)  # the node that last met color c beside it
    state = rng[0]
    for _ in range(passes):
        size = np.zeros(k, dtype=np.int64)
        for v in range(n):
            size[colors[v]] += 1
        key = -np.arange(k).astype(np.float64)
        state = xorshift(state)
        if (state >> np.uint64(33)) % np.uint64(10) < 7:
            for c in range(k):
                state = xorshift(state)
                key[c] = -size[c] * (0.5 + np.float64(state >> np.uint64(11)) / 2.0**53)
        place = np.zeros(k, dtype=np.int64)  # in `order`, of the next node of a class
        first = 0
        for c in np.argsort(key):
            place[c] = first
            first += size[c]
        for v in range(n):
            order[place[colors[v]]] = v
            place[colors[v]] += 1
        colors[:] = -1
        taken[:] = -1
        k = 0
        for v in order:
            for u in neighbours[offsets[v]:offsets[v + 1]]:  # fmt: skip
                if colors[u] >= 0:
                    taken[colors[u]] = v
            color = 0
            while taken[color] == v:
                color += 1
            colors[v] = color
            k = max(k, color + 1)
    rng[0] = state
    return k


@numba.njit(cache=True, nogil=True)
def tabucol(offsets, neighbours, colors, tabu, rng, first, last):
    """Iterations first..last-1 of TabuCol (Hertz and de Werra 1987, tenure of Galinier and Hao 1999).

    colors (N,) int32 is changed in place, tabu (N, K) int64 and rng (1,) uint64 carry the state from call to call.
    Returns the iteration at which the coloring became proper, or -1.
    """
    n, k = tabu.shape
    gamma = np.zeros((n, k), dtype=np.int32)  # neighbours of v with color c
    for v in range(n):
        for u in neighbours[offsets[v]:offsets[v + 1]]:  # fmt: skip
            gamma[v, colors[u]] += 1
    place = np.full(n, -1, dtype=np.int64)  # position in `conflicted`
    conflicted = np.empty(n, dtype=np.int64)
    count = 0
    conflicts = 0
    for v in range(n):
        if gamma[v, colors[v]] > 0:
            place[v], conflicted[count] = count, v
            count += 1
            conflicts += gamma[v, colors[v]]
    conflicts //= 2
    fewest = conflicts
    state = rng[0]
    for iteration in range(first, last):
        if conflicts == 0:
            rng[0] = state
            return iteration
        node, color, best, ties = 0, -1, 1 << 30, 0
        for i in range(count):
            v = conflicted[i]
            here = gamma[v, colors[v]]
            for c in range(k):
                change = gamma[v, c] - here
                if change > best or c == colors[v]:
                    continue
                if tabu[v, c] > iteration and conflicts + change >= fewest:
                    continue
                if change < best:
                    best, ties = change, 0
                ties += 1
                state = xorshift(state)
                if (state >> np.uint64(33)) % np.uint64(ties) == 0:
                    node, color = v, c
        if color < 0:  # everything is tabu: wait
            continue
        old = colors[node]
        colors[node] = color
        conflicts += best
        fewest = min(fewest, conflicts)
        state = xorshift(state)
        tabu[node, old] = iteration + 1 + int(0.6 * count) + int((state >> np.uint64(33)) % np.uint64(10))
        for i in range(offsets[node] - 1, offsets[node + 1]):
            u = neighbours[i] if i >= offsets[node] else node
            if u != node:
                gamma[u, old] -= 1
                gamma[u, color] += 1
            if gamma[u, colors[u]] > 0:
                if place[u] < 0:
                    place[u], conflicted[count] = count, u
                    count += 1
            elif place[u] >= 0:
                count -= 1
                moved = conflicted[count]
                conflicted[place[u]] = moved
                place[moved] = place[u]
                place[u] = -1
    rng[0] = state
    return -1 if conflicts else last


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
