"""Where graphs come from: files of any known format, folders and tar archives of them, and the data of a whole job."""

import gzip
import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from reprlib import repr as brief
from typing import BinaryIO, NoReturn, cast

import numpy as np

from gnn_training.data.formats import FORMATS
from gnn_training.data.packed import GRAPHS_FILE, MANIFEST_FILE, is_packed
from gnn_training.errors import StorageError, UserError
from gnn_training.files import DISK_ERRORS, damaged, read_bytes, reason
from gnn_training.graph import Instance, conflicts
from gnn_training.settings import RunSettings

SUFFIXES = f"{', '.join(FORMATS)} and .gz of them"
HOME = Path("training_data")  # searched when no data is named; generated graphs go below it


def read(path: Path) -> Instance:
    """Read the graph of one file, named after it. UserError is "FILE: line N: ..." or "FILE: ..."."""
    limit, way_out = _limit(path), "allow it or leave the file out"
    content = read_bytes(path, limit, way_out)
    if path.suffix.lower() == ".gz":
        with damaged(path, "fetch or pack it again"):
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(limit + 1)
        if len(content) > limit:
            raise UserError(f"{path}: unpacks to more than {limit / 1e6:g} MB, which is too large to read; {way_out}")
    return parse(str(path), content)


def parse(file: str, content: bytes) -> Instance:
    """Read the graph in the uncompressed bytes of a file. A coloring that is not proper becomes a note."""
    _limit(file)
    try:
        instance = FORMATS[suffix(file)].parse(content)
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
    return PurePath(PurePath(file).name.lower().removesuffix(".gz")).suffix


def _limit(file: Path | str) -> int:
    """How many bytes of a graph file are read; UserError if it has no known suffix."""
    if suffix(str(file)) not in FORMATS:
        raise UserError(f"{file}: is not a known kind of graph file; known are {SUFFIXES}")
    return FORMATS[suffix(str(file))].limit


def find(sources: Iterable[Path]) -> list[Path]:
    """List the files named in `sources`, and the graph files and archives in its folders, in the order of names.
    UserError if nothing is found.
    """
    paths: dict[str, Path] = {}  # by their place without links
    for source in sources:
        if not os.path.exists(source):
            raise UserError(f"{source}: no such file or folder; name one that you may read")
        for path in _in_folder(source) if os.path.isdir(source) else [source]:
            paths.setdefault(os.path.realpath(path), path)
    if not paths:
        raise UserError(f"{', '.join(map(str, sources))}: no graph files here; known are {SUFFIXES}, and .tar.gz")
    return list(paths.values())


def is_archive(path: PurePath) -> bool:
    """Whether the name of a file is that of a tar archive."""
    return path.name.lower().endswith((".tar", ".tar.gz", ".tgz"))


def unpack(archive: Path, folder: Path) -> list[Path]:
    """Unpack the graph files of an archive, and nothing else, into a new folder, never outside of it. List them.
    UserError if the archive is damaged, StorageError if it has no room.
    """
    with damaged(archive, "fetch it again or pack it as a tar archive"):
        try:
            folder.mkdir(parents=True)
            with open(archive, "rb") as file:
                _unpack(file, folder)
        except gzip.BadGzipFile:  # which is an OSError
            raise
        except OSError as error:
            kind = StorageError if error.errno in DISK_ERRORS else UserError
            message = f"{archive}: cannot be unpacked to {folder} ({reason(error)}); make room or pack it again"
            raise kind(message) from error
    if not any(folder.iterdir()):
        raise UserError(f"{archive}: has no graph files; known are {SUFFIXES}")
    return find([folder])


def _unpack(file: BinaryIO, folder: Path) -> None:
    is_zipped = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    stream = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if is_zipped else file
    with tarfile.open(fileobj=stream, mode="r:", encoding="utf-8") as tar:
        for member in tar:
            if member.isreg() and _listed(PurePath(member.name).name):
                if member.issparse() or member.size > _limit(member.name):
                    raise ValueError(f"{brief(member.name)} has holes or is too large: {member.size} bytes")
                tar.extract(member, folder, filter="data")
        stream.seek(tar.offset)
    # To the end, where gzip compares its checksum. A damaged header ends the loop above without an error.
    if {any(block) for block in iter(lambda: stream.read(1 << 20), b"")} != {False}:
        raise ValueError("it ends too early, or more follows its end")


def _listed(name: str) -> bool:
    """Whether a file found in a folder or an archive is taken as a graph. The generator adds metadata.json."""
    suffixes = FORMATS.keys() - {".txt", ".csv", ".tsv"}  # usually a readme, or another table
    return not name.startswith(".") and name != "metadata.json" and suffix(name) in suffixes


def _in_folder(folder: Path) -> Iterator[Path]:
    def unreadable(error: OSError) -> NoReturn:
        raise UserError(f"{error.filename}: the folder cannot be read ({reason(error)}); allow it") from error

    for parent, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))  # as those of an import under way
        ours = {MANIFEST_FILE} if GRAPHS_FILE in names else set()
        yield from (Path(parent, name) for name in sorted(set(names) - ours) if _listed(name) or is_archive(Path(name)))


@dataclass(frozen=True)
class DataLocation:
    """Folder of the packed graphs, and what fills it if it is empty: files to import, or a recipe."""

    graphs: Path
    imported: Path | None = None
    generated: bool = False


def locate(settings: RunSettings) -> DataLocation:
    """Find the data of the whole job: what was named, else what is in training_data, else generated graphs."""
    found = [HOME] if is_packed(HOME) else [HOME / "graphs"] if any((HOME / "graphs").glob("*.json")) else []
    found = found or sorted(HOME.glob("*.tar.gz"))
    if settings.data is None and not found:
        return DataLocation(HOME / f"{settings.recipe}-{settings.seed}", generated=True)
    if settings.data is None and len(found) > 1:
        raise UserError(f"{HOME} has {found[0].name}, {found[1].name} and perhaps more: name one with --data")
    named = settings.data or found[0]
    if is_packed(named):
        return DataLocation(named)
    for folder in (settings.run, settings.models):
        if Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(named)):
            raise UserError(f"{folder} is inside {named}, whose graphs are imported; name another --run and --models")
    return DataLocation(settings.run / "data", imported=named)


def written(settings: RunSettings) -> list[Path]:
    """The folders that the whole job writes to, each once."""
    data = locate(settings)
    filled = [data.graphs] if data.generated or data.imported else []
    return list(dict.fromkeys([*filled, settings.run, settings.models]))
