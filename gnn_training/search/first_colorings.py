"""What a search begins with: a greedy coloring, independent sets, a clique. Compiled loops that end in time."""

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from gnn_training.contract import SETS_MAX_NODES, SETS_MIN_DENSITY
from gnn_training.graph import NeighbourLists
from gnn_training.processes import interrupts
from gnn_training.search import kernels

CLIQUE_STARTS = 1000  # all nodes of most graphs; takes milliseconds
FIRST_SECONDS = 0.06  # for cliques, and for DSATUR, even if there is no time
FIRST_SET_MOVES = 100  # of the search for each independent set of a first coloring, as in the exported file
FEWEST_MOVES, MOST_MOVES = 4, 1024  # the same in a search with a deadline: powers of two
SPARSEST = 0.02  # density from which such a search begins with independent sets
VISIT_SECONDS = 1e-8  # of a core, in this search
SIGNAL_SECONDS = 0.2  # between two looks whether a signal has come, while other graphs are colored


def seeded(*numbers: int) -> np.ndarray:
    """State (1,) uint64 of a random generator for the kernels."""
    return np.random.default_rng(numbers).integers(1, 2**63, size=1, dtype=np.uint64)


def run_until(deadline: float, kernel: Callable[..., Any], *arguments: Any) -> Any:
    """What a compiled loop returns, whose last argument is `stop`: that is set at the deadline of time.monotonic(). The
    loop runs in its own thread, because a signal would wait for it in this one.
    """
    stop = np.zeros(1, dtype=np.uint8)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(kernel, *arguments, stop)
        try:
            while not interrupts and (left := deadline - time.monotonic()) > 0 and not future.done():
                wait([future], min(left, SIGNAL_SECONDS))  # a signal reaches the main thread only
        finally:
            stop[0] = 1  # on Ctrl-C, too: the pool waits for its thread
        return future.result()


def clique_size(lists: NeighbourLists, deadline: float = math.inf) -> int:
    """Size of a clique, grown greedily from the nodes of highest degree: no coloring has fewer colors."""
    by_degree = np.argsort(-np.diff(lists.offsets), kind="stable")
    return int(run_first(kernels.greedy_clique, deadline, *lists, by_degree[:CLIQUE_STARTS]))


def first_coloring(lists: NeighbourLists, dsatur: np.ndarray | None = None) -> np.ndarray:
    """A greedy coloring (N,) int16 like that of the exported file: by DSATUR or, in dense graphs, independent sets.
    dsatur (N,): the former, if it is known.
    """
    colors = kernels.dsatur(*lists) if dsatur is None else dsatur
    if density(lists) >= SETS_MIN_DENSITY and len(colors) <= SETS_MAX_NODES:
        colors = min(colors, set_coloring(*lists, 0, FIRST_SET_MOVES, kernels.NEVER_STOP), key=np.max)
    return colors.astype(np.int16)


def density(lists: NeighbourLists) -> float:
    """Share of all pairs of nodes that are edges."""
    n = lists.num_nodes
    return len(lists.neighbours) / max(1, n * (n - 1))


def set_moves(lists: NeighbourLists, num_colors: int, seconds: float) -> int:
    """Moves for each independent set, so that all sets take about so many seconds; 0 if they are not worth their time.
    num_colors: of a coloring. For a set, all nodes are looked at three times, and the neighbours of one in every move.
    A power of two, so that the same seed and time mostly give the same.
    """
    n = lists.num_nodes
    visits = seconds / (VISIT_SECONDS * num_colors)  # for every set
    moves = int(min(MOST_MOVES, (visits - 3 * n) / max(1, len(lists.neighbours) / n)))
    return 1 << moves.bit_length() - 1 if moves >= FEWEST_MOVES and density(lists) >= SPARSEST else 0


def set_coloring(offsets: np.ndarray, neighbours: np.ndarray, seed: int, moves: int, stop: np.ndarray) -> np.ndarray:
    """Color the nodes with large independent sets, one after the other, each searched with so many moves: (N,) int32,
    -1 for what `stop` leaves.
    """
    degree = np.diff(offsets)
    colors, rng = np.full(len(degree), -1, dtype=np.int32), seeded(seed, len(degree))
    while not stop[0] and colors.min() < 0:
        kernels.color_independent_set(offsets, neighbours, colors, degree, moves, rng, stop)
    return colors


def completed(lists: NeighbourLists, colors: np.ndarray) -> np.ndarray:
    """A coloring (N,) int32 with colors also for the nodes that have none, -1, because the time was over."""
    if colors.min() < 0:
        colors = kernels.first_fit(*lists, np.argsort(np.where(colors < 0, len(colors), colors), kind="stable"))
    return colors


def run_first(kernel: Any, deadline: float, *arguments: Any) -> Any:
    """Run a loop that a search begins with by `run_until`, for FIRST_SECONDS at least, and return its result."""
    return run_until(max(deadline, time.monotonic() + FIRST_SECONDS), kernel, *arguments)
