"""Chromium, in which tests open pages."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import debian

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr",
)  # fmt: skip


def executable() -> str:
    """Path of Chromium, which is installed first; where that is impossible, the test is skipped with the reason."""
    if not shutil.which("chromium"):
        debian.require("chromium")
    found = shutil.which("chromium")
    assert found
    return found


def console(page: Path, *flags: str) -> list[str]:
    """What a page writes to the console, with its errors, when Chromium opens the file."""
    with tempfile.TemporaryDirectory() as profile:
        command = [executable(), *FLAGS, f"--user-data-dir={profile}", *flags, page.resolve().as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return [line.partition("CONSOLE")[2] for line in done.stderr.splitlines() if "CONSOLE" in line]
