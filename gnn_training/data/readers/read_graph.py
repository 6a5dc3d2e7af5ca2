"""What every reader returns."""

from dataclasses import dataclass

import numpy as np

from gnn_training.errors import UserError
from gnn_training.graph import Graph

MAX_NODES = 1_000_000  # a header that claims more is a lie or nothing we could color


@dataclass(frozen=True)
class ReadGraph:
    """A graph and what its file claims about it. The claims are in range, but nobody has proved them.

    note is one sentence for the owner of the file about a fault that does no harm.
    """

    graph: Graph
    coloring: np.ndarray | None = None  # (N,) int64 within 0..N-1, perhaps not proper
    num_colors: int | None = None
    graph_type: int | None = None  # position in contract.GRAPH_TYPES
    difficulty: float | None = None  # 0 easy to 100 hard
    note: str = ""


def checked_size(num_nodes: int) -> int:
    """Return `num_nodes` if a graph can have so many.

    Raises:
        UserError: fewer than one, or more than MAX_NODES.
    """
    if num_nodes < 1:
        raise UserError(f"the graph has {num_nodes} nodes; it needs at least one")
    if num_nodes > MAX_NODES:
        raise UserError(f"the graph has {num_nodes} nodes; at most {MAX_NODES} are read")
    return num_nodes
