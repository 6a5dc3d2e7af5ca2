"""The search of `onnx_program.tensor_search` for one graph, compiled for a CPU: the same moves in microseconds.

Counts are kept up to date: the move of a node changes only the counts of its neighbours, and the costs of neighbours
active since the network was last asked. The counts of a color are contiguous, because a move changes two colors.
`network.rule` has the formulas of both searches; tests/test_search.py checks that both make the same moves.

Letters in shapes: N nodes, K colors, A active nodes, M nodes that may move, F features.
"""

import hashlib
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gnn_training.graph import NeighbourLists
from gnn_training.network import rule
from gnn_training.network.rule import ACTIVE, HIDDEN, MOVERS, NODES_PER_ACTIVE, NODES_PER_MOVER, NOT_MOVED, OUTPUTS
from gnn_training.search.compiled import njit
from gnn_training.search.kernels import NEVER_STOP

OFFSETS = np.cumsum([0, *(math.prod(shape) for shape in rule.SHAPES.values())])  # where each part of the weights begins
NUM_CONTROLS, NUM_FEATURES, NUM_GRAPH_FEATURES = map(len, (rule.CONTROLS, rule.NODE_FEATURES, rule.GRAPH_FEATURES))
CONFLICTED, CONFLICTS, COLORS, MOVES = range(4)  # places in `totals`
PLACES = 1 << 24  # random keys that order nodes without a color; float32 represents each exactly
OLDEST = 1_000_000  # more rounds since a node's last move, or more moves, count as this many
# Without Python's checks for divisions by zero, and with fused multiplications and additions, loops become vectors.
options: Any = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
# For functions that Python does not call. They are inlined, because a call copies all that the tuples hold.
inner: Any = options | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "forceinline": True}
compiled = njit(**inner)
FORMULAS = (
    rule.node_features, rule.graph_features, rule.conflict_weight, rule.crowding, rule.score, rule.gain, rule.tenure,
    rule.turn, rule.noise_row,
)  # fmt: skip
(
    node_features, graph_features, conflict_weight, crowding_of, score_of, gain_of, tenure_of, turn_of, noise_row
) = [compiled(formula) for formula in FORMULAS]  # fmt: skip


class CountedColoring(NamedTuple):
    """The present coloring of a graph, and its counts."""

    offsets: np.ndarray  # of `Graph.csr()`, as are the neighbours
    neighbours: np.ndarray  # uint32, because an unsigned index saves numba's test for negative ones
    colors: np.ndarray  # (N,) uint32
    counts: np.ndarray  # (K, N) int32, neighbours of a node with a color
    is_open: np.ndarray  # (K,) bool, colors that may be used
    sizes: np.ndarray  # (K,) int32
    conflicts: np.ndarray  # (N,) int32, neighbours with a node's color, one more if that color is closed
    without: np.ndarray  # (N,) int32, open colors without a conflict
    one: np.ndarray  # (N,) int32, open colors with one conflict
    conflicted: np.ndarray  # (N,) uint32, the nodes in conflict come first
    place: np.ndarray  # (N,) int32, of a node in `conflicted`
    totals: np.ndarray  # (4,) int64: nodes in conflict, sum of `conflicts`, open colors, moves so far


class Memory(NamedTuple):
    """The past moves of the nodes."""

    until: np.ndarray  # (N, K) int32, last round in which a node may not take a color
    moved: np.ndarray  # (N,) int32, round of the last move
    moves: np.ndarray  # (N,) int32


class Network(NamedTuple):
    """The trained weights, see rule.SHAPES, and what is computed from them every PERIOD rounds."""

    by_graph: np.ndarray
    by_graph_bias: np.ndarray
    by_node: np.ndarray
    out: np.ndarray
    direct: np.ndarray
    move: np.ndarray
    logs: np.ndarray  # log1p of 0, 1, 2, ...
    outputs: np.ndarray  # (OUTPUTS,): controls, shifts of the hidden units, level
    features: np.ndarray  # (F, N) float32, of the nodes
    z: np.ndarray  # (N,) float32, see rule.conflict_weight
    weights: np.ndarray  # (N,) int32, of a conflict with every node


class Choice(NamedTuple):
    """The best moves of active nodes, and the arrays for finding them."""

    table: np.ndarray  # (NOISE_ROWS, at least K) float32
    seed: int
    active: np.ndarray  # (A,) uint32, nodes
    first_turns: np.ndarray  # (N,) int32, of round 0 with seed 0
    turns: np.ndarray  # (A,) int32, turns of the active nodes if more nodes are in conflict
    target: np.ndarray  # (A,) uint32, best other colors
    gain: np.ndarray  # (A,) float32
    movers: np.ndarray  # (M,) int64, places in `active` of the best moves
    kept: np.ndarray  # (M,) int64, places in `active` of the moves that are made
    costs: np.ndarray  # (N, K) int32, sums of the weights of a node's conflicts in every color
    summed: np.ndarray  # (N,) int32, round in which a node's costs were summed; valid until the network is asked again
    crowding: np.ndarray  # (K,) float32
    closed: np.ndarray  # (K,) float32, 0 for open colors, minus infinity for others
    score: np.ndarray  # (K,) float32


class SearchTask(NamedTuple):
    """What to search for."""

    first: np.ndarray  # (N,), a proper coloring without gaps
    rounds: int
    seed: int = 0
    lower: int = 1  # number of colors at which the search ends
    num_colors: int = 0  # number of colors to begin with, below that of `first`; 0 for one fewer
    times: Sequence[int] | np.ndarray = ()  # ascending rounds after which the state is noted, at most `rounds`


class Outcome(NamedTuple):
    """A search after its last round."""

    best: np.ndarray  # (N,) int64, the best coloring
    num_colors: int  # of that coloring
    conflicts: float  # the fewest with one color less than `num_colors`
    reached: np.ndarray  # (K + 1,) int64, by number of colors: the round that reached it, -1 for never
    states: np.ndarray  # (S, 5, N) int32 at the S times that the search has reached, see `note`
    state_conflicts: np.ndarray  # (S,) the fewest conflicts since the last color saved


def noise_table(num_colors: int) -> np.ndarray:
    """Random numbers (NOISE_ROWS, num_colors or more) float32 between 0 and 1, as in the exported file."""
    return _table_of_width(1 << (num_colors - 1).bit_length())  # one table serves many numbers of colors


@cache
def _table_of_width(columns: int) -> np.ndarray:
    integers = rule.noise(np.arange(rule.NOISE_ROWS)[:, None], np.arange(columns))
    return integers.astype(np.float32) / np.float32(rule.PRIME)


def keyed_by_rule(function: Any) -> Any:
    """Add the hash of rule.py to a function's name: numba's cache sees names, and changes of the own file only."""
    function.__qualname__ += "_" + hashlib.sha256(Path(rule.__file__).read_bytes()).hexdigest()[:16]
    return function


def search_graph(
    lists: NeighbourLists, task: SearchTask, weights: np.ndarray, stop: np.ndarray = NEVER_STOP
) -> Outcome:
    """Search as `tensor_search.search` does. weights (NUM_WEIGHTS,) float32; stop (1,): another thread ends the search
    by setting it. A longer search begins with the same moves as a shorter one.
    """
    first, times = task.first.astype(np.int32), np.asarray(task.times, np.int64)
    task = task._replace(first=first, seed=int(task.seed), times=times)
    return search_loop(lists, task, weights, noise_table(int(first.max()) + 1), stop)


@njit(**options, cache=True)
@keyed_by_rule
def search_loop(lists, task, weights, table, stop):
    """The compiled part of `search_graph`. table: see `noise_table`."""
    first, times, fewest, conflicts = task.first, task.times, task.first.max() + 1, rule.NONE_FOUND
    coloring, memory = begin(lists, first, fewest)
    network = begin_network(len(first), weights, task.rounds)
    choice, totals = begin_choice(len(first), fewest, table, task.seed), coloring.totals
    count_colors(coloring)
    while 0 < task.num_colors < totals[COLORS]:
        close(coloring)
    best, reached = first.astype(np.int64), np.full(fewest + 1, -1, np.int64)
    reached[fewest] = 0
    states, state_conflicts = np.zeros((len(times), 5, len(first)), np.int32), np.zeros(len(times))
    number = 0
    for t in range(task.rounds + 1):
        if number < len(times) and t == times[number]:
            note(coloring, memory, states[number])
            state_conflicts[number] = conflicts
            number += 1
        if stop[0] or t == task.rounds:
            break
        if t % rule.PERIOD == 0:
            weigh(coloring, memory, network, t)
        if totals[CONFLICTED] == 0:
            for v in range(len(best)):
                best[v] = coloring.colors[v]
            fewest, conflicts = totals[COLORS], rule.NONE_FOUND
            reached[fewest] = t
            if fewest <= task.lower:
                break
            close(coloring)
        else:
            conflicts = min(conflicts, totals[CONFLICTS] / 2)
            num_active = choose(coloring, memory, network, choice, t)
            move(coloring, memory, network, choice, num_active, t)
    return Outcome(best, fewest, conflicts, reached, states[:number], state_conflicts[:number])


def search_child(
    lists: NeighbourLists, start: np.ndarray, k: int, weights: np.ndarray, rounds: int, seed: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Improve a child by a search with a fixed number of colors. start (N,): colors 0 to k - 1, conflicts are allowed;
    -1 for nodes without a color, which get one first; weights: as for `search_graph`. With `rule.untrained()`, a round
    is a round of TabuCol. The search ends without a conflict or after `rounds`.

    Returns the coloring (N,) int32 with fewest conflicts, the rounds (N,) int32 since each node took its color there,
    and the number of its conflicts.
    """
    return child_loop(lists, start.astype(np.int32), int(k), weights, noise_table(int(k)), rounds, int(seed))


@njit(**options, cache=True)
@keyed_by_rule
def child_loop(lists, start, k, weights, table, rounds, seed):
    """The compiled part of `search_child`. table: see `noise_table`."""
    n, t = len(start), 0
    coloring, memory = begin(lists, start, k)
    network, choice = begin_network(n, weights, rounds), begin_choice(n, k, table, seed)
    complete(coloring, choice, start)
    totals = coloring.totals
    count_colors(coloring)
    for v in range(n):
        add_conflicts(coloring, v, coloring.counts[coloring.colors[v], v])
    best, ages, fewest = np.zeros(n, np.int32), np.zeros(n, np.int32), totals[CONFLICTS] + 1
    while True:
        if totals[CONFLICTS] < fewest:
            fewest = totals[CONFLICTS]
            for v in range(n):
                best[v], ages[v] = coloring.colors[v], t - max(0, memory.moved[v] + 1)
        if fewest == 0 or t >= rounds:
            return best, ages, fewest // 2
        if t % rule.PERIOD == 0:
            weigh(coloring, memory, network, t)
        num_active = choose(coloring, memory, network, choice, t)
        move(coloring, memory, network, choice, num_active, t)
        t += 1


@compiled
def complete(coloring, choice, start):
    """Give every node that is -1 in start (N,) a color, in a random order: the color that fewest neighbours have, ties
    at random.
    """
    n, num_left = len(start), 0
    left, turns = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for v in range(n):
        if start[v] < 0:
            left[num_left] = v
            turn = np.int64(choice.table[noise_row(turn_of(np.int64(v), choice.seed, 0)), 0] * np.float32(PLACES))
            turns[num_left] = turn * n + v
            num_left += 1
    for place in np.argsort(turns[:num_left]):
        v, new, top = left[place], 0, np.float32(-np.inf)
        random = choice.table[noise_row(turn_of(np.int64(v), choice.seed, 1))]
        for x in range(len(coloring.sizes)):
            value = random[x] - np.float32(coloring.counts[x, v])
            if value > top:
                top, new = value, x
        coloring.colors[v] = new
        coloring.sizes[new] += 1
        for i in range(coloring.offsets[v], coloring.offsets[v + 1]):
            coloring.counts[new, coloring.neighbours[i]] += 1


@compiled
def note(coloring, memory, state):
    """Write to state (5, N) of every node: color, open colors without and with one conflict, conflicts, moves."""
    for v in range(len(coloring.colors)):
        state[0, v], state[2, v], state[3, v] = coloring.colors[v], coloring.one[v], coloring.conflicts[v]
        state[1, v] = coloring.without[v] - (coloring.conflicts[v] == 0)  # other than its own color
        state[4, v] = memory.moves[v]


@compiled
def begin(lists, first, K):
    """Return the coloring first (N,) with K colors, -1 for nodes without one, and an empty memory."""
    n, offsets, neighbours = len(first), lists.offsets, lists.neighbours.view(np.uint32)
    counts, sizes = np.zeros((K, n), np.int32), np.zeros(K, np.int32)
    zeros = np.zeros((4, n), np.int32)
    coloring = CountedColoring(
        offsets, neighbours, first.astype(np.uint32), counts, np.ones(K, np.bool_), sizes, zeros[0], zeros[1], zeros[2],
        np.zeros(n, np.uint32), np.full(n, -1, np.int32), np.zeros(4, np.int64),
    )  # fmt: skip
    for v in range(n):
        if first[v] >= 0:
            sizes[first[v]] += 1
        for i in range(offsets[v], offsets[v + 1]):
            if first[neighbours[i]] >= 0:
                counts[first[neighbours[i]], v] += 1
    coloring.totals[COLORS] = K
    return coloring, Memory(np.full((n, K), -1, np.int32), np.full(n, -NOT_MOVED, np.int32), zeros[3])


@compiled
def begin_network(n, weights, rounds):
    """The network of a search of so many rounds."""
    logs = np.log1p(np.arange(max(min(rounds, OLDEST), n) + NOT_MOVED + 2)).astype(np.float32)
    return Network(
        weights[: OFFSETS[1]].reshape(OUTPUTS, NUM_GRAPH_FEATURES), weights[OFFSETS[1] : OFFSETS[2]],
        weights[OFFSETS[2] : OFFSETS[3]].reshape(HIDDEN, NUM_FEATURES), weights[OFFSETS[3] : OFFSETS[4]],
        weights[OFFSETS[4] : OFFSETS[5]], weights[OFFSETS[5] :], logs, np.zeros(OUTPUTS, np.float32),
        np.zeros((NUM_FEATURES, n), np.float32), np.zeros(n, np.float32), np.zeros(n, np.int32),
    )  # fmt: skip


@compiled
def begin_choice(n, K, table, seed):
    """Room for the best moves of a round."""
    A = min(max(ACTIVE, n // NODES_PER_ACTIVE), n)
    M = min(max(MOVERS, n // NODES_PER_MOVER), A)
    return Choice(
        table, seed, np.zeros(A, np.uint32), turn_of(np.arange(n), 0, 0).astype(np.int32), np.zeros(A, np.int32),
        np.zeros(A, np.uint32), np.zeros(A, np.float32),
        np.zeros(M, np.int64), np.zeros(M, np.int64), np.zeros((n, K), np.int32), np.full(n, -1, np.int32),
        np.zeros(K, np.float32), np.zeros(K, np.float32), np.zeros(K, np.float32),
    )  # fmt: skip


@compiled
def count_colors(coloring):
    """Count the colors without and with one conflict for every node."""
    counts = coloring.counts
    for x in range(len(counts)):
        for v in range(len(coloring.colors)):
            coloring.without[v] += counts[x, v] == 0
            coloring.one[v] += counts[x, v] == 1


@compiled
def close(coloring):
    """Close the smallest class: its nodes have to move to another color."""
    color, K = -1, len(coloring.sizes)
    for x in range(K):
        if coloring.is_open[x] and (color < 0 or coloring.sizes[x] < coloring.sizes[color]):
            color = x
    coloring.is_open[color] = False
    coloring.totals[COLORS] -= 1
    for v in range(len(coloring.colors)):
        coloring.without[v] -= coloring.counts[color, v] == 0
        coloring.one[v] -= coloring.counts[color, v] == 1
        if coloring.colors[v] == color:
            add_conflicts(coloring, v, 1)


@compiled
def add_conflicts(coloring, v, change):
    """Add `change` to the conflicts of node v, and update the list of the nodes in conflict."""
    before = coloring.conflicts[v]
    coloring.conflicts[v] = before + change
    coloring.totals[CONFLICTS] += change
    if before == 0 and change > 0:
        coloring.place[v] = coloring.totals[CONFLICTED]
        coloring.conflicted[coloring.place[v]] = v
        coloring.totals[CONFLICTED] += 1
    elif before > 0 and before + change == 0:
        coloring.totals[CONFLICTED] -= 1
        last = coloring.conflicted[coloring.totals[CONFLICTED]]
        coloring.conflicted[coloring.place[v]], coloring.place[last] = last, coloring.place[v]


@compiled
def ask(coloring, network):
    """Ask the network what depends on the search as a whole."""
    n, conflicted, k = len(coloring.colors), coloring.totals[CONFLICTED], coloring.totals[COLORS]
    density = np.float32(len(coloring.neighbours)) / np.float32(max(1, n * (n - 1)))
    features = graph_features(np.log(n), np.log(k), density, network.logs[conflicted])
    for j in range(OUTPUTS):
        y = network.by_graph_bias[j]
        for i in range(NUM_GRAPH_FEATURES):
            y += np.float32(features[i]) * network.by_graph[j, i]
        network.outputs[j] = np.exp(y) if j < NUM_CONTROLS else y


@compiled
def draw(conflicted, count, choice, t):
    """Make the nodes of conflicted (count,) with the largest turns active, or all if few; return how many."""
    room = len(choice.active)
    if count <= room:
        for a in range(count):  # slices would take numba eight seconds to compile
            choice.active[a] = conflicted[a]
        return count
    filled, shift = 0, np.int32(turn_of(0, choice.seed, t))
    for i in range(count):
        v = conflicted[i]
        turn = later(choice.first_turns[v], shift)
        if filled == room and turn < choice.turns[room - 1]:
            continue
        filled = min(room, filled + 1)
        a = filled - 1
        while a > 0 and choice.turns[a - 1] < turn:
            choice.turns[a], choice.active[a] = choice.turns[a - 1], choice.active[a - 1]
            a -= 1
        choice.turns[a], choice.active[a] = turn, v
    return room


@compiled
def later(first_turn, shift):
    """The turn, int32, of a node in the round in which node 0 has the turn `shift`. first_turn: its turn in round 0."""
    turn = np.int32(first_turn + shift)
    return turn if turn < rule.TURNS else np.int32(turn - rule.TURNS)


@compiled
def weigh(coloring, memory, network, t):
    """Ask the network what a conflict with every node costs."""
    ask(coloring, network)
    n, f, z, logs, most = len(coloring.colors), network.features, network.z, network.logs, np.int32(OLDEST)
    mean_moves = np.float32(np.log1p(coloring.totals[MOVES] / n))
    for v in range(n):
        free = np.uint32(coloring.without[v] - (coloring.conflicts[v] == 0))  # other than its own color
        one, conflicts = np.uint32(coloring.one[v]), np.uint32(coloring.conflicts[v])
        age, moves = np.uint32(min(most, np.int32(t) - memory.moved[v])), np.uint32(min(most, memory.moves[v]))
        f[0, v], f[1, v], f[2, v], f[3, v], f[4, v], f[5, v] = node_features(
            free > 0, logs[free], logs[one], logs[conflicts], logs[age], logs[moves], mean_moves
        )
    apply_layer(f, network.direct, network.outputs[OUTPUTS - 1], np.float32(1), False, z)
    for j in range(HIDDEN):
        apply_layer(f, network.by_node[j], network.outputs[NUM_CONTROLS + j], network.out[j], True, z)
    for v in range(n):
        network.weights[v] = np.int32(conflict_weight(z[v], network.move[0]))


@compiled
def apply_layer(f, by_feature, shift, out, is_hidden, total):
    """Add a hidden unit times `out` to total (N,), or set it to the direct part; f (F, N). Such loops are vectors."""
    f0, f1, f2, f3, f4, f5 = f[0], f[1], f[2], f[3], f[4], f[5]
    w0, w1, w2, w3, w4, w5 = by_feature[0], by_feature[1], by_feature[2], by_feature[3], by_feature[4], by_feature[5]
    if is_hidden:
        for i in range(len(total)):
            y = f0[i] * w0 + f1[i] * w1 + f2[i] * w2 + f3[i] * w3 + f4[i] * w4 + f5[i] * w5 + shift
            total[i] += (y if y > 0 else np.float32(0)) * out
    else:
        for i in range(len(total)):
            total[i] = f0[i] * w0 + f1[i] * w1 + f2[i] * w2 + f3[i] * w3 + f4[i] * w4 + f5[i] * w5 + shift


@compiled
def choose(coloring, memory, network, choice, t):
    """Find the best move of every active node; return the number of active nodes."""
    num_active = draw(coloring.conflicted, coloring.totals[CONFLICTED], choice, t)
    colors, crowding, closed, score = coloring.colors, choice.crowding, choice.closed, choice.score
    K, k, move, jitter = len(crowding), coloring.totals[COLORS], network.move, network.outputs[4]
    asked, now, never = t - t % rule.PERIOD, np.int32(t), np.float32(-np.inf)
    shift, colors_per_node = np.int32(turn_of(0, choice.seed, t)), np.float32(k) / np.float32(len(colors))
    for x in range(K):
        crowding[x] = crowding_of(np.float32(coloring.sizes[x]), colors_per_node)
        closed[x] = np.float32(0) if coloring.is_open[x] else never
    for a in range(num_active):
        v = choice.active[a]
        costs, until, here = choice.costs[v], memory.until[v], colors[v]
        random = choice.table[noise_row(later(choice.first_turns[v], shift))]
        if choice.summed[v] < asked:
            choice.summed[v] = t
            for x in range(K):
                costs[x] = 0
            for i in range(coloring.offsets[v], coloring.offsets[v + 1]):
                costs[colors[coloring.neighbours[i]]] += network.weights[coloring.neighbours[i]]
        cost_here = np.float32(costs[here]) / np.float32(rule.UNIT)
        if not coloring.is_open[here]:
            cost_here += np.float32(1) + move[0]
        for x in range(K):  # such loops become vectors
            value = score_of(crowding[x], random[x], np.float32(costs[x]) / np.float32(rule.UNIT), jitter, move[1])
            score[x] = value + closed[x] if until[x] < now else never
        score[here] = never
        top, target = largest(score), 0
        while score[target] != top:
            target += 1
        choice.target[a] = target
        choice.gain[a] = gain_of(cost_here, top, network.logs[min(OLDEST, t - memory.moved[v])], move[2])
    return num_active


@njit(**inner | {"fastmath": {"nnan", "nsz"}})
def largest(values):
    """The largest of numbers (K,), none of them NaN."""
    top = values[0]
    for x in range(1, len(values)):
        top = values[x] if values[x] > top else top
    return top


@compiled
def settle(offsets, neighbours, choice, num_active, margin):
    """Keep the best move and those about as good, except next to a node with a better one; return their number."""
    gain, movers, count, limit = choice.gain, choice.movers, 0, np.float32(-np.inf)
    for m in range(min(len(movers), num_active)):
        best = 0
        for a in range(num_active):
            if gain[a] > gain[best]:
                best = a
        if not gain[best] > limit:
            break
        if m == 0:
            limit = gain[best] - margin
        movers[m], gain[best] = best, -np.inf
        count += 1
    kept = 0
    for m in range(count):
        v, better = choice.active[movers[m]], 0
        while better < m and not are_adjacent(offsets, neighbours, v, choice.active[movers[better]]):
            better += 1
        if better == m:
            choice.kept[kept] = movers[m]
            kept += 1
    return kept


@compiled
def are_adjacent(offsets, neighbours, v, u):
    """Whether an edge joins two nodes."""
    low, high = offsets[v], offsets[v + 1]
    while low < high:
        middle = (low + high) // 2
        if neighbours[middle] < u:
            low = middle + 1
        else:
            high = middle
    return low < offsets[v + 1] and neighbours[low] == u


@compiled
def move(coloring, memory, network, choice, num_active, t):
    """Make those of the best moves of num_active active nodes that `settle` keeps."""
    colors, counts, without, one = coloring.colors, coloring.counts, coloring.without, coloring.one
    costs, summed, asked = choice.costs, choice.summed, t - t % rule.PERIOD
    outputs, num_conflicted = network.outputs, coloring.totals[CONFLICTED]
    for m in range(settle(coloring.offsets, coloring.neighbours, choice, num_active, outputs[3])):
        v, new = choice.active[choice.kept[m]], choice.target[choice.kept[m]]
        old = colors[v]
        random = choice.table[noise_row(turn_of(np.int64(v), choice.seed, t)), 0]
        tenure = tenure_of(outputs[0], outputs[1], outputs[2], np.float32(num_conflicted), random)
        memory.until[v, old] = t + min(np.floor(tenure), 1e9)
        memory.moved[v] = t
        memory.moves[v] += 1
        coloring.totals[MOVES] += 1
        coloring.sizes[old] -= 1
        coloring.sizes[new] += 1
        colors[v] = new
        add_conflicts(coloring, v, counts[new, v] - coloring.conflicts[v])
        is_open, leave, enter, weight = coloring.is_open[old], counts[old], counts[new], network.weights[v]
        for i in range(coloring.offsets[v], coloring.offsets[v + 1]):
            u = coloring.neighbours[i]
            left, entered = leave[u] - 1, enter[u]
            leave[u], enter[u] = left, entered + 1
            if summed[u] >= asked:
                costs[u, old] -= weight
                costs[u, new] += weight
            if left < 2 or entered < 2 or colors[u] == old or colors[u] == new:
                if is_open:
                    without[u] += left == 0
                    one[u] += np.int32(left == 1) - np.int32(left == 0)
                without[u] -= entered == 0
                one[u] += np.int32(entered == 0) - np.int32(entered == 1)
                if colors[u] == old:
                    add_conflicts(coloring, u, -1)
                elif colors[u] == new:
                    add_conflicts(coloring, u, 1)
