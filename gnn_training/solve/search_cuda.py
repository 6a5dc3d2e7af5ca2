"""The search of `solve.search_kernel` on a GPU: one thread block keeps one search for all its rounds.

The phases have the same names and make the same moves, which tests/test_search_cuda.py checks. All threads of a block
share the work of a phase. What depends on an order is done in the order of the CPU: a thread sums the weights of all
conflicts with one color, over the neighbours as they are sorted; one thread keeps the list of the nodes in conflict.

The state of a search is in shared memory. The counts and what is tabu, by far the largest part, are in a workspace in
global memory where they do not fit. Their integers have 16 bits, which limits nodes and rounds to LAST.

Letters in shapes: G graphs, R searches, N nodes and K colors of a graph, W words of N bits, A active nodes.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int16, int32, uint32

from gnn_training.graph import NeighbourLists
from gnn_training.model import rule
from gnn_training.model.rule import ACTIVE, HIDDEN, MOVERS, NODES_PER_ACTIVE, NODES_PER_MOVER, NOT_MOVED, OUTPUTS
from gnn_training.solve.search_kernel import ENDS, FORMULAS, NUM_CONTROLS, NUM_FEATURES, NUM_GRAPH_FEATURES, noise_table

LAST = 32_767  # the largest integer of 16 bits
THREADS = 256  # of a block
BITS = 32  # of a word
CONFLICTED, CONFLICTS, COLORS, MOVES, CLOSED, TOUCHED = range(6)  # places in `totals`
NUM_TOTALS = 6
BY_GRAPH, BIAS, BY_NODE, OUT, DIRECT, MOVE = (int(end) for end in ENDS[:-1])  # places in the vector of weights
NO_MOVE = float(np.float32(-np.inf))
NONE_FOUND = 1e6  # fewest conflicts where no coloring with conflicts was met
device: Any = cuda.jit(device=True)
(
    node_features, graph_features, conflict_weight, crowding_of, score_of, gain_of, tenure_of, turn_of, noise_row
) = [device(formula) for formula in FORMULAS]  # fmt: skip


class PackedGraphs(NamedTuple):
    """Graphs one after the other, with a proper coloring of each, in memory that the kernel can read."""

    starts: Any  # (G + 1,) int32, places of the first nodes
    offsets: Any  # (nodes + 1,) int32, places of the first neighbours
    neighbours: Any  # (2 edges,) int32, numbers of nodes within their graph, sorted
    first: Any  # (nodes,) int32, colors without gaps
    num_colors: Any  # (G,) int32, of `first`


class Search(NamedTuple):
    """What a thread block works on. Nodes in conflict come first in `conflicted`, as in `search_kernel.Coloring`."""

    n: int
    K: int
    W: int
    neighbours: Any  # in global memory, as are the next five
    offsets: Any  # (N + 1,)
    adjacency: Any  # (N, W) uint32, a bit for every neighbour
    table: Any  # (NOISE_ROWS, at least K) float32
    logs: Any  # log1p of 0, 1, 2, ...
    counts: Any  # (K, N) int16, neighbours of a node with a color; in shared memory if it fits
    until: Any  # (N, K) int16, last round in which a node may not take a color; likewise
    classes: Any  # (W, K) uint32, a bit for every node of a color
    totals: Any  # (NUM_TOTALS,) int32
    outputs: Any  # (OUTPUTS + 1,) float32, of the network for this round, and the mean of the feature `moves`
    weights: Any  # (NUM_WEIGHTS,) float32
    weight: Any  # (N,) float32, of a conflict with a node
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
    seen: Any  # last round that weighed a conflict with a node
    touched: Any  # neighbours of a moving node in its old or its new color


def layout(n, K):
    """Active nodes, nodes that may move, words of N bits, and shared memory: words, and integers of 16 bits in them
    that hold the nodes, and those that hold the counts and what is tabu.
    """
    A = min(max(ACTIVE, n // NODES_PER_ACTIVE), n)
    W = (n + BITS - 1) // BITS
    words = NUM_TOTALS + OUTPUTS + 1 + rule.NUM_WEIGHTS + 2 * n + (2 + A + W) * K + 7 * A
    return A, min(max(MOVERS, n // NODES_PER_MOVER), A), W, words, 10 * n, 2 * n * K


device_layout = device(layout)


@device
def lay_out(n, K, graph, large, start):
    """The arrays of a search. graph: those in global memory; large: of the counts and what is tabu, from `start` on."""
    neighbours, offsets, adjacency, table, logs = graph
    A, _, W, words, _, _ = device_layout(n, K)
    floats, ints, bits = cuda.shared.array(0, float32), cuda.shared.array(0, int32), cuda.shared.array(0, uint32)
    small = cuda.shared.array(0, int16)
    fixed = NUM_TOTALS + OUTPUTS + 1
    node = fixed + rule.NUM_WEIGHTS
    color = node + 2 * n
    act = color + 2 * K
    h = 2 * words
    return Search(
        n, K, W, neighbours, offsets, adjacency, table, logs, large[start:], large[start + n * K :],
        bits[act + (7 + K) * A :], ints, floats[NUM_TOTALS:], floats[fixed:], floats[node:], ints[node + n :],
        ints[color:], ints[color + K :], ints[act:], ints[act + A :], ints[act + 2 * A :], ints[act + 3 * A :],
        ints[act + 4 * A :], floats[act + 5 * A :], floats[act + 6 * A :], floats[act + 7 * A :],
        small[h:], small[h + n :], small[h + 2 * n :], small[h + 3 * n :], small[h + 4 * n :],
        small[h + 5 * n :], small[h + 6 * n :], small[h + 7 * n :], small[h + 8 * n :], small[h + 9 * n :],
    )  # fmt: skip


@device
def begin(s, first, weights):
    """Count what the first coloring (N,) says, with an empty memory."""
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    for i in range(thread, rule.NUM_WEIGHTS, threads):
        s.weights[i] = weights[i]
    for v in range(thread, s.n, threads):
        s.colors[v], s.conflicts[v], s.moved[v], s.moves[v], s.seen[v] = first[v], 0, -NOT_MOVED, 0, -1
        begin_node(s, first, v)
    for x in range(thread, s.K, threads):
        begin_color(s, first, x)
    for i in range(thread, NUM_TOTALS, threads):
        s.totals[i] = s.K if i == COLORS else 0
    cuda.syncthreads()


@device
def begin_node(s, first, v):
    """Count the colors of the neighbours of node v, and note these neighbours as bits."""
    for x in range(s.K):
        s.counts[x * s.n + v], s.until[v * s.K + x] = 0, -1
    i, end = s.offsets[v], s.offsets[v + 1]
    for w in range(s.W):
        word = uint32(0)
        while i < end and s.neighbours[i] < (w + 1) * BITS:
            word = uint32(word | uint32(uint32(1) << uint32(s.neighbours[i] - w * BITS)))
            s.counts[first[s.neighbours[i]] * s.n + v] += 1
            i += 1
        s.adjacency[v * s.W + w] = word
    without = one = 0
    for x in range(s.K):
        without += s.counts[x * s.n + v] == 0
        one += s.counts[x * s.n + v] == 1
    s.without[v], s.one[v] = without, one


@device
def begin_color(s, first, x):
    """Note the nodes of color x as bits."""
    size = 0
    for w in range(s.W):
        word = uint32(0)
        for b in range(min(BITS, s.n - w * BITS)):
            if first[w * BITS + b] == x:
                word = uint32(word | uint32(uint32(1) << uint32(b)))
                size += 1
        s.classes[w * s.K + x] = word
    s.sizes[x], s.is_open[x] = size, 1


@device
def close(s):
    """Close the smallest class: its nodes have to move to another color."""
    thread = cuda.threadIdx.x
    if thread == 0:
        smallest = -1
        for x in range(s.K):
            if s.is_open[x] and (smallest < 0 or s.sizes[x] < s.sizes[smallest]):
                smallest = x
        s.totals[CLOSED] = smallest
    cuda.syncthreads()
    color = s.totals[CLOSED]
    for v in range(thread, s.n, cuda.blockDim.x):
        s.without[v] -= s.counts[color * s.n + v] == 0
        s.one[v] -= s.counts[color * s.n + v] == 1
    if thread == 0:
        s.is_open[color] = 0
        s.totals[COLORS] -= 1
        for v in range(s.n):
            if s.colors[v] == color:
                add_conflicts(s, v, 1)
    cuda.syncthreads()


@device
def add_conflicts(s, v, change):
    """Change the number of conflicts of node v, and the list of the nodes in conflict with it. For one thread."""
    before = s.conflicts[v]
    s.conflicts[v] = before + change
    s.totals[CONFLICTS] += change
    if before == 0 and change > 0:
        s.place[v] = s.totals[CONFLICTED]
        s.conflicted[s.place[v]] = v
        s.totals[CONFLICTED] += 1
    elif before > 0 and before + change == 0:
        s.totals[CONFLICTED] -= 1
        last = s.conflicted[s.totals[CONFLICTED]]
        s.conflicted[s.place[v]], s.place[last] = last, s.place[v]


@device
def one_round(s, A, M, seed, t):
    """Let a few nodes in conflict move."""
    measure(s)
    num_active = draw(s, A, seed, t)
    cuda.syncthreads()
    weigh(s, num_active, t)
    cuda.syncthreads()
    choose(s, num_active, t)
    cuda.syncthreads()
    num_movers = settle(s, num_active, M)
    cuda.syncthreads()
    apply(s, num_movers, t)


@device
def measure(s):
    """Ask the network what depends on the search as a whole."""
    num_ends, w = s.offsets[s.n] - s.offsets[0], s.weights
    for j in range(cuda.threadIdx.x, OUTPUTS, cuda.blockDim.x):
        density = np.float32(num_ends) / np.float32(max(1, s.n * (s.n - 1)))
        f0, f1, f2, f3, f4 = graph_features(
            math.log(s.n), math.log(s.totals[COLORS]), density, s.logs[s.totals[CONFLICTED]]
        )
        i = BY_GRAPH + j * NUM_GRAPH_FEATURES
        y = w[BIAS + j] + np.float32(f0) * w[i] + np.float32(f1) * w[i + 1] + np.float32(f2) * w[i + 2]
        y = y + np.float32(f3) * w[i + 3] + np.float32(f4) * w[i + 4]
        s.outputs[j] = math.exp(y) if j < NUM_CONTROLS else y
    if cuda.threadIdx.x == 0:
        s.outputs[OUTPUTS] = math.log1p(s.totals[MOVES] / s.n)


@device
def draw(s, room, seed, t):
    """Take the nodes in conflict whose turn it is, all if they are few; return their number."""
    thread, threads, count = cuda.threadIdx.x, cuda.blockDim.x, s.totals[CONFLICTED]
    for i in range(thread, count, threads):
        s.turns[i] = turn_of(np.int64(s.conflicted[i]), seed, t)
    if count > room:
        cuda.syncthreads()
    for i in range(thread, count, threads):
        turn, rank = s.turns[i], i
        if count > room:
            rank = 0
            for j in range(count):
                rank += s.turns[j] > turn
        if rank < room:
            s.active[rank], s.rows[rank] = s.conflicted[i], noise_row(turn)
    return min(count, room)


@device
def weigh(s, num_active, t):
    """What a conflict with every neighbour of an active node costs: from 0 to 2, and the plain weight."""
    thread, threads, num_near = cuda.threadIdx.x, cuda.blockDim.x, 0
    for a in range(num_active):
        num_near += s.offsets[s.active[a] + 1] - s.offsets[s.active[a]]
    if num_near >= s.n:
        for u in range(thread, s.n, threads):
            s.weight[u] = weight_of(s, u, t)
        return
    for a in range(num_active):
        for i in range(s.offsets[s.active[a]] + thread, s.offsets[s.active[a] + 1], threads):
            u = s.neighbours[i]
            if s.seen[u] != t:  # two threads that come at the same time write the same
                s.seen[u] = t
                s.weight[u] = weight_of(s, u, t)


@device
def weight_of(s, u, t):
    """What a conflict with node u costs."""
    conflicts, w, logs = s.conflicts[u], s.weights, s.logs
    free = s.without[u] - np.int32(conflicts == 0)  # other than its own color
    age, moves = logs[t - np.int32(s.moved[u])], logs[s.moves[u]]
    has_free, f1, f2, f3, f4, f5 = node_features(
        free > 0, logs[free], logs[s.one[u]], logs[conflicts], age, moves, s.outputs[OUTPUTS]
    )
    f0, f4 = np.float32(has_free), np.float32(f4)
    z = f0 * w[DIRECT] + f1 * w[DIRECT + 1] + f2 * w[DIRECT + 2] + f3 * w[DIRECT + 3] + f4 * w[DIRECT + 4]
    z = z + f5 * w[DIRECT + 5] + s.outputs[OUTPUTS - 1]
    for j in range(HIDDEN):
        i = BY_NODE + j * NUM_FEATURES
        y = f0 * w[i] + f1 * w[i + 1] + f2 * w[i + 2] + f3 * w[i + 3] + f4 * w[i + 4] + f5 * w[i + 5]
        z = z + max(y + s.outputs[NUM_CONTROLS + j], np.float32(0)) * w[OUT + j]
    return np.float32(conflict_weight(z) + w[MOVE])


@device
def choose(s, num_active, t):
    """Find the best move of every active node."""
    thread, threads, K = cuda.threadIdx.x, cuda.blockDim.x, s.K
    for i in range(thread, num_active * K, threads):
        s.score[i] = score_move(s, i // K, i % K, t)
    cuda.syncthreads()
    for a in range(thread, num_active, threads):
        target = 0
        for x in range(1, K):
            if s.score[a * K + x] > s.score[a * K + target]:
                target = x
        age = s.logs[t - np.int32(s.moved[s.active[a]])]
        s.target[a], s.gain[a] = target, gain_of(s.cost_here[a], s.score[a * K + target], age, s.weights[MOVE + 2])


@device
def score_move(s, a, x, t):
    """What color x is worth to active node a; the cost of its own color is noted."""
    v = s.active[a]
    if s.colors[v] == x:
        closed = np.float32(0) if s.is_open[x] else np.float32(1) + s.weights[MOVE]
        s.cost_here[a] = sum_conflicts(s, v, x) + closed
        return np.float32(NO_MOVE)
    if not s.is_open[x] or s.until[v * s.K + x] >= t:
        return np.float32(NO_MOVE)
    crowding = np.float32(crowding_of(np.float32(s.sizes[x]), np.float32(s.totals[COLORS]) / np.float32(s.n)))
    random, cost = s.table[s.rows[a], x], sum_conflicts(s, v, x)
    return score_of(crowding, random, cost, s.outputs[4], s.weights[MOVE + 1])


@device
def sum_conflicts(s, v, x):
    """Weights of the conflicts of node v in color x, added in the order of the neighbours."""
    cost = np.float32(0)
    for w in range(s.W):
        word = uint32(s.adjacency[v * s.W + w] & s.classes[w * s.K + x])
        while word != 0:
            cost += s.weight[w * BITS + cuda.ffs(word) - 1]
            word = uint32(word & uint32(word - uint32(1)))
    return cost


@device
def settle(s, num_active, room):
    """Take the best move and those about as good, without those of neighbours of a better one; return their number."""
    thread, threads, count = cuda.threadIdx.x, cuda.blockDim.x, min(room, num_active)
    for a in range(thread, num_active, threads):
        gain, best, rank = s.gain[a], s.gain[a], 0
        for b in range(num_active):
            best = max(best, s.gain[b])
            rank += s.gain[b] > gain or (s.gain[b] == gain and b < a)
        limit = best - s.outputs[3] if rank > 0 else np.float32(NO_MOVE)
        if rank < count:
            s.movers[rank], s.kept[rank] = a, gain > limit
    cuda.syncthreads()
    for m in range(thread, count, threads):
        row = s.active[s.movers[m]] * s.W
        for better in range(m):
            u = s.active[s.movers[better]]
            if (s.adjacency[row + u // BITS] >> uint32(u % BITS)) & uint32(1):
                s.kept[m] = 0
    return count


@device
def apply(s, num_movers, t):
    """Let the nodes move."""
    num_conflicted = np.float32(s.totals[CONFLICTED])
    for m in range(num_movers):
        if s.kept[m]:
            a = s.movers[m]
            change_counts(s, s.active[a], s.target[a])
            cuda.syncthreads()
            if cuda.threadIdx.x == 0:
                tenure = tenure_of(s.outputs[0], s.outputs[1], s.outputs[2], num_conflicted, s.table[s.rows[a], 0])
                change_node(s, s.active[a], s.target[a], t, min(LAST, t + int(min(tenure, np.float32(LAST)))))
            cuda.syncthreads()


@device
def change_counts(s, v, new):
    """Count for the neighbours of node v that it leaves its color."""
    old = s.colors[v]
    for i in range(s.offsets[v] + cuda.threadIdx.x, s.offsets[v + 1], cuda.blockDim.x):
        u = s.neighbours[i]
        left, entered = s.counts[old * s.n + u] - 1, s.counts[new * s.n + u]
        s.counts[old * s.n + u], s.counts[new * s.n + u] = left, entered + 1
        if s.is_open[old]:
            s.without[u] += left == 0
            s.one[u] += np.int32(left == 1) - np.int32(left == 0)
        s.without[u] -= entered == 0
        s.one[u] += np.int32(entered == 0) - np.int32(entered == 1)
        if s.colors[u] == old or s.colors[u] == new:
            s.touched[cuda.atomic.add(s.totals, TOUCHED, 1)] = u


@device
def change_node(s, v, new, t, until):
    """Give node v its new color, and change the conflicts in the order of the CPU. For one thread."""
    old, word, bit = s.colors[v], v // BITS * s.K, uint32(uint32(1) << uint32(v % BITS))
    s.until[v * s.K + old], s.moved[v] = until, t
    s.moves[v] += 1
    s.totals[MOVES] += 1
    s.sizes[old] -= 1
    s.sizes[new] += 1
    s.classes[word + old] ^= bit
    s.classes[word + new] ^= bit
    s.colors[v] = new
    add_conflicts(s, v, s.counts[new * s.n + v] - s.conflicts[v])
    for i in range(s.totals[TOUCHED]):  # threads have noted them as they came: the smallest first
        for j in range(i + 1, s.totals[TOUCHED]):
            if s.touched[j] < s.touched[i]:
                s.touched[i], s.touched[j] = s.touched[j], s.touched[i]
        add_conflicts(s, s.touched[i], -1 if s.colors[s.touched[i]] == old else 1)
    s.totals[TOUCHED] = 0


@cache
def kernel(in_shared: bool) -> Any:
    """The kernel for a grid of one block per search. in_shared: whether the counts and what is tabu fit into shared
    memory, else `large` (R, integers) int16 has room for them.
    """

    def search(
        starts, offsets, neighbours, first, num_colors, graph, lower, seeds, weights, table, logs, rounds, adjacency,
        large, fewest, conflicts, best,
    ):  # fmt: skip
        block, thread = cuda.blockIdx.x, cuda.threadIdx.x
        start, K = starts[graph[block]], num_colors[graph[block]]
        n = starts[graph[block] + 1] - start
        A, M, _, words, nodes, _ = device_layout(n, K)
        graph_arrays = neighbours, offsets[start:], adjacency[block], table, logs
        if in_shared:
            s = lay_out(n, K, graph_arrays, cuda.shared.array(0, int16), 2 * words + nodes)
        else:
            s = lay_out(n, K, graph_arrays, large[block], 0)
        begin(s, first[start:], weights[block])
        num_colors_found, fewest_conflicts = K, np.float32(NONE_FOUND)
        for v in range(thread, n if len(best) else 0, cuda.blockDim.x):
            best[block, v] = s.colors[v]
        for t in range(rounds):
            if s.totals[CONFLICTED] == 0:
                num_colors_found, fewest_conflicts = s.totals[COLORS], np.float32(NONE_FOUND)
                for v in range(thread, n if len(best) else 0, cuda.blockDim.x):
                    best[block, v] = s.colors[v]
                if num_colors_found <= lower[block]:
                    break
                close(s)
                continue
            fewest_conflicts = min(fewest_conflicts, np.float32(s.totals[CONFLICTS]) / np.float32(2))
            one_round(s, A, M, seeds[block], t)
        if thread == 0:
            fewest[block], conflicts[block] = num_colors_found, fewest_conflicts

    return cuda.jit(search)


def pack(lists: Sequence[NeighbourLists], first: Sequence[np.ndarray]) -> PackedGraphs:
    """Graphs and their first colorings in memory of the host."""
    offsets = [np.zeros(1, np.int64)]
    for each in lists:
        offsets.append(each.offsets[1:] + offsets[-1][-1])
    arrays = (
        np.cumsum([0, *map(len, first)]), np.concatenate(offsets), np.concatenate([each.neighbours for each in lists]),
        np.concatenate(first), np.array([colors.max() + 1 for colors in first]),
    )  # fmt: skip
    return PackedGraphs(*(array.astype(np.int32) for array in arrays))


class Found(NamedTuple):
    """What every search has found."""

    fewest: np.ndarray  # (R,) int32 colors
    conflicts: np.ndarray  # (R,) float32, the fewest since, with one color less
    colors: np.ndarray  # (R, N) int16 of the largest graph, the best coloring; (0, 0) if not asked for


def search(
    graphs: PackedGraphs, graph: np.ndarray, lower: np.ndarray, seeds: np.ndarray, weights: np.ndarray, rounds: int,
    max_shared: int, threads: int = THREADS, with_colors: bool = False,
) -> Found:  # fmt: skip
    """Run R searches, each in a block of so many threads with at most `max_shared` bytes of shared memory. graph, lower
    (at least 1), seeds: (R,) int64; weights: (R, NUM_WEIGHTS) float32. Raises ValueError for what is too large.
    """
    searches, nodes, colors = len(graph), np.diff(graphs.starts), graphs.num_colors
    if max(rounds, *nodes) > LAST:
        raise ValueError(f"a search in a block has at most {LAST} nodes and rounds, not {max(nodes)} and {rounds}")
    needs = [layout(int(n), int(K)) for n, K in zip(nodes, colors, strict=True)]
    small, large = (max(4 * words + 2 * integers for *_, words, integers, _ in needs), max(need[-1] for need in needs))
    whole = max(4 * words + 2 * (integers + counts) for *_, words, integers, counts in needs)
    in_shared = whole <= max_shared
    if not in_shared and small > max_shared:
        raise ValueError(f"a search of these graphs needs {small} bytes of shared memory of {max_shared}")
    found = Found(
        np.zeros(searches, np.int32), np.zeros(searches, np.float32),
        np.zeros((searches, max(nodes)) if with_colors else (0, 0), np.int16),
    )  # fmt: skip
    logs = np.log1p(np.arange(max(rounds, *nodes) + NOT_MOVED + 2)).astype(np.float32)
    given = [*graphs, graph, lower, seeds, weights, noise_table(int(max(colors))), logs]
    room = np.empty((searches, max(n * need[2] for n, need in zip(nodes, needs, strict=True))), np.uint32)
    state = np.empty((searches, 1 if in_shared else large), np.int16)
    arguments = [*map(cuda.to_device, given), rounds, cuda.to_device(room), cuda.to_device(state), *map(cuda.to_device, found)]
    shared = -4 * (-(whole if in_shared else small) // 4)
    kernel(in_shared)[searches, threads, 0, shared](*arguments)
    return Found(*(array.copy_to_host() for array in arguments[-3:]))
