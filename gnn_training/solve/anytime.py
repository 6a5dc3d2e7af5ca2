"""Fewer colors for more time: calls of the network, iterated greedy on what they give, and TabuCol if asked for."""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from gnn_training.coloring import from_logits, num_colors
from gnn_training.contract import MAX_COLORS
from gnn_training.graph import Graph
from gnn_training.model.session import Colorer
from gnn_training.solve.local_search import Lists, SetSearch, iterated_greedy, local_search

logger = logging.getLogger(__name__)
LENGTHS = (1, 1, 2, 2, 4)  # of the calls, in steps of a plain call; the last goes on
SPREAD = 3  # calls ask by turns for 1, 2 and 3 colors below the best
PASSES = 20_000  # of iterated greedy on the coloring of a call,
SHARE = 0.5  # for at most this part of the time that the call took: large graphs


@dataclass(frozen=True)
class OneCall:
    """What a caller gets who knows three inputs only."""

    classes: np.ndarray
    """(N,) argmax of the scores, perhaps not proper."""
    colors: np.ndarray
    """(N,) int64 the proper coloring that a caller makes of it."""
    chromatic: float
    """Estimated number of colors needed."""
    seconds: float


def one_call(colorer: Colorer, graph: Graph, seconds: float) -> OneCall:
    """Make one three-input call and decode it.

    Raises:
        MemoryError: the graph is too large for the network on this machine.
        TimeoutError: it is so large that a call takes longer than `seconds`.
    """
    start = time.monotonic()
    prediction = colorer.predict([graph], seconds=seconds)
    logits = prediction.logits[0]
    colors = from_logits(graph, logits)
    return OneCall(logits.argmax(1), colors, float(prediction.chromatic[0]), time.monotonic() - start)


def improvements(
    colorer: Colorer, graph: Graph, call: OneCall, seconds: float, lower: int = 1, seed: int = 0, polish: bool = False
) -> Iterator[np.ndarray]:
    """Yield proper colorings (N,) with ever fewer colors than `call`'s, for `seconds` or until there are `lower`.

    Further calls ask for fewer colors than the best coloring has, between them colorings are made of large independent
    sets, and iterated greedy improves both. With `polish` there are no calls: after such sets TabuCol has the time, in
    as many threads as the colorer has. The clock decides when it ends, how many sets there are, how many passes
    iterated greedy makes on large graphs, and which thread of TabuCol is first.
    """
    deadline = time.monotonic() + seconds
    lists = graph.csr()
    best = call.colors
    if not polish:
        for best in _calls(colorer, graph, lists, call, deadline, lower, seed):
            yield best
    yield from local_search(lists, best, deadline, lower, colorer.threads, seed, polish)


def _calls(
    colorer: Colorer, graph: Graph, lists: Lists, call: OneCall, deadline: float, lower: int, seed: int
) -> Iterator[np.ndarray]:
    """Improve the call's coloring, then make calls with seeds of their own, longer ones later, while there is time.

    Between two calls independent sets have their turn. A call that would end late is shortened, or left out if it were
    below a quarter of a plain call, and stopped if late.
    """
    found, spent, steps, used = call.colors, call.seconds, colorer.steps, num_colors(call.colors)
    sets = SetSearch(lists, seed, colorer.threads)
    for attempt in count():
        of_sets = sets.turn(min(time.monotonic() + spent, deadline)) if used > lower else None
        for colors in (found, of_sets):
            if colors is None:
                continue
            seconds = min(SHARE * spent, deadline - time.monotonic())
            colors = iterated_greedy(lists, colors, lower, PASSES, seconds, seed + attempt)
            if num_colors(colors) < used:
                used = num_colors(colors)
                yield colors
        start = time.monotonic()
        in_time = int((deadline - start) * steps / spent)
        steps = min(colorer.steps * LENGTHS[min(attempt, len(LENGTHS) - 1)], in_time)
        if used <= lower or 4 * steps < colorer.steps:
            return
        asked = min(MAX_COLORS, max(lower, used - 1 - attempt % SPREAD))
        try:
            prediction = colorer.predict([graph], [asked], seed + attempt, steps, deadline - start)
        except (TimeoutError, MemoryError) as error:
            logger.debug("%s: the calls end, %s", graph.name, error)
            return
        spent = time.monotonic() - start
        found = from_logits(graph, prediction.logits[0])
