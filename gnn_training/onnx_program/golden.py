"""Golden vectors: inputs with the outputs they must give, for callers of the file in any language.

`python golden.py MODEL GOLDEN` checks a file. This script needs only numpy and ONNX Runtime, even an old version.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # set by the package too, but this may run as a script

import numpy as np
import onnxruntime

TOLERANCE = 2e-3  # largest error of an output; the numbers in the file are rounded
ROUNDS = 50  # enough for the search to matter; in far more rounds, rounding errors may decide a move


def session(model: Path | bytes, threads: int = 1) -> onnxruntime.InferenceSession:
    """A session of a model, given by path or content, that runs on so many threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Threads that spin while they wait take the cores from those that work: half the speed on two cores, measured.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3  # no warnings: initializers that callers may override are intended
    source = model if isinstance(model, bytes) else str(model)
    # Constants are computed in a call, which can be stopped, and not while a file is opened, which cannot.
    return onnxruntime.InferenceSession(
        source, options, providers=["CPUExecutionProvider"], disabled_optimizers=["ConstantFolding"]
    )


def feeds(edge_index: np.ndarray, batch: np.ndarray, **options: int | list[int]) -> dict[str, np.ndarray]:
    """Inputs of the contract for edges (2, E) and batch (N,); options: num_colors, seed, steps."""
    return {
        "node_features": np.zeros((len(batch), 16), dtype=np.float32),
        "edge_index": np.asarray(edge_index, dtype=np.int64).reshape(2, -1),
        "batch": np.asarray(batch, dtype=np.int64),
        **{name: np.asarray(value, dtype=np.int64) for name, value in options.items()},
    }


def make(model: bytes, graphs: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict:
    """Golden vectors of a model for every named (edge_index, batch). node_features are zeros."""
    runtime, cases = session(model), []
    for name, (edge_index, batch) in graphs.items():
        inputs = feeds(edge_index, batch, num_colors=[0], seed=1, steps=ROUNDS)
        outputs = dict(zip([o.name for o in runtime.get_outputs()], runtime.run(None, inputs), strict=True))
        given = {key: value.tolist() for key, value in inputs.items() if key != "node_features"}
        expected = {key: np.round(value.astype(float), 5).tolist() for key, value in outputs.items()}
        cases.append({"name": name, "inputs": given, "outputs": expected})
    return {"tolerance": TOLERANCE, "node_features": "zeros (N, 16)", "cases": cases}


def check(model: Path, golden: Path) -> None:
    """Run every case again. ValueError if an output is off by more than the tolerance."""
    vectors, runtime = json.loads(golden.read_text(encoding="utf-8")), session(model)
    for case in vectors["cases"]:
        inputs = feeds(**case["inputs"])
        for name, value in zip([o.name for o in runtime.get_outputs()], runtime.run(None, inputs), strict=True):
            error = float(np.abs(value - np.array(case["outputs"][name])).max())
            if not error <= vectors["tolerance"]:
                raise ValueError(f"{model}: {name} of golden vector {case['name']!r} is off by {error:.2g}")


if __name__ == "__main__":
    check(Path(sys.argv[1]), Path(sys.argv[2]))
