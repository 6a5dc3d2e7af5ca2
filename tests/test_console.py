"""Progress, tables and durations as people see them in a terminal and in a log."""

import logging
import sys

import pytest

from gnn_training import console

log = logging.getLogger("gnn_training.test")


@pytest.mark.parametrize(("pause", "lines"), [(60.0, 1), (0.0, 3)])
def test_progress_in_a_log_is_a_line_every_few_seconds_and_at_the_end(caplog, monkeypatch, pause: float, lines: int):
    caplog.set_level("INFO")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", pause)
    with console.progress("labelling", 3, 6) as advance:
        for _ in range(3):
            advance(1)
    assert len(caplog.messages) == lines
    assert caplog.messages[-1].startswith("labelling: 6 of 6, ") and caplog.messages[-1].endswith("/s, 0.0 s left")


def test_escape_sequences_in_names_do_not_reach_the_terminal(capsys):
    console.set_up_logging()
    log.info("wrote %s", "\x1b[31mred.col")
    console.print_tables(console.markdown_table({"graph": ["\x1b[31mred"]}))
    assert capsys.readouterr().out.count(r"\x1b[31mred") == 2


def test_progress_in_a_terminal_is_a_bar(caplog, monkeypatch, capfd):
    caplog.set_level("INFO")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with console.progress("labelling", 0, 5) as advance:
        advance(5)
    shown = capfd.readouterr().err
    assert "labelling" in shown and "5/5" in shown and "━" in shown and not caplog.messages


def test_tables_are_markdown_with_numbers_on_the_right(capsys):
    columns = {"graph": ["queen8_8", "myciel3"], "colors": [9, None], "seconds": [1.234, 10.0]}
    console.print_tables(console.markdown_table(columns))
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()] == [
        "| graph    | colors | seconds |",
        "|----------|--------|---------|",
        "| queen8_8 |      9 |    1.23 |",
        "| myciel3  |      - |   10.00 |",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.42, "0.4 s"), (59, "59 s"), (119.4, "119 s"), (133, "2 min 13 s"), (7199, "119 min 59 s"), (7260, "2 h 1 min")],
)
def test_durations_have_the_unit_that_fits(seconds: float, text: str):
    assert console.duration(seconds) == text
