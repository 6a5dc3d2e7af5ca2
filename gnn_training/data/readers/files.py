"""Which files are graphs: in folders, and in tar archives, which are unpacked to be read."""

import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath, PurePosixPath
from shutil import copyfileobj
from typing import NoReturn

from gnn_training.atomic import reason
from gnn_training.data.readers import prism_json
from gnn_training.data.readers.formats import KNOWN, PARSERS, suffix
from gnn_training.errors import UserError

ARCHIVES = (".tar", ".tar.gz", ".tgz")


def find(sources: Iterable[Path]) -> list[Path]:
    """List the graph files and archives among `sources`, folders searched to the bottom in the order of names.

    A file that is named itself is always listed. In folders, names that begin with a dot, metadata.json and .txt
    (mostly a readme there) are passed over, and so is what has no known suffix.

    Raises:
        UserError: a source is missing, a folder may not be read, or nothing was found.
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


def is_archive(path: Path) -> bool:
    """Whether a file holds many graph files, by its name."""
    return path.name.lower().endswith(ARCHIVES)


def unpack(archive: Path, folder: Path) -> list[Path]:
    """Write the graph files of an archive, and nothing else of it, into a new folder, never outside; list them.

    Raises:
        UserError: the archive is damaged or empty, or cannot be read, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True)
        with tarfile.open(archive) as members:
            for member in members:
                inside = [part for part in PurePosixPath(member.name).parts if part not in ("/", "..")]
                if member.isfile() and inside and _listed(inside[-1]):
                    path = folder.joinpath(*inside)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with open(path, "wb") as file:
                        copyfileobj(members.extractfile(member), file)
    except (tarfile.TarError, zlib.error, EOFError, ValueError) as error:
        raise UserError(f"{archive}: is damaged or no tar archive; fetch or pack it again") from error
    except OSError as error:
        raise UserError(f"{archive}: cannot be unpacked to {folder} ({reason(error)}); make room") from error
    return find([folder])


def _listed(name: str) -> bool:
    """Whether a file found in a folder or an archive is meant as a graph."""
    return not name.startswith(".") and name != prism_json.METADATA and suffix(name) in PARSERS.keys() - {".txt"}


def _in_folder(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder, onerror=_unreadable):
        folders.sort()
        if prism_json.METADATA in names:
            prism_json.compare_with_metadata(Path(parent))
        yield from (Path(parent, name) for name in sorted(names) if _listed(name) or is_archive(PurePath(name)))


def _unreadable(error: OSError) -> NoReturn:
    raise UserError(f"{error.filename}: the folder cannot be read ({reason(error)}); allow it") from error
