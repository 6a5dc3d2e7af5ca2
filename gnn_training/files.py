"""Files that are either whole or not there: written beside their place, flushed to the disk, then renamed."""

import fcntl
import hashlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gnn_training.errors import StorageError, UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
log = logging.getLogger(__name__)


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Give the body a temporary path to write; when it ends well, that file takes the place of `path`.

    Raises:
        StorageError: the system refused (no space, no permission); whatever stood at `path` still stands.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with open(temporary, "rb+") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({reason(error)}); make room or name another place") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep other processes that ask for the same folder out until the body ends, however it ends.

    Raises:
        UserError: another process is in it.
        StorageError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "a")  # noqa: SIM115 - closed below, where errors of the body are not ours
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written ({reason(error)}); name another folder") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"{folder}: another process is writing it; wait for it or name another folder") from error
        except OSError:  # a network file system without locks
            log.warning("%s: cannot be locked, so do not start the same command twice", folder)
        yield


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_figure(path: Path, figure: "Figure") -> None:
    """Write a drawing as PNG, atomically."""
    with replace_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)


def require_folders(files: Iterable[Path]) -> None:
    """Tell before any work is done that results named by the user would have no place.

    Raises:
        UserError: the folder of a file does not exist.
    """
    for file in files:
        if not file.parent.is_dir():
            raise UserError(f"{file}: its folder does not exist; make it or name another file")


def reason(error: OSError) -> str:
    """The system's own words for what went wrong, without number and path."""
    return (error.strerror or str(error)).lower()


def checksums(files: Mapping[str, bytes]) -> str:
    """The text that `sha256sum -c` reads."""
    return "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files.items())


def changed(checksums: str, files: Mapping[str, bytes]) -> str | None:
    """The first name of `checksums` whose file is missing in `files` or is another one; None if all hold."""
    for digest, name in (line.split("  ", 1) for line in checksums.splitlines()):
        if name not in files or hashlib.sha256(files[name]).hexdigest() != digest:
            return name
    return None
