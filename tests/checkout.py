"""This checkout: its files, its Rust crate, and files as tests need them."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
from tiny_runs import ROOT

CRATE = ROOT / "clients" / "rust"


def copy_checkout(folder: Path) -> None:
    """Copy the files of this checkout that git keeps, with their times."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(lambda name: (ROOT / name).is_file(), names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)


def check_schema(name: str, part: str = "") -> Callable[[Any], None]:
    """What checks a document by a schema in this folder."""
    schema = json.loads((ROOT / "tests" / name).read_text())
    reference = {"$ref": f"#/components/schemas/{part}"} if part else {}
    return partial(jsonschema.validate, schema=schema | reference)


def write_program(path: Path, script: str) -> None:
    """Write a script that can be started, in place of what is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # perhaps a link
    path.write_text(script)
    path.chmod(0o755)


def flip_last_byte(path: Path) -> None:
    *before, last = path.read_bytes()
    path.write_bytes(bytes([*before, last ^ 1]))


@cache
def why_no_crate() -> str:
    """Why the Rust crate cannot be built here; empty if it can."""
    if not shutil.which("cargo"):
        return "no cargo on this machine, so clients/rust is not tested; rustup installs it"
    version = subprocess.run(["cargo", "--version"], capture_output=True, text=True, cwd=CRATE).stdout
    found, oldest = (re.search(r"(?:cargo |^rust-version = \")1\.(\d+)", text, re.MULTILINE)
                     for text in (version, (CRATE / "Cargo.toml").read_text()))  # fmt: skip
    old = not found or int(found[1]) < int(oldest[1])
    return f"{version.strip() or 'a broken cargo'}, clients/rust needs 1.{oldest[1]}; rustup update" if old else ""


def runtime_library() -> str:
    """The ONNX Runtime that Python calls, for other languages to call the same."""
    return str(next(Path(find_spec("onnxruntime").origin).parent.glob("capi/libonnxruntime.so.*")))
