"""Fewer colors for more time: DSATUR, one call of the network, then calls and search until a deadline."""

import logging
import time
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import numpy as np

from gnn_training.coloring import from_logits, greedy_along, is_proper, num_colors
from gnn_training.graph import Graph
from gnn_training.model.session import Model
from gnn_training.solve import kernels
from gnn_training.solve.local_search import Budget, local_search

logger = logging.getLogger(__name__)
DSATUR_SECONDS = 2e-9  # for every pair of nodes
GRACE_SECONDS = 60.0  # that the first call may take beyond the deadline; a graph that needs more is too large
CALL_LENGTH, SHORTEST_CALL = 4, 0.25  # of the calls after the first, in the steps of the first


class OneCall(NamedTuple):
    """What a caller gets who gives the three required inputs only."""

    classes: np.ndarray  # (N,) argmax of the logits, perhaps not proper
    colors: np.ndarray  # (N,) int64, the proper coloring that a caller makes of it
    chromatic: float  # estimated number of colors needed
    seconds: float


class Coloring(NamedTuple):
    """A proper coloring, and the method that found it: DSATUR, greedy, one call or search."""

    method: str
    colors: np.ndarray  # (N,) int64, 0 to num_colors - 1
    num_colors: int


def colorings(graph: Graph, model: Model, budget: Budget, polish: bool = True) -> Iterator[Coloring]:
    """Yield proper colorings, not always better ones, until the deadline or until one has `budget.lower` colors. The
    first call of the network may take GRACE_SECONDS more.
    """
    for method, colors in _methods(graph, model, budget, polish):
        if not is_proper(graph, colors):
            raise RuntimeError(f"{graph.name}: the coloring by {method} is not proper")
        color_ids, colors = np.unique(colors, return_inverse=True)  # TabuCol may leave a gap
        yield Coloring(method, colors, len(color_ids))
        if len(color_ids) <= budget.lower:
            return


def _methods(graph: Graph, model: Model, budget: Budget, polish: bool) -> Iterator[tuple[str, np.ndarray]]:
    lists = graph.csr()
    left, expected = budget.deadline - time.monotonic(), DSATUR_SECONDS * graph.num_nodes**2
    if expected <= max(1, left):
        best = kernels.dsatur(*lists)
        yield "DSATUR", best
    else:
        logger.info("%s: DSATUR would take %.0f s and is left out", graph.name, expected)
        best = greedy_along(graph, np.argsort(-graph.degrees(), kind="stable"))
        yield "greedy", best
    try:
        call = one_call(model, graph, max(0.0, budget.deadline - time.monotonic()) + GRACE_SECONDS)
    except (MemoryError, TimeoutError) as error:
        logger.warning("%s: is too large for the network and colored without it: %s", graph.name, error)
        search = local_search(lists, best, budget)
    else:
        yield "one call", call.colors
        best = min(call.colors, best, key=num_colors)
        search = improvements(model, graph, call._replace(colors=best), budget, polish)
    for colors in search:
        yield "search", colors


def one_call(model: Model, graph: Graph, seconds: float) -> OneCall:
    """Make one three-input call and decode it. Raises MemoryError or TimeoutError as `Model.predict` does."""
    start = time.monotonic()
    prediction = model.predict(graph, seconds=seconds)
    logits = prediction.logits[0]
    colors = from_logits(graph, logits)
    return OneCall(logits.argmax(1), colors, float(prediction.chromatic[0]), time.monotonic() - start)


def improvements(model: Model, graph: Graph, call: OneCall, budget: Budget, polish: bool) -> Iterator[np.ndarray]:
    """Yield proper colorings (N,) with ever fewer colors than the call's, within the budget: with `polish` those of
    `local_search`, without it those of longer calls with other seeds.
    """
    if polish:
        yield from local_search(graph.csr(), call.colors, budget)
        return
    used, steps, spent = num_colors(call.colors), model.steps, call.seconds
    for seed in count(budget.seed + 1):
        left = budget.deadline - time.monotonic()
        steps = min(CALL_LENGTH * model.steps, int(left * steps / spent))
        if used <= budget.lower or steps < SHORTEST_CALL * model.steps:
            return
        start = time.monotonic()
        try:
            prediction = model.predict(graph, seed=seed, steps=steps, seconds=left)
        except (TimeoutError, MemoryError) as error:
            logger.debug("%s: the calls end, %s", graph.name, error)
            return
        spent = time.monotonic() - start
        colors = from_logits(graph, prediction.logits[0])
        if num_colors(colors) < used:
            used = num_colors(colors)
            yield colors
