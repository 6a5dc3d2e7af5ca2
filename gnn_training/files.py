"""Files that are either whole or absent: written to a temporary file, flushed, then renamed. Checksums and archives."""

import errno
import gzip
import hashlib
import io
import json
import os
import secrets
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gnn_training.contract import SUMS_FILE
from gnn_training.errors import StorageError, UserError

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
MAX_FILE_BYTES = 1 << 28  # limit for files that this program wrote, which are a hundred times smaller
Contents = dict[str, bytes]  # bytes of files by name
JSON_LIMIT = 20_000_000  # bytes; the values of hostile JSON take 30 times as much memory


def read_bytes(path: Path, limit: int, hint: str = "name a file that you may read") -> bytes:
    """The bytes of a file. UserError if it cannot be read, or has more than `limit` bytes."""
    try:
        with open(path, "rb") as file:
            content = file.read(limit + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        raise UserError(f"{path}: cannot be read ({reason(error)}); {hint}") from error
    if len(content) > limit:
        raise UserError(f"{path}: has more than {limit / 1e6:g} MB, which is too large to read here; {hint}")
    return content


def read_json(path: Path, hint: str = "name a file that you may read") -> Any:
    """The value in a JSON file. UserError as `read_bytes`, and if it is not JSON."""
    try:
        return json.loads(read_bytes(path, JSON_LIMIT, hint))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: is damaged or not JSON ({error}); {hint}") from error


@contextmanager
def damaged(path: Path | str, hint: str) -> Iterator[None]:
    """Raise UserError (the file is damaged) for any error of the body, which works with the values of a file."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise UserError(f"{path}: is damaged ({what}); {hint}") from error


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Raise StorageError if the system does not let the body write `path` (no space, no permission)."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({reason(error)}); make room or name another place") from error


def make_folder(folder: Path) -> None:
    """Make a folder and its parents. StorageError if the system refuses, or nobody may write there. A command does this
    only at its start: if the folder is missing later, its volume is gone, and what is written to a new folder would be
    lost.
    """
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Give the body a temporary path to write to, which replaces `path` at its end. After an error `path` is unchanged.
    StorageError if the system refuses, UserError if `path` is a folder, a device or a pipe.
    """
    if os.path.lexists(path) and not os.path.isfile(path):
        raise UserError(f"{path}: is not a regular file and is never replaced; name a file")
    temporary = path.with_name(f".{path.name[:50]}.{secrets.token_hex(4)}.tmp")
    with storage_errors(path):
        temporary.touch(exist_ok=False)  # unlike tempfile, with the permissions of any other file
        try:
            yield temporary
            with open(temporary, "rb+") as written:
                os.fsync(written.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder until the body ends or the process is killed; UserError if another process has locked it."""
    from filelock import FileLock, Timeout  # part of [train]

    make_folder(folder)
    try:
        lock = FileLock(folder / ".lock", blocking=False).acquire()
    except Timeout as error:
        raise UserError(f"{folder}: another process is writing it; wait for it or name another folder") from error
    with lock:
        yield


def as_json(value: Any) -> bytes:
    """A value as indented JSON, for files that people read, too."""
    return (json.dumps(value, indent=2) + "\n").encode()


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically. Raises as `replace_file`."""
    with replace_file(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, as `write_bytes`."""
    write_bytes(path, text.encode())


def require_places(outputs: Iterable[Path], inputs: Iterable[Path] = ()) -> None:
    """Raise UserError before any work if the folder of an output does not exist, or an output is an input or another
    output.
    """
    taken = {path.resolve(): path for path in inputs}
    for path in outputs:
        if not os.path.isdir(path.parent):
            raise UserError(f"{path}: its folder does not exist; make it or name another file")
        place = path.resolve()
        if other := taken.get(place):
            raise UserError(f"{path}: is the same file as {other}, which is read or also written; name another")
        taken[place] = path


def reason(error: Exception) -> str:
    """The first line of the system's error message, in lower case, without the error number and the path."""
    return (getattr(error, "strerror", None) or str(error)).partition("\n")[0].lower()


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums(contents: Contents) -> str:
    """A checksum file for `sha256sum -c`."""
    return "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in contents.items())


def first_mismatch(sums: bytes, contents: Contents, needed: Iterable[str]) -> str | None:
    """The first name in a checksum file whose content is missing or differs, or else the first needed name that is not
    in it. None if all are right.
    """
    right = set()
    for line in sums.decode(errors="replace").splitlines():
        digest, _, name = line.partition("  ")
        if name not in contents or hashlib.sha256(contents[name]).hexdigest() != digest:
            return name or line or "a line without a name"
        right.add(name)
    return next((name for name in needed if name not in right), None)


def read_checked(folder: Path, names: Iterable[str], hint: str) -> Contents:
    """Files of a folder, SUMS_FILE among them. UserError as `read_bytes`, and if one differs from its checksum."""
    names = list(names)
    contents = {name: read_bytes(folder / name, MAX_FILE_BYTES, hint) for name in (SUMS_FILE, *names)}
    if name := first_mismatch(contents[SUMS_FILE], contents, names):
        raise UserError(f"{folder / name}: differs from its checksum in {SUMS_FILE}; {hint}")
    return contents


def write_archive(path: Path, contents: Contents, modified: int) -> None:
    """Write a .tar.gz that depends only on the contents and the time `modified`, not on this machine."""
    with (
        open(path, "wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for name, content in contents.items():
            member = tarfile.TarInfo(f"trained_model/{name}")
            member.size, member.mtime = len(content), modified
            tar.addfile(member, io.BytesIO(content))


def read_archive(path: Path) -> Contents:
    """Read the archive of a trained model. UserError if it cannot be read or differs from its checksums."""
    packed = io.BytesIO(read_bytes(path, MAX_FILE_BYTES, "pack first"))
    with damaged(path, "pack again"):
        content = gzip.GzipFile(fileobj=packed).read(MAX_FILE_BYTES + 1)  # to the end, where the checksum is
        if len(content) > MAX_FILE_BYTES:
            raise ValueError(f"it unpacks to more than {MAX_FILE_BYTES / 1e6:.0f} MB")
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            regular = (member for member in tar if member.isreg() and not member.issparse())  # no links or sparse files
            members = {Path(member.name).name: tar.extractfile(member) for member in regular}
            contents = {name: member.read() for name, member in members.items() if member}
        if name := first_mismatch(contents[SUMS_FILE], contents, contents.keys() - {SUMS_FILE}):
            raise ValueError(name)
    return contents
