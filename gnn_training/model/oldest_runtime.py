"""The oldest ONNX Runtime that callers may have, in an environment of its own."""

import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from gnn_training.errors import UserError
from gnn_training.model import golden

log = logging.getLogger(__name__)

LOCK = Path(__file__).parents[2] / "requirements-oldest.lock"
HOME = Path(sys.prefix) / "oldest-onnxruntime"
SUPPORTED = (3, 11)  # the newest Python it was built for
WAY_OUT = "try again with a network, or take --no-oldest-runtime"


def check_in_oldest_runtime(model: Path, vectors: Path) -> None:
    """Run the golden vectors in the oldest runtime, which is installed first if it is not there.

    Raises:
        UserError: it cannot be installed, or the model does not give the golden outputs there.
    """
    version = re.search(r"onnxruntime==(\S+)", LOCK.read_text(encoding="utf-8"))[1]
    if sys.version_info[:2] != SUPPORTED:
        log.warning("NOT run in ONNX Runtime %s: it was never built for Python %d.%d", version, *sys.version_info[:2])
        return
    if not (HOME / "done").exists():
        log.info("installing ONNX Runtime %s (once)", version)
        _install()
    # Its folder comes first on the path, so its numpy and runtime hide the locked ones.
    command = [sys.executable, golden.__file__, str(model), str(vectors)]
    result = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(HOME)}, capture_output=True, text=True)
    if result.returncode:
        raise UserError(f"ONNX Runtime {version} does not run the model: {_last_line(result.stderr)}")
    log.info("ONNX Runtime %s gives the golden outputs", version)


def _install() -> None:
    pip = ["uv", "pip"] if shutil.which("uv") else [sys.executable, "-m", "pip"]
    command = [*pip, "install", "--quiet", "--no-deps", "--require-hashes", "--target", str(HOME), "-r", str(LOCK)]
    shutil.rmtree(HOME, ignore_errors=True)
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise UserError(f"the oldest ONNX Runtime cannot be installed ({_last_line(result.stderr)}); {WAY_OUT}")
    (HOME / "done").touch()


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
