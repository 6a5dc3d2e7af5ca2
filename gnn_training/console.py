"""Quantities as people say them."""
# DOC How far long work is: a bar in a terminal, a line every few seconds in a log.

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


def duration(seconds: float) -> str:
    """Seconds below two minutes, minutes and seconds below two hours, else hours and minutes."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


_SECONDS_BETWEEN_LINES = 5.0


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:.1f}/s")


@contextmanager
def progress(what: str, done: int, total: int, log: logging.Logger) -> Iterator[Callable[[int], None]]:
    """Give the body a function to call with the number of items just done; rate and time left count from here."""
    yield from _bar(what, done, total) if sys.stderr.isatty() else _lines(what, done, total, log)


def _bar(what: str, done: int, total: int) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
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
            left = round((total - done) / max(rate, 1e-9))
            log.info("%s: %d of %d, %.1f/s, %d:%02d left", what, done, total, rate, *divmod(left, 60))

    yield advance
