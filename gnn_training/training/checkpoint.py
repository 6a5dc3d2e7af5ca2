"""Checkpoints: they are written atomically, load with weights_only and suit any number of ranks."""

import io
import json
import logging
import os
from pathlib import Path

import torch

from gnn_training import run_files
from gnn_training.contract import SHIPPED_MODEL, WEIGHT_NAMES
from gnn_training.errors import UserError
from gnn_training.files import MAX_FILE_BYTES, damaged, read_bytes, storage_errors, write_bytes
from gnn_training.network.crossover_weights import from_text
from gnn_training.network.network import ColoringNetwork
from gnn_training.settings import SHIPPED

log = logging.getLogger(__name__)
HINT = "name a run folder, a checkpoint or an exported file"
EXPORTED = {"network": dict, "settings": dict, "step": int, "data_sha256": str}
RESUMED = EXPORTED | {
    "weights": dict, "num_averaged": int, "optimizer": dict, "scaler": dict, "totals": dict, "bad_steps": int,
    "skipped_steps": int, "progress": dict, "self_play": dict, "best": dict, "initial_crossover": dict,
    "steps_per_epoch": int, "resumed_from": str,
}  # fmt: skip


def save(path: Path, state: dict) -> None:
    """Write `state` (tensors, numbers, strings, lists, dicts). A crash leaves either the old file or the new one.
    StorageError if the system refuses.
    """
    file = io.BytesIO()  # torch itself would report a full disk as a RuntimeError
    torch.save(state, file)
    write_bytes(path, file.getvalue())


def save_step(folder: Path, step: int, state: dict, keep: int) -> None:
    """Write the checkpoint of `step`. Delete later checkpoints, temporary files that a kill has left, and all but the
    last `keep` checkpoints; 0 keeps all earlier ones.
    """
    path = folder / f"step-{step:08d}.pt"
    save(path, state)
    existing = list(folder.glob(run_files.CHECKPOINTS))
    before = sorted((old for old in existing if old < path), reverse=True)[: keep - 1 if keep else None]
    with storage_errors(folder):
        for old in {*existing, *folder.glob(".step-*.tmp")} - {path, *before}:
            old.unlink()


def load(path: Path, needed: dict[str, type] = EXPORTED) -> dict:
    """Read a checkpoint, or the best one of a run folder, onto the CPU. needed: the required keys and the types of
    their values. UserError if the file is missing, damaged, or not one of this version of the program.
    """
    path = path / run_files.BEST if os.path.isdir(path) else path
    content = read_bytes(path, MAX_FILE_BYTES, "train first or name another run folder")
    with damaged(path, "delete it or name another file"):
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        if wrong := [key for key, kind in needed.items() if not isinstance(state.get(key), kind)]:
            other = f"has no {wrong[0]}, so it is of another version of this program, or of another program"
            raise UserError(f"{path}: {other}: go on with that version, or name another file")
        for key in needed.keys() & {"network", "weights"}:
            ColoringNetwork.from_state(state[key])
        if "best" in needed:
            ColoringNetwork.from_state(state["best"]["network"])
    return state


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the weights of a checkpoint, of the best one of a run folder, or of an exported file. The path SHIPPED
    stands for the exported file that comes with this package. UserError as in `load`.
    """
    path = SHIPPED_MODEL if path == SHIPPED else path
    if path.suffix != SHIPPED_MODEL.suffix:
        return load(path)["network"]
    import onnx  # only exported files need it

    content = read_bytes(path, MAX_FILE_BYTES, HINT)
    with damaged(path, HINT):
        model = onnx.load_from_string(content)
        initializers = {weight.name.removeprefix(WEIGHT_NAMES): weight for weight in model.graph.initializer}
        metadata = {entry.key: entry.value for entry in model.metadata_props}
        network = ColoringNetwork()
        if "crossover" in metadata:  # files of older versions have no crossover network
            crossover = from_text(metadata["crossover"])
            network = ColoringNetwork(*crossover.size)
            network.crossover.load_weights(crossover)
        predictions = [name for name in network.state_dict() if name.startswith("predictions.")]
        if initializers.keys().isdisjoint(predictions):
            log.warning("%s: its predictions are those of an older version, so they begin untrained", path)
            predictions = []
        weights = {name: torch.tensor(onnx.numpy_helper.to_array(initializers[name])) for name in predictions}
        state = network.state_dict() | {"rule": torch.tensor(json.loads(metadata["rule"])), **weights}
        return ColoringNetwork.from_state(state).state_dict()


def load_newest(folder: Path) -> dict | None:
    """Return the state of the newest checkpoint that can be read, or None if there is no checkpoint. UserError if none
    can be read: a new start would replace the best weights of a training that may still be saved.
    """
    for path in (paths := sorted(folder.glob(run_files.CHECKPOINTS), reverse=True)):
        try:
            return load(path, RESUMED)
        except UserError as error:
            if path == paths[-1]:
                raise
            log.warning("%s; taking the one before", error)
    return None
