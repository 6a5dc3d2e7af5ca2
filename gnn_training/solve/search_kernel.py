"""The search of `model.search` for one graph, compiled for a CPU: the same rounds, some thirty times as fast.

Training takes thousands of searches, so they may not cost what tensors of one graph cost on a CPU. On a GPU the tensors
of many graphs are searched at once instead. A test holds both to the same moves.
"""

import math

import numpy as np
from numba import njit

import gnn_training.solve.kernels  # noqa: F401  (sets the place of numba's cache)
from gnn_training.model.greedy import NODE_STRIDE, ROUND_STRIDE
from gnn_training.model.search import (
    ACTIVE,
    GRAPH_FEATURES,
    HIDDEN,
    MOVERS,
    NODE_FEATURES,
    NODES_PER_ACTIVE,
    NODES_PER_MOVER,
    NOT_MOVED,
    SHAPES,
)

PLACES = np.cumsum([0, *(math.prod(shape) for shape in SHAPES.values())])  # of the parts in the vector of weights


@njit(cache=True, nogil=True)
def search_graph(offsets, neighbours, first, lower, weights, table, seed, rounds):
    """Search as `model.search.search` does. offsets, neighbours: of `Graph.csr()`; first (N,): a proper coloring
    without gaps; weights (NUM_WEIGHTS,) float32; table (NOISE_ROWS, at least K) float32.

    Returns the best coloring (N,), its number of colors, and the fewest conflicts since, with one color less.
    """
    n = len(offsets) - 1
    colors, best = first.astype(np.int64), first.astype(np.int64)
    K = best.max() + 1
    F = NODE_FEATURES + GRAPH_FEATURES
    hidden = weights[: PLACES[1]].reshape(F, HIDDEN)
    hidden_bias, out = weights[PLACES[1] : PLACES[2]], weights[PLACES[2] : PLACES[3]]
    direct, bias = weights[PLACES[3] : PLACES[4]], weights[PLACES[4]]
    move = weights[PLACES[5] : PLACES[6]]
    control, control_bias = weights[PLACES[6] : PLACES[7]].reshape(GRAPH_FEATURES, 5), weights[PLACES[7] :]
    num_active = min(max(ACTIVE, n // NODES_PER_ACTIVE), n)
    num_movers = min(max(MOVERS, n // NODES_PER_MOVER), num_active)
    log1p = np.log1p(np.arange(max(rounds + 32, n + 2, K + 2))).astype(np.float32)
    counts, until = np.zeros((n, K), np.int16), np.zeros((n, K), np.float32)
    sizes, is_open = np.zeros(K, np.int64), np.ones(K, np.bool_)
    moved, moves, own = np.full(n, NOT_MOVED, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    price, num_moves = np.zeros(n, np.float32), 0
    for v in range(n):
        sizes[colors[v]] += 1
        for i in range(offsets[v], offsets[v + 1]):
            counts[v, colors[neighbours[i]]] += 1
    density = np.float32(len(neighbours)) / np.float32(max(1, n * (n - 1)))
    summary, level = np.zeros(GRAPH_FEATURES, np.float32), np.zeros(5, np.float32)
    shift = np.zeros(HIDDEN, np.float32)
    conflicted, active = np.zeros(n, np.int64), np.zeros(num_active, np.int64)
    target, gain = np.zeros(num_active, np.int64), np.zeros(num_active, np.float32)
    cost, chosen = np.zeros(K, np.float32), np.zeros(num_movers, np.int64)
    beside, f = np.zeros(n, np.bool_), np.zeros(NODE_FEATURES, np.float32)
    blocked = np.zeros(num_movers, np.bool_)
    fewest, k, conflicts = K, K, np.float32(1e6)
    for t in range(rounds):
        num_conflicted, total = 0, 0
        for v in range(n):
            own[v] = counts[v, colors[v]] + (not is_open[colors[v]])
            if own[v] > 0:
                conflicted[num_conflicted] = v
                num_conflicted += 1
                total += own[v]
        if num_conflicted == 0:
            if k < fewest:
                fewest = k
                best[:] = colors
            if fewest <= lower:
                break
            conflicts = np.float32(1e6)
            smallest = -1
            for x in range(K):
                if is_open[x] and (smallest < 0 or sizes[x] < sizes[smallest]):
                    smallest = x
            is_open[smallest] = False
            k -= 1
            continue
        conflicts = min(conflicts, np.float32(total) / 2)
        summary[0] = np.log(n) / 3 - 2
        summary[1] = np.log(k) / 2 - 1.5
        summary[2] = density - 0.5
        summary[3] = log1p[num_conflicted] / 2 - 1
        summary[4] = np.log(k / n) + 2.3
        for j in range(5):
            level[j] = control_bias[j]
            for i in range(GRAPH_FEATURES):
                level[j] += summary[i] * control[i, j]
            level[j] = np.exp(level[j])
        base = bias
        for i in range(GRAPH_FEATURES):
            base += summary[i] * direct[NODE_FEATURES + i]
        for j in range(HIDDEN):
            shift[j] = hidden_bias[j]
            for i in range(GRAPH_FEATURES):
                shift[j] += summary[i] * hidden[NODE_FEATURES + i, j]
        restless = np.float32(np.log1p(num_moves / n))
        for v in range(n):
            none, one, two = 0, 0, 0
            for x in range(K):
                if is_open[x]:
                    c = counts[v, x]
                    none += c == 0
                    one += c == 1
                    two += c == 2
            if is_open[colors[v]]:
                none -= own[v] == 0
                one -= own[v] == 1
                two -= own[v] == 2
            f[0], f[1], f[2], f[3] = none > 0, log1p[none], log1p[one], log1p[two]
            f[4], f[5], f[6] = log1p[own[v]], log1p[t - moved[v]] / 4, log1p[moves[v]] - restless
            z = base
            for i in range(NODE_FEATURES):
                z += f[i] * direct[i]
            for j in range(HIDDEN):
                y = shift[j]
                for i in range(NODE_FEATURES):
                    y += f[i] * hidden[i, j]
                z += max(y, np.float32(0)) * out[j]
            price[v] = 2 / (1 + np.exp(-z))
        # Active nodes: all in conflict, or those with the largest random numbers.
        count = min(num_active, num_conflicted)
        for a in range(count):
            pick = a
            if num_conflicted > num_active:
                for i in range(a, num_conflicted):
                    r = table[(NODE_STRIDE * conflicted[i] + ROUND_STRIDE * t + seed) % len(table), 0]
                    q = table[(NODE_STRIDE * conflicted[pick] + ROUND_STRIDE * t + seed) % len(table), 0]
                    if r > q:
                        pick = i
                conflicted[a], conflicted[pick] = conflicted[pick], conflicted[a]
            active[a] = conflicted[a]
        for a in range(count):
            v = active[a]
            row = (NODE_STRIDE * v + ROUND_STRIDE * t + seed) % len(table)
            for x in range(K):
                cost[x] = move[0] * counts[v, x]
            for i in range(offsets[v], offsets[v + 1]):
                cost[colors[neighbours[i]]] += price[neighbours[i]]
            top, target[a] = np.float32(-np.inf), 0
            for x in range(K):
                if is_open[x] and x != colors[v] and until[v, x] <= t:
                    crowd = np.float32(sizes[x] * k / n - 1)
                    score = move[1] * crowd + level[4] * table[row, x] - cost[x]
                    if score > top:
                        top, target[a] = score, x
            here = cost[colors[v]] + (0 if is_open[colors[v]] else 1 + move[0])
            gain[a] = here + top + move[2] * log1p[t - moved[v]]
        # The best move, and those about as good, unless they interfere.
        num_chosen, limit = 0, np.float32(0)
        for m in range(min(num_movers, count)):
            pick = -1
            for a in range(count):
                if gain[a] > -np.inf and (pick < 0 or gain[a] > gain[pick]):
                    pick = a
            if pick < 0 or (m > 0 and gain[pick] <= limit):
                break
            if m == 0:
                limit = gain[pick] - level[3]
            chosen[m] = pick
            gain[pick] = -np.inf
            num_chosen += 1
        for m in range(num_chosen):
            v, blocked[m] = active[chosen[m]], False
            if m > 0:
                beside[neighbours[offsets[v] : offsets[v + 1]]] = True
                for j in range(m):
                    u = active[chosen[j]]
                    alike = colors[u] == colors[v] or target[chosen[j]] == target[chosen[m]]
                    blocked[m] |= beside[u] and alike
                beside[neighbours[offsets[v] : offsets[v + 1]]] = False
        for m in range(num_chosen):
            if blocked[m]:
                continue
            v, new = active[chosen[m]], target[chosen[m]]
            old = colors[v]
            row = (NODE_STRIDE * v + ROUND_STRIDE * t + seed) % len(table)
            wait = level[0] + level[1] * num_conflicted + level[2] * table[row, 1 % K]
            until[v, old] = t + 1 + np.floor(wait)
            colors[v], moved[v] = new, t
            moves[v] += 1
            num_moves += 1
            sizes[old] -= 1
            sizes[new] += 1
            for i in range(offsets[v], offsets[v + 1]):
                counts[neighbours[i], old] -= 1
                counts[neighbours[i], new] += 1
    return best, fewest, conflicts
