"""Color one graph properly, as well as the time allows."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gnn_training.coloring import greedy_along, num_colors, prove, write_solution
from gnn_training.data.sources import read
from gnn_training.errors import UserError
from gnn_training.graph import Graph
from gnn_training.model.session import Colorer
from gnn_training.settings import ColorSettings
from gnn_training.solve.anytime import improvements, one_call
from gnn_training.solve.baselines import clique_size, dsatur
from gnn_training.solve.local_search import local_search

logger = logging.getLogger(__name__)
DSATUR_SECONDS = 1e-5  # per node and per edge
GRACE = 60.0  # seconds that the first call may take beyond the budget; with more, the graph is none for the network


def color(settings: ColorSettings) -> Path:
    """Write the best coloring found as a DIMACS solution and return its path; Ctrl-C takes the best so far.

    A file named with `out` is replaced. Without `out` the solution stands beside the graph and never replaces one.

    Raises:
        UserError: the graph or the model cannot be read, or the solution has no place.
    """
    start = time.monotonic()
    out = _place(settings)
    colorer = Colorer(settings.model, settings.threads)
    found = read(settings.graph)
    if found.note:
        logger.warning(found.note)
    graph = found.graph
    lower = clique_size(graph)
    best = greedy_along(graph, np.argsort(-graph.degrees(), kind="stable"))
    try:
        for way, colors in _colorings(graph, best, colorer, settings, start + settings.seconds, lower):
            if num_colors(colors) < num_colors(best):
                best = colors
            logger.info("%s: %s colors it with %d", graph.name, way, num_colors(colors))
    except KeyboardInterrupt:
        logger.warning("%s: interrupted, taking the best coloring so far", graph.name)
    wrong, used = prove(graph.edges.tolist(), best.tolist())
    if wrong:
        raise RuntimeError(f"{graph.name}: the coloring is not proper, {wrong} edges clash")
    write_solution(out, best)
    seconds = time.monotonic() - start
    logger.info("%s: %d colors, at least %d needed, %.1f s, written to %s", graph.name, used, lower, seconds, out)
    return out


def _colorings(
    graph: Graph, best: np.ndarray, colorer: Colorer, settings: ColorSettings, deadline: float, lower: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Proper colorings with the name of what found them; the later, the dearer. `best` is the one to begin with."""
    expected = DSATUR_SECONDS * (graph.num_nodes + graph.num_edges)
    if expected <= max(1, settings.seconds):
        saturated = dsatur(graph)
        yield "DSATUR", saturated
        best = min(best, saturated, key=num_colors)
    else:
        logger.info("%s: DSATUR would take %.0f s and is left out", graph.name, expected)
    try:
        call = one_call(colorer, graph, max(0.0, deadline - time.monotonic()) + GRACE)
    except (MemoryError, TimeoutError) as error:
        logger.warning("%s: is too large for the network and colored without it: %s", graph.name, error)
        search = local_search(graph.csr(), best, deadline, lower, colorer.threads, settings.seed, settings.polish)
    else:
        yield "one call", call.colors
        seconds = deadline - time.monotonic()
        search = improvements(colorer, graph, call, seconds, lower, settings.seed, settings.polish)
    for colors in search:
        yield "the search", colors


def _place(settings: ColorSettings) -> Path:
    """Where the solution goes; told before any time is spent."""
    if not settings.graph.is_file():
        raise UserError(f"{settings.graph}: is no file; name the file of one graph")
    if settings.out is None:
        out = settings.graph.with_name(settings.graph.name.removesuffix(".gz")).with_suffix(".sol")
        if out.exists():
            raise UserError(f"{out}: is there already; name it with -o to replace it, or another file")
    else:
        out = settings.out
    if not out.parent.is_dir() or out.is_dir():
        raise UserError(f"{out}: is no place for a file; name one in a folder that exists")
    if out.resolve() == settings.graph.resolve():
        raise UserError(f"{out}: is the graph itself; name another file with -o")
    return out
