"""This checkout: its files, its Rust crate, and files as tests need them."""

import json
import re
import shutil
import socket
import subprocess
import sys
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


class PartialCheckout:
    """Some files of this checkout in runs/clone, and a folder `bin` of programs in place of real ones."""

    def __init__(self, folder: Path, *names: str):
        self.root, self.bin, self.calls = folder / "runs/clone", folder / "bin", folder / "calls.log"
        for name in names:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)

    def tool(self, name: str, script: str) -> None:
        """Put a command into `bin`."""
        write_program(self.bin / name, f"#!{shutil.which('bash')}\n{script}\n")

    def start(self, script: str, *flags: str, **options) -> subprocess.CompletedProcess[str]:
        """Run a script of the checkout with these options of subprocess.run."""
        return subprocess.run([self.root / script, *flags], capture_output=True, text=True, timeout=120, **options)

    def called(self, command: str) -> list[str]:
        """The lines of calls.log, where tools note how they were called, that begin with this command."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line for line in lines if line.startswith(f"{command} ")]


def loaded_by(*arguments: object) -> set[str]:
    """The modules that coloring-gnn loads for a command that succeeds."""
    code = "try:\n    code = main(sys.argv[1:])\nexcept SystemExit as end:\n    code = end.code\n"
    code = f"import sys; from gnn_training.__main__ import main\n{code}print(*sys.modules); sys.exit(code)"
    return set(python(code, *arguments).splitlines()[-1].split())


def python(code: str, *arguments: object) -> str:
    """What Python prints for this code, which succeeds."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def answers(port: int, host: str = "127.0.0.1") -> bool:
    """Whether something listens there."""
    with socket.socket() as connection:
        return connection.connect_ex((host, port)) == 0


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
