"""The rule by which nodes change their color, written once.

`onnx_program.tensor_search` computes it on tensors, for many graphs at once; `search.search_kernel` on numbers, for
one graph. Both make the same moves, which a test checks. The functions are made of operators, so that torch broadcasts
and numba compiles them. A new feature of what is counted already is a name and a line here, and a line in each search.
"""

import math

import numpy as np

ACTIVE, MOVERS = 16, 4  # nodes in conflict that a round looks at, and that may move,
NODES_PER_ACTIVE, NODES_PER_MOVER = 64, 256  # and one more for every so many nodes of a large graph
PERIOD = 4  # rounds from one question to the network to the next; its answers hold until then
UNIT = 1024  # parts of 1: weights of conflicts are whole numbers of such parts, so that any order gives the same sums
NOT_MOVED = 20  # age of a node before its first move
NONE_FOUND = 1e6  # fewest conflicts of a search that has met no coloring with conflicts since it saved a color
NODE_FEATURES = ("has_free", "free", "one", "conflicts", "age", "moves")
GRAPH_FEATURES = ("nodes", "colors", "density", "conflicted", "colors_per_node")
CONTROLS = ("tenure", "per_conflicted", "spread", "margin", "jitter")
HIDDEN = 8
OUTPUTS = len(CONTROLS) + HIDDEN + 1  # of the part that reads the graph: controls, shifts of the hidden units, a level
# Shapes of the weights of the network, in the order in which one vector holds them. `move` weighs plain conflicts, the
# size of the new class, and the rounds since the last move.
SHAPES = {
    "by_graph": (OUTPUTS, len(GRAPH_FEATURES)), "by_graph_bias": (OUTPUTS,), "by_node": (HIDDEN, len(NODE_FEATURES)),
    "out": (HIDDEN,), "direct": (len(NODE_FEATURES),), "move": (3,),
}  # fmt: skip
NUM_WEIGHTS = sum(math.prod(shape) for shape in SHAPES.values())
# Controls before training, as in Galinier and Hao 1999: a color that a node has left is forbidden for 1 round, .6 per
# node in conflict, and up to 10 at random. Nodes move whose gain is within .05 of the best; noise up to .1 breaks ties.
FIRST_CONTROLS = (1.0, 0.6, 10.0, 0.05, 0.1)

PRIME = 2_147_483_629  # below 2^31, so that squares of residues fit into int64
NOISE_ROWS = 4093  # of the table of random numbers; a prime, so that the strides reach every row
TURNS = 1_048_573  # a prime above the number of nodes, so that no two nodes of a graph have the same turn
NODE_STRIDE, ROUND_STRIDE = 648_071, 50_461  # between the turns of two nodes, and of two rounds


def untrained() -> np.ndarray:
    """Weights (NUM_WEIGHTS,) float32 with which every conflict weighs 1, so that a round is one of TabuCol."""
    weights, start = np.zeros(NUM_WEIGHTS, np.float32), math.prod(SHAPES["by_graph"])
    weights[start : start + len(CONTROLS)] = np.log(FIRST_CONTROLS)
    return weights


def node_features(has_free, free, one, conflicts, age, moves, mean_moves):
    """Features of a node. has_free: 1 if another open color has no conflict; free, one: logarithms of the numbers of
    such colors, and of open colors with one conflict; conflicts, age, moves: logarithms of its conflicts, of the rounds
    since it has moved, of its moves. All logarithms are of 1 + x.
    """
    return has_free, free, one, conflicts, age / 4, moves - mean_moves


def graph_features(nodes, colors, density, conflicted):
    """Features of a search: the density; logarithms of the nodes, the open colors and 1 + the nodes in conflict."""
    return nodes / 3 - 2, colors / 2 - 1.5, density - 0.5, conflicted / 2 - 1, colors - nodes + 2.3


def conflict_weight(z, plain):
    """What a conflict costs, in parts of UNIT: between 0 and 2 units, from the output z of the network, and what all
    conflicts cost. Without its fraction, the result is rounded.
    """
    return UNIT * (1 + z / (1 + abs(z)) + plain) + 0.5


def crowding(size, colors_per_node):
    """How much larger a color class is than the mean one."""
    return size * colors_per_node - 1


def score(crowding, random, cost, jitter, weight):
    """What a color is worth to a node: the cost of its conflicts, the size of the class, and noise against ties."""
    return weight * crowding + jitter * random - cost


def gain(cost, score, age, weight):
    """What the best move of a node is worth. cost: of its present conflicts; score: of the best color."""
    return cost + score + weight * age


def tenure(fixed, per_conflicted, spread, num_conflicted, random):
    """Rounds for which a node may not return to a color."""
    return fixed + per_conflicted * num_conflicted + spread * random


def turn(node, seed, round):
    """Order of the nodes in conflict, if there are more than a round looks at: the largest first."""
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
