"""Write the trained network as verified ONNX files, with golden vectors and checksums beside them."""

import hashlib
import json
import logging
import tempfile
from pathlib import Path

from gnn_training import __version__, contract, files
from gnn_training.contract import GOLDEN_FILE, MODEL_FILE, MODEL_FILES, SUMS_FILE, WEB_FILE, WEIGHTS_FILE
from gnn_training.errors import UserError
from gnn_training.network.crossover_weights import to_text
from gnn_training.onnx_program import golden
from gnn_training.settings import ExportSettings

log = logging.getLogger(__name__)
PATHS = ("data", "run", "weights")  # settings that say nothing to whoever gets the file


def export(settings: ExportSettings) -> Path:
    """Build the files, verify them, and only then put them into the folder; return the path of the first. UserError if
    there is no checkpoint, or a check failed: the folder still has the files it had before.
    """
    if settings.verify_only:
        return verify_published(settings)
    from safetensors.torch import save  # torch takes seconds to import

    from gnn_training.network.network import ColoringNetwork
    from gnn_training.onnx_program.build import build, verified
    from gnn_training.training import checkpoint

    state = checkpoint.load(settings.run)
    files.make_folder(settings.models)
    network = ColoringNetwork.from_state(state["network"])
    log.info("exporting %s (step %d) to ONNX", settings.run, state["step"])
    weights = save(state["network"], metadata={"format": "pt"})
    model = build(network, settings.rounds, _metadata(settings, state, to_text(network.crossover.weights()), weights))
    made = verified(model, network) | {WEIGHTS_FILE: weights}
    with tempfile.TemporaryDirectory() as folder:
        publish(Path(folder), made)
        _check_golden(Path(folder))
    publish(settings.models, made)
    log.info("%s is ready", settings.models / MODEL_FILE)
    return settings.models / MODEL_FILE


def verify_published(settings: ExportSettings) -> Path:
    """Raise UserError if a file in the folder is missing, was changed since its export, or gives other outputs."""
    *names, weights = MODEL_FILES  # which the shipped files leave out
    names += [weights] if (settings.models / weights).exists() else []
    files.read_checked(settings.models, names, "export again")
    _check_golden(settings.models)
    log.info("%s: checksums hold, the golden vectors agree", settings.models)
    return settings.models / MODEL_FILE


def _check_golden(folder: Path) -> None:
    """Raise UserError if a file of the folder does not give the golden outputs."""
    try:
        for name in (MODEL_FILE, WEB_FILE):
            golden.check(folder / name, folder / GOLDEN_FILE)
    except ValueError as error:
        raise UserError(f"{error}; export again") from error


def publish(folder: Path, contents: dict[str, bytes]) -> None:
    """Put the files in place, the checksums last."""
    for name, content in contents.items():
        files.write_bytes(folder / name, content)
    files.write_text(folder / SUMS_FILE, files.checksums(contents))


def _metadata(settings: ExportSettings, state: dict, crossover: str, weights: bytes) -> dict[str, str]:
    """Where the file comes from. The same checkpoint gives the same file."""
    scores = state.get("scores", {})
    gap = scores.get("gap")
    return {
        "model_version": __version__,
        "max_colors": str(contract.MAX_COLORS),
        "steps": str(settings.rounds),
        "rule": json.dumps([float(f"{weight:.9g}") for weight in state["network"]["rule"].tolist()]),
        "crossover": crossover,
        "graph_types": json.dumps(contract.GRAPH_TYPES),
        **contract.DEFINITIONS,
        "data_sha256": state["data_sha256"],
        "training_fingerprint": hashlib.sha256(weights).hexdigest(),
        "trained_steps": str(state["step"]),
        "validation_gap": "unknown" if gap is None else f"{gap:.4f}",
        "settings": json.dumps({k: v for k, v in state["settings"].items() if k not in PATHS}, sort_keys=True),
    }
