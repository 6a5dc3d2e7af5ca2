"""A fingerprint by which copies of a graph are found, whatever the order of its nodes."""

import hashlib

import numpy as np

from gnn_training.graph import Graph


def fingerprint(graph: Graph) -> int:
    """64 bits that do not depend on the order of the nodes. Above 2,000 nodes, only equal edge lists agree. Color
    refinement (Weisfeiler and Leman 1968) over all pairs of nodes; a pair is marked by adjacency and the number of
    common neighbours. Unlike plain refinement it tells regular graphs apart, except strongly regular ones.
    """
    if graph.num_nodes > 2_000:  # N x N costs too much
        content = np.int64(graph.num_nodes).tobytes() + graph.edges.tobytes()
    else:
        adjacency = graph.adjacency().astype(np.float32)
        marks = (adjacency @ adjacency * 2 + adjacency).astype(np.int32)
        pairs = _mix(np.arange(marks.max() + 1, dtype=np.uint64))[marks]
        colors = _mix(graph.degrees().astype(np.uint64))
        for _ in range(3):
            colors = _mix(colors + pairs @ colors)  # a sum does not depend on the order
        content = np.array([graph.num_nodes, graph.num_edges]).tobytes() + np.sort(colors).tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _mix(x: np.ndarray) -> np.ndarray:
    """Scatter 64-bit words: the finalizer of splitmix64 (Steele and others 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
