"""Make packed graphs: generate them by a recipe, or import graphs of your own."""

import hashlib
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from gnn_training.contract import GRAPH_TYPES, SHIPPED_MODEL
from gnn_training.data import sources
from gnn_training.data.families import RECIPES, GraphSpec, graph_specs
from gnn_training.data.labelling import PARTS, LabelPlan, label_all
from gnn_training.data.packed import PackedGraphs
from gnn_training.errors import StorageError, UserError
from gnn_training.graph import UNNAMED_FAMILY
from gnn_training.network.crossover_weights import to_text
from gnn_training.onnx_program.session import Model
from gnn_training.search.gpu_workers import chosen_gpus
from gnn_training.settings import GenerateSettings, ImportSettings, LabelSettings

log = logging.getLogger(__name__)
LONG_SEARCHES = 50  # most long searches for imported graphs; each takes a second or more


def generate(settings: GenerateSettings) -> PackedGraphs:
    """Draw and label the graphs of a recipe into `settings.out`. Nothing happens if they are already there."""
    recipe = RECIPES[settings.recipe]
    graphs = list(graph_specs(recipe, settings.seed, settings.graphs))
    unused = {family: count(number) for family, number in Counter(draw.family for draw in graphs).items()}

    def redraw(duplicates: list[GraphSpec]) -> list[GraphSpec]:
        return [replace(copy, index=next(unused[copy.family])) for copy in duplicates]

    origin = {"recipe": settings.recipe, "graphs": len(graphs)}
    plan = _plan(settings, origin, tuple(recipe.counts), recipe.moves, long_search_every=recipe.long_search_every)
    return label_all(graphs, settings.out, plan, settings.workers, redraw, chosen_gpus(settings.gpus))


def import_graphs(settings: ImportSettings) -> PackedGraphs:
    """Read, label, split and pack all graphs of `settings.sources`. Nothing happens if that is already done."""
    paths = sources.find(settings.sources)
    folders = filter(os.path.isdir, settings.sources)
    if tables := [path for folder in folders for path in sources.tables_in(folder) if path not in paths]:
        log.info("not read: %d tables, such as %s; %s", len(tables), tables[0], sources.BY_NAME)
    origin: dict = {"sources": [str(path.resolve()) for path in settings.sources]}
    origin |= {"files": len(paths), "state": _state(paths)}
    plan = _plan(
        settings, origin, (*GRAPH_TYPES, UNNAMED_FAMILY), RECIPES["full"].moves, skip_bad=settings.skip_bad,
        max_long_searches=LONG_SEARCHES,
    )  # fmt: skip
    graph_files = _unpack_archives(paths, settings.out / PARTS / "unpacked", settings.skip_bad)
    return label_all(graph_files, settings.out, plan, settings.workers, gpus=chosen_gpus(settings.gpus))


def _plan(settings: LabelSettings, origin: dict, families: tuple[str, ...], moves: int, **others: Any) -> LabelPlan:
    """Return the plan of the labels, with the trained weights of the shipped file. others: of LabelPlan."""
    origin |= {"iterations": moves} | settings.model_dump(include={"seed", "label_seconds"})
    if settings.gpus != "none":  # GPUs give other labels
        origin |= {"gpus": settings.gpus}
    model = Model(SHIPPED_MODEL, 1)
    return LabelPlan(
        families=families, moves=moves, seconds=settings.label_seconds, seed=settings.seed, origin=origin,
        rule=tuple(model.rule.tolist()), crossover=to_text(model.crossover), **others,
    )  # fmt: skip


def _state(paths: Iterable[Path]) -> str:
    """A digest that changes when a file is added, removed, renamed or written to."""
    stats = ((path, path.stat() if os.path.exists(path) else None) for path in paths)
    stamps = [f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}" if stat else str(path) for path, stat in stats]
    return hashlib.sha256("\n".join(stamps).encode(errors="surrogateescape")).hexdigest()


def _unpack_archives(paths: Iterable[Path], folder: Path, skip_bad: bool) -> Iterator[Path]:
    """Yield the paths, with the graph files of an archive in the place of the archive."""
    shutil.rmtree(folder, ignore_errors=True)  # left by a kill
    for number, path in enumerate(paths):
        try:
            yield from sources.unpack(path, folder / f"{number}-{path.name}") if sources.is_archive(path) else [path]
        except UserError as error:
            if not skip_bad or isinstance(error, StorageError):
                raise
            log.warning("left out: %s", error)
