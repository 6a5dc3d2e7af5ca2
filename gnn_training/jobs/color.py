"""Color one graph properly, as well as the time allows."""

import logging
import os
import time
from pathlib import Path, PurePath

from gnn_training import files
from gnn_training.coloring import write_solution
from gnn_training.data.sources import read
from gnn_training.errors import UserError
from gnn_training.model.session import Model
from gnn_training.settings import ColorSettings
from gnn_training.solve.portfolio import Budget, Coloring, clique_size, colorings, compile_all

logger = logging.getLogger(__name__)


def color(settings: ColorSettings) -> Path:
    """Write the best coloring found as a DIMACS solution and return its path; Ctrl-C takes the best so far. Without
    `out` the solution stands beside the graph and replaces nothing. Raises UserError if the graph or the model cannot
    be read, the solution or the picture has no place, or the graph is too large for a picture.
    """
    if not os.path.isfile(settings.graph):
        raise UserError(f"{settings.graph} is not a file: name the file of one graph")
    out = settings.out or _beside(settings.graph)
    files.require_places([out, *filter(None, [settings.picture])], [settings.graph, Path(settings.model)])
    compile_all()
    model = Model(settings.model, settings.threads)
    start = time.monotonic()
    instance = read(settings.graph)
    if instance.note:
        logger.warning(instance.note)
    graph = instance.graph
    if settings.picture:
        from gnn_training.solve.picture import draw, require_drawable  # part of [train]

        require_drawable(graph)
    deadline = start + settings.seconds
    clique = clique_size(graph.csr(), deadline)
    budget = Budget(deadline, clique, model.threads, settings.seed)
    best: Coloring | None = None
    try:
        for best in colorings(graph, model.rule, budget, clique):
            logger.info("%s: %d colors (%s)", graph.name, best.num_colors, best.method)
    except KeyboardInterrupt:
        if best is None:
            raise
        logger.warning("%s: interrupted, taking the best coloring so far", graph.name)
    assert best is not None, "colorings yields one at least"
    write_solution(out, best.colors)
    found = f"{best.num_colors} colors by {best.method}, at least {clique} needed"
    logger.info("%s: %s, %.1f s, written to %s", graph.name, found, time.monotonic() - start, out)
    if settings.picture:
        with files.replace_file(settings.picture) as temporary:
            draw(graph, best.colors, best.method).savefig(temporary, format=settings.picture.suffix[1:], dpi=150)
        logger.info("%s: drawn in %s", graph.name, settings.picture)
    return out


def _beside(graph: Path) -> Path:
    """The solution file beside a graph; it must not exist yet."""
    out = graph.parent / f"{PurePath(graph.name.removesuffix('.gz')).stem}.sol"
    if os.path.lexists(out):
        raise UserError(f"{out} exists already: name it with -o to replace it, or name another file")
    return out
