"""Debian packages that tests need and that no lock can name: a container engine, a browser."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from filelock import FileLock


def require(*packages: str) -> None:
    """Install Debian packages. If that is impossible, skip the test with the reason; fail it for root on CI."""
    with FileLock(Path(tempfile.gettempdir(), "gnn-training-apt.lock")):
        why_not = _install(packages)
    if why_not:
        must = os.environ.get("CI") == "true" and os.geteuid() == 0
        (pytest.fail if must else pytest.skip)(why_not)


def command(name: str) -> str:
    """Path of a command; its Debian package of the same name is installed first, as by `require`."""
    if not shutil.which(name):
        require(name)
    return str(shutil.which(name))


def _install(packages: tuple[str, ...]) -> str | None:
    """Why that is impossible, None if they are there."""
    if os.geteuid():
        return f"needs root to install and use {', '.join(packages)}"
    if not shutil.which("apt-get"):
        return f"{', '.join(packages)} are Debian packages, and there is no apt-get"
    query = ["dpkg-query", "-W", "-f", "${Status}\\n", *packages]
    states = subprocess.run(query, capture_output=True, text=True)
    if states.returncode == 0 and {*states.stdout.splitlines()} == {"install ok installed"}:
        return None
    quiet = {"stdout": subprocess.DEVNULL, "env": os.environ | {"DEBIAN_FRONTEND": "noninteractive"}}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        if subprocess.run(["apt-get", "-qq", *command], **quiet).returncode:
            return f"apt-get cannot install {', '.join(packages)}"
    return None
