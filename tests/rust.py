"""The Rust crate: whether it can be built here, and cargo in its folder."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import onnxruntime
from tiny_runs import ROOT

CRATE = ROOT / "clients" / "rust"
OLDEST = re.search(r'^rust-version = "1\.(\d+)"', (CRATE / "Cargo.toml").read_text(), re.MULTILINE)[1]


def unable() -> str:
    """Why the crate cannot be built here; empty if it can."""
    if not shutil.which("cargo"):
        return "no cargo on this machine, so clients/rust is not tested; rustup installs it"
    version = subprocess.run(["cargo", "--version"], capture_output=True, text=True, cwd=CRATE).stdout
    found = re.match(r"cargo 1\.(\d+)", version)
    old = not found or int(found[1]) < int(OLDEST)
    return f"{version.strip() or 'a broken cargo'}, clients/rust needs 1.{OLDEST}; rustup update" if old else ""


UNABLE = unable()


def cargo(*arguments: str | Path, crate: Path = CRATE, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run cargo in the folder of a crate; all build in the same place."""
    env = os.environ | {"CARGO_TARGET_DIR": str(CRATE / "target")} | variables
    return subprocess.run(["cargo", *arguments], cwd=crate, env=env, capture_output=True, text=True)


def library() -> str:
    """The ONNX Runtime that Python calls, for Rust to call the same."""
    return str(next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")))
