"""The archive of a trained model: a .tar.gz of files with their checksums."""

import gzip
import io
import tarfile
import zlib
from pathlib import Path

from gnn_training import files
from gnn_training.contract import SUMS_FILE

LIMIT = files.OWN_LIMIT  # unpacked
Contents = dict[str, bytes]  # bytes of a file by its name


def write_archive(path: Path, contents: Contents, modified: int) -> None:
    """Write a .tar.gz that depends on the contents and the time alone, and on nothing of this machine."""
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
    """Read an archive. Raises UserError if there is none, ValueError with what is wrong by its own checksums."""
    packed = io.BytesIO(files.read_bytes(path, LIMIT, "pack first"))
    try:
        content = gzip.GzipFile(fileobj=packed).read(LIMIT + 1)  # to the end, where the checksum is
        if len(content) > LIMIT:
            raise ValueError(f"it unpacks to more than {LIMIT / 1e6:.0f} MB")
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            regular = (member for member in tar if member.isreg() and not member.issparse())  # as large as their bytes
            members = {Path(member.name).name: tar.extractfile(member) for member in regular}
            contents = {name: member.read() for name, member in members.items() if member}
        damaged = files.changed(contents[SUMS_FILE], contents, contents.keys() - {SUMS_FILE})
    except (gzip.BadGzipFile, EOFError, zlib.error, tarfile.TarError, KeyError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if damaged:
        raise ValueError(damaged)
    return contents
