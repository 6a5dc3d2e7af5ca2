"""Processes that belong together: a signal to the first reaches them all, and none outlives the one that started it.

Two trainings must never write to one run folder, not even for a moment after somebody killed the first.
"""
# DOC Work spread over processes of one thread each, which stop when told to and never outlive their parent.
# DOC A sign of life for whoever watches this container: a file whose time of change stays young while there is progress.
#
# No file means that nothing runs, which is healthy too.
#

import ctypes
import logging
import math
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path

from gnn_training.errors import UserError
from gnn_training.machine import num_cores

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


_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def run_in_processes(function: Callable[..., object], calls: Sequence[tuple], workers: int = 0) -> Iterator[int]:
    """Call `function` with each tuple of arguments; yield the number of each call as it ends, in any order.

    workers: processes, 0 takes every core. Closing the iterator, or leaving it by an exception, ends all processes at
    once, in the middle of what they do.

    Raises:
        UserError: a process died. What a call raises is raised here.
    """
    context = multiprocessing.get_context("spawn")  # a fork would copy the locks of torch's threads
    lifeline, held = context.Pipe(duplex=False)
    workers = min(workers or num_cores(), len(calls))
    with _one_thread_each(), ProcessPoolExecutor(workers, context, _start_worker, (lifeline,)) as pool:
        try:
            with _deaf_children():
                numbers = {pool.submit(function, *arguments): number for number, arguments in enumerate(calls)}
            for future in as_completed(numbers):
                future.result()
                yield numbers[future]
        except BrokenProcessPool as error:
            raise UserError("a process was killed, likely for memory; take fewer --workers") from error
        finally:
            held.close()


def _start_worker(lifeline: Connection) -> None:
    """Leave when the other end of the lifeline closes, be it that the parent wants it so or that it was killed."""

    def watch() -> None:
        lifeline.poll(None)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes started here never hear Ctrl-C or SIGTERM, which reach the whole group: the parent decides."""
    resource_tracker.ensure_running()  # unblocks both signals when it starts, so it has to start before
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes started here give numerical libraries one thread; those read the environment before we could speak."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Turn SIGTERM into SystemExit(143), so that whatever is open gets closed. Only the main thread can."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


log = logging.getLogger(__name__)
HEARTBEAT_VARIABLE = "GNN_HEARTBEAT"  # names the file but for the host; unset, nobody watches
HEARTBEAT_SECONDS = 5.0  # between two touches
_due = 0.0  # on the monotonic clock


def beat() -> None:
    """Touch the file, unless that was done a moment ago; cheap enough for every turn of a loop."""
    global _due
    now = time.monotonic()
    if now < _due:
        return
    _due = now + HEARTBEAT_SECONDS
    if path := _heartbeat_path():
        try:
            path.touch()
        except OSError as error:
            _due = math.inf  # said once; a sign of life is not worth a job
            log.warning(
                "%s names a file that cannot be written, so nobody sees that this runs: %s", HEARTBEAT_VARIABLE, error
            )


def rest() -> None:
    """Remove the file: the work ended in order, and silence is no alarm any more."""
    if path := _heartbeat_path():
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _heartbeat_path() -> Path | None:
    """With the host's name, because containers may share the folder (--ipc=host) and each looks for its own."""
    name = os.environ.get(HEARTBEAT_VARIABLE)
    return Path(f"{name}.{socket.gethostname()}") if name else None
