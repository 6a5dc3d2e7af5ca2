"""Compiled search for colorings and cliques: DSATUR, greedy cliques, iterated greedy, TabuCol with ever fewer colors.

Every function takes the neighbour lists of Graph.csr(): offsets (N + 1,) int64 and neighbours (2M,) int32, sorted.
"""
# DOC Compiled search for large independent sets, and colorings that take one after the other.
#
# Neighbour lists are those of Graph.csr(): offsets (N + 1,) int64 and neighbours (2M,) int32, sorted.
#

import os
import tempfile
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


TENURE = 7  # moves for which a node that was driven out stays out
PATIENCE = 100  # moves without a larger set until a node is forced in
DRAWN = 4, 10  # nodes looked at to add one, and to exchange one


@numba.njit(cache=True)
def _put(node, to, bucket, place, members, count):
    """Move a node from its bucket to another; -1 is none."""
    of = bucket[node]
    if of >= 0:
        count[of] -= 1
        last = members[of, count[of]]
        members[of, place[node]] = last
        place[last] = place[node]
    bucket[node] = to
    if to >= 0:
        members[to, count[to]] = node
        place[node] = count[to]
        count[to] += 1


@numba.njit(cache=True, nogil=True)
def independent_set(offsets, neighbours, is_left, moves, rng):
    """Large independent set (N,) bool of the nodes in `is_left` (N,) bool; of equal sizes the one with more edges.

    A node without neighbours in the set is added at once, one of large degree rather. When there is none, a move
    exchanges a node for its only neighbour in the set, or forces one in when that has not helped for long (plateau
    search, as for cliques in Pullan and Hoos 2006). rng (1,) uint64 goes on.
    """
    n = len(is_left)
    nodes = np.flatnonzero(is_left)
    degree = np.zeros(n, dtype=np.int64)  # among the nodes left
    for v in nodes:
        for u in neighbours[offsets[v]:offsets[v + 1]]:  # fmt: skip
            degree[v] += is_left[u]
    inside = np.zeros(n, dtype=np.bool_)
    beside = np.zeros(n, dtype=np.int64)  # neighbours inside
    bucket = np.full(n, -1, dtype=np.int64)  # of nodes left and not inside: 0 or 1 where `beside` is
    place = np.zeros(n, dtype=np.int64)
    members = np.zeros((2, n), dtype=np.int64)
    count = np.zeros(2, dtype=np.int64)
    out_until = np.zeros(n, dtype=np.int64)
    for v in nodes:
        _put(v, 0, bucket, place, members, count)
    size, edges, best, best_size, best_edges = 0, 0, inside.copy(), 0, -1
    move, stale, state = 0, 0, rng[0]
    while True:
        node = -1
        if count[0] > 0:
            for _ in range(min(DRAWN[0], count[0])):
                state = xorshift(state)
                v = members[0, (state >> np.uint64(33)) % np.uint64(count[0])]
                if node < 0 or degree[v] > degree[node]:
                    node = v
        else:
            if size > best_size or (size == best_size and edges > best_edges):
                if size > best_size:
                    stale = 0
                best[:] = inside
                best_size, best_edges = size, edges
            if move == moves or size == len(nodes):
                rng[0] = state
                return best
            move += 1
            stale += 1
            if stale <= PATIENCE:
                for _ in range(min(DRAWN[1], count[1])):
                    state = xorshift(state)
                    v = members[1, (state >> np.uint64(33)) % np.uint64(count[1])]
                    if out_until[v] <= move:
                        node = v
                        break
            while node < 0:
                stale = 0
                state = xorshift(state)
                v = nodes[(state >> np.uint64(33)) % np.uint64(len(nodes))]
                if not inside[v]:
                    node = v
        if beside[node] > 0:
            for u in neighbours[offsets[node]:offsets[node + 1]]:  # fmt: skip
                if inside[u]:
                    inside[u] = False
                    size -= 1
                    edges -= degree[u]
                    out_until[u] = move + TENURE
                    _put(u, 0, bucket, place, members, count)
                    for w in neighbours[offsets[u]:offsets[u + 1]]:  # fmt: skip
                        if is_left[w]:
                            beside[w] -= 1
                            _put(w, beside[w] if beside[w] < 2 else -1, bucket, place, members, count)
        _put(node, -1, bucket, place, members, count)
        inside[node] = True
        size += 1
        edges += degree[node]
        for w in neighbours[offsets[node]:offsets[node + 1]]:  # fmt: skip
            if is_left[w]:
                beside[w] += 1
                _put(w, 1 if beside[w] == 1 else -1, bucket, place, members, count)
