"""Pack the exported model and the records of where it comes from into one archive to fetch."""

import hashlib
import logging
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from gnn_training import __version__, files, run_files
from gnn_training.contract import MODEL_FILE, MODEL_FILES, SUMS_FILE
from gnn_training.errors import StorageError, UserError
from gnn_training.report.page import Json, render
from gnn_training.settings import PackSettings
from gnn_training.training.logbook import read_metrics

log = logging.getLogger(__name__)
HINT = "do the whole job first: ./run.sh"
ROOT = Path(__file__).resolve().parents[2]


def pack(settings: PackSettings) -> Path:
    """Write the page of the run, and the archive with it; read the archive back, give it its name and return its path.
    The same files give the same bytes. UserError if a file is missing or the files are not of one training.
    """
    contents = files.read_checked(settings.models, MODEL_FILES, HINT)
    records = [settings.run / name for name in (run_files.REPORT, run_files.CONFIG, run_files.METRICS, run_files.BEST)]
    if settings.checkpoint:
        folder = settings.run / run_files.CHECKPOINT_FOLDER
        newest = max(folder.glob(run_files.CHECKPOINTS), default=folder / "step-00000000.pt")  # or an error
        records += [newest, *sorted((settings.run / run_files.GAMES_FOLDER).glob(run_files.GAMES))]
    contents |= {path.name: files.read_bytes(path, files.MAX_FILE_BYTES, HINT) for path in records}
    paths = [*(settings.models / name for name in MODEL_FILES), *records]
    modified = max(int(path.stat().st_mtime) for path in paths)
    names = run_files.REPORT, run_files.CONFIG, run_files.STATUS  # the last goes into the manifest
    with files.damaged(f"a record in {settings.run}", "delete it and do the whole job again: ./run.sh"):
        report, config, status = (files.read_json(settings.run / name, HINT) for name in names)
        _require_one_training(settings, contents, report, status)
        manifest = _manifest(settings, report["model"]["metadata"]["data_sha256"], status, modified)
        contents[run_files.ARCHIVE_MANIFEST] = files.as_json(manifest)
        metrics = read_metrics(settings.run / run_files.METRICS)
        contents[run_files.PAGE] = render(report, manifest, config, metrics).encode()
    files.write_bytes(settings.run / run_files.PAGE, contents[run_files.PAGE])
    del contents[SUMS_FILE]  # the checksums of the export
    contents[SUMS_FILE] = files.checksums(contents).encode()
    archive = settings.models / run_files.ARCHIVE
    with files.replace_file(archive) as temporary:
        files.write_archive(temporary, contents, modified)
        try:
            files.read_archive(temporary)
        except UserError as error:
            place = f"{archive.parent}: the archive reads back damaged ({error.__cause__})"
            raise StorageError(f"{place}; use --models elsewhere") from error
    size = archive.stat().st_size / 1e6
    log.info("%s: %.2f MB, read back, every checksum is right, sha256 %s", archive, size, files.sha256(archive))
    return archive


def provenance(root: Path = ROOT) -> dict[str, str]:
    """Version, image, git revision and locked requirements of this program; "unknown" where nothing tells."""
    locks = [path.read_bytes() for path in sorted(root.glob("requirements*.lock"))]
    return {
        "version": __version__,
        "image_digest": os.environ.get("GNN_IMAGE_DIGEST") or "unknown",
        "git_revision": os.environ.get("GNN_REVISION") or _revision(root),
        "locks_sha256": hashlib.sha256(b"".join(locks)).hexdigest() if locks else "unknown",
    }


def _revision(root: Path) -> str:
    """Revision of the clone, with "+changes" if tracked files differ from it."""
    if not (root / ".git").exists():  # git would search further up, in a repository that is not ours
        return "unknown"
    describe = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"]
    try:
        return subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or a clone that another user owns
        return "unknown"


def _require_one_training(settings: PackSettings, contents: files.Contents, report: Json, status: Json) -> None:
    """Raise UserError if the report is of another model, or the model is not of the best step."""
    if report["model"]["sha256"] != hashlib.sha256(contents[MODEL_FILE]).hexdigest():
        raise UserError(f"{settings.run / run_files.REPORT} is of another model than {settings.models}; evaluate again")
    exported = int(report["model"]["metadata"]["trained_steps"])
    if exported != (best := max(status["best_step"], status["crossover_step"])):
        raise UserError(f"{settings.models} has step {exported}, the best of {settings.run} is {best}; export again")


def _manifest(settings: PackSettings, data_sha256: str, status: Json, modified: int) -> dict[str, object]:
    """Where the model comes from and what it cost. modified: time of the newest file, seconds since 1970."""
    steps = settings.run / run_files.STEPS  # missing if the steps of the job were done one by one
    states = files.read_json(steps, HINT) if steps.exists() else {}
    seconds = {name: float(state["seconds"]) for name, state in states.items() if name != "pack"}
    hours, price = sum(seconds.values()) / 3600, settings.price_per_hour
    manifest = provenance() | {
        "data_sha256": data_sha256,
        "created": datetime.fromtimestamp(modified, UTC).isoformat(),
        "training": status,
        "seconds": seconds,
        "hours": round(hours, 3),
    }
    return manifest | ({"price_per_hour": price, "cost": round(hours * price, 2)} if seconds and price else {})
