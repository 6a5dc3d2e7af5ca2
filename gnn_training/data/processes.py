"""Work spread over processes of one thread each, which stop when told to and never outlive their parent."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection

from gnn_training.errors import UserError
from gnn_training.host.machine import num_cores

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def in_processes(function: Callable[..., object], calls: Sequence[tuple], workers: int = 0) -> Iterator[int]:
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
