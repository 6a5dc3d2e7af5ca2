"""Where graphs come from: files of any known format, folders and tar archives of them, and the data of a whole job."""

import gzip
import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePath, PurePosixPath
from shutil import copyfileobj
from typing import NoReturn

import numpy as np

from gnn_training.coloring import conflicts
from gnn_training.data import formats
from gnn_training.data.packed import MANIFEST_FILE
from gnn_training.errors import UserError
from gnn_training.files import reason
from gnn_training.graph import Instance
from gnn_training.settings import RunSettings

PARSERS = {".json": formats.parse_prism_json, ".col": formats.parse_dimacs, ".graphml": formats.parse_graphml}
PARSERS |= dict.fromkeys((".edgelist", ".edges", ".txt"), formats.parse_edge_list)
KNOWN = f"{', '.join(PARSERS)} and .gz of them"
HOME = Path("training_data")  # searched when no data is named; generated graphs go below it


def read(path: Path) -> Instance:
    """Read the graph of one file, named after it. UserError is "FILE: line N: ..." or "FILE: ..."."""
    try:
        content = path.read_bytes()
        return parse(str(path), gzip.decompress(content) if path.suffix.lower() == ".gz" else content)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path}: the compressed file is damaged ({error}); fetch or pack it again") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({reason(error)}); allow it or leave the file out") from error


def parse(file: str, content: bytes) -> Instance:
    """Read the graph in the uncompressed bytes of a file. A coloring that is not proper becomes a note."""
    if suffix(file) not in PARSERS:
        raise UserError(f"{file}: is not a known kind of graph file; known are {KNOWN}")
    try:
        instance = PARSERS[suffix(file)](content)
    except UserError as error:
        raise UserError(f"{file}: {error}") from error
    graph, colors, note = instance.graph, instance.coloring, instance.note
    if colors is not None:
        wrong = conflicts(graph, colors)
        note = f"its coloring is not proper (conflicts: {wrong}) and is not used" if wrong else note
        colors = None if wrong else np.unique(colors, return_inverse=True)[1]  # without gaps
    name = PurePath(PurePath(file).name.removesuffix(".gz")).stem.encode(errors="replace").decode()
    return replace(instance, graph=replace(graph, name=name), coloring=colors, note=f"{file}: {note}" if note else "")


def suffix(file: str) -> str:
    """The suffix that tells the format: the last one before any .gz, in lower case."""
    return PurePath(file.lower().removesuffix(".gz")).suffix


def find(sources: Iterable[Path]) -> list[Path]:
    """List the files named in `sources`, and the graph files and archives in its folders, in the order of names.
    UserError if nothing is found.
    """
    found: dict[str, Path] = {}
    for source in sources:
        if not os.path.exists(source):
            raise UserError(f"{source}: no such file or folder; name one that you may read")
        for path in _in_folder(source) if os.path.isdir(source) else [source]:
            found.setdefault(os.path.realpath(path), path)
    if not found:
        raise UserError(f"{', '.join(map(str, sources))}: no graph files here; known are {KNOWN}, and .tar.gz")
    return list(found.values())


def is_archive(path: PurePath) -> bool:
    """Whether the name of a file is that of a tar archive."""
    return path.name.lower().endswith((".tar", ".tar.gz", ".tgz"))


def unpack(archive: Path, folder: Path) -> list[Path]:
    """Unpack the graph files of an archive, and nothing else, into a new folder, never outside of it. List them."""
    try:
        folder.mkdir(parents=True)
        with tarfile.open(archive) as members:
            for member in members:
                inside = [part for part in PurePosixPath(member.name).parts if part not in ("/", "..")]
                content = members.extractfile(member) if member.isfile() else None
                if content and inside and _listed(inside[-1]):
                    path = folder.joinpath(*inside)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with open(path, "wb") as file:
                        copyfileobj(content, file)
    except (tarfile.TarError, zlib.error, EOFError, ValueError) as error:
        raise UserError(f"{archive}: is damaged or not a tar archive; fetch or pack it again") from error
    except OSError as error:
        raise UserError(f"{archive}: cannot be unpacked to {folder} ({reason(error)}); make room") from error
    return find([folder])


def _listed(name: str) -> bool:
    """Whether a file found in a folder or an archive is taken as a graph. The generator adds metadata.json."""
    known = PARSERS.keys() - {".txt"}  # usually a readme
    return not name.startswith(".") and name != "metadata.json" and suffix(name) in known


def _in_folder(folder: Path) -> Iterator[Path]:
    def unreadable(error: OSError) -> NoReturn:
        raise UserError(f"{error.filename}: the folder cannot be read ({reason(error)}); allow it") from error

    for parent, folders, names in os.walk(folder, onerror=unreadable):
        folders.sort()
        yield from (Path(parent, name) for name in sorted(names) if _listed(name) or is_archive(PurePath(name)))


@dataclass(frozen=True)
class DataLocation:
    """Folder of the packed graphs, and what fills it if it is empty: files to import, or a recipe."""

    graphs: Path
    imported: Path | None = None
    generated: bool = False


def locate(settings: RunSettings) -> DataLocation:
    """Find the data of the whole job: what was named, else what is in training_data, else generated graphs."""
    archives = sorted(HOME.glob("*.tar.gz"))
    if settings.data:
        named = settings.data
    elif (HOME / MANIFEST_FILE).exists():
        named = HOME
    elif any((HOME / "graphs").glob("*.json")):
        named = HOME / "graphs"
    elif not archives:
        return DataLocation(HOME / f"{settings.recipe}-{settings.seed}", generated=True)
    elif len(archives) > 1:
        raise UserError(f"{HOME} has {archives[0].name}, {archives[1].name} and perhaps more: name one with --data")
    else:
        named = archives[0]
    packed = (named / MANIFEST_FILE).exists()
    return DataLocation(named) if packed else DataLocation(settings.run / "data", imported=named)


def written(settings: RunSettings) -> list[Path]:
    """The folders that the whole job writes to, each once."""
    data = locate(settings)
    filled = [data.graphs] if data.generated or data.imported else []
    return list(dict.fromkeys([*filled, settings.run, settings.models]))
