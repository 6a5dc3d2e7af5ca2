"""The searches of `search.search_kernel` on a GPU: one thread block makes all rounds of one search.

tests/test_search_cuda.py checks that the moves are the same. One warp finds the best move of an active node. All warps
decide alike which of these moves are made. The threads change the counts of all neighbours of a moving node at once.
Where order matters, it is that of the CPU: one thread keeps the list of the nodes in conflict.

The state of a search is in shared memory. `until` is in global memory. The counts are there, too, if BLOCKS searches
would otherwise not fit into a multiprocessor. Both are integers of 16 bits, which limits nodes and rounds to LAST.

Letters in shapes: G graphs, R searches or children, N nodes and K colors of a graph, W words of N bits, A active nodes.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import config, cuda, float32, int16, int32, int64, uint32

from gnn_training.files import reason
from gnn_training.graph import NeighbourLists
from gnn_training.network import rule
from gnn_training.network.rule import ACTIVE, HIDDEN, MOVERS, NODES_PER_ACTIVE, NODES_PER_MOVER, NOT_MOVED, OUTPUTS
from gnn_training.search.compiled import warn
from gnn_training.search.search_kernel import (
    FORMULAS,
    NUM_CONTROLS,
    NUM_FEATURES,
    NUM_GRAPH_FEATURES,
    OFFSETS,
    PLACES,
    keyed_by_rule,
)  # fmt: skip

if not hasattr(np, "row_stack"):  # numpy 2.5 has dropped it, and numba-cuda 0.30.4 asks for it
    np.row_stack = np.vstack
config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # type: ignore[attr-defined] # small launches are rare
LAST = 32_767  # the largest integer of 16 bits
THREADS, BLOCKS = 128, 4  # threads of a block, and blocks that a multiprocessor should run at the same time
RESERVED = 1024  # bytes of shared memory that a GPU keeps of every block
SIMULATED: bool = config.ENABLE_CUDASIM  # type: ignore[attr-defined]
OPTIONS: dict[str, Any] = {} if SIMULATED else {"launch_bounds": (THREADS, BLOCKS)}  # the simulator has no bounds
WARP = 1 if SIMULATED else 32  # threads that run in lockstep; those of the simulator do not
ALL = 0xFFFFFFFF  # mask of all threads of a warp
BITS = 32  # bits of a word
# Indices and counters are unsigned integers of 32 bits, in `while` loops: numba's `range` and its integers of 64 bits
# would take twice the instructions and registers.
u32 = np.uint32
CONFLICTED, CONFLICTS, COLORS, MOVES, CLOSED, TOUCHED = range(6)  # places in `totals`
NUM_TOTALS = 6
BY_GRAPH, BIAS, BY_NODE, OUT, DIRECT, MOVE = (int(end) for end in OFFSETS[:-1])  # places in the vector of weights
NO_MOVE: Any = np.float32(-np.inf)
SIGNATURE = (
    *(int32[::1],) * 3, *(int64[::1],) * 2, int16[::1], uint32[::1], *(int64[::1],) * 3, *(float32[:, ::1],) * 2,
    float32[::1], int16[:, ::1], int32[::1], float32[::1], int64,
)  # fmt: skip
CHILD_SIGNATURE = (
    *(int32[::1],) * 2, int64[::1], uint32[::1], *(int32[::1],) * 2, int64[::1], int16[:, ::1],
    *(float32[:, ::1],) * 2, float32[::1], int16[:, ::1], int32[::1], *(int16[:, ::1],) * 2, int64,
)  # fmt: skip
device: Any = cuda.jit(device=True)
(
    node_features, graph_features, conflict_weight, crowding_of, score_of, gain_of, tenure_of, turn_of, noise_row
) = [device(formula) for formula in FORMULAS]  # fmt: skip


class DeviceGraphs(NamedTuple):
    """G graphs one after the other in memory of a GPU, each with a proper coloring. Every graph has its own W."""

    nodes: Any  # (G,) int32
    num_neighbours: Any  # (G,) int32, twice the number of edges
    num_colors: Any  # (G,) int32, of `first`
    first_node: Any  # (G,) int64, where a graph begins in `first`
    first_word: Any  # (G,) int64, where a graph begins in `adjacency`
    first: Any  # (all nodes,) int16, colors without gaps
    adjacency: Any  # (all N x W,) uint32, a bit for every neighbour of a node


class BlockSearch(NamedTuple):
    """What a thread block works on. Nodes in conflict come first in `conflicted`, as on a CPU."""

    n: int
    K: int
    A: int  # active nodes
    M: int  # active nodes that may move
    W: int
    num_neighbours: int  # twice the number of edges
    adjacency: Any  # (N, W) uint32, a bit for every neighbour; in global memory, as are the next three
    table: Any  # (NOISE_ROWS, at least K) float32
    logs: Any  # log1p of 0, 1, 2, ...
    until: Any  # (N, K) int16, last round in which a node may not take a color
    counts: Any  # (K, N) int16, neighbours of a node with a color; in shared memory if it fits
    totals: Any  # (NUM_TOTALS,) int32
    outputs: Any  # (OUTPUTS + 1,) float32, of the network, and the mean of the feature `moves`
    weights: Any  # (NUM_WEIGHTS,) float32
    weight: Any  # (N,) int32, of a conflict with a node
    turns: Any  # (N,) int32
    sizes: Any  # (K,) int32
    is_open: Any  # (K,) int32
    active: Any  # (A,) int32, nodes
    rows: Any  # (A,) int32, of the table
    target: Any  # (A,) int32
    gain: Any  # (A,) float32
    costs: Any  # (A, K) int32, weights of the conflicts in every color
    colors: Any  # (N,) int16, as are all that follow
    conflicts: Any
    without: Any
    one: Any
    moved: Any
    moves: Any
    conflicted: Any
    place: Any
    touched: Any  # neighbours of a moving node that come into conflict or out of it


def layout(n, K):
    """Return A, M and W of a search; words and integers of 16 bits that it always has in shared memory; and the number
    of entries of a table of nodes and colors.
    """
    A = min(max(ACTIVE, n // NODES_PER_ACTIVE), n)
    words = NUM_TOTALS + OUTPUTS + 1 + rule.NUM_WEIGHTS + 2 * n + (2 + A) * K + 4 * A
    return A, min(max(MOVERS, n // NODES_PER_MOVER), A), (n + BITS - 1) // BITS, words, 9 * n, n * K


device_layout = device(layout)


@device
def lay_out(n, K, num_neighbours, in_global, large, in_shared):
    """The arrays of a search. in_global: adjacency, table and logs; large: global memory for `until` and, unless
    in_shared, for the counts.
    """
    adjacency, table, logs = in_global
    A, M, W, words, integers, table_size = device_layout(n, K)
    floats, ints, small = cuda.shared.array(0, float32), cuda.shared.array(0, int32), cuda.shared.array(0, int16)
    fixed = NUM_TOTALS + OUTPUTS + 1
    node = fixed + rule.NUM_WEIGHTS
    color = node + 2 * n
    act = color + 2 * K
    h = 2 * words
    counts = small[h + integers :] if in_shared else large[table_size:]
    return BlockSearch(
        u32(n), u32(K), u32(A), u32(M), u32(W), num_neighbours, adjacency, table, logs, large, counts,
        ints, floats[NUM_TOTALS:], floats[fixed:], ints[node:], ints[node + n :], ints[color:], ints[color + K :],
        ints[act:], ints[act + A :], ints[act + 2 * A :], floats[act + 3 * A :], ints[act + 4 * A :],
        small[h:], small[h + n :], small[h + 2 * n :], small[h + 3 * n :], small[h + 4 * n :],
        small[h + 5 * n :], small[h + 6 * n :], small[h + 7 * n :], small[h + 8 * n :],
    )  # fmt: skip


@device
def begin(s, first, weights):
    """Set the coloring to first (N,), -1 for nodes without a color, count its colors, and empty the memory."""
    thread = cuda.threadIdx.x
    for i in range(thread, rule.NUM_WEIGHTS, THREADS):
        s.weights[u32(i)] = weights[i]
    for i in range(thread, s.n * s.K, THREADS):
        s.until[u32(i)], s.counts[u32(i)] = -1, 0
    for x in range(thread, s.K, THREADS):
        s.sizes[u32(x)], s.is_open[u32(x)] = 0, 1
    for i in range(thread, NUM_TOTALS, THREADS):
        s.totals[u32(i)] = s.K if i == COLORS else 0
    cuda.syncthreads()
    for v in range(thread, s.n, THREADS):
        s.colors[u32(v)], s.moved[u32(v)] = first[u32(v)], -NOT_MOVED
        s.conflicts[u32(v)] = s.moves[u32(v)] = 0
        if first[u32(v)] >= 0:
            cuda.atomic.add(s.sizes, np.int32(first[u32(v)]), 1)
        begin_node(s, first, v)


@device
def begin_node(s, first, v):
    """Count the colors of the neighbours of node v."""
    for w in range(s.W):
        word = s.adjacency[u32(v * s.W + w)]
        while word != 0:
            color = np.int32(first[u32(w * BITS + cuda.ffs(word) - 1)])
            if color >= 0:
                s.counts[u32(color * s.n + v)] += 1
            word = np.uint32(word & np.uint32(word - np.uint32(1)))


@device
def count_colors(s, v):
    """Count the colors without and with one conflict for node v."""
    without = one = 0
    for x in range(s.K):
        count = s.counts[u32(x * s.n + v)]
        without += count == 0
        one += count == 1
    s.without[u32(v)], s.one[u32(v)] = without, one


@device
def complete(s, seed):
    """Give every node without a color one; see `search_kernel.complete`."""
    thread, i = cuda.threadIdx.x, u32(cuda.threadIdx.x)
    if thread == 0:
        count = np.int32(0)
        for v in range(s.n):
            if s.colors[u32(v)] < 0:
                s.conflicted[u32(count)] = v
                count += np.int32(1)
        s.totals[TOUCHED] = count
    cuda.syncthreads()
    count = u32(s.totals[TOUCHED])
    while i < count:
        row = noise_row(turn_of(np.int64(s.conflicted[i]), seed, 0))
        s.turns[i] = np.int32(s.table[u32(row), 0] * np.float32(PLACES))
        i = u32(i + THREADS)
    cuda.syncthreads()
    i = u32(thread)
    while i < count:
        turn, rank, j = s.turns[i], u32(0), u32(0)
        while j < count:
            rank = u32(rank + u32((s.turns[j] < turn) | ((s.turns[j] == turn) & (j < i))))
            j = u32(j + 1)
        s.touched[rank] = s.conflicted[i]
        i = u32(i + THREADS)
    cuda.syncthreads()
    i = u32(0)
    while i < count:
        give_color(s, u32(s.touched[i]), seed)
        i = u32(i + 1)


@device
def give_color(s, v, seed):
    """Give node v the color that fewest neighbours have, ties at random. All warps choose the same color."""
    x, u, random = lane_of_warp(), u32(cuda.threadIdx.x), s.table[u32(noise_row(turn_of(np.int64(v), seed, 1)))]
    top, color = NO_MOVE, np.int32(0)
    while x < s.K:
        value = np.float32(random[x] - np.float32(s.counts[u32(x * s.n + v)]))
        if value > top:
            top, color = value, np.int32(x)
        x = u32(x + WARP)
    new = u32(best_of_warp(top, color)[1])
    while u < s.n:
        if are_adjacent(s, v, u):
            s.counts[u32(new * s.n + u)] += 1
        u = u32(u + THREADS)
    if cuda.threadIdx.x == 0:
        s.colors[v] = new
        s.sizes[new] += 1
    cuda.syncthreads()


@device
def count_conflicts(s):
    """Count the conflicts of a coloring, which may be improper, and list the nodes that have any."""
    thread = cuda.threadIdx.x
    for v in range(thread, s.n, THREADS):
        s.conflicts[u32(v)] = s.counts[u32(s.colors[u32(v)] * s.n + v)]
        count_colors(s, v)
    cuda.syncthreads()
    if thread == 0:
        count, total = np.int32(0), np.int32(0)
        for v in range(s.n):
            if s.conflicts[u32(v)] > 0:
                total += np.int32(s.conflicts[u32(v)])
                s.conflicted[u32(count)], s.place[u32(v)] = v, count
                count += np.int32(1)
        s.totals[CONFLICTED], s.totals[CONFLICTS], s.totals[TOUCHED] = count, total, 0
    cuda.syncthreads()


@device
def close(s):
    """Close the smallest class: its nodes have to move to another color."""
    thread = cuda.threadIdx.x
    if thread == 0:
        smallest = -1
        for x in range(s.K):
            if s.is_open[u32(x)] and (smallest < 0 or s.sizes[u32(x)] < s.sizes[u32(smallest)]):
                smallest = x
        s.totals[CLOSED] = smallest
    cuda.syncthreads()
    color = s.totals[CLOSED]
    for v in range(thread, s.n, THREADS):
        s.without[u32(v)] -= s.counts[u32(color * s.n + v)] == 0
        s.one[u32(v)] -= s.counts[u32(color * s.n + v)] == 1
    if thread == 0:
        count = np.int32(0)
        for v in range(s.n):
            if s.colors[u32(v)] == color:
                s.conflicts[u32(v)] = 1
                s.conflicted[u32(count)], s.place[u32(v)] = v, count
                count += np.int32(1)
        s.totals[CONFLICTED] = s.totals[CONFLICTS] = count
        s.is_open[u32(color)] = 0
        s.totals[COLORS] -= 1
    cuda.syncthreads()


@device
def ask(s):
    """Ask the network what depends on the search as a whole."""
    w = s.weights
    for j in range(cuda.threadIdx.x, OUTPUTS, THREADS):
        density = np.float32(s.num_neighbours) / np.float32(max(1, np.int64(s.n) * (np.int64(s.n) - 1)))
        f0, f1, f2, f3, f4 = graph_features(
            math.log(s.n), math.log(s.totals[COLORS]), density, s.logs[u32(s.totals[CONFLICTED])]
        )
        i = BY_GRAPH + j * NUM_GRAPH_FEATURES
        y = w[u32(BIAS + j)] + np.float32(f0) * w[u32(i)] + np.float32(f1) * w[u32(i + 1)]
        y = y + np.float32(f2) * w[u32(i + 2)]
        y = y + np.float32(f3) * w[u32(i + 3)] + np.float32(f4) * w[u32(i + 4)]
        s.outputs[u32(j)] = math.exp(y) if j < NUM_CONTROLS else y
    if cuda.threadIdx.x == 0:
        s.outputs[OUTPUTS] = math.log1p(s.totals[MOVES] / s.n)


@device
def draw(s, room, seed, t):
    """Make the nodes in conflict with the largest turns active, or all if few; return how many."""
    i, count = u32(cuda.threadIdx.x), u32(s.totals[CONFLICTED])
    if count <= room:
        while i < count:
            v = s.conflicted[i]
            s.active[i], s.rows[i] = v, noise_row(turn_of(np.int64(v), seed, t))
            i = u32(i + THREADS)
        return count
    while i < count:
        s.turns[i] = turn_of(np.int64(s.conflicted[i]), seed, t)
        i = u32(i + THREADS)
    cuda.syncthreads()
    i = u32(cuda.threadIdx.x)
    while i < count:
        turn, rank, j = s.turns[i], u32(0), u32(0)
        while j < count:
            rank = u32(rank + u32(s.turns[j] > turn))
            j = u32(j + 1)
        if rank < room:
            s.active[rank], s.rows[rank] = s.conflicted[i], noise_row(turn)
        i = u32(i + THREADS)
    return u32(room)


@device
def weigh(s, t):
    """Ask the network what a conflict with every node costs."""
    ask(s)
    cuda.syncthreads()
    w, logs, u = s.weights, s.logs, u32(cuda.threadIdx.x)
    while u < s.n:
        conflicts = s.conflicts[u]
        free = s.without[u] - np.int32(conflicts == 0)  # other than its own color
        age, moves = logs[u32(t - np.int32(s.moved[u]))], logs[u32(s.moves[u])]
        has_free, f1, f2, f3, f4, f5 = node_features(
            free > 0, logs[u32(free)], logs[u32(s.one[u])], logs[u32(conflicts)], age, moves, s.outputs[OUTPUTS]
        )
        f0, f4 = np.float32(has_free), np.float32(f4)
        z = f0 * w[DIRECT] + f1 * w[DIRECT + 1] + f2 * w[DIRECT + 2] + f3 * w[DIRECT + 3] + f4 * w[DIRECT + 4]
        z = z + f5 * w[DIRECT + 5] + s.outputs[OUTPUTS - 1]
        for j in range(HIDDEN):
            i = BY_NODE + j * NUM_FEATURES
            y = f0 * w[u32(i)] + f1 * w[u32(i + 1)] + f2 * w[u32(i + 2)] + f3 * w[u32(i + 3)]
            y = y + f4 * w[u32(i + 4)] + f5 * w[u32(i + 5)]
            z = z + max(y + s.outputs[u32(NUM_CONTROLS + j)], np.float32(0)) * w[u32(OUT + j)]
        s.weight[u] = np.int32(conflict_weight(z, w[MOVE]))
        u = u32(u + THREADS)


@device
def choose(s, num_active, t):
    """Find the best move of every active node, with one warp per node."""
    K, lane, a = s.K, lane_of_warp(), u32(u32(cuda.threadIdx.x) // u32(WARP))
    colors_per_node = np.float32(s.totals[COLORS]) / np.float32(s.n)
    while a < num_active:
        v, start = u32(s.active[a]), u32(a * K)
        add_costs(s, v, start, lane)
        here, until, random = u32(s.colors[v]), u32(v * K), s.table[u32(s.rows[a])]
        top, target, x = NO_MOVE, np.int32(0), lane
        while x < K:
            noise, until_x = random[x], s.until[u32(until + x)]
            crowding = np.float32(crowding_of(np.float32(s.sizes[x]), colors_per_node))
            cost = np.float32(s.costs[u32(start + x)]) / np.float32(rule.UNIT)
            score = np.float32(score_of(crowding, noise, cost, s.outputs[4], s.weights[MOVE + 1]))
            if (until_x < t) & (score > top) & (s.is_open[x] != 0) & (x != here):
                top, target = score, np.int32(x)
            x = u32(x + WARP)
        top, target = best_of_warp(top, target)
        if lane == 0:
            cost = np.float32(s.costs[u32(start + here)]) / np.float32(rule.UNIT)
            if s.is_open[here] == 0:
                cost += np.float32(1) + s.weights[MOVE]
            s.target[a] = target
            s.gain[a] = gain_of(cost, top, s.logs[u32(t - np.int32(s.moved[v]))], s.weights[MOVE + 2])
        a = u32(a + THREADS // WARP)


@device
def add_costs(s, v, start, lane):
    """Sum the weights of the conflicts of node v in every color, into `costs` from `start` on."""
    x = lane
    while x < s.K:
        s.costs[u32(start + x)] = 0
        x = u32(x + WARP)
    wait_for_warp()
    first = u32(0)
    while first < s.W:  # a warp loads as many words as it has threads
        word, w = u32(0), u32(0)
        if u32(first + lane) < s.W:
            word = s.adjacency[u32(v * s.W + first + lane)]
        while w < u32(WARP) and u32(first + w) < s.W:
            bits, u = of_thread(word, w), u32((first + w) * BITS + lane)
            for _ in range(BITS // WARP):  # once on a GPU
                if has_bit(bits, u):
                    cuda.atomic.add(s.costs, u32(start + s.colors[u]), s.weight[u])
                u = u32(u + WARP)
            w = u32(w + 1)
        first = u32(first + WARP)
    wait_for_warp()


@device
def make_moves(s, seed, t):
    """Find the best moves of at most A nodes, and make at most M of them."""
    num_active = draw(s, s.A, seed, t)
    cuda.syncthreads()
    choose(s, num_active, t)
    cuda.syncthreads()
    move(s, num_active, t)


@device
def lane_of_warp():
    """The place of this thread in its warp."""
    return u32(u32(cuda.threadIdx.x) % u32(WARP))


@device
def wait_for_warp():
    """Let every thread of a warp see what the others have written."""
    if WARP > 1:
        cuda.syncwarp(ALL)


@device
def of_thread(value, lane):
    """The value (32 bits) that the thread at place `lane` of the warp has."""
    return np.uint32(cuda.shfl_sync(ALL, np.int32(value), lane)) if WARP > 1 else value


@device
def best_of_warp(value, place):
    """The largest value of the threads of a warp, and its place; of equal values the smallest place."""
    step = WARP // 2
    while step > 0:
        other, there = cuda.shfl_xor_sync(ALL, value, step), cuda.shfl_xor_sync(ALL, place, step)
        if other > value or (other == value and there < place):
            value, place = other, there
        step //= 2
    return value, place


@device
def are_adjacent(s, v, u):
    """Whether an edge joins two nodes."""
    return has_bit(s.adjacency[u32(v * s.W + u // u32(BITS))], u)


@device
def has_bit(word, u):
    """Whether the bit of node u is set in its word."""
    return word & u32(u32(1) << u32(u % u32(BITS))) != 0


@device
def move(s, num_active, t):
    """Make the best move and those about as good, except next to a node with a better one. All warps decide alike."""
    num_conflicted, limit, gain, a = np.float32(s.totals[CONFLICTED]), NO_MOVE, -NO_MOVE, np.int32(-1)
    m = u32(0)
    while m < s.M and m < num_active:
        gain, a = next_best(s, num_active, gain, a)
        if not gain > limit:
            break
        if m == 0:
            limit = gain - s.outputs[3]
        if m > 0 and has_better_neighbour(s, num_active, gain, a):
            cuda.syncthreads()  # before the next round draws other nodes
        else:
            apply(s, u32(a), num_conflicted, t)
        m = u32(m + 1)


@device
def next_best(s, num_active, gain, place):
    """The gain and the place of the active node whose move is the next best after that of active node `place`."""
    best, where, a = NO_MOVE, np.int32(LAST), lane_of_warp()
    while a < num_active:
        other, b = s.gain[a], np.int32(a)
        if (other > best) & ((other < gain) | ((other == gain) & (b > place))):
            best, where = other, b
        a = u32(a + WARP)
    return best_of_warp(best, where)


@device
def has_better_neighbour(s, num_active, gain, place):
    """Whether a neighbour of active node `place` has a better move."""
    v, is_there, a = u32(s.active[u32(place)]), False, lane_of_warp()
    while a < num_active:
        other = s.gain[a]
        if (other > gain) | ((other == gain) & (np.int32(a) < place)):
            is_there = is_there or are_adjacent(s, v, u32(s.active[a]))
        a = u32(a + WARP)
    return cuda.any_sync(ALL, is_there) != 0 if WARP > 1 else is_there


@device
def apply(s, a, num_conflicted, t):
    """Let active node a move."""
    v, new, u = u32(s.active[a]), u32(s.target[a]), u32(cuda.threadIdx.x)
    old = u32(s.colors[v])
    is_open = s.is_open[old] != 0
    while u < s.n:
        if are_adjacent(s, v, u):
            change_counts(s, u, old, new, is_open)
        u = u32(u + THREADS)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        change_conflicted(s, v, old, new)
    if cuda.threadIdx.x == THREADS - 1:
        random = s.table[u32(s.rows[a]), 0]
        tenure = tenure_of(s.outputs[0], s.outputs[1], s.outputs[2], num_conflicted, random)
        s.until[u32(v * s.K + old)] = min(LAST, t + int(min(tenure, np.float32(LAST))))
        s.colors[v], s.moved[v] = new, t
        s.moves[v] += 1
        s.totals[MOVES] += 1
        s.sizes[old] -= 1
        s.sizes[new] += 1
    cuda.syncthreads()


@device
def change_counts(s, u, old, new, is_open):
    """Count for node u that a neighbour leaves its color for a new one."""
    at_old, at_new, color = u32(old * s.n + u), u32(new * s.n + u), u32(s.colors[u])
    left, entered = np.int32(s.counts[at_old] - 1), np.int32(s.counts[at_new])
    s.counts[at_old], s.counts[at_new] = left, np.int32(entered + 1)
    if (left < 2) & is_open:
        s.without[u] += np.int32(left == 0)
        s.one[u] += np.int32(left == 1) - np.int32(left == 0)
    if entered < 2:
        s.without[u] -= np.int32(entered == 0)
        s.one[u] += np.int32(entered == 0) - np.int32(entered == 1)
    if (color == old) | (color == new):
        has_entered = np.int32(color == new)
        conflicts = np.int32(s.conflicts[u] + 2 * has_entered - 1)
        s.conflicts[u] = conflicts
        if conflicts == has_entered:
            s.touched[u32(cuda.atomic.add(s.totals, TOUCHED, 1))] = u


@device
def change_conflicted(s, v, old, new):
    """Update the list of the nodes in conflict in the order of the CPU: first node v, then its touched neighbours, the
    smallest first. Threads have noted them in any order. Only one thread may call this.
    """
    before, after, i = np.int32(s.conflicts[v]), np.int32(s.counts[u32(new * s.n + v)]), u32(0)
    count, touched = u32(s.totals[CONFLICTED]), u32(s.totals[TOUCHED])
    s.conflicts[v] = after
    s.totals[CONFLICTS] += 2 * after - before - s.counts[u32(old * s.n + v)]
    if after == 0:
        count = leave(s, v, count)
    while i < touched:
        u, j = u32(s.touched[i]), u32(i + 1)
        while j < touched:
            other = u32(s.touched[j])
            if other < u:
                s.touched[j], u = u, other
            j = u32(j + 1)
        if s.conflicts[u] == 0:
            count = leave(s, u, count)
        else:
            s.conflicted[count], s.place[u] = u, count
            count = u32(count + 1)
        i = u32(i + 1)
    s.totals[CONFLICTED], s.totals[TOUCHED] = count, 0


@device
def leave(s, v, count):
    """Take node v out of the list of `count` nodes in conflict; return the new count."""
    last, place = u32(s.conflicted[u32(count - 1)]), u32(s.place[v])
    s.conflicted[place], s.place[last] = last, place
    return u32(count - 1)


@cache
def kernel(in_shared: bool, max_shared: int, of_children: bool, gpu: int | None) -> Any:
    """The kernel for a grid of one block per search or child, compiled for the present GPU. in_shared: whether the
    counts are in shared memory; else they follow `until` in `large` (R, integers) int16. max_shared: bytes of shared
    memory that a block may have. gpu: tells GPUs of this process apart.
    """
    function, signature = to_compile(in_shared, of_children)
    function = keyed_by_rule(function)
    try:
        compiled = cuda.jit(signature, cache=True, **OPTIONS)(function)
    except Exception as error:  # numba's files are damaged, or there is no room for them
        warn(f"numba's files of the search on GPUs cannot be used ({reason(error)}): compiling it without them")
        compiled = cuda.jit(signature, **OPTIONS)(function)
    if not SIMULATED:
        allow(compiled, max_shared)
    return compiled


def to_compile(in_shared: bool, of_children: bool) -> tuple[Any, Any]:
    """The function that `kernel` compiles, and its signature."""
    return (child_function(in_shared), CHILD_SIGNATURE) if of_children else (search_function(in_shared), SIGNATURE)


def search_function(in_shared: bool) -> Any:
    """The kernel of searches for ever fewer colors."""

    def search_kernel(
        nodes, num_neighbours, num_colors, first_node, first_word, first, adjacency, graph, lower, seeds, weights,
        table, logs, large, fewest, conflicts, rounds,
    ):  # fmt: skip
        block, thread = cuda.blockIdx.x, cuda.threadIdx.x
        g = graph[block]
        n, K = nodes[g], num_colors[g]
        s = lay_out(n, K, num_neighbours[g], (adjacency[first_word[g] :], table, logs), large[block], in_shared)
        begin(s, first[first_node[g] :], weights[block])
        for v in range(thread, n, THREADS):
            count_colors(s, v)
        cuda.syncthreads()
        num_found, fewest_conflicts = K, np.float32(rule.NONE_FOUND)
        for round in range(rounds):
            t = np.int32(round)
            if t % rule.PERIOD == 0:
                weigh(s, t)
            if s.totals[CONFLICTED] == 0:
                num_found, fewest_conflicts = s.totals[COLORS], np.float32(rule.NONE_FOUND)
                if num_found <= lower[block]:
                    break
                close(s)
            else:
                fewest_conflicts = min(fewest_conflicts, np.float32(s.totals[CONFLICTS]) / np.float32(2))
                make_moves(s, seeds[block], t)
        if thread == 0:
            fewest[block] = num_found
            conflicts[block] = fewest_conflicts if num_found > lower[block] else np.float32(0)

    return search_kernel


def child_function(in_shared: bool) -> Any:
    """The kernel of children, see `search_kernel.search_child`. A launch may mix graphs and numbers of colors k (R,).
    starts: (R, N). The outputs for every child are its conflicts, its best coloring and its ages.
    """

    def child_kernel(
        nodes, num_neighbours, first_word, adjacency, graph, k, seeds, starts, weights, table, logs, large, conflicts,
        best, ages, rounds,
    ):  # fmt: skip
        block, thread = cuda.blockIdx.x, cuda.threadIdx.x
        g, K = graph[block], k[block]
        n = nodes[g]
        s = lay_out(n, K, num_neighbours[g], (adjacency[first_word[g] :], table, logs), large[block], in_shared)
        begin(s, starts[block], weights[block])
        cuda.syncthreads()
        complete(s, seeds[block])
        count_conflicts(s)
        fewest, t = np.int32(s.totals[CONFLICTS] + 1), np.int32(0)
        while True:
            if s.totals[CONFLICTS] < fewest:
                fewest = s.totals[CONFLICTS]
                for v in range(thread, n, THREADS):
                    best[block, v], ages[block, v] = s.colors[u32(v)], t - max(0, s.moved[u32(v)] + 1)
            if fewest == 0 or t >= rounds:
                break
            if t % rule.PERIOD == 0:
                weigh(s, t)
            make_moves(s, seeds[block], t)
            t += np.int32(1)
        if thread == 0:
            conflicts[block] = fewest // 2

    return child_kernel


class Launch(NamedTuple):
    """Searches that run together."""

    searches: np.ndarray  # places among all searches, the largest first
    in_shared: bool  # see `kernel`
    shared: int  # bytes of shared memory of a block
    large: int  # integers of a block in global memory


def plan_launches(nodes: Sequence[int], colors: Sequence[int], max_shared: int) -> tuple[list[Launch], np.ndarray]:
    """Plan searches in graphs of so many nodes and colors: return the launches, and the places of the searches that fit
    into no block. max_shared: bytes of shared memory that a block may have.
    """
    sizes = np.array([layout(*size) for size in zip(nodes, colors, strict=True)], dtype=int).reshape(-1, 6)
    *_, words, integers, table = sizes.T
    reduced, full = (4 * (words + (count + 1) // 2) for count in (integers, integers + table))  # bytes of a search
    small = full <= (max_shared + RESERVED) // BLOCKS - RESERVED
    fits = (reduced <= max_shared) & (np.array(nodes) <= LAST)
    launches, order = [], np.argsort(-np.array(nodes), kind="stable")
    for in_shared, wanted, shared, room in (
        (True, fits & small, full, table),
        (False, fits & ~small, reduced, 2 * table),
    ):
        searches = order[wanted[order]]
        if len(searches):
            launches.append(Launch(searches, in_shared, int(shared[searches].max()), int(room[searches].max())))
    return launches, np.flatnonzero(~fits)


def logarithms(count: int) -> np.ndarray:
    """log1p of 0, 1, 2, ... as far as a search needs it. count: number of rounds or of nodes, the larger one."""
    return np.log1p(np.arange(count + NOT_MOVED + 2)).astype(np.float32)


def adjacency_bits(lists: NeighbourLists) -> np.ndarray:
    """A bit for every pair of nodes: (N x W,) uint32."""
    n = lists.num_nodes
    padded = np.zeros((n, -(-n // BITS) * BITS), bool)
    padded[lists.sources, lists.neighbours] = True
    return np.packbits(padded, axis=1, bitorder="little").view("<u4").ravel()


def allow(kernel: Any, max_shared: int) -> None:
    """Let the blocks of a kernel have so many bytes of shared memory on the present GPU."""
    from numba.cuda.cudadrv.driver import binding, driver

    (overload,) = kernel.overloads.values()  # numba-cuda has no public way yet, see its issue 94
    function = overload._codelibrary.get_cufunc()
    attribute = binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    driver.cuKernelSetAttribute(attribute, max_shared, function.handle, function.device.id)


def as_array(tensor: Any) -> Any:
    """The memory of a torch tensor, as a kernel takes it."""
    return cuda.as_cuda_array(tensor.contiguous(), sync=False)
