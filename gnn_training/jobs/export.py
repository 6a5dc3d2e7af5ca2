"""Write the trained network as one verified ONNX file, with golden vectors and checksums beside it."""

import json
import logging
import tempfile
from pathlib import Path

from gnn_training import __version__, files
from gnn_training.contract import GOLDEN_FILE, GRAPH_TYPES, MAX_COLORS, MODEL_FILE, SUMS_FILE
from gnn_training.errors import UserError
from gnn_training.model import golden
from gnn_training.model.loss import ColoringNetwork
from gnn_training.model.onnx_export import build, check_in_oldest_runtime, probes, verify
from gnn_training.model.program import Program
from gnn_training.settings import ExportSettings
from gnn_training.training import checkpoint

log = logging.getLogger(__name__)
PATHS = ("data", "run", "weights")  # settings that say nothing to whoever gets the file
GOLDEN_PROBES = ("one node, the pair (0, 0)", "edgeless", "ring", "petersen", "several graphs")


def export(settings: ExportSettings) -> Path:
    """Build the file, prove it, and only then give it its name; returns its path.

    Raises:
        UserError: no checkpoint to export, or a check failed: whatever was in the folder before is still there.
    """
    if settings.verify_only:
        return _verify_published(settings)
    state = checkpoint.load_best(settings.run)
    program = Program(_network(state)).eval()
    log.info("exporting %s (step %d) to ONNX", settings.run, state["step"])
    model = build(program, settings.steps, _metadata(settings, state))
    content = model.SerializeToString()
    log.info("%.0f kB; checking it against torch", len(content) / 1000)
    verify(model, program)
    chosen = {name: graph for name, graph in probes().items() if name in GOLDEN_PROBES}
    vectors = json.dumps(golden.make(content, chosen)).encode()
    if settings.oldest_runtime:
        with tempfile.TemporaryDirectory() as folder:
            draft = {name: Path(folder) / name for name in (MODEL_FILE, GOLDEN_FILE)}
            draft[MODEL_FILE].write_bytes(content)
            draft[GOLDEN_FILE].write_bytes(vectors)
            check_in_oldest_runtime(draft[MODEL_FILE], draft[GOLDEN_FILE])
    return _publish(settings.models, {MODEL_FILE: content, GOLDEN_FILE: vectors})


def _verify_published(settings: ExportSettings) -> Path:
    """Hold the files that lie there against their checksums and the golden vectors, as whoever fetches them would."""
    model, vectors, sums = (settings.models / name for name in (MODEL_FILE, GOLDEN_FILE, SUMS_FILE))
    if not sums.exists():
        raise UserError(f"{sums}: there is no such file; run export first")
    found = {path.name: path.read_bytes() for path in (model, vectors) if path.exists()}
    if name := files.changed(sums.read_text(encoding="utf-8"), found):
        raise UserError(f"{settings.models / name}: not the file that was exported; export again")
    try:
        golden.check(model, vectors)
    except ValueError as error:
        raise UserError(f"{error}; export again") from error
    log.info("%s: checksums hold, the golden vectors agree", model)
    if settings.oldest_runtime:
        check_in_oldest_runtime(model, vectors)
    return model


def _network(state: dict) -> ColoringNetwork:
    network = ColoringNetwork(state["settings"]["width"])
    network.load_state_dict(checkpoint.without_prefix(state["network"]))
    return network


def _metadata(settings: ExportSettings, state: dict) -> dict[str, str]:
    """Where the file comes from, as strings; the same checkpoint gives the same file."""
    return {
        "model_version": __version__,
        "max_colors": str(MAX_COLORS),
        "steps": str(settings.steps),
        "graph_types": json.dumps(GRAPH_TYPES),
        "data_sha256": state["data_sha256"],
        "training_fingerprint": checkpoint.weights_fingerprint(state),
        "trained_steps": str(state["step"]),
        "validation_excess": f"{state['scores']['gap']:.4f}" if "scores" in state else "unknown",
        "settings": json.dumps({k: v for k, v in state["settings"].items() if k not in PATHS}, sort_keys=True),
    }


def _publish(folder: Path, files: dict[str, bytes]) -> Path:
    """Put the files in place, the checksums last."""
    for name, content in files.items():
        with files.replace_file(folder / name) as temporary:
            temporary.write_bytes(content)
    files.write_text(folder / SUMS_FILE, files.checksums(files))
    log.info("%s is ready", folder / MODEL_FILE)
    return folder / MODEL_FILE
