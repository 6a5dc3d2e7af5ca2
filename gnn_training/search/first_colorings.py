"""The first steps of a search: a greedy coloring, independent sets, a clique, all in compiled loops with a deadline."""

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

CLIQUE_STARTS = 1000  # number of nodes from which cliques grow: all nodes of most graphs; it takes milliseconds
FIRST_SECONDS = 0.06  # least time of each of the first steps, such as DSATUR, even after the deadline
FIRST_SET_MOVES = 100  # moves of the search for each independent set of a first coloring, as in the exported file
FEWEST_MOVES, MOST_MOVES = 4, 1024  # limits of these moves in a search with a deadline: powers of two
SPARSEST = 0.02  # lowest density at which a search with a deadline begins with independent sets
VISIT_SECONDS = 1e-8  # time of a core for one visit in the search for an independent set
SIGNAL_SECONDS = 0.2  # time between two checks for a signal, which may come while other graphs are colored


def seeded(*numbers: int) -> np.ndarray:
    """The state (1,) uint64 of a random generator for the kernels, seeded with numbers."""
    return np.random.default_rng(numbers).integers(1, 2**63, size=1, dtype=np.uint64)


def run_until(deadline: float, kernel: Callable[..., Any], *arguments: Any) -> Any:
    """Run a compiled loop and return its result. Its last argument is `stop`, which is set at the deadline, a time of
    time.monotonic(). The loop runs in a thread of its own, because a signal would wait for it in this one.
    """
    stop = np.zeros(1, dtype=np.uint8)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(kernel, *arguments, stop)
        try:
            while not interrupts and (left := deadline - time.monotonic()) > 0 and not future.done():
                wait([future], min(left, SIGNAL_SECONDS))  # a signal reaches the main thread only
        finally:
            stop[0] = 1  # also on Ctrl-C, because the pool waits for its thread
        return future.result()


def clique_size(lists: NeighbourLists, deadline: float = math.inf) -> int:
    """Size of a clique, grown greedily from the nodes of highest degree: no coloring has fewer colors."""
    by_degree = np.argsort(-np.diff(lists.offsets), kind="stable")
    return int(run_first(kernels.greedy_clique, deadline, *lists, by_degree[:CLIQUE_STARTS]))


def first_coloring(lists: NeighbourLists, dsatur: np.ndarray | None = None) -> np.ndarray:
    """Return a greedy coloring (N,) int16 as the exported file does: by DSATUR or, in dense graphs, by independent sets
    if they need fewer colors. dsatur (N,): the coloring by DSATUR, if it is known.
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
    """The number of moves for each independent set, if all sets are to take about `seconds`; 0 if sets are not worth
    it. num_colors: of a known coloring. The search for a set visits all nodes three times, and the neighbours of one
    node in every move. The result is a power of two, so that the same seed and time mostly give the same coloring.
    """
    n = lists.num_nodes
    visits = seconds / (VISIT_SECONDS * num_colors)  # visits for each set
    moves = int(min(MOST_MOVES, (visits - 3 * n) / max(1, len(lists.neighbours) / n)))
    return 1 << moves.bit_length() - 1 if moves >= FEWEST_MOVES and density(lists) >= SPARSEST else 0


def set_coloring(offsets: np.ndarray, neighbours: np.ndarray, seed: int, moves: int, stop: np.ndarray) -> np.ndarray:
    """Color the nodes by large independent sets, one after the other, with `moves` moves for each. Return colors (N,)
    int32; nodes that are left when `stop` is set have -1.
    """
    degree = np.diff(offsets)
    colors, rng = np.full(len(degree), -1, dtype=np.int32), seeded(seed, len(degree))
    while not stop[0] and colors.min() < 0:
        kernels.color_independent_set(offsets, neighbours, colors, degree, moves, rng, stop)
    return colors


def completed(lists: NeighbourLists, colors: np.ndarray) -> np.ndarray:
    """Complete a coloring (N,) int32, in which nodes have -1 if the time was over before they got a color."""
    if colors.min() < 0:
        colors = kernels.first_fit(*lists, np.argsort(np.where(colors < 0, len(colors), colors), kind="stable"))
    return colors


def run_first(kernel: Any, deadline: float, *arguments: Any) -> Any:
    """Run one of the first steps by `run_until`, for FIRST_SECONDS at least, and return its result."""
    return run_until(max(deadline, time.monotonic() + FIRST_SECONDS), kernel, *arguments)
