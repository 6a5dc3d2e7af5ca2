"""The compiled loops of the search: DSATUR, branch and bound, first fit, cliques, TabuCol, independent sets and Kempe
swaps.

Most take the neighbour lists of `Graph.csr()`: offsets (N + 1,) int64 and neighbours (2M,) int32, sorted.
`rng` (1,) uint64 is the state of a random generator, which the kernel advances.

numba compiles a kernel at its first call and keeps the result in the package's folder, or in the user's cache folder.
The loops are plain because compiling takes seconds: three for np.diff alone, two for a copy into a slice, one and a
half for np.argsort.
"""

from typing import NamedTuple

import numpy as np

from gnn_training.search.compiled import njit

NEVER_STOP = np.zeros(1, dtype=np.uint8)  # a `stop` that nobody sets
FORBIDDEN = 1 << 28  # more than any number of conflicts
NOWHERE = np.uint32(2**32 - 1)
TABU_MOVES = 7  # moves for which a node that has left an independent set stays out
PATIENCE = 100  # moves without a larger independent set before a node is forced in
ADD_SAMPLE, SWAP_SAMPLE = 4, 10  # candidates drawn to add a node, and to exchange one


@njit(cache=True)
def xorshift(state):
    """Next state of the random generator (Marsaglia 2003); its upper bits are the random number."""
    state ^= state << np.uint64(13)
    state ^= state >> np.uint64(7)
    return state ^ state << np.uint64(17)


@njit(cache=True)
def below(state, limit):
    """Random number in 0..limit-1 from the state."""
    return np.int64((state >> np.uint64(33)) % np.uint64(limit))


def dsatur(offsets, neighbours, stop=NEVER_STOP):
    """Always color the node with most colors around it, ties by degree, then number (Brélaz 1979).

    Returns colors (N,) int32, proper. Takes O(M log N). As soon as `stop` (1,) uint8 is not 0, the nodes that have no
    color yet keep -1.
    """
    return _dsatur(offsets, neighbours, stop)


@njit(cache=True, nogil=True)
def _dsatur(offsets, neighbours, stop):
    """DSATUR, compiled for one type of `stop`."""
    n = len(offsets) - 1
    max_degree = 0
    for v in range(n):
        max_degree = max(max_degree, offsets[v + 1] - offsets[v])
    # An edge joins every two of k colors, so k(k - 1) <= 2M. So even a star does not need N bits for every node.
    last = min(max_degree, int(np.sqrt(len(neighbours))))
    seen = np.zeros((n, (last >> 3) + 1), dtype=np.uint8)  # bits: the colors around a node
    colors = np.full(n, -1, dtype=np.int32)
    # A tournament tree: leaf n + v has the key n² * (colors around v) + n * (degree of v + 1) - 1 - v. Entry i is the
    # maximum of the entries 2i and 2i + 1, so entry 1 is the highest key. Its remainder modulo n gives the node.
    keys = np.empty(2 * n, dtype=np.int64)
    for v in range(n):
        keys[n + v] = (offsets[v + 1] - offsets[v] + 1) * n - 1 - v
    for i in range(n - 1, 0, -1):
        keys[i] = max(keys[2 * i], keys[2 * i + 1])
    for _ in range(n):
        if stop[0]:
            break
        node, color = n - 1 - keys[1] % n, 0
        while seen[node, color >> 3] >> (color & 7) & 1:
            color += 1
        colors[node], bit = color, np.uint8(1 << (color & 7))
        i = n + node
        keys[i] = -1
        while i > 1:
            i >>= 1
            keys[i] = max(keys[2 * i], keys[2 * i + 1])
        for j in range(offsets[node], offsets[node + 1]):
            u = neighbours[j]
            if not seen[u, color >> 3] & bit:
                seen[u, color >> 3] |= bit
                if colors[u] < 0:
                    i = n + u
                    key = keys[i] + n * n
                    while i > 0 and keys[i] < key:
                        keys[i] = key
                        i >>= 1
    return colors


@njit(cache=True, nogil=True)
def branch_and_bound(offsets, neighbours, colors, clique, lower, branches, stop):
    """DSATUR branch and bound (Brélaz 1979) from a proper coloring (N,) without gaps. It begins with the nodes of a
    clique (size,) int64. Returns the best coloring (N,) int32, whether it is proven that no coloring has fewer colors,
    and the branches left. It ends with `lower` colors, after `branches`, or as soon as `stop` (1,) uint8 is set.
    """
    n, k = len(colors), 0
    best, now = np.empty(n, dtype=np.int32), np.full(n, -1, dtype=np.int32)
    for v in range(n):
        best[v] = colors[v]
        k = max(k, colors[v] + 1)
    counts, saturation = np.zeros((n, k), dtype=np.int32), np.zeros(n, dtype=np.int32)
    nodes, used = np.zeros(n, dtype=np.int64), np.zeros(n + 1, dtype=np.int64)  # by depth: the node, colors before it
    depth, is_new = 0, True
    while depth >= 0 and k > lower:
        if is_new and depth == n:
            k = used[n]
            for v in range(n):
                best[v] = now[v]
            depth, is_new = depth - 1, False
            continue
        if is_new:
            if branches == 0 or stop[0]:
                break
            branches -= 1
            node, color, highest = -1, 0, -1  # the node with most colors around it, ties by degree
            if depth < len(clique):
                node = clique[depth]
            else:
                for v in range(n):
                    key = saturation[v] * n + offsets[v + 1] - offsets[v]
                    if now[v] < 0 and key > highest:
                        node, highest = v, key
            nodes[depth] = node
        else:
            node = nodes[depth]
            color, now[node] = now[node], -1
            for i in range(offsets[node], offsets[node + 1]):
                u = neighbours[i]
                counts[u, color] -= 1
                saturation[u] -= counts[u, color] == 0
            color += 1
        last = min(used[depth], k - 2) if used[depth] < k else -1  # color used[depth] would be a new one
        while color <= last and counts[node, color] > 0:
            color += 1
        is_new = color <= last
        if not is_new:
            depth -= 1
            continue
        now[node] = color
        for i in range(offsets[node], offsets[node + 1]):
            u = neighbours[i]
            saturation[u] += counts[u, color] == 0
            counts[u, color] += 1
        used[depth + 1] = max(used[depth], color + 1)
        depth += 1
    return best, depth < 0, branches


@njit(cache=True, nogil=True)
def first_fit(offsets, neighbours, order):
    """Give each node of `order` (N,) the smallest free color: colors (N,) int32, proper if `order` has every node."""
    colors = np.full(len(order), -1, dtype=np.int32)
    taken = np.full(len(order) + 1, -1, dtype=np.int64)  # by color: the last node with such a neighbour
    for v in order:
        for i in range(offsets[v], offsets[v + 1]):
            taken[colors[neighbours[i]]] = v  # neighbours without a color, -1, write the last entry
        color = 0
        while taken[color] == v:
            color += 1
        colors[v] = color
    return colors


@njit(cache=True, nogil=True)
def greedy_clique(offsets, neighbours, starts, stop):
    """Grow a clique from every start, always by the candidate of highest degree; return the size of the largest."""
    met = np.zeros(len(offsets) - 1, dtype=np.int64)  # neighbours in the clique; -1 for its members
    largest = 1
    for start in starts:
        if stop[0]:
            break
        met[:] = 0
        node, size = start, 0
        while node >= 0:
            size += 1
            met[node] = -1
            best, step = 0, -1
            for i in range(offsets[node], offsets[node + 1]):
                u = neighbours[i]
                if met[u] == size - 1:
                    met[u] = size
                    if offsets[u + 1] - offsets[u] > best:
                        best, step = offsets[u + 1] - offsets[u], u
            node = step
        largest = max(largest, size)
    return largest


@njit(cache=True, nogil=True)
def complete(offsets, neighbours, colors, k, rng, stop):
    """Give every node that is -1 in colors (N,) int32 one of the colors 0..k-1, in place and in a random order: the
    color that fewest neighbours have, ties at random. The coloring may become improper.
    """
    n, state = len(colors), rng[0]
    order, met = np.arange(n), np.zeros(k, dtype=np.int64)
    for i in range(n):
        state = xorshift(state)
        j = i + below(state, n - i)
        v, order[j] = order[j], order[i]
        if colors[v] >= 0:
            continue
        state = xorshift(state)
        color = below(state, k)
        if not stop[0]:
            met[:] = 0
            for e in range(offsets[v], offsets[v + 1]):
                if colors[neighbours[e]] >= 0:
                    met[colors[neighbours[e]]] += 1
            last = color
            for x in range(last + 1, last + k):
                c = x if x < k else x - k
                color = c if met[c] < met[color] else color
        colors[v] = color
    rng[0] = state


@njit(cache=True, nogil=True)
def leave(node, members, place, size):
    """Take a node out of members (size,), whose positions are in place (N,); return the new size."""
    last = members[size - 1]
    members[place[node]], place[last] = last, place[node]
    place[node] = NOWHERE
    return size - 1


@njit(cache=True, nogil=True)
def count_conflicts(offsets, lists, colors, k):
    """Return what TabuCol counts of a coloring (N,) with the colors 0..k-1: neighbours of a node with each color (N,
    at least k), FORBIDDEN in the padding; a list (N,) uint32 that begins with the nodes in conflict; their places in it
    (N,) uint32, NOWHERE for other nodes; the number of nodes in conflict; the number of conflicts.
    """
    n = len(colors)
    width = (k + 7) // 8 * 8  # rows are whole vectors, so that LLVM compares eight colors at once
    counts, num_conflicted, conflicts = np.zeros((n, width), dtype=np.int32), 0, 0
    conflicted, place = np.empty(n, dtype=np.uint32), np.full(n, NOWHERE, dtype=np.uint32)
    for v in range(n):
        row = counts[v]
        for i in range(offsets[v], offsets[v + 1]):
            row[colors[lists[i]]] += 1
        for c in range(k, width):
            row[c] = FORBIDDEN
        if row[colors[v]] > 0:
            place[v], conflicted[num_conflicted] = num_conflicted, v
            num_conflicted += 1
            conflicts += row[colors[v]]
    return counts, conflicted, place, num_conflicted, conflicts // 2


class TabuResult(NamedTuple):
    """What a run of TabuCol has found."""

    colors: np.ndarray  # (N,) int32, the best coloring
    ages: np.ndarray  # (N,) int32, moves since each node took its color
    conflicts: int  # of that coloring
    moves: int  # made
    work: int  # neighbours and vectors of colors looked at


@njit(cache=True, nogil=True)
def tabucol(offsets, neighbours, colors, k, moves, rng, stop):
    """TabuCol (Hertz and de Werra 1987, tenure of Galinier and Hao 1999) with the colors 0..k-1. It starts from
    any coloring, colors (N,) int32, and changes it in place. It ends without a conflict, after `moves`, or as soon as
    `stop` is set.
    """
    n, lists = len(colors), neighbours.view(np.uint32)  # an unsigned index saves numba's test for negative ones
    counts, conflicted, place, num_conflicted, conflicts = count_conflicts(offsets, lists, colors, k)
    width = counts.shape[1]
    tabu, changes = np.zeros((n, width), dtype=np.int32), np.empty(n, dtype=np.int32)
    flat, size = counts.reshape(n * width), np.uint64(width)
    best, fewest, state, t, work = colors.copy(), conflicts, rng[0], 0, len(neighbours)
    moved, ages = np.zeros(n, dtype=np.int32), np.zeros(n, dtype=np.int32)  # when a node last moved, and moves since
    while conflicts > 0 and t < moves and not stop[0]:
        # First find the least change of every node, in vectors; then the tied nodes and colors, which are few.
        least, aspired = FORBIDDEN, fewest - conflicts  # a move that leads below `fewest` is never tabu
        for i in range(num_conflicted):
            v = conflicted[i]
            row, until, current = counts[v], tabu[v], np.uint64(colors[v])
            here, row[current] = row[current], FORBIDDEN
            lowest, lowest_free = np.int32(FORBIDDEN), np.int32(FORBIDDEN)
            for c in range(width):
                lowest = min(lowest, row[c])
                lowest_free = min(lowest_free, row[c] if until[c] <= t else np.int32(FORBIDDEN))
            row[current] = here
            change = lowest - here
            if change >= aspired:
                change = lowest_free - here if lowest_free < FORBIDDEN else np.int32(FORBIDDEN)
            changes[i] = change
            least = min(least, change)
        t += 1
        work += num_conflicted * (width >> 3)
        if least == FORBIDDEN:  # every move is tabu: wait
            continue
        node, new, ties = np.uint32(0), np.int32(0), 0
        for i in range(num_conflicted):
            if changes[i] == least:
                ties += 1
                state = xorshift(state)
                node = conflicted[i] if below(state, ties) == 0 else node
        row, until, old, ties = counts[node], tabu[node], colors[node], 0
        target = row[np.uint64(old)] + least
        for c in range(k):
            if row[c] == target and c != old and (until[c] < t or least < aspired):
                ties += 1
                state = xorshift(state)
                new = np.int32(c) if below(state, ties) == 0 else new
        state = xorshift(state)
        until[np.uint64(old)] = t + int(0.6 * num_conflicted) + below(state, 10)
        colors[node], moved[node] = new, t
        conflicts += least
        work += offsets[node + 1] - offsets[node]
        source, goal = np.uint64(old), np.uint64(new)
        if row[goal] == 0:
            num_conflicted = leave(node, conflicted, place, num_conflicted)
        for i in range(offsets[node], offsets[node + 1]):
            u = lists[i]
            first = np.uint64(u) * size
            flat[first + source] -= 1
            flat[first + goal] += 1
            color = colors[u]
            if color == old:
                if flat[first + source] == 0:
                    num_conflicted = leave(u, conflicted, place, num_conflicted)
            elif color == new and place[u] == NOWHERE:
                place[u], conflicted[num_conflicted] = num_conflicted, u
                num_conflicted += 1
        if conflicts < fewest:
            fewest = conflicts
            for v in range(n):
                best[v], ages[v] = colors[v], t - moved[v]
    rng[0] = state
    return TabuResult(best, ages, fewest, t, work)


@njit(cache=True, nogil=True)
def balance(offsets, neighbours, colors, counts, num_free, swaps, rng, stop):
    """Make the classes of a proper coloring (N,) int32 more equal in size, in place, by random Kempe swaps. A swap
    exchanges two colors in a connected part of their classes, and never makes the difference of their sizes larger. The
    size of a class is the sum of counts (N,) int64 over its nodes. Nodes before `num_free` count 1; the others keep
    their colors. It ends when sizes differ by one at most, after `swaps` tries, or as soon as `stop` (1,) uint8 is set.
    """
    n, k, state = len(colors), 0, rng[0]
    for v in range(n):
        k = max(k, colors[v] + 1)
    sizes, met, part = np.zeros(k, dtype=np.int64), np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=np.int64)
    for v in range(n):
        sizes[colors[v]] += counts[v]
    for t in range(swaps + 1):
        largest, smallest = 0, np.int64(FORBIDDEN)
        for c in range(k):
            if sizes[c] > 0:  # skip colors that no node has
                largest, smallest = max(largest, sizes[c]), min(smallest, sizes[c])
        if largest - smallest <= 1 or t == swaps or stop[0]:
            break
        state = xorshift(state)
        part[0] = below(state, num_free)
        state = xorshift(state)
        a, b = colors[part[0]], np.int32(below(state, k))
        if sizes[b] == 0 or sizes[b] >= sizes[a]:
            continue
        met[part[0]] = t
        size, i, moved, is_free = 1, 0, 0, True  # moved: by how much class a shrinks
        while i < size and is_free:
            v = part[i]
            is_free = v < num_free
            moved += 1 if colors[v] == a else -1
            for e in range(offsets[v], offsets[v + 1]):
                u = neighbours[e]
                if met[u] < t and (colors[u] == a or colors[u] == b):
                    met[u], part[size] = t, u
                    size += 1
            i += 1
        if is_free and 0 <= moved <= sizes[a] - sizes[b]:
            for i in range(size):
                colors[part[i]] = b if colors[part[i]] == a else a
            sizes[a] -= moved
            sizes[b] += moved
    rng[0] = state


@njit(cache=True, nogil=True)
def color_independent_set(offsets, neighbours, colors, degree, moves, rng, stop):
    """Give the next color to a large independent set of the nodes whose color is -1; of equal sizes the one with more
    edges. A node without neighbours in the set is added at once, preferably one of large degree. When there is none, a
    move replaces a member by a node that has no other neighbour in the set, or forces a node in after PATIENCE moves
    without a larger set (plateau search, as for cliques in Pullan and Hoos 2006). degree (N,) int64: neighbours without
    a color of every node without one. colors and degree change in place. Returns the work: neighbours visited.
    """
    n = len(colors)
    nodes, out_until = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    beside = np.zeros(n, dtype=np.int64)  # neighbours in the set
    # Bucket 0 holds the nodes that may enter: no neighbour is in the set. Bucket 1: one neighbour is in the set.
    bucket, place = np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=np.int64)  # -1: in neither
    members, sizes = np.zeros((2, n), dtype=np.int64), np.zeros(2, dtype=np.int64)
    inside, best = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    for v in range(n):
        if colors[v] < 0:
            nodes[sizes[0]] = members[0, sizes[0]] = v
            bucket[v], place[v] = 0, sizes[0]
            sizes[0] += 1
    num_left, size, edges, best_size, best_edges = sizes[0], 0, 0, 0, -1
    move, stale, work, random = 0, 0, 0, rng[0]
    while True:
        node = -1
        if sizes[0] > 0:
            for _ in range(min(ADD_SAMPLE, sizes[0])):
                random = xorshift(random)
                v = members[0, below(random, sizes[0])]
                if node < 0 or degree[v] > degree[node]:
                    node = v
        else:
            if size > best_size or (size == best_size and edges > best_edges):
                stale = 0 if size > best_size else stale
                for v in range(n):
                    best[v] = inside[v]
                best_size, best_edges = size, edges
            if move == moves or size == num_left or stop[0]:
                color, rng[0] = colors.max() + 1, random
                for v in np.flatnonzero(best):
                    colors[v] = color
                    for i in range(offsets[v], offsets[v + 1]):
                        degree[neighbours[i]] -= 1
                return work
            move += 1
            stale += 1
            if stale <= PATIENCE:
                for _ in range(min(SWAP_SAMPLE, sizes[1])):
                    random = xorshift(random)
                    v = members[1, below(random, sizes[1])]
                    if out_until[v] <= move:
                        node = v
                        break
            while node < 0:
                stale, random = 0, xorshift(random)
                v = nodes[below(random, num_left)]
                node = -1 if inside[v] else v
        end = offsets[node + 1]
        for i in range(offsets[node] if beside[node] > 0 else end, end + 1):
            v = neighbours[i] if i < end else node  # its neighbours leave the set, then the node enters
            if not inside[v] and v != node:
                continue
            step = -1 if inside[v] else 1
            inside[v] = step > 0
            size += step
            edges += step * degree[v]
            work += offsets[v + 1] - offsets[v]
            if step < 0:
                out_until[v] = move + TABU_MOVES
            for j in range(offsets[v] - 1, offsets[v + 1]):
                u = neighbours[j] if j >= offsets[v] else v  # the node and its neighbours change their buckets
                if colors[u] >= 0:
                    continue
                if u != v:
                    beside[u] += step
                target, source = -1 if inside[u] or beside[u] > 1 else beside[u], bucket[u]
                bucket[u] = target
                if source >= 0:
                    sizes[source] -= 1
                    last = members[source, sizes[source]]
                    members[source, place[u]], place[last] = last, place[u]
                if target >= 0:
                    members[target, sizes[target]], place[u] = u, sizes[target]
                    sizes[target] += 1
