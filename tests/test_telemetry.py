"""ONNX Runtime sends nothing and writes no device id where the package loads it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import debian
import pytest
from tiny_runs import ROOT

SESSION = "from gnn_training.onnx_program.session import Model; Model()._session"
WRITE = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|\b(creat|mkdir|mknod|rename|link|symlink|truncate)(at2?)?\(")
NAME = re.compile(r'(?:<([^>]*)>, )?"([^"]*)"')  # a path, and before it the folder that it is relative to


def start(folder: Path, *command: str | Path, **variables: str) -> None:
    """Run a command in a folder, with few variables: those of a CI service switch telemetry off, too."""
    for name in ("home", "tmp"):
        (folder / name).mkdir(exist_ok=True)
    few = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    few |= {"PYTHONPATH": str(ROOT), "HOME": f"{folder}/home", "TMPDIR": f"{folder}/tmp"}
    done = subprocess.run(command, cwd=folder, env=few | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def strace() -> str:
    tried = subprocess.run([debian.command("strace"), "-o", os.devnull, "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"strace can trace no process here: {tried.stderr.strip()}")
    return "strace"


def trace(strace: str, folder: Path, *arguments: str, **variables: str) -> tuple[list[str], set[Path]]:
    """Lines about sockets, and the paths that Python with these arguments writes, or tries to."""
    log = folder / "trace"
    start(folder, strace, "-fyo", log, "-e", "trace=%file,%network", sys.executable, *arguments, **variables)
    lines = log.read_text().splitlines()
    names = [name for line in lines if WRITE.search(line) for name in NAME.findall(line)]
    return [line for line in lines if re.search(r"\b(socket|connect)\(", line)], {Path(folder, *name) for name in names}


@pytest.mark.usefixtures("compiled")
def test_color_opens_no_connection_and_writes_only_the_solution_and_caches(strace: str, tmp_path: Path):
    shutil.copy(ROOT / "examples/queen8_8.col", tmp_path)
    sockets, written = trace(strace, tmp_path, "-m", "gnn_training", "color", "queen8_8.col", "--seconds", "0.1")
    assert not sockets
    assert tmp_path / "queen8_8.sol" in written
    meant = {path for path in written if path.parent in (tmp_path, tmp_path / "tmp") or "__pycache__" in path.parts}
    assert written - meant <= {Path(os.devnull)}


@pytest.mark.slow
@pytest.mark.nightly
def test_onnx_runtime_opens_no_connection(strace: str, tmp_path: Path):
    """If telemetry is on, the first is nine seconds after the import."""
    sockets, _ = trace(strace, tmp_path, "-c", f"{SESSION}; import time; time.sleep(15)")
    assert not sockets


def test_a_trace_shows_sockets_and_the_device_id_that_a_user_allows(strace: str, tmp_path: Path):
    program = "import socket, gnn_training.onnx_program.golden; socket.socket().connect_ex(('127.0.0.1', 9))"
    sockets, written = trace(strace, tmp_path, "-c", program, ORT_DISABLE_TELEMETRY="0")
    assert len(sockets) == 2
    assert any(path.is_relative_to(tmp_path / "home") for path in written)


@pytest.mark.parametrize(
    "program",
    [
        SESSION,
        f"import runpy; runpy.run_path('{ROOT}/gnn_training/onnx_program/golden.py')",
    ],
    ids=["package", "script"],
)
def test_telemetry_is_off_when_onnx_runtime_is_imported(program: str, tmp_path: Path):
    start(tmp_path, sys.executable, "-c", f"{program}; import sys; assert 'onnxruntime' in sys.modules")
    assert not list((tmp_path / "home").iterdir())
