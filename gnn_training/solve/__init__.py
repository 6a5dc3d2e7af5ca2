"""Search in compiled loops. numba keeps them in the package's folder, or in the user's cache folder."""

import os
import tempfile
from pathlib import Path

from numba import config

from gnn_training.machine import existing_parent

CACHES = Path(__file__).parent, Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))

if not config.CACHE_DIR and not any(  # type: ignore[attr-defined]
    place.is_absolute() and os.access(existing_parent(place), os.W_OK) for place in CACHES
):
    # Where numba can write neither, it refuses to work. Only this user may put code into the folder.
    folder = Path(tempfile.gettempdir(), f"gnn_training-numba-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    is_ours = folder.lstat().st_uid == os.getuid()
    config.CACHE_DIR = str(folder) if is_ours else tempfile.mkdtemp()  # type: ignore[attr-defined]
