"""Compiled search for large independent sets, and colorings that take one after the other.

Neighbour lists are those of Graph.csr(): offsets (N + 1,) int64 and neighbours (2M,) int32, sorted.
"""

from collections.abc import Iterator

import numba
import numpy as np

from gnn_training.data.search import seeded, xorshift

FIRST_MOVES, LAST_MOVES = 300, 19_200  # for every set of the first coloring, and of the seventh and later ones
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
