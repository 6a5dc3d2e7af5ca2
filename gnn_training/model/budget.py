"""Fewer colors for more time: call after call, asking for fewer colors than the best coloring has."""

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

logger = logging.getLogger(__name__)

LENGTHS = (1, 1, 2, 2, 4)  # of the calls, in steps of a plain call; the last goes on
SPREAD = 3  # calls ask by turns for 1, 2 and 3 colors below the best


@dataclass(frozen=True)
class PlainCall:
    """What a caller gets who knows three inputs only."""

    classes: np.ndarray
    """(N,) argmax of the scores, perhaps not proper."""
    colors: np.ndarray
    """(N,) int64 the proper coloring that a caller makes of it."""
    chromatic: float
    """Estimated number of colors needed."""
    seconds: float


def plain_call(colorer: Colorer, graph: Graph, seconds: float) -> PlainCall:
    """Make one three-input call and decode it.

    Raises:
        MemoryError: the graph is too large for the network on this machine.
        TimeoutError: it is so large that a call takes longer than `seconds`.
    """
    start = time.monotonic()
    prediction = colorer.predict([graph], seconds=seconds)
    logits = prediction.logits[0]
    colors = from_logits(graph, logits)
    return PlainCall(logits.argmax(1), colors, float(prediction.chromatic[0]), time.monotonic() - start)


def improvements(
    colorer: Colorer, graph: Graph, call: PlainCall, seconds: float, lower: int = 1, seed: int = 0
) -> Iterator[np.ndarray]:
    """Yield proper colorings (N,) with ever fewer colors than `call`'s, for `seconds` or until there are `lower`.

    Every call asks for fewer colors than the best coloring has, with a seed of its own; the calls grow longer. One
    that would end late is shortened, or left out if it were below a quarter of a plain call, and stopped if late.
    """
    deadline = time.monotonic() + seconds
    best = num_colors(call.colors)
    pace = call.seconds / colorer.steps
    for attempt in count():
        start = time.monotonic()
        steps = min(colorer.steps * LENGTHS[min(attempt, len(LENGTHS) - 1)], int((deadline - start) / pace))
        if best <= lower or 4 * steps < colorer.steps:
            return
        asked = min(MAX_COLORS, max(lower, best - 1 - attempt % SPREAD))
        try:
            prediction = colorer.predict([graph], [asked], seed + attempt, steps, deadline - start)
        except (TimeoutError, MemoryError) as error:
            logger.debug("%s: the search ends, %s", graph.name, error)
            return
        pace = (time.monotonic() - start) / steps
        colors = from_logits(graph, prediction.logits[0])
        if num_colors(colors) < best:
            best = num_colors(colors)
            yield colors
