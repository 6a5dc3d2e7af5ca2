"""What people see: log lines, progress, tables and durations."""

import io
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gnn_training.errors import printable
from gnn_training.processes import interrupts

log = logging.getLogger(__name__)
SECONDS_BETWEEN_LINES = 5.0  # time between two lines of progress in a log


class _Formatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))


def set_up_logging() -> None:
    """Log to stdout with the time of day: information from this program, only warnings from libraries."""
    handler: logging.Handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    if sys.stdout.isatty():
        handler = RichHandler(show_level=False, show_path=False, omit_repeated_times=False, log_time_format="%H:%M:%S")
        handler.setFormatter(_Formatter("%(message)s"))
    logging.raiseExceptions = False  # the work goes on if a log cannot be written
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger("gnn_training").setLevel(logging.INFO)
    threading.excepthook = _thread_failed


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    """Log in one line what ended a thread of a library, such as TensorBoard's thread on a full disk."""
    name = failure.thread.name if failure.thread else "a thread"
    logging.warning("%s has ended: %s: %s", name, failure.exc_type.__name__, failure.exc_value)


@contextmanager
def errors_as_warnings(logger: str) -> Iterator[None]:
    """Warn if a logger fails, for example without its server, and go on: the run folder has all records."""
    try:
        yield
    except Exception as error:
        log.warning("%s does not log this: %s", logger, error)


def duration(seconds: float) -> str:
    """Seconds below two minutes, minutes and seconds below two hours, else hours and minutes."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, remaining = divmod(round(seconds), 60)
    return f"{minutes} min {remaining} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


@contextmanager
def progress(what: str, done: int, total: int) -> Iterator[Callable[[int], None]]:
    """Show progress as a bar in a terminal, else as log lines. The body gets a function that counts items just done."""
    terminal = sys.stderr.isatty()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), speed_estimate_period=60, disable=not terminal) as bar:
        started = time.monotonic()
        bar.add_task(what, completed=done, total=total, next_line=started + SECONDS_BETWEEN_LINES)
        task = bar.tasks[0]

        def advance(count: int) -> None:
            bar.advance(task.id, count)
            now = time.monotonic()
            if not terminal and (now >= task.fields["next_line"] or task.finished):
                bar.update(task.id, next_line=now + SECONDS_BETWEEN_LINES)
                speed = max(task.completed - done, 1) / (now - started)
                left = duration((total - task.completed) / speed)
                log.info("%s: %d of %d, %.1f/s, %s left", what, task.completed, total, speed, left)

        yield advance


def in_threads(function: Callable[[Any], Any], graphs: Sequence[Any], threads: int) -> Iterator[Any]:
    """Yield function(graph) of every graph, in their order, and show progress. After an error, no other graph begins;
    after Ctrl-C, running searches end, too.
    """
    with ThreadPoolExecutor(threads) as pool, progress("coloring graphs", 0, len(graphs)) as advance:
        added_interrupt = False
        try:
            for result in pool.map(function, graphs):
                advance(1)
                yield result
        except KeyboardInterrupt:
            if added_interrupt := not interrupts:
                interrupts.append(signal.SIGINT)
            raise
        finally:
            pool.shutdown(cancel_futures=True)
            if added_interrupt:
                interrupts.clear()


def markdown_table(columns: Mapping[str, Sequence[object]]) -> Table:
    """A table with a column per title. Numbers are on the right, None is "-"."""
    table = Table(box=box.MARKDOWN)  # readable in a log and in a terminal, and valid in a README
    for number, (title, values) in enumerate(columns.items()):
        is_text = any(isinstance(value, str) for value in values)
        table.add_column(title, justify="left" if is_text else "right", no_wrap=number == 0 or not is_text)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*map(cell, row))
    return table


def cell(value: object) -> str:
    """A value in a table: None is "-", a float has two decimals."""
    return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else printable(str(value))


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError; rich would end the process."""
        raise  # noqa: PLE0704


def print_tables(*tables: Table, file: TextIO | None = None) -> None:
    """Print tables to stdout or to a file. A log and a file get lines as wide as the tables."""
    console = _Console(markup=False, highlight=False, file=file)
    if not console.is_terminal:
        console.width = 1000  # upper limit
    for table in tables:
        console.print(table)


def as_text(table: Table) -> str:
    """A table as lines of Markdown, as wide as its content."""
    print_tables(table, file=(text := io.StringIO()))
    return text.getvalue().strip()
