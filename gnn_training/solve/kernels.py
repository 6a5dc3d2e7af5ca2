"""The compiled loops of the search: DSATUR, first fit, cliques, iterated greedy, TabuCol and independent sets.

Every kernel takes the neighbour lists of `Graph.csr()`: offsets (N + 1,) int64 and neighbours (2M,) int32, sorted.
`rng` (1,) uint64 is the state of a random generator, which the kernel advances.

numba compiles a kernel at its first call and keeps the result on the disk. The loops are plain because that takes
seconds: np.diff alone costs three, np.argsort one and a half.
"""

import os
import tempfile
from pathlib import Path

import numpy as np
from numba import config, njit

TABU_MOVES = 7  # independent sets: a node that was driven out stays out for so many moves
PATIENCE = 100  # moves without a larger set before a node is forced in
ADD_SAMPLE, SWAP_SAMPLE = 4, 10  # nodes looked at to add one, and to exchange one


if not config.CACHE_DIR and not os.access(Path(__file__).parent, os.W_OK):  # type: ignore[attr-defined]
    # Without a writable package folder or a home, numba refuses to work. Only this user may put code into the folder.
    folder = Path(tempfile.gettempdir(), f"gnn_training-numba-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    is_ours = folder.lstat().st_uid == os.getuid()
    config.CACHE_DIR = str(folder) if is_ours else tempfile.mkdtemp()  # type: ignore[attr-defined]


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


@njit(cache=True, nogil=True)
def dsatur(offsets, neighbours, stop=None):
    """Color the node with most colors around it next, ties by degree, then number (Brélaz 1979).

    Returns colors (N,) int32, proper. Takes O(M log N). As soon as `stop` (1,) uint8 is not 0, the nodes that have no
    color yet keep -1.
    """
    n = len(offsets) - 1
    max_degree = 0
    for v in range(n):
        max_degree = max(max_degree, offsets[v + 1] - offsets[v])
    # k colors have an edge between every two of them, so k(k - 1) <= 2M: a star needs no row of N bits for every node.
    last = min(max_degree, int(np.sqrt(len(neighbours))))
    seen = np.zeros((n, (last >> 3) + 1), dtype=np.uint8)  # bits: the colors around a node
    colors = np.full(n, -1, dtype=np.int32)
    # A tournament: node v plays as leaf n + v, with n² of its colors + n of its degree - v. Entry i is the higher one
    # of the entries 2i and 2i + 1, so entry 1 is the highest key, which tells the node.
    keys = np.empty(2 * n, dtype=np.int64)
    for v in range(n):
        keys[n + v] = (offsets[v + 1] - offsets[v] + 1) * n - 1 - v
    for i in range(n - 1, 0, -1):
        keys[i] = max(keys[2 * i], keys[2 * i + 1])
    for _ in range(n):
        if stop is not None and stop[0]:
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
def first_fit(offsets, neighbours, order):
    """Give each node of `order` (N,) the smallest free color: colors (N,) int64, proper if it names every node."""
    colors = np.full(len(order), -1, dtype=np.int64)
    taken = np.full(len(order) + 1, -1, dtype=np.int64)  # the last node that met color c beside it
    for v in order:
        for i in range(offsets[v], offsets[v + 1]):
            taken[colors[neighbours[i]]] = v  # the last entry is that of nodes without a color
        color = 0
        while taken[color] == v:
            color += 1
        colors[v] = color
    return colors


@njit(cache=True, nogil=True)
def greedy_clique(offsets, neighbours, starts):
    """Grow a clique from every start, always by the candidate of highest degree; return the size of the largest."""
    met = np.zeros(len(offsets) - 1, dtype=np.int64)  # members of the clique beside a node; -1 in the clique
    largest = 1
    for start in starts:
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
def greedy_passes(offsets, neighbours, colors, rng, passes):
    """Passes of iterated greedy (Culberson 1992): the classes in another order, then first fit along them. In seven
    passes of ten, larger classes tend to come earlier; in the others the order is reversed. colors (N,) int32, proper
    and without gaps, is changed in place and never needs more colors. Returns the number of colors.
    """
    n, k = len(colors), 0
    for v in range(n):
        k = max(k, colors[v] + 1)
    order = np.empty(n, dtype=np.int64)
    taken = np.empty(n + 1, dtype=np.int64)  # the last node that met color c beside it
    size, key = np.empty(k, dtype=np.int64), np.empty(k, dtype=np.float64)
    classes = np.empty(k, dtype=np.int64)  # in the order of their keys
    place = np.empty(k, dtype=np.int64)  # of the next node of a class, in `order`
    state = rng[0]
    for _ in range(passes):
        size[:] = 0
        for v in range(n):
            size[colors[v]] += 1
        state = xorshift(state)
        by_size = below(state, 10) < 7
        for c in range(k):
            key[c] = -c
            if by_size:
                state = xorshift(state)
                key[c] = -size[c] * (0.5 + np.float64(state >> np.uint64(11)) / 2.0**53)
            i = c
            while i > 0 and key[classes[i - 1]] > key[c]:  # insertion sort: k²/2 is at most the number of edges
                classes[i] = classes[i - 1]
                i -= 1
            classes[i] = c
        first = 0
        for i in range(k):
            place[classes[i]] = first
            first += size[classes[i]]
        for v in range(n):
            order[place[colors[v]]] = v
            place[colors[v]] += 1
        colors[:], taken[:], k = -1, -1, 0
        for v in order:
            for i in range(offsets[v], offsets[v + 1]):
                if colors[neighbours[i]] >= 0:
                    taken[colors[neighbours[i]]] = v
            color = 0
            while taken[color] == v:
                color += 1
            colors[v] = color
            k = max(k, color + 1)
    rng[0] = state
    return k


@njit(cache=True, nogil=True)
def tabucol(offsets, neighbours, colors, tabu, rng, first, last):
    """Iterations first..last-1 of TabuCol (Hertz and de Werra 1987, tenure of Galinier and Hao 1999). colors (N,) int32
    is changed in place; tabu (N, K) int64, the iteration up to which a move is forbidden, carries the state from call
    to call. Returns the iteration at which the coloring became proper, or -1.
    """
    n, k = tabu.shape
    around = np.zeros((n, k), dtype=np.int32)  # neighbours of v with color c
    place = np.full(n, -1, dtype=np.int64)  # position in `conflicted`
    conflicted = np.empty(n, dtype=np.int64)
    count, conflicts = 0, 0
    for v in range(n):
        for i in range(offsets[v], offsets[v + 1]):
            around[v, colors[neighbours[i]]] += 1
        if around[v, colors[v]] > 0:
            place[v], conflicted[count] = count, v
            count += 1
            conflicts += around[v, colors[v]]
    conflicts //= 2
    fewest, state = conflicts, rng[0]
    for iteration in range(first, last):
        if conflicts == 0:
            rng[0] = state
            return iteration
        node, color, best, ties = 0, -1, 1 << 30, 0
        for i in range(count):
            v = conflicted[i]
            here = around[v, colors[v]]
            for c in range(k):
                change = around[v, c] - here
                if change > best or c == colors[v] or (tabu[v, c] > iteration and conflicts + change >= fewest):
                    continue
                if change < best:
                    best, ties = change, 0
                ties += 1
                state = xorshift(state)
                if below(state, ties) == 0:
                    node, color = v, c
        if color < 0:  # every move is tabu: wait
            continue
        old, colors[node] = colors[node], color
        conflicts += best
        fewest = min(fewest, conflicts)
        state = xorshift(state)
        tabu[node, old] = iteration + 1 + int(0.6 * count) + below(state, 10)
        for i in range(offsets[node] - 1, offsets[node + 1]):
            u = neighbours[i] if i >= offsets[node] else node  # the node first, then its neighbours
            if u != node:
                around[u, old] -= 1
                around[u, color] += 1
            if around[u, colors[u]] > 0:
                if place[u] < 0:
                    place[u], conflicted[count] = count, u
                    count += 1
            elif place[u] >= 0:
                count -= 1
                moved = conflicted[count]
                conflicted[place[u]], place[moved] = moved, place[u]
                place[u] = -1
    rng[0] = state
    return -1 if conflicts else last


@njit(cache=True, nogil=True)
def independent_set(offsets, neighbours, is_left, moves, rng):
    """Large independent set (N,) bool of the nodes in `is_left` (N,) bool; of equal sizes the one with more edges. A
    node without neighbours in the set is added at once, preferably one of large degree. When there is none, a move
    exchanges a node for its only neighbour in the set, or forces one in after PATIENCE moves without a larger set
    (plateau search, as for cliques in Pullan and Hoos 2006).
    """
    n = len(is_left)
    nodes, out_until = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    degree, beside = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)  # neighbours left, and inside
    # Bucket 0 holds the nodes that may enter: no neighbour is inside. Those of bucket 1 have one neighbour inside.
    bucket, place = np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=np.int64)  # -1: in none of the two
    members, sizes = np.zeros((2, n), dtype=np.int64), np.zeros(2, dtype=np.int64)
    inside, best = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    for v in range(n):
        if is_left[v]:
            for i in range(offsets[v], offsets[v + 1]):
                degree[v] += is_left[neighbours[i]]
            nodes[sizes[0]] = members[0, sizes[0]] = v
            bucket[v], place[v] = 0, sizes[0]
            sizes[0] += 1
    num_left, size, edges, best_size, best_edges = sizes[0], 0, 0, 0, -1
    move, stale, random = 0, 0, rng[0]
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
            if move == moves or size == num_left:
                rng[0] = random
                return best
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
            if step < 0:
                out_until[v] = move + TABU_MOVES
            for j in range(offsets[v] - 1, offsets[v + 1]):
                u = neighbours[j] if j >= offsets[v] else v  # the node and its neighbours change their buckets
                if not is_left[u]:
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
