"""Where a trained model comes from, and whether its files are still the ones that were made."""

import hashlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from gnn_training import __version__

GOLDEN_FILE = "coloring_gnn.golden.json"
SUMS_FILE = "SHA256SUMS"
ARCHIVE_FILE = "trained_model.tar.gz"
UNKNOWN = "unknown"
ROOT = Path(__file__).parents[1]


def sums(files: Mapping[str, bytes]) -> str:
    """The text that `sha256sum -c` reads."""
    return "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files.items())


def changed(sums: str, files: Mapping[str, bytes]) -> str | None:
    """The first name of `sums` whose file is missing in `files` or is another one; None if all hold."""
    for digest, name in (line.split("  ", 1) for line in sums.splitlines()):
        if name not in files or hashlib.sha256(files[name]).hexdigest() != digest:
            return name
    return None


def of_program(root: Path = ROOT) -> dict[str, str]:
    """Version, image, revision and libraries of the program that runs; "unknown" for what nobody can tell."""
    return {
        "version": __version__,
        "image_digest": os.environ.get("GNN_IMAGE_DIGEST") or UNKNOWN,
        "git_revision": os.environ.get("GNN_REVISION") or _revision(root),
        "locks_sha256": _locks(root),
    }


def _revision(root: Path) -> str:
    """Revision of the clone, with "+changes" if tracked files differ from it."""
    if not (root / ".git").exists():  # git would look further up, in a repository that is not ours
        return UNKNOWN
    describe = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"]
    try:
        return subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or a clone that somebody else owns
        return UNKNOWN


def _locks(root: Path) -> str:
    """Digest of all locked requirements: cat requirements*.lock | sha256sum."""
    locks = sorted(root.glob("requirements*.lock"))
    return hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest() if locks else UNKNOWN
