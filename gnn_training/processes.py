"""Child processes: none outlives its parent, and a signal to the parent reaches them."""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from gnn_training.errors import UserError
from gnn_training.machine import num_cores

PR_SET_PDEATHSIG = 1  # linux/prctl.h
STOPPED = 143  # exit code of a command that SIGTERM has stopped, such as a training, which then resumes
interrupts: list[int] = []  # signals that `interruptible` has received
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")


class Interrupt(KeyboardInterrupt):
    """A signal to stop. After a plain KeyboardInterrupt inside `exec`, Python ends by SIGINT although it was caught."""


def die_with_parent(parent: int) -> None:
    """Let Linux kill this process when its parent, process `parent`, ends; kill it now if the parent has ended."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def blocks_signals(*signals: signal.Signals) -> Iterator[None]:
    """Block signals in this thread during the body, and for good in the processes that the body starts."""
    resource_tracker.ensure_running()  # starting it in the body would unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_in_processes(
    function: Callable[..., object], calls: Sequence[tuple], workers: int = 0
) -> Generator[int, None, None]:
    """Call `function` with each tuple of arguments; yield the number of each call as it ends, in any order. workers:
    the number of single-threaded processes, 0 for one per core. Closing the iterator ends all processes at once.
    UserError if a process died. An error of a call is raised here.
    """
    context = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold
    workers = min(workers or num_cores(), len(calls))
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, context, _start_worker, (os.getpid(),)) as pool:
        try:
            # Ctrl-C reaches the whole process group, but only the parent decides what ends.
            with blocks_signals(signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                numbers = {pool.submit(function, *arguments): number for number, arguments in enumerate(calls)}
            for future in as_completed(numbers):
                future.result()
                yield numbers[future]
        except BrokenProcessPool as error:
            raise UserError("a process was killed, perhaps out of memory: lower --workers") from error
        finally:
            for child in set(multiprocessing.active_children()) - others:
                child.kill()


def _start_worker(parent: int) -> None:
    die_with_parent(parent)
    os.environ.update(ONE_THREAD)  # before the first call loads the libraries that read this


@contextmanager
def python(arguments: Sequence[str], errors: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run Python with `arguments` during the body, then end it; an interruption kills it and its children. errors: a
    file for its stderr; None shares the stderr of this process.
    """
    with open(errors or os.devnull, "w") as file:
        # A process group of its own, because Ctrl-C in a terminal is meant for the parent.
        child = subprocess.Popen(
            [sys.executable, *arguments],
            stderr=file if errors else None,
            process_group=0,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
    try:
        try:
            yield child
        finally:
            child.terminate()
            child.wait()
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        raise


def run_python(arguments: Sequence[str]) -> int:
    """Run Python with `arguments` to its end. Return its exit code, or 128 + the signal that ended it."""
    with python(arguments) as child:
        code = child.wait()
    return code if code >= 0 else 128 - code


def handle_stop_signals(handler: Callable[[int, object], object]) -> dict[int, Any]:
    """Install `handler` for SIGTERM, Ctrl-C and the end of the terminal; return the former handlers. Ignored signals
    stay ignored, as a shell sets them for a process in the background or under nohup.
    """
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    return {each: signal.signal(each, handler) for each in numbers if signal.getsignal(each) != signal.SIG_IGN}


@contextmanager
def as_interrupt() -> Iterator[None]:
    """Raise the KeyboardInterrupt that came while numba called a function and that numba turned into SystemError."""
    try:
        yield
    except SystemError as error:
        cause: BaseException | None = error
        while cause and not isinstance(cause, KeyboardInterrupt):
            cause = cause.__cause__ or cause.__context__
        raise cause or error from None


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn signals to stop into KeyboardInterrupt(number) while the body runs, and note them in `interrupts`."""

    def interrupt(number: int, _frame: object) -> None:
        interrupts.append(number)
        raise Interrupt(number)

    before = handle_stop_signals(interrupt)
    try:
        with as_interrupt():
            yield
    finally:
        interrupts.clear()
        for number, handler in before.items():
            signal.signal(number, handler)
