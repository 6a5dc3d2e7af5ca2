"""Count the colors of an exported file on graphs, next to DSATUR, RLF and the best known."""

import csv
import hashlib
import json
import logging
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import numpy as np
from rich.console import Console

from gnn_training import files
from gnn_training.coloring import conflicts, count_conflicts_and_colors, from_logits, read_dimacs_pairs
from gnn_training.console import progress
from gnn_training.data import sources
from gnn_training.data.packed import PackedGraphs, read_manifest
from gnn_training.errors import UserError
from gnn_training.graph import Graph
from gnn_training.model.session import Colorer
from gnn_training.settings import EvaluateSettings
from gnn_training.solve import baselines, report
from gnn_training.solve.anytime import improvements, one_call

logger = logging.getLogger(__name__)
SHOWN_ROWS = 100  # more graphs than that are summed up on the screen; the report has them all
CALL_SECONDS = 600.0  # a graph that needs longer in one call is none for the network
ROUNDS = (8, 32, 128, 512, 2048)  # of the calls for the plot,
LONGEST = 4  # up to so many times those of a plain call
LIBRARIES = ("onnxruntime", "numpy", "networkx", "gcol")
Proven = Callable[[str, np.ndarray], int]  # name of a method and its coloring to the colors in use


@dataclass(frozen=True)
class Case:
    """A graph to color, what is known about it, and the file that holds it if that is a plain .col."""

    graph: Graph
    best_known: int | None
    family: str | None = None
    file: Path | None = None


def evaluate(settings: EvaluateSettings) -> None:
    """Color every graph, print the tables, write report and plot.

    Raises:
        UserError: the model, a graph or the CSV cannot be read, there is no place for the files, or nothing to plot.
        RuntimeError: a coloring is not proper; the message names graph and method.
    """
    files = [file for file in (settings.report, settings.plot) if file]
    files.require_folders(files)
    colorer = Colorer(settings.model, settings.threads)
    cases = _cases(settings)
    rows = []
    with progress("evaluate", 0, len(cases), logger) as advance:
        for case in cases:
            rows.append(_row(case, colorer, settings))
            advance(1)
    report = _report(settings, colorer, rows)
    files.write_text(settings.report, json.dumps(report, indent=1) + "\n")
    _show(report, rows)
    if settings.plot:
        _plot(rows, settings.plot)
    for file in files:
        logger.info("wrote %s", file)


def _cases(settings: EvaluateSettings) -> list[Case]:
    is_packed = settings.graphs.is_dir() and read_manifest(settings.graphs) is not None
    cases = list(_packed(settings.graphs) if is_packed else _files(settings.graphs))
    if settings.limit:  # from everywhere, since neighbours are of one family
        chosen = np.linspace(0, len(cases) - 1, min(settings.limit, len(cases))).astype(int)
        cases = [cases[i] for i in chosen]
    if settings.best_known:
        known = _best_known(settings.best_known)
        if not any(case.graph.name in known for case in cases):
            raise UserError(
                f"{settings.best_known}: names none of the graphs, such as {cases[0].graph.name!r}; correct it"
            )
        cases = [replace(case, best_known=known.get(case.graph.name, case.best_known)) for case in cases]
    if settings.plot and all(case.best_known is None for case in cases):
        raise UserError("plot needs best known numbers: set best_known, a CSV with columns name and best_known")
    return cases


def _packed(folder: Path) -> Iterator[Case]:
    graphs = PackedGraphs.open(folder)
    chosen = graphs.indices("validation")
    if not len(chosen):
        raise UserError(f"{folder}: holds no validation graphs; evaluate the files they were made from")
    for i in chosen.tolist():
        yield Case(graphs.graph(i), int(graphs.num_colors[i]), graphs.families[graphs.family[i]])


def _files(path: Path) -> Iterator[Case]:
    for file in sources.find([path]):
        if sources.is_archive(file):
            raise UserError(f"{file}: an archive is not evaluated; unpack it and name the folder")
        found = sources.read(file)
        if found.note:
            logger.warning(found.note)
        yield Case(found.graph, None, file=file if file.suffix == ".col" else None)


def _best_known(path: Path) -> dict[str, int]:
    """Column best_known by column name."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            return {row["name"].removesuffix(".col"): int(row["best_known"]) for row in rows if row["best_known"]}
    except OSError as error:
        raise UserError(f"{path}: cannot be read, {files.reason(error)}; name a CSV that you may read") from error
    except KeyError as error:
        raise UserError(f"{path}: has no column {error}; its first line names the columns name,best_known") from error
    except (ValueError, csv.Error) as error:
        raise UserError(f"{path}: line {rows.line_num}: {error}; best_known is a number or empty") from error


def _row(case: Case, colorer: Colorer, settings: EvaluateSettings) -> report.Row:
    graph = case.graph
    proven = partial(_proven, graph, list(read_dimacs_pairs(case.file)) if case.file else graph.edges.tolist())
    clique = baselines.clique_size(graph)
    saturated, dsatur_seconds = _timed(baselines.dsatur, graph)
    row = report.Row(
        graph.name, case.family, graph.num_nodes, graph.num_edges, case.best_known, clique,
        proven("DSATUR", saturated), dsatur_seconds,
    )  # fmt: skip
    if settings.rlf:
        colors, seconds = _timed(baselines.rlf, graph)
        if colors is not None:
            row = replace(row, rlf=proven("RLF", colors), rlf_seconds=seconds)
    if settings.tabucol:
        row = replace(row, **_watched(proven, "tabucol", baselines.tabucol(graph, settings.seconds, clique)))
    try:
        call = one_call(colorer, graph, CALL_SECONDS)
    except (MemoryError, TimeoutError) as error:
        logger.warning("%s: too large for the network on this machine: %s", graph.name, error)
        return row
    row = replace(
        row, one_call=proven("one call", call.colors), one_call_seconds=call.seconds,
        conflicts=conflicts(graph, call.classes), chromatic=call.chromatic,
    )  # fmt: skip
    if settings.seconds:
        left = settings.seconds - call.seconds
        fewer = improvements(colorer, graph, call, left, clique, polish=settings.polish)
        row = replace(row, **_watched(proven, "search", chain([call.colors], fewer), call.seconds))
    return replace(row, rounds=tuple(_rounds(graph, proven, colorer))) if settings.plot else row


def _timed(work: Callable, *arguments) -> tuple:
    start = time.monotonic()
    return work(*arguments), time.monotonic() - start


def _watched(proven: Proven, method: str, colorings: Iterable[np.ndarray], spent: float = 0.0) -> dict:
    """A row's fields for a method that gives one coloring after the other, with `spent` seconds before the first."""
    start = time.monotonic() - spent
    found = [(time.monotonic() - start, colors) for colors in colorings]  # proven later, on nobody's clock
    seconds = time.monotonic() - start
    progress: list[tuple[float, int]] = []
    for moment, colors in found:
        used = proven(report.METHODS[method], colors)
        if not progress or used < progress[-1][1]:  # TabuCol may empty two classes at once, then skips a number
            progress.append((moment, used))
    return {method: progress[-1][1], f"{method}_seconds": seconds, f"{method}_progress": tuple(progress)}


def _rounds(graph: Graph, proven: Proven, colorer: Colorer) -> Iterator[tuple[int, int]]:
    """Refinement rounds and colors of calls that differ in nothing else, up to the first that takes too long."""
    for rounds in (rounds for rounds in ROUNDS if rounds <= LONGEST * colorer.steps):
        try:
            prediction = colorer.predict([graph], steps=rounds, seconds=CALL_SECONDS)
        except (MemoryError, TimeoutError) as error:
            logger.warning("%s: no call with %d rounds: %s", graph.name, rounds, error)
            return
        colors = from_logits(graph, prediction.logits[0])
        yield rounds, proven(f"a call with {rounds} rounds", colors)


def _proven(graph: Graph, edges: Sequence[tuple[int, int]], method: str, colors: np.ndarray) -> int:
    """Colors in use, counted and found proper by code that knows neither the decoder nor, for a .col, the reader."""
    wrong, used = count_conflicts_and_colors(edges, colors.tolist())
    if wrong or len(colors) != graph.num_nodes:
        raise RuntimeError(f"{graph.name}: the coloring of {method} is not proper, {wrong} edges clash")
    return used


def _report(settings: EvaluateSettings, colorer: Colorer, rows: list[report.Row]) -> dict:
    return {
        "model": {
            "file": str(settings.model),
            "sha256": hashlib.sha256(settings.model.read_bytes()).hexdigest(),
            "metadata": colorer.metadata,
            "loading_seconds": colorer.loading_seconds,
        },
        "settings": settings.model_dump(mode="json"),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        "machine": {"system": platform.system(), "processor": platform.machine(), "cpus": os.cpu_count(),
                    "threads": colorer.threads},
        "summary": report.summarize(rows),
        "families": report.by_family(rows),
        "graphs": [asdict(row) for row in rows],
    }  # fmt: skip


def _plot(rows: list[report.Row], file: Path) -> None:
    from gnn_training.solve.report import draw  # loads matplotlib

    files.write_figure(file, draw(rows))


def _show(report: dict, rows: list[report.Row]) -> None:
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = 200  # a log does not fold; 80 columns would cut the numbers
    if len(rows) <= SHOWN_ROWS:
        console.print(report.graphs_table(rows))
    if report["families"]:
        console.print(report.families_table(report["families"]))
    console.print(report.methods_table(report["summary"]))
    mae = report["summary"]["chromatic_mae"]
    if mae is not None:
        console.print(f"The number of colors is predicted with a mean error of {mae:.2f}.")
