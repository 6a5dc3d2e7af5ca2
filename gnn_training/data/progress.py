"""How far long work is: a bar in a terminal, a line every few seconds in a log."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SECONDS_BETWEEN_LINES = 5.0


@contextmanager
def progress(what: str, done: int, total: int, log: logging.Logger) -> Iterator[Callable[[int], None]]:
    """Give the body a function to call with the number of items just done; rate and time left count from here."""
    if sys.stderr.isatty():
        yield from _bar(what, done, total)
    else:
        yield from _lines(what, done, total, log)


def _bar(what: str, done: int, total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    rate = TextColumn("{task.speed:.0f}/s" if done < total else "")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), speed_estimate_period=60) as bar:
        task = bar.add_task(what, total=total, completed=done)
        yield lambda count: bar.advance(task, count)


def _lines(what: str, done: int, total: int, log: logging.Logger) -> Iterator[Callable[[int], None]]:
    first, start = done, time.monotonic()
    due = start + _SECONDS_BETWEEN_LINES

    def advance(count: int) -> None:
        nonlocal done, due
        done += count
        now = time.monotonic()
        if now >= due or done == total:
            due = now + _SECONDS_BETWEEN_LINES
            rate = (done - first) / max(now - start, 1e-9)
            left = (total - done) / max(rate, 1e-9)
            log.info("%s: %d of %d, %.1f/s, %d:%02d left", what, done, total, rate, *divmod(round(left), 60))

    yield advance
