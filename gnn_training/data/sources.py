"""Graphs from files of any known format, from folders, and from tar archives."""

import gzip
import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path, PurePath
from reprlib import repr as brief
from typing import BinaryIO, NoReturn, cast

import numpy as np

from gnn_training.data.formats import FORMATS, Format
from gnn_training.data.packed import GRAPHS_FILE, MANIFEST_FILE
from gnn_training.errors import StorageError, UserError
from gnn_training.files import DISK_ERRORS, damaged, read_bytes, reason
from gnn_training.graph import Instance, conflicts

SUFFIXES = f"{', '.join(FORMATS)} and .gz of them"
TABLES = (".txt", ".csv", ".tsv")  # suffixes that in a folder are usually those of a readme or another table
IN_FOLDER = f"{', '.join(name for name in FORMATS if name not in TABLES)} and .gz of them"
BY_NAME = f"{', '.join(TABLES)} are taken only if you name the file"


def read(path: Path) -> Instance:
    """Read the graph of one file, named after it. UserError is "FILE: line N: ..." or "FILE: ..."."""
    limit, hint = _format(path).limit, "allow it or leave the file out"
    content = read_bytes(path, limit, hint)
    if path.suffix.lower() == ".gz":
        with damaged(path, "fetch or pack it again"):
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(limit + 1)
        if len(content) > limit:
            raise UserError(f"{path}: unpacks to more than {limit / 1e6:g} MB, which is too large to read; {hint}")
    return parse(str(path), content)


def parse(file: str, content: bytes) -> Instance:
    """Read the graph in the uncompressed bytes of a file. A coloring that is not proper becomes a warning."""
    read_content = _format(file).parse
    try:
        instance = read_content(content)
    except UserError as error:
        raise UserError(f"{file}: {error}") from error
    graph, colors, warning = instance.graph, instance.coloring, instance.warning
    if colors is not None:
        wrong = conflicts(graph, colors)
        warning = f"its coloring is not proper (conflicts: {wrong}) and is not used" if wrong else warning
        colors = None if wrong else np.unique(colors, return_inverse=True)[1]  # without gaps
    name = PurePath(PurePath(file).name.removesuffix(".gz")).stem.encode(errors="replace").decode()
    warning = f"{file}: {warning}" if warning else ""
    return replace(instance, graph=replace(graph, name=name), coloring=colors, warning=warning)


def suffix(file: str) -> str:
    """The suffix that tells the format: the last one before any .gz, in lower case."""
    return PurePath(PurePath(file).name.lower().removesuffix(".gz")).suffix


def _format(file: Path | str) -> Format:
    """The format of a graph file; UserError if it has no known suffix."""
    if suffix(str(file)) not in FORMATS:
        raise UserError(f"{file}: is not a known kind of graph file; known are {SUFFIXES}")
    return FORMATS[suffix(str(file))]


def find(sources: Iterable[Path]) -> list[Path]:
    """List the files named in `sources`, and the graph files and archives in its folders, in the order of names.
    UserError if nothing is found.
    """
    paths: dict[str, Path] = {}  # by their real path
    for source in sources:
        if not os.path.exists(source):
            raise UserError(f"{source}: no such file or folder; name one that you may read")
        for path in files_in(walk(source)) if os.path.isdir(source) else [source]:
            paths.setdefault(os.path.realpath(path), path)
    if not paths:
        named = ", ".join(map(str, sources))
        raise UserError(f"{named}: no graph files here; known are {IN_FOLDER}, and .tar.gz; {BY_NAME}")
    return list(paths.values())


def is_archive(path: PurePath) -> bool:
    """Whether the name of a file is that of a tar archive."""
    return path.name.lower().endswith((".tar", ".tar.gz", ".tgz"))


def unpack(archive: Path, folder: Path) -> list[Path]:
    """Unpack the graph files of an archive, and nothing else, into a new folder, never outside of it; return their
    paths. UserError if the archive is damaged or has no graph files, StorageError if there is no room.
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
        raise UserError(f"{archive}: has no graph files; known are {IN_FOLDER}; {BY_NAME}")
    return find([folder])


def _unpack(file: BinaryIO, folder: Path) -> None:
    is_zipped = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    stream = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if is_zipped else file
    with tarfile.open(fileobj=stream, mode="r:", encoding="utf-8") as tar:
        for member in tar:
            if member.isreg() and _listed(PurePath(member.name).name):
                if member.issparse() or member.size > _format(member.name).limit:
                    raise ValueError(f"{brief(member.name)} has holes or is too large: {member.size} bytes")
                tar.extract(member, folder, filter="data")
        stream.seek(tar.offset)
    # Read to the end, where gzip compares its checksum. A damaged header ends the loop above without an error.
    if {any(block) for block in iter(lambda: stream.read(1 << 20), b"")} != {False}:
        raise ValueError("it ends too early, or more follows its end")


def _listed(name: str) -> bool:
    """Whether a file found in a folder or an archive is taken as a graph. PRISM's generator adds metadata.json."""
    return not name.startswith(".") and name != "metadata.json" and suffix(name) in FORMATS.keys() - {*TABLES}


def files_in(tree: Iterable[tuple[str, list[str], list[str]]]) -> Iterator[Path]:
    """Yield the graph files and archives of a walk."""
    for parent, _, names in tree:
        ours = {MANIFEST_FILE} if GRAPHS_FILE in names else set()
        yield from (Path(parent, name) for name in sorted(set(names) - ours) if _listed(name) or is_archive(Path(name)))


def tables_in(folder: Path) -> list[Path]:
    """The files of a folder that may be tables of graphs, which `find` leaves out."""
    files = (Path(parent, name) for parent, _, names in walk(folder) for name in sorted(names))
    return [path for path in files if suffix(path.name) in TABLES and not path.name.startswith(".")]


def walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield what os.walk does, in order of names, without hidden folders, such as those of an unfinished import."""

    def unreadable(error: OSError) -> NoReturn:
        raise UserError(f"{error.filename}: the folder cannot be read ({reason(error)}); allow it") from error

    for parent, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield parent, folders, names
