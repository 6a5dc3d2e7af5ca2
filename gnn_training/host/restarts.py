"""A pause before a container that keeps failing tries again: its platform restarts at once whatever ends."""

import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gnn_training.atomic import write_text
from gnn_training.errors import StorageError
from gnn_training.host import volume

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 10, 600  # seconds; every failure doubles the pause
NAP = 0.2  # seconds until a signal is noticed
STOPPED = (130, 143)  # exit codes of whoever was told to stop


class Restarts:
    """Surrounds the job: pauses before it if this container has just failed, and notes how it ends.

    Only in the image. A restarted container keeps its hostname; a new one has a new one and starts at once.
    progress: how far the whole job is, in any unit that grows. signals: those that arrived, added to by a handler.
    """

    def __init__(self, run: Path, progress: Callable[[], int], signals: Sequence[int]):
        self._run, self._progress, self._signals = run, progress, signals
        self._note = _note(run) if os.environ.get("GNN_WORKSPACE") else None

    def __enter__(self) -> "Restarts":
        if self._note and (then := _read(self._note)):
            self._pause(then)
        return self

    def __exit__(self, _: type | None, error: BaseException | None, __: object) -> None:
        code = error.code if isinstance(error, SystemExit) else None
        if not self._note or self._signals or code in STOPPED or isinstance(error, KeyboardInterrupt):
            return
        if error is None or code == 0:
            self._note.unlink(missing_ok=True)
        else:
            self._add(self._note, f"exit code {code}" if code else str(error) or type(error).__name__)

    def _pause(self, then: dict) -> None:
        pause = min(FIRST_PAUSE * 2 ** (then["failures"] - 1), LONGEST_PAUSE)
        left = min(pause, then["time"] + pause - time.time())  # never longer, should somebody turn the clock back
        if left <= 0:
            return
        count = "once" if then["failures"] == 1 else f"{then['failures']} times in a row"
        log.warning("this container failed %s; trying again in %.0f s; last reason: %s", count, left, then["reason"])
        end = time.monotonic() + left
        while time.monotonic() < end:
            if self._signals:
                sys.exit(128 + self._signals[0])
            time.sleep(NAP)

    def _add(self, note: Path, reason: str) -> None:
        then, reached = _read(note), self._reached()
        failures = 1 + (then["failures"] if then and reached <= then["reached"] else 0)
        now = {"failures": failures, "reached": reached, "time": time.time(), "reason": reason}
        try:
            write_text(note, json.dumps(now) + "\n")
        except StorageError as error:
            log.warning("%s; the next start will not know that this one failed", error)

    def _reached(self) -> list[int]:
        """How far we are, to compare: progress first, then the newest checkpoint."""
        newest = max((path.stem for path in self._run.glob("checkpoints/step-*.pt")), default="step-0")
        return [self._progress(), int(newest.removeprefix("step-"))]


def _note(run: Path) -> Path:
    """Where this container remembers. /tmp is as old as it is, should the run folder be what makes it fail."""
    place = Path("/tmp") if volume.unwritable(run) else run
    return place / f"restarts.{socket.gethostname()}.json"


def _read(note: Path) -> dict | None:
    try:
        return json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # never failed, or a disk that forgets
        return None
