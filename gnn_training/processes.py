"""Processes that belong together: a signal to the first reaches them all, and none outlives the one that started it.

Two trainings must never write to one run folder, not even for a moment after somebody killed the first.
"""

import ctypes
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "GNN_TRAINING_STEP"  # set for every process below a supervisor, however deep, to the supervisor's number
PR_SET_PDEATHSIG = 1  # linux/prctl.h
TIMED_OUT = 124  # as coreutils' timeout says it


def die_with_parent() -> None:
    """Have Linux kill this process at the moment its parent dies; elsewhere, nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def are_supervised() -> bool:
    """Whether a supervisor started this process or the one that did."""
    return VARIABLE in os.environ


def die_with_parent_if_supervised() -> None:
    """The same for a process below a supervisor; one that a person started may outlive its shell."""
    if not are_supervised():
        return
    die_with_parent()
    # If the parent was dead by then, Linux sends nothing any more, and who adopted us is no part of this.
    if sys.platform == "linux" and not _belongs(os.getppid()):
        os.kill(os.getpid(), signal.SIGKILL)


def _belongs(number: int) -> bool:
    """Whether a process is our supervisor or below one."""
    if str(number) == os.environ[VARIABLE]:
        return True
    try:
        return f"{VARIABLE}=".encode() in Path(f"/proc/{number}/environ").read_bytes()
    except OSError:  # gone, or of another user
        return False


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

    def run(
        self,
        arguments: list[str],
        errors: Path | None = None,
        limit: float = math.inf,
        watch: Callable[[], object] = lambda: None,
        **environment: str,
    ) -> int:
        """Run Python with `arguments` and return its exit code: 128 + signal if one ended it, 124 if time did.

        errors: file for its stderr; left out, that is ours. limit: seconds after which it is killed. watch: called
        again and again while it runs. environment: what is added to or replaced in ours.
        """
        with _started(arguments, errors, **environment) as child:
            code = self._wait(child, time.monotonic() + limit, watch)
        return code if code >= 0 else 128 - code

    def _wait(self, child: subprocess.Popen, deadline: float, watch: Callable[[], object]) -> int:
        passed_on = 0
        while (code := child.poll()) is None:
            watch()
            if (received := len(self.signals)) > passed_on:  # counted once: another may come at any moment
                os.killpg(child.pid, signal.SIGKILL if passed_on else self.signals[0])
                passed_on = received
            if time.monotonic() > deadline:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                return TIMED_OUT
            time.sleep(0.05)
        return code


@contextmanager
def beside(arguments: list[str], errors: Path) -> Iterator[None]:
    """Run Python with `arguments` for as long as the body takes."""
    with _started(arguments, errors) as child:
        try:
            yield
        finally:
            child.terminate()
            child.wait()


@contextmanager
def _started(arguments: list[str], errors: Path | None, **environment: str) -> Iterator[subprocess.Popen]:
    if errors is not None:
        errors.parent.mkdir(parents=True, exist_ok=True)
    with open(errors or os.devnull, "w") as file:
        # In a process group of its own: Ctrl-C in a terminal comes to us alone, as a container's stop does.
        yield subprocess.Popen(
            [sys.executable, *arguments],
            env=os.environ | environment | {VARIABLE: str(os.getpid())},
            stderr=file if errors else None,
            process_group=0,
            preexec_fn=die_with_parent,
        )
