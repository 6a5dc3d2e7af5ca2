"""A sign of life for whoever watches this container: a file whose time of change stays young while there is progress.

No file means that nothing runs, which is healthy too.
"""

import logging
import math
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

VARIABLE = "GNN_HEARTBEAT"  # names the file but for the host; unset, nobody watches
SECONDS = 5.0  # between two touches

_due = 0.0  # on the monotonic clock


def beat() -> None:
    """Touch the file, unless that was done a moment ago; cheap enough for every turn of a loop."""
    global _due
    now = time.monotonic()
    if now < _due:
        return
    _due = now + SECONDS
    if path := _path():
        try:
            path.touch()
        except OSError as error:
            _due = math.inf  # said once; a sign of life is not worth a job
            log.warning("%s names a file that cannot be written, so nobody sees that this runs: %s", VARIABLE, error)


def rest() -> None:
    """Remove the file: the work ended in order, and silence is no alarm any more."""
    if path := _path():
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _path() -> Path | None:
    """With the host's name, because containers may share the folder (--ipc=host) and each looks for its own."""
    name = os.environ.get(VARIABLE)
    return Path(f"{name}.{socket.gethostname()}") if name else None
