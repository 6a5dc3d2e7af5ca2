"""Processes that belong together: a signal to the first reaches them all, and none outlives the one that started it.

Two trainings must never write to one run folder, not even for a moment after somebody killed the first.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

VARIABLE = "GNN_TRAINING_STEP"  # set for every process below a supervisor, however deep
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    """Have Linux kill this process at the moment its parent dies; elsewhere, nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def die_with_parent_if_supervised() -> None:
    """The same for a process below a supervisor; one that a person started may outlive its shell."""
    if VARIABLE in os.environ:
        die_with_parent()


class Supervisor:
    """Runs one Python at a time and passes SIGTERM and SIGINT on to it; a second signal kills."""

    def __init__(self):
        self.signals: list[int] = []

    def __enter__(self) -> "Supervisor":
        self._handlers = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: object) -> None:
        self.signals.append(number)

    def run(self, arguments: list[str], errors: Path | None = None, **environment: str) -> int:
        """Run Python with `arguments` and return its exit code, 128 + signal if one ended it.

        errors: file for its stderr; left out, that is ours. environment: what is added to or replaced in ours.
        """
        if errors is not None:
            errors.parent.mkdir(parents=True, exist_ok=True)
        with open(errors or os.devnull, "w") as file:
            # In a process group of its own: Ctrl-C in a terminal comes to us alone, as a container's stop does.
            child = subprocess.Popen(
                [sys.executable, *arguments],
                env=os.environ | environment | {VARIABLE: "1"},
                stderr=file if errors else None,
                process_group=0,
                preexec_fn=die_with_parent,
            )
            code = self._wait(child)
        return code if code >= 0 else 128 - code

    def _wait(self, child: subprocess.Popen) -> int:
        passed_on = 0
        while (code := child.poll()) is None:
            if len(self.signals) > passed_on:
                os.killpg(child.pid, signal.SIGKILL if passed_on else self.signals[0])
                passed_on = len(self.signals)
            time.sleep(0.05)
        return code
