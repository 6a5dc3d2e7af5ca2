"""The rule by which nodes change their color, written once.

`onnx_program.tensor_search` computes the rule on tensors, for many graphs; `search.search_kernel` on numbers, for one.
A test checks that both make the same moves. The functions consist of operators, so that torch can broadcast them and
numba can compile them. A new feature of existing counts needs a name and a line here, and a line in each search.
"""

import math

import numpy as np

ACTIVE, MOVERS = 16, 4  # most nodes in conflict that a round examines, and that it moves, in a small graph
NODES_PER_ACTIVE, NODES_PER_MOVER = 64, 256  # in a large graph, one node in so many is examined, or moved
PERIOD = 4  # rounds for which an answer of the network holds; then it is asked again
UNIT = 1024  # weights of conflicts are multiples of 1 / UNIT, stored as integers, so that any order gives the same sums
NOT_MOVED = 20  # age of every node in rounds when a search begins
NONE_FOUND = 1e6  # value of the fewest conflicts while no coloring with conflicts has come after the last color saved
NODE_FEATURES = ("has_free", "free", "one", "conflicts", "age", "moves")
GRAPH_FEATURES = ("nodes", "colors", "density", "conflicted", "colors_per_node")
CONTROLS = ("tenure", "per_conflicted", "spread", "margin", "jitter")
HIDDEN = 8
OUTPUTS = len(CONTROLS) + HIDDEN + 1  # of the layer on GRAPH_FEATURES: controls, shifts of the hidden units, a level
# Shapes of the weights of the network, in the order in which one vector holds them. `move` weighs plain conflicts, the
# size of the new class, and the rounds since the last move.
SHAPES = {
    "by_graph": (OUTPUTS, len(GRAPH_FEATURES)), "by_graph_bias": (OUTPUTS,), "by_node": (HIDDEN, len(NODE_FEATURES)),
    "out": (HIDDEN,), "direct": (len(NODE_FEATURES),), "move": (3,),
}  # fmt: skip
NUM_WEIGHTS = sum(math.prod(shape) for shape in SHAPES.values())
# Controls before training. A node may not return to a color for 1 round, plus .6 per node in conflict, plus up to 10 at
# random (Galinier and Hao 1999). Nodes whose gain is within .05 of the best may move; noise up to .1 breaks ties.
FIRST_CONTROLS = (1.0, 0.6, 10.0, 0.05, 0.1)

PRIME = 2_147_483_629  # below 2^31, so that squares of residues fit into int64
NOISE_ROWS = 4093  # rows of the table of random numbers; a prime, so that the strides reach every row
TURNS = 1_048_573  # a prime above the number of nodes, so that no two nodes of a graph have the same turn
NODE_STRIDE, ROUND_STRIDE = 648_071, 50_461  # difference between the turns of consecutive nodes, and rounds


def untrained() -> np.ndarray:
    """Weights (NUM_WEIGHTS,) float32 with which every conflict weighs 1, so a round is a round of TabuCol."""
    weights, start = np.zeros(NUM_WEIGHTS, np.float32), math.prod(SHAPES["by_graph"])
    weights[start : start + len(CONTROLS)] = np.log(FIRST_CONTROLS)
    return weights


def node_features(has_free, free, one, conflicts, age, moves, mean_moves):
    """Features of a node. has_free: 1 if another open color has no conflict. All others are logarithms of 1 + a number.
    free: other open colors without a conflict; one: open colors with one conflict; conflicts: conflicts of the node;
    age: rounds since its last move; moves: its moves; mean_moves: mean of the moves of all nodes.
    """
    return has_free, free, one, conflicts, age / 4, moves - mean_moves


def graph_features(nodes, colors, density, conflicted):
    """Features of a search. density: of the graph; others: logarithms of nodes, open colors, 1 + nodes in conflict."""
    return nodes / 3 - 2, colors / 2 - 1.5, density - 0.5, conflicted / 2 - 1, colors - nodes + 2.3


def conflict_weight(z, plain):
    """Cost of a conflict with a node, times UNIT: `plain`, which is the same for all conflicts, plus 0 to 2, growing
    with the output z of the network. The caller rounds the result by dropping its fraction.
    """
    return UNIT * (1 + z / (1 + abs(z)) + plain) + 0.5


def crowding(size, colors_per_node):
    """Relative difference between the size of a color class and the mean size."""
    return size * colors_per_node - 1


def score(crowding, random, cost, jitter, weight):
    """Value of a color for a node: weighted crowding, plus noise against ties, minus the cost of its conflicts."""
    return weight * crowding + jitter * random - cost


def gain(cost, score, age, weight):
    """Value of the best move of a node. cost: of its conflicts; score: of its best other color; age: a logarithm."""
    return cost + score + weight * age


def tenure(fixed, per_conflicted, spread, num_conflicted, random):
    """Rounds for which a node may not return to a color."""
    return fixed + per_conflicted * num_conflicted + spread * random


def turn(node, seed, round):
    """Turn of a node. If more nodes are in conflict than a round examines, those with the largest turns are taken."""
    return (NODE_STRIDE * node + seed + ROUND_STRIDE * round) % TURNS


def noise_row(turn):
    """Row of the table of random numbers for a node with this turn."""
    return turn % NOISE_ROWS


def noise(row, column):
    """Random integers below PRIME. Each of four rounds multiplies and squares in the integers mod PRIME, which mixes
    all bits. All runtimes agree on `*`, `+` and `%` of int64.
    """
    x = (row * 69_621 + 1) % PRIME
    x = (x * x + column * 40_014 + 12_345) % PRIME
    for _ in range(3):
        x = (x * (x + 1_000_003) + 7) % PRIME
    return x
