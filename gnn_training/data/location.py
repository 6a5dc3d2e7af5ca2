"""Where a whole job finds its graphs: in the named place, in training_data, or by a recipe that generates them."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from gnn_training.data.packed import is_packed
from gnn_training.data.sources import files_in, tables_in, walk
from gnn_training.errors import UserError
from gnn_training.settings import RecipeName, RunSettings

HOME = Path("training_data")  # searched when no data is named; generated graphs go below it
ARCHIVES = [Path(f"{HOME}{ending}") for ending in (".tar.gz", ".tgz", ".tar")]  # archives of HOME, beside it
GENERATED = re.compile(rf"({'|'.join(get_args(RecipeName))})-\d+")  # generated folders in HOME: recipe and seed


@dataclass(frozen=True)
class DataLocation:
    """Folder of the packed graphs, what fills it if it is empty (files to import, or a recipe), and a description."""

    graphs: Path
    description: str
    imported: Path | None = None
    generated: bool = False


def locate(settings: RunSettings) -> DataLocation:
    """Find the data of the whole job: what was named, else what is in training_data or in an archive of it, else graphs
    to generate. UserError if it is not clear which, a folder cannot be read, or outputs would go among imported graphs.
    """
    named = settings.data
    choices = _in_home() if named is None else {named: "packed" if is_packed(named) else "to import"}
    if len(choices) > 1:
        listed = " and in ".join(f"{path} ({content})" for path, content in choices.items())
        raise UserError(f"graphs are in {listed}: name one with --data")
    if not choices:
        from gnn_training.data.families import RECIPES  # networkx takes half a second to import

        graphs, number = HOME / f"{settings.recipe}-{settings.seed}", RECIPES[settings.recipe].num_graphs
        new = f"none in {HOME}, so {number:,} of recipe {settings.recipe} are generated; name yours with --data"
        return DataLocation(graphs, f"{graphs}, generated before" if is_packed(graphs) else new, generated=True)
    [(path, content)] = choices.items()
    unread = [str(archive) for archive in ARCHIVES if named is None and path != archive and os.path.isfile(archive)]
    description = f"{path} ({content})" + (f"; not read: {' and '.join(unread)} beside it" if unread else "")
    if is_packed(path):
        return DataLocation(path, description)
    for folder in (settings.run, settings.models):
        if Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(path)):
            raise UserError(f"{folder} is inside {path}, whose graphs are imported; name another --run and --models")
    return DataLocation(settings.run / "data", description, imported=path)


def _in_home() -> dict[Path, str]:
    """The places with graphs of the user where a job without --data looks, and what each place has."""
    if is_packed(HOME):
        return {HOME: "packed"}
    tree = list(walk(HOME)) if os.path.isdir(HOME) else []
    folders = (Path(parent, name) for parent, names, _ in tree for name in names)
    user_folders = (folder for folder in folders if not GENERATED.fullmatch(str(folder.relative_to(HOME))))
    choices = {folder: "packed" for folder in user_folders if is_packed(folder)}
    if count := sum(1 for _ in files_in(tree)):
        choices[HOME] = f"{count:,} {'files' if count > 1 else 'file'} to import"
    choices = choices or {archive: "to import" for archive in ARCHIVES if os.path.isfile(archive)}
    tables = tables_in(HOME) if tree else []
    if tables and not choices:
        several = f"several with `coloring-gnn import {tables[0].parent}/*{tables[0].suffix}`"
        raise UserError(f"{tables[0]}: is this a graph? Name it with --data, {several}, or move it out of {HOME}")
    return choices


def output_folders(settings: RunSettings, source: DataLocation) -> list[Path]:
    """The folders that the whole job writes to, each once."""
    filled = [source.graphs] if source.generated or source.imported else []
    return list(dict.fromkeys([*filled, settings.run, settings.models]))
