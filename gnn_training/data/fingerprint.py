"""A number per graph that isomorphic graphs share, to find copies."""

import hashlib

import numpy as np

from gnn_training.graph import Graph

_ROUNDS = 3
_DENSE_NODES = 2_000


def fingerprint(graph: Graph) -> int:
    """64 bits that do not depend on the order of the nodes.

    Color refinement (Weisfeiler and Leman 1968) over all pairs of nodes, a pair being marked by adjacency and its
    number of common neighbours. That tells regular graphs apart, which plain refinement does not; only strongly
    regular ones still agree. Above 2,000 nodes, where n x n costs too much, only equal edge lists agree.
    """
    if graph.num_nodes > _DENSE_NODES:
        return _digest(np.int64(graph.num_nodes), graph.edges)
    adjacency = graph.adjacency().astype(np.float32)
    marks = (adjacency @ adjacency * 2 + adjacency).astype(np.int32)
    pairs = _mix(np.arange(marks.max() + 1, dtype=np.uint64))[marks]
    colors = _mix(graph.degrees().astype(np.uint64))
    for _ in range(_ROUNDS):
        colors = _mix(colors + pairs @ colors)  # a sum over pairs forgets their order
    return _digest(np.int64(graph.num_nodes), np.int64(graph.num_edges), np.sort(colors))


def _mix(x: np.ndarray) -> np.ndarray:
    """Scatter 64-bit words: the finalizer of splitmix64 (Steele and others 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _digest(*arrays: np.ndarray) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays:
        digest.update(array.tobytes())
    return int.from_bytes(digest.digest(), "little")
