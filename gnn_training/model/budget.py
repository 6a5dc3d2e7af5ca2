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

CELLS = 40_000  # node-color pairs per call: below that a round costs about the same whatever the batch
MAX_COPIES = 16
MIN_STEPS, MAX_STEPS = 32, 512
SPREAD = 3  # copies of a graph ask for 1, 2 and 3 colors below the best


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


def plain_call(colorer: Colorer, graph: Graph) -> PlainCall:
    """Make one three-input call and decode it.

    Raises:
        MemoryError: the graph is too large for the network on this machine.
    """
    start = time.monotonic()
    prediction = colorer.predict([graph])
    logits = prediction.logits[0]
    colors = from_logits(graph, logits)
    return PlainCall(logits.argmax(1), colors, float(prediction.chromatic[0]), time.monotonic() - start)


def improvements(
    colorer: Colorer, graph: Graph, colors: np.ndarray, seconds: float, pace: float, lower: int = 1, seed: int = 0
) -> Iterator[np.ndarray]:
    """Yield proper colorings (N,) with ever fewer colors than `colors`, until `seconds` are over or `lower` is reached.

    Every call is a batch of copies of the graph, which differ in seed and in the number of colors asked for; calls
    grow longer as they go. A call that would end late is shortened, and stopped if it still is late.

    pace: seconds per step that a call with one copy took.
    """
    deadline = time.monotonic() + seconds
    best = num_colors(colors)
    for attempt in count():
        start = time.monotonic()
        copies = max(1, min(MAX_COPIES, CELLS // (graph.num_nodes * best)))
        steps = min(colorer.steps * 2 ** (attempt // 2), MAX_STEPS, int((deadline - start) / (pace * copies)))
        if best <= lower or steps < MIN_STEPS:
            return
        asked = [min(MAX_COLORS, max(lower, best - 1 - copy % SPREAD)) for copy in range(copies)]
        try:
            prediction = colorer.predict([graph] * copies, asked, seed + attempt, steps, deadline - start)
        except (TimeoutError, MemoryError) as error:
            logger.debug("%s: the search ends, %s", graph.name, error or "time is up")
            return
        fewest = min((from_logits(graph, logits) for logits in prediction.logits), key=num_colors)
        pace = (time.monotonic() - start) / (steps * copies)
        if num_colors(fewest) < best:
            best = num_colors(fewest)
            yield fewest
