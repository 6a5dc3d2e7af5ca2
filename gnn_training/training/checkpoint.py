"""Checkpoints: atomic, loadable with weights_only, the same for any number of ranks."""

import hashlib
import logging
from pathlib import Path

import torch

from gnn_training.errors import UserError
from gnn_training.files import replace_file

log = logging.getLogger(__name__)
KEEP = 2  # the newest, and the one before in case the disk damaged the newest


def save(path: Path, state: dict) -> None:
    """Write `state` (tensors, numbers, strings, lists, dicts); a crash leaves the old file or the new."""
    with replace_file(path) as temporary:
        torch.save(state, temporary)


def save_step(folder: Path, step: int, state: dict) -> None:
    """Write the checkpoint of `step` and drop all others but the last few before it."""
    path = folder / f"step-{step:08d}.pt"
    save(path, state)
    before = sorted(old for old in folder.glob("step-*.pt") if old < path)[-KEEP + 1 :]
    for old in set(folder.glob("step-*.pt")) - {path, *before}:
        old.unlink()


def load(path: Path) -> dict:
    """Read a checkpoint onto the CPU. Raises UserError if it is missing, damaged, or not one of this program."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such checkpoint; train first or name another run folder") from error
    except Exception as error:  # torch.load fails with whatever the damaged bytes make of pickle and zip
        raise UserError(f"{path}: damaged or not a checkpoint ({type(error).__name__}); delete it") from error
    if not isinstance(state, dict) or "network" not in state:
        raise UserError(f"{path}: not a checkpoint of this program; name another file")
    if "move_rule" not in state["network"]:
        raise UserError(f"{path}: made by a version before 0.4, whose network was another one; train again")
    return state


def load_best(run: Path) -> dict:
    """Read the best checkpoint of a run folder, or the one that is named."""
    return load(run / "best.pt" if run.is_dir() else run)


def newest(folder: Path) -> dict | None:
    """State of the newest checkpoint that can be read, None if there is none."""
    for path in sorted(folder.glob("step-*.pt"), reverse=True):
        try:
            return load(path)
        except UserError as error:
            log.warning("%s; taking the one before", error)
    return None


def weights_fingerprint(state: dict) -> str:
    """Hex digest of the exported weights: tells whether a file came from this checkpoint."""
    digest = hashlib.sha256()
    for name, value in sorted(state["network"].items()):
        digest.update(name.encode() + value.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
