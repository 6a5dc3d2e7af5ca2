"""Count the colors of an exported file on graphs, and compare with DSATUR, RLF, TabuCol and the best known."""

import csv
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
from typing import Any

import numpy as np

from gnn_training import files
from gnn_training.coloring import conflicts, count_conflicts_and_colors, from_logits, read_dimacs_pairs
from gnn_training.console import print_tables, progress
from gnn_training.data import sources
from gnn_training.data.packed import PackedGraphs, read_manifest
from gnn_training.errors import UserError
from gnn_training.graph import Graph
from gnn_training.model.session import Model
from gnn_training.settings import EvaluateSettings
from gnn_training.solve import baselines, report
from gnn_training.solve.anytime import improvements, one_call
from gnn_training.solve.local_search import Budget, clique_size
from gnn_training.solve.report import Row

logger = logging.getLogger(__name__)
SHOWN_ROWS = 100  # with more graphs, only the summary is shown; the report has them all
CALL_SECONDS = 600.0  # a graph that needs longer for one call is too large for the network
ROUNDS = (8, 32, 128, 512, 2048)  # of the calls for the plot,
MAX_TIMES_STEPS = 4  # up to so many times the steps of one call
LIBRARIES = ("onnxruntime", "numpy", "networkx", "gcol")
Check = Callable[[str, np.ndarray], int]  # (method, coloring) -> colors in use


@dataclass(frozen=True)
class Case:
    """A graph to color, what is known about it, and its file if that is a plain .col."""

    graph: Graph
    best_known: int | None
    family: str | None = None
    file: Path | None = None


def evaluate(settings: EvaluateSettings) -> None:
    """Color every graph, print the tables, write report and plot.

    Raises:
        UserError: the model, a graph or the CSV cannot be read, a file has no place, or there is nothing to plot.
        RuntimeError: a coloring is not proper; the message names graph and method.
    """
    results = [file for file in (settings.report, settings.plot) if file]
    files.require_folders(results)
    model = Model(settings.model, settings.threads)
    cases = _cases(settings)
    rows = []
    with progress("evaluate", 0, len(cases), logger) as advance:
        for case in cases:
            rows.append(_row(case, model, settings))
            advance(1)
    summary, families = report.summarize(rows), report.by_family(rows)
    content = _provenance(settings, model) | {
        "summary": summary,
        "families": families,
        "graphs": list(map(asdict, rows)),
    }
    files.write_text(settings.report, json.dumps(content, indent=1) + "\n")
    graphs_table = [report.graphs_table(rows)] if len(rows) <= SHOWN_ROWS else []
    families_table = [report.families_table(families)] if families else []
    print_tables(*graphs_table, *families_table, report.methods_table(summary))
    if summary["chromatic_mae"] is not None:
        print(f"The number of colors is predicted with a mean error of {summary['chromatic_mae']:.2f}.")
    if settings.plot:
        files.write_figure(settings.plot, report.draw(rows))
    for file in results:
        logger.info("wrote %s", file)


def _cases(settings: EvaluateSettings) -> list[Case]:
    is_packed = settings.graphs.is_dir() and read_manifest(settings.graphs) is not None
    cases = list(_packed_cases(settings.graphs) if is_packed else _file_cases(settings.graphs))
    if settings.limit:  # from everywhere, because neighbours in the list are of one family
        chosen = np.linspace(0, len(cases) - 1, min(settings.limit, len(cases))).astype(int)
        cases = [cases[i] for i in chosen]
    if settings.best_known:
        known = _best_known(settings.best_known)
        if not any(case.graph.name in known for case in cases):
            raise UserError(
                f"{settings.best_known} names none of the graphs, such as {cases[0].graph.name!r}: correct it"
            )
        cases = [replace(case, best_known=known.get(case.graph.name, case.best_known)) for case in cases]
    if settings.plot and all(case.best_known is None for case in cases):
        raise UserError("plot needs best known numbers: set best_known, a CSV with columns name and best_known")
    return cases


def _packed_cases(folder: Path) -> Iterator[Case]:
    graphs = PackedGraphs.open(folder)
    chosen = graphs.indices("validation")
    if not len(chosen):
        raise UserError(f"{folder} has no validation graphs: evaluate the files it was made from")
    for i in chosen.tolist():
        yield Case(graphs.graph(i), int(graphs.num_colors[i]), graphs.families[graphs.family[i]])


def _file_cases(path: Path) -> Iterator[Case]:
    for file in sources.find([path]):
        if sources.is_archive(file):
            raise UserError(f"{file} is an archive: unpack it and name the folder")
        instance = sources.read(file)
        if instance.note:
            logger.warning(instance.note)
        yield Case(instance.graph, None, file=file if file.suffix == ".col" else None)


def _best_known(path: Path) -> dict[str, int]:
    """Column best_known by column name."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            return {row["name"].removesuffix(".col"): int(row["best_known"]) for row in rows if row["best_known"]}
    except OSError as error:
        raise UserError(f"{path} cannot be read ({files.reason(error)}): name a CSV that you may read") from error
    except (KeyError, ValueError, csv.Error) as error:
        what = f"has no column {error}" if isinstance(error, KeyError) else f"line {rows.line_num}: {error}"
        raise UserError(f"{path}: {what}: it needs columns name,best_known; best_known is a number or empty") from error


def _row(case: Case, model: Model, settings: EvaluateSettings) -> Row:
    graph = case.graph
    pairs = list(read_dimacs_pairs(case.file)) if case.file else graph.edges.tolist()
    check = partial(_checked, graph, pairs)
    clique = clique_size(graph.csr())
    colors, seconds = _timed(baselines.dsatur, graph)
    row = Row(
        graph.name, case.family, graph.num_nodes, graph.num_edges, case.best_known, clique,
        check("DSATUR", colors), seconds,
    )  # fmt: skip
    if settings.rlf:
        colors, seconds = _timed(baselines.rlf, graph)
        if colors is not None:
            row = replace(row, rlf=check("RLF", colors), rlf_seconds=seconds)
    if settings.tabucol:
        row = replace(row, **_watched(check, "tabucol", baselines.tabucol(graph, settings.seconds, clique)))
    try:
        call = one_call(model, graph, CALL_SECONDS)
    except (MemoryError, TimeoutError) as error:
        logger.warning("%s: too large for the network on this machine: %s", graph.name, error)
        return row
    row = replace(
        row, one_call=check("one call", call.colors), one_call_seconds=call.seconds,
        conflicts=conflicts(graph, call.classes), chromatic=call.chromatic,
    )  # fmt: skip
    if settings.seconds:
        budget = Budget(time.monotonic() + settings.seconds - call.seconds, clique, model.threads)
        fewer = improvements(model, graph, call, budget, settings.polish)
        row = replace(row, **_watched(check, "search", chain([call.colors], fewer), call.seconds))
    return replace(row, rounds=tuple(_rounds(graph, check, model))) if settings.plot else row


def _timed(method: Callable[[Graph], Any], graph: Graph) -> tuple[Any, float]:
    start = time.monotonic()
    return method(graph), time.monotonic() - start


def _watched(check: Check, method: str, colorings: Iterable[np.ndarray], spent: float = 0.0) -> dict[str, Any]:
    """A row's fields for a method that gives one coloring after the other, and `spent` that many seconds before."""
    start = time.monotonic() - spent
    found = [(time.monotonic() - start, colors) for colors in colorings]  # checked later, outside of the measured time
    seconds = time.monotonic() - start
    progress: list[tuple[float, int]] = []
    for moment, colors in found:
        used = check(report.METHODS[method], colors)
        if not progress or used < progress[-1][1]:  # TabuCol may empty two classes at once, then skips a number
            progress.append((moment, used))
    return {method: progress[-1][1], f"{method}_seconds": seconds, f"{method}_progress": tuple(progress)}


def _rounds(graph: Graph, check: Check, model: Model) -> Iterator[tuple[int, int]]:
    """Refinement rounds and colors of calls that differ in nothing else, up to the first that takes too long."""
    for rounds in (rounds for rounds in ROUNDS if rounds <= MAX_TIMES_STEPS * model.steps):
        try:
            prediction = model.predict([graph], steps=rounds, seconds=CALL_SECONDS)
        except (MemoryError, TimeoutError) as error:
            logger.warning("%s: no call with %d rounds: %s", graph.name, rounds, error)
            return
        yield rounds, check(f"a call with {rounds} rounds", from_logits(graph, prediction.logits[0]))


def _checked(graph: Graph, pairs: Sequence[tuple[int, int]], method: str, colors: np.ndarray) -> int:
    """Colors in use, counted by code that shares nothing with the decoder nor, for a .col file, with the reader."""
    wrong, used = count_conflicts_and_colors(pairs, colors.tolist())
    if wrong or len(colors) != graph.num_nodes:
        raise RuntimeError(f"{graph.name}: the coloring of {method} is not proper, {wrong} edges have equal ends")
    return used


def _provenance(settings: EvaluateSettings, model: Model) -> dict[str, Any]:
    sha256, cpus = files.sha256(settings.model), os.cpu_count()
    return {
        "model": {"file": str(settings.model), "sha256": sha256, "metadata": model.metadata,
                  "loading_seconds": model.loading_seconds},
        "settings": settings.model_dump(mode="json"),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        "machine": {"system": platform.system(), "processor": platform.machine(), "cpus": cpus,
                    "threads": model.threads},
    }  # fmt: skip
