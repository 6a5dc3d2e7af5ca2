"""What is known of a graph before the search for a label, and after."""

from dataclasses import dataclass

import numpy as np

from gnn_training.contract import UNKNOWN_TYPE
from gnn_training.graph import Graph


@dataclass(frozen=True)
class Instance:
    """A graph with what its generator or its owner knows about it.

    coloring (N,) a proper coloring with colors from 0, if one is known; optimal says that no coloring has fewer
    colors. graph_type is a position in contract.GRAPH_TYPES. note is one sentence for the person who started the job,
    such as why a coloring of theirs was not taken.
    """

    graph: Graph
    coloring: np.ndarray | None = None
    optimal: bool = False
    family: str = "imported"
    graph_type: int = UNKNOWN_TYPE
    note: str = ""


@dataclass(frozen=True)
class Label:
    """The best coloring found and how good it is; docs/DATA.md defines every number.

    coloring (N,) int16, colors 0..num_colors-1; lower_bound <= chromatic number <= num_colors <= dsatur_colors unless
    DSATUR is luckier; optimal: num_colors is proven to be the chromatic number; difficulty 0 easy to 100 hard.
    """

    coloring: np.ndarray
    num_colors: int
    lower_bound: int
    dsatur_colors: int
    optimal: bool
    difficulty: float
