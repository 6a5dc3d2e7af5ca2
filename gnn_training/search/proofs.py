"""The compiled loops of lower bounds: cores, components, cliques, odd wheels. They take the lists of `Graph.csr()`."""

import numpy as np

from gnn_training.search.compiled import njit

MOST_CANDIDATES = 2_000  # most candidates beside a node in the exact search, which needs two bit matrices of that size
ONE = np.uint64(1)
DE_BRUIJN, SHIFT = np.uint64(0x03F79D71B4CB0A89), np.uint64(58)
BIT = np.zeros(64, dtype=np.int64)  # position of the only bit of a word, by the upper bits of word x DE_BRUIJN
for _bit in range(64):
    BIT[((1 << _bit) * int(DE_BRUIJN) & (1 << 64) - 1) >> 58] = _bit


@njit(cache=True, nogil=True)
def removal_order(offsets, neighbours):
    """Remove a node with fewest neighbours left, again and again (Matula and Beck 1983, Batagelj and Zaveršnik 2003).

    Returns the nodes in this order (N,) int64 and the core number of every node (N,) int64. Core numbers grow along the
    order. A node with core number c is in a subgraph of minimum degree c, and in none of a larger minimum degree.
    """
    n, most = len(offsets) - 1, 0
    cores = np.empty(n, dtype=np.int64)  # neighbours left
    for v in range(n):
        cores[v] = offsets[v + 1] - offsets[v]
        most = max(most, cores[v])
    first = np.zeros(most + 2, dtype=np.int64)  # where in the order the nodes with so many neighbours left begin
    for v in range(n):
        first[cores[v] + 1] += 1
    for c in range(most + 1):
        first[c + 1] += first[c]
    order, place, filled = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64), first.copy()
    for v in range(n):
        place[v] = filled[cores[v]]
        order[place[v]] = v
        filled[cores[v]] += 1
    for i in range(n):
        v = order[i]
        for e in range(offsets[v], offsets[v + 1]):
            u = neighbours[e]
            if cores[u] > cores[v]:
                start = max(first[cores[u]], i + 1)
                other = order[start]
                order[start], order[place[u]] = u, other
                place[other], place[u] = place[u], start
                first[cores[u]] = start + 1
                cores[u] -= 1
    return order, cores


@njit(cache=True, nogil=True)
def components(offsets, neighbours):
    """Number of the connected component of every node: (N,) int64, from 0."""
    n, number = len(offsets) - 1, 0
    component, queue = np.full(n, -1, dtype=np.int64), np.empty(n, dtype=np.int64)
    for start in range(n):
        if component[start] >= 0:
            continue
        component[start], queue[0], i, size = number, start, 0, 1
        while i < size:
            for e in range(offsets[queue[i]], offsets[queue[i] + 1]):
                if component[neighbours[e]] < 0:
                    component[neighbours[e]], queue[size] = number, neighbours[e]
                    size += 1
            i += 1
        number += 1
    return component


@njit(cache=True, nogil=True)
def has_odd_wheel(offsets, neighbours, stop):
    """Whether a node has an odd cycle among its neighbours, so that four colors are needed. False as soon as `stop`
    (1,) uint8 is set.
    """
    n = len(offsets) - 1
    hub, side, queue = np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=np.int8), np.empty(n, dtype=np.int64)
    for v in range(n):
        if stop[0]:
            break
        for e in range(offsets[v], offsets[v + 1]):
            hub[neighbours[e]], side[neighbours[e]] = v, 0
        for e in range(offsets[v], offsets[v + 1]):
            if side[neighbours[e]] != 0:
                continue
            side[neighbours[e]], queue[0], i, size = 1, neighbours[e], 0, 1
            while i < size:
                w = queue[i]
                for j in range(offsets[w], offsets[w + 1]):
                    u = neighbours[j]
                    if hub[u] == v and side[u] == 0:
                        side[u], queue[size] = -side[w], u
                        size += 1
                    elif hub[u] == v and side[u] == side[w]:
                        return True
                i += 1
    return False


@njit(cache=True, nogil=True)
def largest_clique(offsets, neighbours, target_size, work, stop):
    """Return the nodes of a large clique (size,) int64, whether none is larger, and the work left. For every node,
    branch and bound searches its neighbours that are removed later. Sets are bits, and a greedy coloring is the bound
    (San Segundo and others 2011). It ends with a clique of `target_size` nodes, after the `work`, counted in words of
    64 nodes, or as soon as `stop` (1,) uint8 is set.
    """
    n = len(offsets) - 1
    order, cores = removal_order(offsets, neighbours)
    begin, later = removed_later(offsets, neighbours, order)
    most = min(MOST_CANDIDATES, cores[order[n - 1]])
    words = (most >> 6) + 1
    adjacent, left = np.zeros((most, words), dtype=np.uint64), np.zeros((most + 1, words), dtype=np.uint64)
    waiting, free = np.zeros(words, dtype=np.uint64), np.zeros(words, dtype=np.uint64)
    nodes, bounds = np.empty((most + 1, most), dtype=np.int32), np.empty((most + 1, most), dtype=np.int32)
    counts, chosen = np.zeros(most + 1, dtype=np.int64), np.zeros(most + 1, dtype=np.int64)
    place, best, size, is_exact = np.full(n, -1, dtype=np.int64), np.empty(most + 1, dtype=np.int64), 1, True
    best[0] = order[n - 1]
    for a in range(n):
        if cores[order[n - 1 - a]] < size and a > 0 or size >= target_size:
            break
        start, d = begin[a], begin[a + 1] - begin[a]
        if d < size:
            continue
        if d > most:
            is_exact = False
            continue
        used = (d >> 6) + 1
        work -= find_adjacent(begin, later, a, place, adjacent[:d, :used], left[0, :used])
        depth, is_new = 0, True  # the clique of this node has depth + 1 nodes
        while depth >= 0 and size < target_size:
            if work <= 0 or stop[0]:
                return best[:size].copy(), False, work
            if is_new:
                for w in range(used):
                    waiting[w] = left[depth, w]
                counts[depth], spent = bound(
                    waiting[:used], free, adjacent, size - depth - 1, nodes[depth], bounds[depth]
                )
                work -= spent
                is_new = False
            counts[depth] -= 1
            if counts[depth] < 0 or depth + 1 + bounds[depth, counts[depth]] <= size:
                depth -= 1
                continue
            j = nodes[depth, counts[depth]]
            chosen[depth] = j
            left[depth, j >> 6] ^= ONE << np.uint64(j & 63)
            for w in range(used):
                left[depth + 1, w] = left[depth, w] & adjacent[j, w]
                is_new |= left[depth + 1, w] != 0
            work -= used
            if is_new:
                depth += 1
            elif depth + 2 > size:
                size = depth + 2
                best[0] = order[n - 1 - a]
                for i in range(depth + 1):
                    best[i + 1] = order[n - 1 - later[start + chosen[i]]]
    return best[:size].copy(), is_exact or size >= target_size, work


@njit(cache=True, nogil=True)
def removed_later(offsets, neighbours, order):
    """List for every node its neighbours that are removed later. The node that is removed last has rank 0.

    Returns where the list of every rank begins (N + 1,) int64, and the ranks in all lists (M,) int32.
    """
    n = len(order)
    rank, begin = np.empty(n, dtype=np.int64), np.zeros(n + 1, dtype=np.int64)
    for i in range(n):
        rank[order[i]] = n - 1 - i
    for v in range(n):
        for e in range(offsets[v], offsets[v + 1]):
            begin[rank[v] + 1] += rank[neighbours[e]] < rank[v]
    for a in range(n):
        begin[a + 1] += begin[a]
    later, filled = np.empty(begin[n], dtype=np.int32), begin.copy()
    for a in range(n):
        v = order[n - 1 - a]
        for e in range(offsets[v], offsets[v + 1]):
            b = rank[neighbours[e]]
            if b > a:
                later[filled[b]] = a
                filled[b] += 1
    return begin, later


@njit(cache=True, nogil=True)
def find_adjacent(begin, later, a, place, adjacent, left):
    """Write as bits which of the D neighbours of rank `a` that are removed later are adjacent (D, words), and that all
    D are left (words,). place (N,): working memory, all -1 before and after. Returns the work.
    """
    start, d, work = begin[a], begin[a + 1] - begin[a], 0
    for j in range(d):
        place[later[start + j]] = j
    adjacent[:], left[:] = 0, 0
    for j in range(d):
        b = later[start + j]
        for e in range(begin[b], begin[b + 1]):
            i = place[later[e]]
            if i >= 0:
                adjacent[j, i >> 6] |= ONE << np.uint64(i & 63)
                adjacent[i, j >> 6] |= ONE << np.uint64(j & 63)
        work += begin[b + 1] - begin[b]
    for j in range(d):
        place[later[start + j]] = -1
        left[j >> 6] |= ONE << np.uint64(j & 63)
    return work


@njit(cache=True, nogil=True)
def bound(waiting, free, adjacent, spare, nodes, bounds):
    """Color the waiting nodes, color by color. Branch and bound has to try those whose color is above `spare`: write
    them to `nodes` and their colors to `bounds`. Returns the number of these nodes, and the work.
    """
    count, color, work, is_left = 0, 0, 0, True
    while is_left:
        color += 1
        is_left = False
        for w in range(len(waiting)):
            free[w] = waiting[w]
        for w in range(len(waiting)):
            while free[w]:
                bit = free[w] & (~free[w] + ONE)
                j = (w << 6) + BIT[(bit * DE_BRUIJN) >> SHIFT]
                free[w] ^= bit
                waiting[w] ^= bit
                for x in range(w, len(waiting)):
                    free[x] &= ~adjacent[j, x]
                work += len(waiting) - w
                if color > spare:
                    nodes[count], bounds[count] = j, color
                    count += 1
            is_left |= waiting[w] != 0
    return count, work
