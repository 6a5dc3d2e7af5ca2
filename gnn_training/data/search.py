"""Compiled search for colorings and cliques: DSATUR, greedy cliques and TabuCol with a descending number of colors.

Every function takes the neighbour lists of Graph.csr(): offsets (N + 1,) int64 and neighbours (2M,) int32, sorted.
"""

import os
import tempfile
import time
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


@numba.njit(cache=True)
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
                state ^= state << np.uint64(13)
                state ^= state >> np.uint64(7)
                state ^= state << np.uint64(17)
                if (state >> np.uint64(33)) % np.uint64(ties) == 0:
                    node, color = v, c
        if color < 0:  # everything is tabu: wait
            continue
        old = colors[node]
        colors[node] = color
        conflicts += best
        fewest = min(fewest, conflicts)
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
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


def descend(
    neighbour_lists: tuple[np.ndarray, np.ndarray],
    colors: np.ndarray,
    lower: int,
    iterations: int,
    seconds: float,
    seed: int,
) -> tuple[np.ndarray, int]:
    """Fewest colors that TabuCol reaches from a proper coloring, one color less at a time.

    It stops at `lower`, when a number of colors resists for `iterations`, or after `seconds`. Without reaching the
    time limit the result depends on the arguments alone. Returns the coloring (N,) int32 with colors from 0 and the
    iterations it took to reach it.
    """
    deadline = time.monotonic() + seconds
    best, k, spent, effort = colors.astype(np.int32), int(colors.max()) + 1, 0, 0
    rng = np.random.default_rng([seed, len(colors)]).integers(1, 2**63, size=1, dtype=np.uint64)
    stride = max(100, _CELLS_PER_SLICE // len(colors))
    while k > max(lower, 1):
        trial = _without_smallest_class(best, k)
        tabu = np.zeros((len(colors), k - 1), dtype=np.int64)
        solved, first = -1, 0
        while solved < 0 and first < iterations and time.monotonic() < deadline:
            last = min(first + stride, iterations)
            solved = tabucol(*neighbour_lists, trial, tabu, rng, first, last)
            first = last
        if solved < 0:
            break
        spent += solved
        best, k, effort = trial, k - 1, spent
    return best, effort
