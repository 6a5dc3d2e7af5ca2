"""Where a trained model comes from, and whether its files are still the ones that were made."""
# DOC Pack the exported model and what tells where it comes from into one archive to fetch.

import gzip
import hashlib
import io
import json
import logging
import os
import subprocess
import tarfile
import zlib
from datetime import UTC, datetime
from pathlib import Path

from gnn_training import __version__
from gnn_training.contract import ARCHIVE_FILE, GOLDEN_FILE, MODEL_FILE, SUMS_FILE
from gnn_training.errors import StorageError, UserError
from gnn_training.files import reason, replace_file
from gnn_training.settings import PackSettings

UNKNOWN = "unknown"
ROOT = Path(__file__).parents[1]


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


log = logging.getLogger(__name__)
FOLDER = "trained_model"  # the archive unpacks to it
MANIFEST_FILE = "manifest.json"
FROM_MODELS = (MODEL_FILE, GOLDEN_FILE)
FROM_RUN = ("report.json", "config.json", "metrics.jsonl", "best.pt")


def pack(settings: PackSettings) -> Path:
    """Write the archive, read it back, and only then give it its name. The same files give the same bytes.

    Raises:
        UserError: a file is missing, or they are not of one training.
        StorageError: there is no room for the archive, or the disk does not return what it was given.
    """
    paths = [*(settings.models / name for name in FROM_MODELS), *(settings.run / name for name in FROM_RUN)]
    files = {path.name: _read(path) for path in paths}
    status = json.loads(_read(settings.run / "status.json"))
    _refuse_strangers(settings, files, status)
    made = max(int(path.stat().st_mtime) for path in paths)
    files[MANIFEST_FILE] = (json.dumps(_manifest(settings, files, status, made), indent=1) + "\n").encode()
    files[SUMS_FILE] = files.checksums(files).encode()
    archive = settings.models / ARCHIVE_FILE
    with replace_file(archive) as temporary:
        _write(temporary, files, made)
        _read_back(temporary, files)
    content = archive.read_bytes()
    log.info("%s: %.2f MB, sha256 %s", archive, len(content) / 1e6, hashlib.sha256(content).hexdigest())
    log.info("it was read back and every checksum holds")
    return archive


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({reason(error)}); do the whole job first: ./run.sh") from error


def _refuse_strangers(settings: PackSettings, files: dict[str, bytes], status: dict) -> None:
    """Nobody could tell later that the model is damaged, or that report or checkpoint are of another one."""
    sums = _read(settings.models / SUMS_FILE).decode()
    if name := files.changed(sums, files):
        raise UserError(f"{settings.models / name}: not the file that was exported; export again")
    model = json.loads(files["report.json"])["model"]
    if model["sha256"] != hashlib.sha256(files[MODEL_FILE]).hexdigest():
        raise UserError(f"{settings.run}/report.json is of another model than {settings.models}; evaluate again")
    exported, best = int(model["metadata"]["trained_steps"]), status.get("best_step")
    if exported != best:
        raise UserError(
            f"{settings.models} holds step {exported} and the best of {settings.run} is {best}; export again"
        )


def _manifest(settings: PackSettings, files: dict[str, bytes], status: dict, made: int) -> dict[str, object]:
    """Where the model comes from and what it took; made: time of the newest file, seconds since 1970."""
    seconds = _seconds(settings.run / "steps.json")
    hours = sum(seconds.values()) / 3600
    price = {"price_per_hour": settings.price_per_hour, "cost": round(hours * settings.price_per_hour, 2)}
    return {
        **of_program(),
        "data_sha256": json.loads(files["report.json"])["model"]["metadata"]["data_sha256"],
        "created": datetime.fromtimestamp(made, UTC).isoformat(),
        "training": status,
        "seconds": seconds,
        "hours": round(hours, 3),
        **(price if seconds and settings.price_per_hour else {}),
    }


def _seconds(steps: Path) -> dict[str, float]:
    """What the steps of the whole job took, this one left out; nothing if they were done one by one."""
    states = json.loads(_read(steps)) if steps.exists() else {}
    return {name: state["seconds"] for name, state in states.items() if "seconds" in state and name != "pack"}


def _write(path: Path, files: dict[str, bytes], made: int) -> None:
    """A tar in which nothing tells of this machine, in a gzip without name and time."""
    with (
        open(path, "wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for name, content in files.items():
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.size, member.mtime = len(content), made
            tar.addfile(member, io.BytesIO(content))


def _read_back(path: Path, files: dict[str, bytes]) -> None:
    """Hold the archive against its own checksums, as whoever fetches it will."""
    try:
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(path.read_bytes()))) as tar:
            found = {name: tar.extractfile(f"{FOLDER}/{name}").read() for name in files}
        damaged = files.changed(found[SUMS_FILE].decode(), found)
    except (gzip.BadGzipFile, EOFError, zlib.error, tarfile.TarError, KeyError, ValueError) as error:
        damaged = f"{type(error).__name__}: {error}"
    if damaged:
        raise StorageError(f"{path.parent}: the archive reads back damaged ({damaged}); take --models on another disk")
