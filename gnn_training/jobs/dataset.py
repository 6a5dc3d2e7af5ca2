"""Generate labelled training graphs."""
# DOC Bring graphs of your own into packed form.

import hashlib
import logging
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np

from gnn_training import coloring
from gnn_training.contract import GRAPH_TYPES, UNKNOWN_TYPE
from gnn_training.data import packed, sources
from gnn_training.data.dataset import Plan, finished, label_all
from gnn_training.data.labels import Instance
from gnn_training.data.packed import PackedGraphs
from gnn_training.data.recipes import RECIPES, Draw, draws
from gnn_training.errors import UserError
from gnn_training.settings import GenerateSettings, ImportSettings


def generate(settings: GenerateSettings) -> PackedGraphs:
    """Draw and label the graphs of a recipe into `settings.out`; nothing to do if they are already there.

    Raises:
        UserError: the folder holds other graphs, cannot be written, or is being filled.
    """
    recipe = RECIPES[settings.recipe]
    graphs = list(draws(recipe, settings.seed, settings.graphs))
    origin = {"recipe": settings.recipe, "graphs": len(graphs), "iterations": recipe.iterations}
    origin |= settings.model_dump(include={"seed", "label_seconds"})
    if (there := finished(settings.out, origin)) is not None:
        return there
    unused = {family: count(number) for family, number in Counter(draw.family for draw in graphs).items()}

    def redraw(copies: list[Draw]) -> list[Draw]:
        return [replace(copy, index=next(unused[copy.family])) for copy in copies]

    plan = Plan(tuple(recipe.counts), recipe.iterations, settings.label_seconds, settings.seed, origin)
    return label_all(graphs, settings.out, plan, settings.workers, redraw)


log = logging.getLogger(__name__)
UNNAMED = "imported"  # the family of graphs whose file does not say of what type they are
_UNPACKED = ".unpacked"


@dataclass(frozen=True)
class GraphFile:
    """A file that holds one graph, not read yet."""

    path: Path

    def load(self) -> Instance:
        """Read it. A coloring in the file is kept if it is proper, and otherwise mentioned in the note.

        Raises:
            UserError: the file is no good.
        """
        read = sources.read(self.path)
        notes, colors = [read.note], read.coloring
        if colors is not None and not coloring.is_proper(read.graph, colors):
            clashes = coloring.conflicts(read.graph, colors)
            notes.append(f"{self.path}: its coloring is not proper, {clashes} edges clash; a new one takes its place")
            colors = None
        return Instance(
            read.graph,
            coloring=None if colors is None else np.unique(colors, return_inverse=True)[1],
            family=UNNAMED if read.graph_type is None else GRAPH_TYPES[read.graph_type],
            graph_type=UNKNOWN_TYPE if read.graph_type is None else read.graph_type,
            note="; ".join(filter(None, notes)),
        )


def import_graphs(settings: ImportSettings) -> PackedGraphs:
    """Read, label and pack all graphs of `settings.sources`; nothing to do if that has been done.

    Any division into training and validation files is given up: all graphs are split anew, without copies.

    Raises:
        UserError: a bad file, unless they are skipped; no good one at all; the folder holds other graphs.
    """
    files = sources.find(settings.sources)
    iterations = RECIPES["full"].iterations
    origin = {"sources": [str(path.resolve()) for path in settings.sources], "files": len(files)}
    origin |= {"state": _state(files), "iterations": iterations}
    origin |= settings.model_dump(include={"seed", "label_seconds"})
    manifest = packed.read_manifest(settings.out)
    if manifest is not None and manifest["origin"] == origin:
        log.info("%s: already holds the %d graphs of these files", settings.out, manifest["graphs"])
        return PackedGraphs.open(settings.out)
    if manifest is not None:
        raise UserError(f"{settings.out}: holds graphs of other files or settings; name another --out or remove it")
    families = (*GRAPH_TYPES, UNNAMED)
    plan = Plan(families, iterations, settings.label_seconds, settings.seed, origin, settings.skip_bad)
    with _unpacked(files, settings.out / _UNPACKED, settings.skip_bad) as single:
        graphs = label_all([GraphFile(path) for path in single], settings.out, plan, settings.workers)
    lost = len(single) - len(graphs)
    log.info("%s: %d graphs from %d files, %d bad or copies", settings.out, len(graphs), len(single), lost)
    return graphs


def _state(files: Iterable[Path]) -> str:
    """Changes when a file is added, removed, renamed or written to."""
    return hashlib.sha256("\n".join(map(_stamp, files)).encode(errors="surrogateescape")).hexdigest()


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:  # reading it says why
        return str(path)
    return f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"


@contextmanager
def _unpacked(files: list[Path], folder: Path, skip_bad: bool) -> Iterator[list[Path]]:
    """The files with those of archives instead of the archives; what was unpacked is removed in the end."""
    single = []
    shutil.rmtree(folder, ignore_errors=True)
    try:
        for number, path in enumerate(files):
            try:
                archive = sources.is_archive(path)
                single += sources.unpack(path, folder / f"{number}-{path.name}") if archive else [path]
            except UserError as error:
                if not skip_bad:
                    raise
                log.warning("left out: %s", error)
        yield single
    finally:
        shutil.rmtree(folder, ignore_errors=True)
