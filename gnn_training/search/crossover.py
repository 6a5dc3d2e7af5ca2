"""Crossover of two colorings, in which a message passing network gives every node a value.

Greedy partition crossover (Galinier and Hao 1999) takes the classes of a child from its two parents in turn: each time
the class with the most nodes that are not in the child yet. Here, it is the class in which these nodes have the
largest sum of values. The network sends messages from the nodes to their classes in both colorings, and back.
`network/crossover_network.py` is the same network in torch, which self-play trains. An exported file has the weights
in its metadata.

Letters in shapes: N nodes, K colors, F features, D width; the two colorings are 0 and 1.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gnn_training.graph import NeighbourLists
from gnn_training.network.crossover_weights import CrossoverWeights, F
from gnn_training.search.compiled import njit

GENERATION = 5_000  # moves of TabuCol on a child
LOG_GENERATION = math.log1p(GENERATION)


class Individual(NamedTuple):
    """A coloring of a generation."""

    conflicts: int
    colors: np.ndarray  # (N,) int32, 0 to k - 1
    ages: np.ndarray  # (N,) int32, moves of TabuCol since a node took its color


def stacked(parents: Sequence[Individual]) -> tuple[np.ndarray, np.ndarray]:
    """Colors and ages (2, N) of two parents."""
    return np.stack([parent.colors for parent in parents]), np.stack([parent.ages for parent in parents])


def children(
    lists: NeighbourLists,
    parents: Sequence[Individual],
    k: int,
    weights: CrossoverWeights,
    by_network: Sequence[bool] = (True, True),
) -> list[np.ndarray]:
    """The two children (N,) int32 of two parents; nodes without a color have -1. by_network: for each child, whether
    the network gives the values; otherwise every value is 1.
    """
    colors, ages = stacked(parents)
    (first, second), no_noise, ones = colors, np.zeros((1, k)), np.ones(colors.shape, dtype=np.float32)
    values = node_values(features_of(*lists, colors, ages, k), colors, k, weights) if any(by_network) else ones
    of_first, of_second = (values if each else ones for each in by_network)
    return [
        crossover(first, second, of_first, k, no_noise),
        crossover(second, first, of_second[::-1].copy(), k, no_noise),
    ]


@njit(cache=True, nogil=True)
def crossover(first, second, values, k, noise):
    """Return a child (N,) int32 of two colorings (N,) int32 with the colors 0..k-1. Classes of the first and the second
    take turns: each time, the class whose nodes outside the child have the largest sum of values (2, N) becomes a class
    of the child. Nodes that are left have -1. noise (k, k): added to the sums of the classes, one row for each choice;
    a single row (1, k) is used for all choices.
    """
    n, child = len(first), np.full(len(first), -1, dtype=np.int32)
    left, class_values = np.zeros((2, k), dtype=np.int64), np.zeros((2, k))
    for v in range(n):
        left[0, first[v]] += 1
        left[1, second[v]] += 1
        class_values[0, first[v]] += values[0, v]
        class_values[1, second[v]] += values[1, v]
    for c in range(k):
        p, best, most = c % 2, -1, 0.0
        for x in range(k):
            value = class_values[p, x] + noise[c % len(noise), x]
            if left[p, x] > 0 and (best < 0 or value > most):
                best, most = x, value
        parent = first if p == 0 else second
        for v in range(n):
            if child[v] < 0 and parent[v] == best:
                child[v] = c
                left[0, first[v]] -= 1
                left[1, second[v]] -= 1
                class_values[0, first[v]] -= values[0, v]
                class_values[1, second[v]] -= values[1, v]
    return child


@njit(cache=True, nogil=True)
def features_of(offsets, neighbours, parents, ages, k):
    """The features (N, 2, F) float32 of the nodes of two colorings (2, N) int32, in the order of FEATURES. ages (2, N)
    int32: moves of TabuCol since a node took its color.
    """
    n, mean, square = parents.shape[1], len(neighbours) / parents.shape[1], 0.0
    x, counts = np.zeros((n, 2, F), dtype=np.float32), np.zeros(k, dtype=np.int32)  # a node's neighbours by color
    sizes, both = np.zeros((2, k), dtype=np.int64), np.zeros((k, k), dtype=np.int64)
    for v in range(n):
        square += (offsets[v + 1] - offsets[v] - mean) ** 2
        both[parents[0, v], parents[1, v]] += 1
        sizes[0, parents[0, v]] += 1
        sizes[1, parents[1, v]] += 1
    deviation = math.sqrt(max(square / n, 1e-6))
    for p in range(2):
        colors, takes, largest = parents[p], np.zeros(k, dtype=np.int64), np.zeros(k, dtype=np.int64)
        for c in range(k):
            for other in range(k):
                largest[c] = max(largest[c], both[c, other] if p == 0 else both[other, c])
        for v in range(n):
            for c in range(k):
                counts[c] = 0
            for i in range(offsets[v], offsets[v + 1]):
                counts[colors[neighbours[i]]] += 1
            free = 0
            for c in range(k):
                if counts[c] == 0 and c != colors[v]:
                    takes[c] += 1
                    free += 1
            x[v, p, 0] = counts[colors[v]]
            x[v, p, 6] = math.log1p(free)
        for v in range(n):
            c = colors[v]
            x[v, p, 1] = largest[c] / sizes[p, c]
            x[v, p, 2] = both[parents[0, v], parents[1, v]] / sizes[p, c]
            x[v, p, 3] = (offsets[v + 1] - offsets[v] - mean) / deviation
            x[v, p, 4] = math.log1p(takes[c])
            x[v, p, 5] = math.log1p(ages[p, v]) / LOG_GENERATION
            x[v, p, 7] = math.log(sizes[p, c] * k / n + 0.1)
            x[v, p, 8] = mean / n - 0.5
            x[v, p, 9] = math.log(n / k) - 1.5
    return x


@njit(cache=True, nogil=True)
def node_values(x, parents, k, weights):
    """The network's values (2, N) float32 of the nodes of two colorings (2, N) int32. x: their features,
    see `features_of`.
    """
    n, d_end, layers = len(x), weights.first.shape[1], weights.layers
    h, e = np.zeros((n, 2, d_end), dtype=np.float32), np.zeros((n, 2, d_end), dtype=np.float32)
    sizes = np.zeros((2, k), dtype=np.float32)
    for v in range(n):
        for p in range(2):
            sizes[p, parents[p, v]] += 1
            h[v, p] = weights.first_bias
            add_product(x[v, p], weights.first, h[v, p])
    for i in range(len(layers)):
        layer, bias = layers[i], weights.layer_biases[i]
        # sums[p, q]: the vectors of the nodes in coloring p, summed over each class of coloring q.
        sums, messages = np.zeros((2, 2, k, d_end), dtype=np.float32), np.zeros((2, 2, k, d_end), dtype=np.float32)
        for v in range(n):
            for p in range(2):
                for d in range(d_end):
                    e[v, p, d] = max(h[v, p, d], np.float32(0))
                for q in range(2):
                    for d in range(d_end):
                        sums[p, q, parents[q, v], d] += e[v, p, d]
        for p in range(2):
            for q in range(2):
                for c in range(k):
                    for d in range(d_end):
                        sums[p, q, c, d] /= max(sizes[q, c], np.float32(1))
                    add_product(sums[p, q, c], layer[1 if p == q else 3], messages[p, q, c])
        for v in range(n):
            for p in range(2):
                for d in range(d_end):
                    h[v, p, d] += bias[d] + messages[p, 0, parents[0, v], d] + messages[p, 1, parents[1, v], d]
                add_product(e[v, p], layer[0], h[v, p])
                add_product(e[v, 1 - p], layer[2], h[v, p])
    values = np.ones((2, n), dtype=np.float32)
    for v in range(n):
        for p in range(2):
            for d in range(d_end):
                values[p, v] += max(h[v, p, d], np.float32(0)) * weights.out[d]
            for i in range(F):
                values[p, v] += x[v, p, i] * weights.direct[i]
    return values


@njit(cache=True, nogil=True)
def add_product(x, matrix, total):
    """Add the product of a vector (I,) and a matrix (I, D) to total (D,)."""
    for i in range(len(x)):
        for d in range(matrix.shape[1]):
            total[d] += x[i] * matrix[i, d]
