"""Make packed graphs: generate them by a recipe, or import graphs of your own."""

import hashlib
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from gnn_training.contract import GRAPH_TYPES, SHIPPED_MODEL
from gnn_training.data import sources
from gnn_training.data.families import RECIPES, Draw, draws
from gnn_training.data.labels import Plan, finished, label_all
from gnn_training.data.packed import PackedGraphs
from gnn_training.errors import StorageError, UserError
from gnn_training.files import lock_folder
from gnn_training.graph import UNNAMED_FAMILY, Instance
from gnn_training.model.session import Model
from gnn_training.settings import GenerateSettings, ImportSettings

log = logging.getLogger(__name__)
LONG_SEARCHES = 1000  # at most, for imported graphs; each takes a few seconds


def generate(settings: GenerateSettings) -> PackedGraphs:
    """Draw and label the graphs of a recipe into `settings.out`. Nothing happens if they are already there."""
    recipe = RECIPES[settings.recipe]
    graphs = list(draws(recipe, settings.seed, settings.graphs))
    origin = {"recipe": settings.recipe, "graphs": len(graphs), "iterations": recipe.iterations}
    origin |= settings.model_dump(include={"seed", "label_seconds"})
    unused = {family: count(number) for family, number in Counter(draw.family for draw in graphs).items()}

    def redraw(copies: list[Draw]) -> list[Draw]:
        return [replace(copy, index=next(unused[copy.family])) for copy in copies]

    with lock_folder(settings.out):
        if there := finished(settings.out, origin):
            return there
        families, seconds = tuple(recipe.counts), settings.label_seconds
        every = recipe.long_search_every
        plan = Plan(families, recipe.iterations, seconds, settings.seed, origin, False, _rule(), every)
        return label_all(graphs, settings.out, plan, settings.workers, redraw)


def _rule() -> tuple[float, ...]:
    """Weights of the trained rule in the shipped file."""
    return tuple(Model(SHIPPED_MODEL, 1).rule.tolist())


@dataclass(frozen=True)
class GraphFile:
    """A file with one graph, before it is read."""

    path: Path

    def load(self) -> Instance:
        """Read the graph; UserError if the file is bad."""
        return sources.read(self.path)


def import_graphs(settings: ImportSettings) -> PackedGraphs:
    """Read, label, split and pack all graphs of `settings.sources`. Nothing happens if that is already done."""
    paths, iterations = sources.find(settings.sources), RECIPES["full"].iterations
    origin = {"sources": [str(path.resolve()) for path in settings.sources], "files": len(paths)}
    origin |= {"state": _state(paths), "iterations": iterations}
    origin |= settings.model_dump(include={"seed", "label_seconds"})
    families, unpacked = (*GRAPH_TYPES, UNNAMED_FAMILY), settings.out / ".unpacked"
    with lock_folder(settings.out):
        if there := finished(settings.out, origin):
            return there
        every = -(-len(paths) // LONG_SEARCHES)
        plan = Plan(
            families, iterations, settings.label_seconds, settings.seed, origin, settings.skip_bad, _rule(), every
        )
        shutil.rmtree(unpacked, ignore_errors=True)  # left by a kill
        try:
            graph_files = [GraphFile(path) for path in _unpack_archives(paths, unpacked, settings.skip_bad)]
            graphs = label_all(graph_files, settings.out, plan, settings.workers)
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)
    lost = len(graph_files) - len(graphs)
    log.info("%s: %d graphs from %d files, %d bad or copies", settings.out, len(graphs), len(graph_files), lost)
    return graphs


def _state(paths: Iterable[Path]) -> str:
    """A digest that changes when a file is added, removed, renamed or written to."""
    stats = ((path, path.stat() if os.path.exists(path) else None) for path in paths)
    stamps = [f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}" if stat else str(path) for path, stat in stats]
    return hashlib.sha256("\n".join(stamps).encode(errors="surrogateescape")).hexdigest()


def _unpack_archives(paths: Iterable[Path], folder: Path, skip_bad: bool) -> Iterator[Path]:
    """The paths, with the graph files of an archive in the place of the archive."""
    for number, path in enumerate(paths):
        try:
            yield from sources.unpack(path, folder / f"{number}-{path.name}") if sources.is_archive(path) else [path]
        except UserError as error:
            if not skip_bad or isinstance(error, StorageError):
                raise
            log.warning("left out: %s", error)
