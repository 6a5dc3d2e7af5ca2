"""Files that are either whole or absent: written to a temporary file, flushed to the disk, then renamed."""

import errno
import hashlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from gnn_training.errors import StorageError, UserError

log = logging.getLogger(__name__)


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Give the body a temporary path to write to, which replaces `path` at its end. After an error `path` is unchanged.
    StorageError if the system refuses (no space, no permission).
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
    """Lock a folder until the body ends or the process is killed; UserError if another process has locked it."""
    from filelock import FileLock, Timeout  # part of [train]

    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(folder / ".lock", blocking=False, fallback_to_soft=False))
        except Timeout as error:
            raise UserError(f"{folder}: another process is writing it; wait for it or name another folder") from error
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):  # as network file systems answer
                raise StorageError(f"{folder}: cannot be written ({reason(error)}); name another folder") from error
            log.warning("%s: this file system has no locks; do not start the same command twice", folder)
        yield


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def require_folders(paths: Iterable[Path]) -> None:
    """Check before any work that the folders of the output files exist; UserError if one does not."""
    for path in paths:
        if not path.parent.is_dir():
            raise UserError(f"{path}: its folder does not exist; make it or name another file")


def reason(error: OSError) -> str:
    """The system's words for what went wrong, without the error number and the path."""
    return (error.strerror or str(error)).lower()


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums(contents: Mapping[str, bytes]) -> str:
    """A checksum file for `sha256sum -c`; contents: bytes by file name."""
    return "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in contents.items())


def changed(checksums: str, contents: Mapping[str, bytes]) -> str | None:
    """The first name in a checksum file whose content is missing or differs; None if all are right."""
    for line in checksums.splitlines():
        digest, _, name = line.partition("  ")
        if name not in contents or hashlib.sha256(contents[name]).hexdigest() != digest:
            return name or line
    return None
