"""The files of this checkout, and files as tests need them."""

import json
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
from tiny_runs import ROOT


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
