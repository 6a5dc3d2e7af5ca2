"""The search of `solve.search_kernel` on a GPU: one thread block keeps one search for all its rounds.

The phases have the same names and make the same moves, which tests/test_search_cuda.py checks. All threads of a block
share the work of a phase. What depends on an order is done in the order of the CPU: one thread keeps the list of the
nodes in conflict. numba's cache notices changes of this file only, so it has the hash of rule.py: 3b5dd2e687d58106.

The state of a search is in shared memory. The counts and what is tabu, by far the largest part, are in a workspace in
global memory where they do not fit. Their integers have 16 bits, which limits nodes and rounds to LAST.

Letters in shapes: G graphs, R searches, N nodes and K colors of a graph, W words of N bits, A active nodes.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import config, cuda, float32, int16, int32, int64, uint32

from gnn_training.model import rule
from gnn_training.model.rule import ACTIVE, HIDDEN, MOVERS, NODES_PER_ACTIVE, NODES_PER_MOVER, NOT_MOVED, OUTPUTS
from gnn_training.solve.search_kernel import ENDS, FORMULAS, NUM_CONTROLS, NUM_FEATURES, NUM_GRAPH_FEATURES

config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # type: ignore[attr-defined] # small launches are few
LAST = 32_767  # the largest integer of 16 bits
THREADS = 256  # of a block, at most
# Few enough registers that a multiprocessor has two blocks. The simulator knows no such option.
OPTIONS: dict[str, Any] = {} if config.ENABLE_CUDASIM else {"launch_bounds": (THREADS, 2)}  # type: ignore[attr-defined]
BITS = 32  # of a word
at = np.uint32  # an index that is not looked at for being negative, which saves registers
CONFLICTED, CONFLICTS, COLORS, MOVES, CLOSED, TOUCHED = range(6)  # places in `totals`
NUM_TOTALS = 6
BY_GRAPH, BIAS, BY_NODE, OUT, DIRECT, MOVE = (int(end) for end in ENDS[:-1])  # places in the vector of weights
NO_MOVE: Any = np.float32(-np.inf)
NONE_FOUND = 1e6  # fewest conflicts where no coloring with conflicts was met
SIGNATURE = (
    *(int32[::1],) * 3, *(int64[::1],) * 2, int16[::1], uint32[::1], *(int64[::1],) * 3, *(float32[:, ::1],) * 2,
    float32[::1], int16[:, ::1], int32[::1], float32[::1], int16[:, ::1], int64,
)  # fmt: skip
device: Any = cuda.jit(device=True)
(
    node_features, graph_features, conflict_weight, crowding_of, score_of, gain_of, tenure_of, turn_of, noise_row
) = [device(formula) for formula in FORMULAS]  # fmt: skip


class DeviceGraphs(NamedTuple):
    """G graphs one after the other in memory of a GPU, each with a proper coloring; W is that of every graph."""

    nodes: Any  # (G,) int32
    ends: Any  # (G,) int32, twice the number of edges
    num_colors: Any  # (G,) int32, of `first`
    first_node: Any  # (G,) int64, where a graph begins in `first`,
    first_word: Any  # (G,) int64, and in `adjacency`
    first: Any  # (all nodes,) int16, colors without gaps
    adjacency: Any  # (all N x W,) uint32, a bit for every neighbour of a node


class Search(NamedTuple):
    """What a thread block works on. Nodes in conflict come first in `conflicted`, as in `search_kernel.Coloring`."""

    n: int
    K: int
    W: int
    ends: int  # twice the number of edges
    adjacency: Any  # (N, W) uint32, a bit for every neighbour; in global memory, as are the next two
    table: Any  # (NOISE_ROWS, at least K) float32
    logs: Any  # log1p of 0, 1, 2, ...
    counts: Any  # (K, N) int16, neighbours of a node with a color; in shared memory if it fits
    until: Any  # (N, K) int16, last round in which a node may not take a color; likewise
    classes: Any  # (W, K) uint32, a bit for every node of a color
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
    movers: Any  # (A,) int32, places in `active` of the best moves,
    kept: Any  # (A,) int32, and whether they are made
    gain: Any  # (A,) float32
    cost_here: Any  # (A,) float32
    score: Any  # (A, K) float32
    colors: Any  # (N,) int16, as are all that follow
    conflicts: Any
    without: Any
    one: Any
    moved: Any
    moves: Any
    conflicted: Any
    place: Any
    touched: Any  # neighbours of a moving node in its old or its new color


def layout(n, K):
    """Active nodes, nodes that may move, words of N bits, and shared memory: words, and integers of 16 bits in them
    that hold the nodes, and those that hold the counts and what is tabu.
    """
    A = min(max(ACTIVE, n // NODES_PER_ACTIVE), n)
    W = (n + BITS - 1) // BITS
    words = NUM_TOTALS + OUTPUTS + 1 + rule.NUM_WEIGHTS + 2 * n + (2 + A + W) * K + 7 * A
    return A, min(max(MOVERS, n // NODES_PER_MOVER), A), W, words, 9 * n, 2 * n * K


device_layout = device(layout)


@device
def lay_out(n, K, ends, in_global, large, start):
    """The arrays of a search. in_global: adjacency, table and logs; large: counts and what is tabu, from `start` on."""
    adjacency, table, logs = in_global
    A, _, W, words, _, _ = device_layout(n, K)
    floats, ints, bits = cuda.shared.array(0, float32), cuda.shared.array(0, int32), cuda.shared.array(0, uint32)
    small = cuda.shared.array(0, int16)
    fixed = NUM_TOTALS + OUTPUTS + 1
    node = fixed + rule.NUM_WEIGHTS
    color = node + 2 * n
    act = color + 2 * K
    h = 2 * words
    return Search(
        n, K, W, ends, adjacency, table, logs, large[start:], large[start + n * K :],
        bits[act + (7 + K) * A :], ints, floats[NUM_TOTALS:], floats[fixed:], ints[node:], ints[node + n :],
        ints[color:], ints[color + K :], ints[act:], ints[act + A :], ints[act + 2 * A :], ints[act + 3 * A :],
        ints[act + 4 * A :], floats[act + 5 * A :], floats[act + 6 * A :], floats[act + 7 * A :],
        small[h:], small[h + n :], small[h + 2 * n :], small[h + 3 * n :], small[h + 4 * n :],
        small[h + 5 * n :], small[h + 6 * n :], small[h + 7 * n :], small[h + 8 * n :],
    )  # fmt: skip


@device
def begin(s, first, weights):
    """Count what the first coloring (N,) says, with an empty memory."""
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    for i in range(thread, rule.NUM_WEIGHTS, threads):
        s.weights[at(i)] = weights[i]
    for v in range(thread, s.n, threads):
        s.colors[at(v)], s.moved[at(v)] = first[at(v)], -NOT_MOVED
        s.conflicts[at(v)] = s.moves[at(v)] = 0
        begin_node(s, first, v)
    for x in range(thread, s.K, threads):
        begin_color(s, first, x)
    for i in range(thread, NUM_TOTALS, threads):
        s.totals[at(i)] = s.K if i == COLORS else 0
    cuda.syncthreads()


@device
def begin_node(s, first, v):
    """Count the colors of the neighbours of node v."""
    for x in range(s.K):
        s.counts[at(x * s.n + v)], s.until[at(v * s.K + x)] = 0, -1
    for w in range(s.W):
        word = s.adjacency[at(v * s.W + w)]
        while word != 0:
            s.counts[at(first[at(w * BITS + cuda.ffs(word) - 1)] * s.n + v)] += 1
            word = np.uint32(word & np.uint32(word - np.uint32(1)))
    without = one = 0
    for x in range(s.K):
        without += s.counts[at(x * s.n + v)] == 0
        one += s.counts[at(x * s.n + v)] == 1
    s.without[at(v)], s.one[at(v)] = without, one


@device
def begin_color(s, first, x):
    """Note the nodes of color x as bits."""
    size = 0
    for w in range(s.W):
        word = np.uint32(0)
        for b in range(min(BITS, s.n - w * BITS)):
            if first[at(w * BITS + b)] == x:
                word = np.uint32(word | np.uint32(np.uint32(1) << np.uint32(b)))
                size += 1
        s.classes[at(w * s.K + x)] = word
    s.sizes[at(x)], s.is_open[at(x)] = size, 1


@device
def close(s):
    """Close the smallest class: its nodes have to move to another color."""
    thread = cuda.threadIdx.x
    if thread == 0:
        smallest = -1
        for x in range(s.K):
            if s.is_open[at(x)] and (smallest < 0 or s.sizes[at(x)] < s.sizes[at(smallest)]):
                smallest = x
        s.totals[CLOSED] = smallest
    cuda.syncthreads()
    color = s.totals[CLOSED]
    for v in range(thread, s.n, cuda.blockDim.x):
        s.without[at(v)] -= s.counts[at(color * s.n + v)] == 0
        s.one[at(v)] -= s.counts[at(color * s.n + v)] == 1
    if thread == 0:
        s.is_open[at(color)] = 0
        s.totals[COLORS] -= 1
        for v in range(s.n):
            if s.colors[at(v)] == color:
                add_conflicts(s, v, 1)
    cuda.syncthreads()


@device
def add_conflicts(s, v, change):
    """Change the number of conflicts of node v, and the list of the nodes in conflict with it. For one thread."""
    before = s.conflicts[at(v)]
    s.conflicts[at(v)] = before + change
    s.totals[CONFLICTS] += change
    if before == 0 and change > 0:
        s.place[at(v)] = s.totals[CONFLICTED]
        s.conflicted[at(s.place[at(v)])] = v
        s.totals[CONFLICTED] += 1
    elif before > 0 and before + change == 0:
        s.totals[CONFLICTED] -= 1
        last = s.conflicted[at(s.totals[CONFLICTED])]
        s.conflicted[at(s.place[at(v)])], s.place[at(last)] = last, s.place[at(v)]


@device
def ask(s):
    """Ask the network what depends on the search as a whole."""
    w = s.weights
    for j in range(cuda.threadIdx.x, OUTPUTS, cuda.blockDim.x):
        density = np.float32(s.ends) / np.float32(max(1, s.n * (s.n - 1)))
        f0, f1, f2, f3, f4 = graph_features(
            math.log(s.n), math.log(s.totals[COLORS]), density, s.logs[at(s.totals[CONFLICTED])]
        )
        i = BY_GRAPH + j * NUM_GRAPH_FEATURES
        y = w[at(BIAS + j)] + np.float32(f0) * w[at(i)] + np.float32(f1) * w[at(i + 1)] + np.float32(f2) * w[at(i + 2)]
        y = y + np.float32(f3) * w[at(i + 3)] + np.float32(f4) * w[at(i + 4)]
        s.outputs[at(j)] = math.exp(y) if j < NUM_CONTROLS else y
    if cuda.threadIdx.x == 0:
        s.outputs[OUTPUTS] = math.log1p(s.totals[MOVES] / s.n)


@device
def draw(s, room, seed, t):
    """Take the nodes in conflict whose turn it is, all if they are few; return their number."""
    thread, threads, count = cuda.threadIdx.x, cuda.blockDim.x, s.totals[CONFLICTED]
    for i in range(thread, count, threads):
        s.turns[at(i)] = turn_of(np.int64(s.conflicted[at(i)]), seed, t)
    if count > room:
        cuda.syncthreads()
    for i in range(thread, count, threads):
        turn, rank = s.turns[at(i)], i
        if count > room:
            rank = 0
            for j in range(count):
                rank += s.turns[at(j)] > turn
        if rank < room:
            s.active[at(rank)], s.rows[at(rank)] = s.conflicted[at(i)], noise_row(turn)
    return min(count, room)


@device
def weigh(s, t):
    """What a conflict with every node costs."""
    w, logs = s.weights, s.logs
    for u in range(cuda.threadIdx.x, s.n, cuda.blockDim.x):
        conflicts = s.conflicts[at(u)]
        free = s.without[at(u)] - np.int32(conflicts == 0)  # other than its own color
        age, moves = logs[at(t - np.int32(s.moved[at(u)]))], logs[at(s.moves[at(u)])]
        has_free, f1, f2, f3, f4, f5 = node_features(
            free > 0, logs[at(free)], logs[at(s.one[at(u)])], logs[at(conflicts)], age, moves, s.outputs[OUTPUTS]
        )
        f0, f4 = np.float32(has_free), np.float32(f4)
        z = f0 * w[DIRECT] + f1 * w[DIRECT + 1] + f2 * w[DIRECT + 2] + f3 * w[DIRECT + 3] + f4 * w[DIRECT + 4]
        z = z + f5 * w[DIRECT + 5] + s.outputs[OUTPUTS - 1]
        for j in range(HIDDEN):
            i = BY_NODE + j * NUM_FEATURES
            y = f0 * w[at(i)] + f1 * w[at(i + 1)] + f2 * w[at(i + 2)] + f3 * w[at(i + 3)]
            y = y + f4 * w[at(i + 4)] + f5 * w[at(i + 5)]
            z = z + max(y + s.outputs[at(NUM_CONTROLS + j)], np.float32(0)) * w[at(OUT + j)]
        s.weight[at(u)] = np.int32(conflict_weight(z, w[MOVE]))


@device
def choose(s, num_active, t):
    """Find the best move of every active node."""
    thread, threads, K = cuda.threadIdx.x, cuda.blockDim.x, s.K
    for i in range(thread, num_active * K, threads):
        a = np.int32(at(i) // at(K))  # in 32 bits
        s.score[at(i)] = score_move(s, a, i - a * K, t)
    cuda.syncthreads()
    for a in range(thread, num_active, threads):
        target = 0
        for x in range(1, K):
            if s.score[at(a * K + x)] > s.score[at(a * K + target)]:
                target = x
        age = s.logs[at(t - np.int32(s.moved[at(s.active[at(a)])]))]
        s.target[at(a)] = target
        s.gain[at(a)] = gain_of(s.cost_here[at(a)], s.score[at(a * K + target)], age, s.weights[MOVE + 2])


@device
def score_move(s, a, x, t):
    """What color x is worth to active node a; the cost of its own color is noted."""
    v = s.active[at(a)]
    if s.colors[at(v)] == x:
        closed = np.float32(0) if s.is_open[at(x)] else np.float32(1) + s.weights[MOVE]
        s.cost_here[at(a)] = sum_conflicts(s, v, x) + closed
        return NO_MOVE
    if not s.is_open[at(x)] or s.until[at(v * s.K + x)] >= t:
        return NO_MOVE
    crowding = np.float32(crowding_of(np.float32(s.sizes[at(x)]), np.float32(s.totals[COLORS]) / np.float32(s.n)))
    random, cost = s.table[at(s.rows[at(a)]), at(x)], sum_conflicts(s, v, x)
    return score_of(crowding, random, cost, s.outputs[4], s.weights[MOVE + 1])


@device
def sum_conflicts(s, v, x):
    """Weights of the conflicts of node v in color x."""
    cost = np.int32(0)
    for w in range(s.W):
        word = np.uint32(s.adjacency[at(v * s.W + w)] & s.classes[at(w * s.K + x)])
        while word != 0:
            cost += s.weight[at(w * BITS + cuda.ffs(word) - 1)]
            word = np.uint32(word & np.uint32(word - np.uint32(1)))
    return np.float32(cost) / np.float32(rule.UNIT)


@device
def settle(s, num_active, room):
    """Take the best move and those about as good, without those of neighbours of a better one; return their number."""
    thread, threads, count = cuda.threadIdx.x, cuda.blockDim.x, min(room, num_active)
    for a in range(thread, num_active, threads):
        gain, best, rank = s.gain[at(a)], s.gain[at(a)], 0
        for b in range(num_active):
            best = max(best, s.gain[at(b)])
            rank += s.gain[at(b)] > gain or (s.gain[at(b)] == gain and b < a)
        limit = best - s.outputs[3] if rank > 0 else NO_MOVE
        if rank < count:
            s.movers[at(rank)], s.kept[at(rank)] = a, gain > limit
    cuda.syncthreads()
    for m in range(thread, count, threads):
        for better in range(m):
            if are_adjacent(s, s.active[at(s.movers[at(m)])], s.active[at(s.movers[at(better)])]):
                s.kept[at(m)] = 0
    return count


@device
def are_adjacent(s, v, u):
    """Whether an edge joins two nodes."""
    return (s.adjacency[at(v * s.W + u // BITS)] >> np.uint32(u % BITS)) & np.uint32(1)


@device
def apply(s, num_movers, t):
    """Let the nodes move."""
    num_conflicted = np.float32(s.totals[CONFLICTED])
    for m in range(num_movers):
        if s.kept[at(m)]:
            a = s.movers[at(m)]
            change_counts(s, s.active[at(a)], s.target[at(a)])
            cuda.syncthreads()
            if cuda.threadIdx.x == 0:
                random = s.table[at(s.rows[at(a)]), 0]
                tenure = tenure_of(s.outputs[0], s.outputs[1], s.outputs[2], num_conflicted, random)
                change_node(s, s.active[at(a)], s.target[at(a)], t, min(LAST, t + int(min(tenure, np.float32(LAST)))))
            cuda.syncthreads()


@device
def change_counts(s, v, new):
    """Count for the neighbours of node v that it leaves its color."""
    old = s.colors[at(v)]
    for u in range(cuda.threadIdx.x, s.n, cuda.blockDim.x):
        if not are_adjacent(s, v, u):
            continue
        left, entered = s.counts[at(old * s.n + u)] - 1, s.counts[at(new * s.n + u)]
        s.counts[at(old * s.n + u)], s.counts[at(new * s.n + u)] = left, entered + 1
        if s.is_open[at(old)]:
            s.without[at(u)] += left == 0
            s.one[at(u)] += np.int32(left == 1) - np.int32(left == 0)
        s.without[at(u)] -= entered == 0
        s.one[at(u)] += np.int32(entered == 0) - np.int32(entered == 1)
        if s.colors[at(u)] == old or s.colors[at(u)] == new:
            s.touched[at(cuda.atomic.add(s.totals, TOUCHED, 1))] = u


@device
def change_node(s, v, new, t, until):
    """Give node v its new color, and change the conflicts in the order of the CPU. For one thread."""
    old, word, bit = s.colors[at(v)], v // BITS * s.K, np.uint32(np.uint32(1) << np.uint32(v % BITS))
    s.until[at(v * s.K + old)], s.moved[at(v)] = until, t
    s.moves[at(v)] += 1
    s.totals[MOVES] += 1
    s.sizes[at(old)] -= 1
    s.sizes[at(new)] += 1
    s.classes[at(word + old)] ^= bit
    s.classes[at(word + new)] ^= bit
    s.colors[at(v)] = new
    add_conflicts(s, v, s.counts[at(new * s.n + v)] - s.conflicts[at(v)])
    for i in range(s.totals[TOUCHED]):  # threads have noted them as they came: the smallest first
        for j in range(i + 1, s.totals[TOUCHED]):
            if s.touched[at(j)] < s.touched[at(i)]:
                s.touched[at(i)], s.touched[at(j)] = s.touched[at(j)], s.touched[at(i)]
        add_conflicts(s, s.touched[at(i)], -1 if s.colors[at(s.touched[at(i)])] == old else 1)
    s.totals[TOUCHED] = 0


@cache
def kernel(in_shared: bool, max_shared: int) -> Any:
    """The kernel for a grid of one block per search, compiled for the present GPU. in_shared: whether the counts and
    what is tabu fit into shared memory, else `large` (R, integers) int16 has room for them. max_shared: its bytes.
    """
    compiled = cuda.jit(SIGNATURE, cache=True, **OPTIONS)(kernel_function(in_shared))
    if not config.ENABLE_CUDASIM:  # type: ignore[attr-defined]
        allow(compiled, max_shared)
    return compiled


def kernel_function(in_shared: bool) -> Any:
    """What `kernel` compiles."""

    def search(
        nodes, ends, num_colors, first_node, first_word, first, adjacency, graph, lower, seeds, weights, table, logs,
        large, fewest, conflicts, best, rounds,
    ):  # fmt: skip
        block, thread = cuda.blockIdx.x, cuda.threadIdx.x
        g = graph[block]
        n, K = nodes[g], num_colors[g]
        A, M, _, words, integers, _ = device_layout(n, K)
        in_global = adjacency[first_word[g] :], table, logs
        if in_shared:
            s = lay_out(n, K, ends[g], in_global, cuda.shared.array(0, int16), 2 * words + integers)
        else:
            s = lay_out(n, K, ends[g], in_global, large[block], 0)
        begin(s, first[first_node[g] :], weights[block])
        num_found, fewest_conflicts = K, np.float32(NONE_FOUND)
        for t in range(rounds):
            if t % rule.PERIOD == 0:
                ask(s)
                cuda.syncthreads()
                weigh(s, t)
            if s.totals[CONFLICTED] == 0:
                num_found, fewest_conflicts = s.totals[COLORS], np.float32(NONE_FOUND)
                for v in range(thread, n, cuda.blockDim.x):
                    best[block, v] = s.colors[v]
                if num_found <= lower[block]:
                    break
                close(s)
            else:
                fewest_conflicts = min(fewest_conflicts, np.float32(s.totals[CONFLICTS]) / np.float32(2))
                num_active = draw(s, A, seeds[block], t)
                cuda.syncthreads()
                choose(s, num_active, t)
                cuda.syncthreads()
                num_movers = settle(s, num_active, M)
                cuda.syncthreads()
                apply(s, num_movers, t)
        if thread == 0:
            fewest[block] = num_found
            conflicts[block] = fewest_conflicts if num_found > lower[block] else np.float32(0)

    return search


class Launch(NamedTuple):
    """Searches that run together."""

    searches: np.ndarray  # places among all searches
    in_shared: bool  # see `kernel`
    shared: int  # bytes of a block
    large: int  # integers of a block in global memory


def plan(nodes: Sequence[int], colors: Sequence[int], max_shared: int) -> tuple[list[Launch], np.ndarray]:
    """How to search in graphs of so many nodes and colors with so many bytes of shared memory in a block: launches, and
    the places of the searches that fit into no block.
    """
    sizes = np.array([layout(*size) for size in zip(nodes, colors, strict=True)], dtype=int).reshape(-1, 6)
    *_, words, integers, large = sizes.T
    reduced, full = (4 * (words + (count + 1) // 2) for count in (integers, integers + large))  # bytes of a search
    # Two blocks fit into a multiprocessor, one does, one without the counts and what is tabu does, none does.
    conditions = np.array(nodes) > LAST, 2 * full <= max_shared, full <= max_shared, reduced <= max_shared
    kinds = np.select(conditions, (3, 0, 1, 2), 3)
    launches = []
    for kind, shared, room in (0, full, 0 * large), (1, full, 0 * large), (2, reduced, large):
        searches = np.flatnonzero(kinds == kind)
        if len(searches):
            launches.append(Launch(searches, kind < 2, int(shared[searches].max()), int(room[searches].max())))
    return launches, np.flatnonzero(kinds == 3)


def logarithms(count: int) -> np.ndarray:
    """log1p of all that the rounds of a search take it of. count: of rounds or nodes, the larger."""
    return np.log1p(np.arange(count + NOT_MOVED + 2)).astype(np.float32)


def words(adjacency: np.ndarray) -> np.ndarray:
    """Adjacency (N, N) bool as bits: (N x W,) uint32."""
    n = len(adjacency)
    padded = np.zeros((n, -(-n // BITS) * BITS), bool)
    padded[:, :n] = adjacency
    return np.packbits(padded, axis=1, bitorder="little").view("<u4").ravel()


def allow(kernel: Any, max_shared: int) -> None:
    """Let the blocks of a kernel have so many bytes of shared memory on the present GPU."""
    from numba.cuda.cudadrv.driver import binding, driver

    (overload,) = kernel.overloads.values()  # numba-cuda has no public way yet, see its issue 94
    function = overload._codelibrary.get_cufunc()
    attribute = binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    driver.cuKernelSetAttribute(attribute, max_shared, function.handle, function.device.id)
