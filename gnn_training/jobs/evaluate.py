"""Count the colors of an exported file on graphs, and compare with DSATUR, TabuCol and the best known."""

import logging
import math
import os
import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from itertools import starmap
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import networkx as nx
import numpy as np

from gnn_training import files, run_files
from gnn_training.console import as_text, errors_as_warnings, markdown_table, print_tables, progress
from gnn_training.contract import SHIPPED_MODEL
from gnn_training.data import sources, suites
from gnn_training.data.packed import PackedGraphs, evenly_spaced, is_packed
from gnn_training.data.suites import Case
from gnn_training.errors import UserError
from gnn_training.graph import Graph, NeighbourLists, conflicts, is_proper, num_colors
from gnn_training.machine import describe_gpu
from gnn_training.network import rule
from gnn_training.onnx_program.session import Model, from_logits
from gnn_training.report import scores
from gnn_training.report.page import IN_EVERY_PAGE, as_networkx, is_drawable, pictures, render
from gnn_training.report.scores import COMPARED_SECONDS, METHODS, GraphScores
from gnn_training.search import engine, first_colorings, kernels, methods, portfolio
from gnn_training.search.gpu_workers import chosen_gpus
from gnn_training.settings import EvaluateSettings

log = logging.getLogger(__name__)
CALL_SECONDS = 600.0  # a graph that needs longer for one call is too large for the network
MIN_OTHERS = 20  # validation graphs that did not choose the weights; if fewer remain, all are scored
SEEN_NOTE = "The training has seen these graphs, or chosen its weights by them, so its scores are too good."
DRAWN = ("rule", "search", "one_call")  # methods of the file; the page shows a coloring of the first that was asked for
LIBRARIES = ("onnxruntime", "numpy", "networkx")
NOT_REPORTED = ("graph", "lower", "colorings")  # fields of a row


def evaluate(settings: EvaluateSettings) -> None:
    """Color every graph, print the tables, write report and page. UserError if the model, a graph or the CSV cannot be
    read, or a file has no place; RuntimeError with graph and method if a coloring is not proper.
    """
    web_page = settings.report.with_suffix(".html")
    files.require_places([settings.report, web_page], _inputs(settings))
    if web_page.exists() and IN_EVERY_PAGE not in files.read_bytes(web_page, files.MAX_FILE_BYTES):
        raise UserError(f"{web_page}: is not a page of `evaluate`, which would replace it; name another --report")
    model = Model(settings.model, settings.threads)
    portfolio.compile_all()
    gpus = {gpu: describe_gpu(gpu) for gpu in chosen_gpus(settings.gpus)}
    threads = max(1, model.threads // max(1, len(gpus)))  # threads of a search
    cases = _cases(settings)
    rows = _rows(cases, model, settings, threads, [*gpus])
    content = {
        "model": {"file": str(model.path), "sha256": files.sha256(model.path), "metadata": model.metadata},
        "settings": settings.model_dump(mode="json"),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        "machine": {"system": platform.system(), "processor": platform.machine(), "cpus": os.cpu_count(),
                    "threads": model.threads, "gpus": gpus},
        "summary": scores.summarize(scores.without_planted(rows)), "families": scores.by_family(rows),
        "graphs": [{name: value for name, value in vars(row).items() if name not in NOT_REPORTED} for row in rows],
        "picture": _picture(rows),
        "note": " ".join(filter(None, (SEEN_NOTE * any(case.was_seen for case in cases),
                                       scores.search_resources(settings.seconds, threads, gpus)))),
        "verdict": scores.verdict(rows, settings.seconds or COMPARED_SECONDS),
    }  # fmt: skip
    files.write_bytes(settings.report, files.as_json(content))
    files.write_text(web_page, render(content))
    log.info("wrote %s and %s", settings.report, web_page)
    _show(content, settings.report.parent / run_files.CURVES_FOLDER)


def _rows(
    cases: Sequence[Case], model: Model, settings: EvaluateSettings, threads: int, gpus: list[int]
) -> list[GraphScores]:
    """Color every graph by every method that was asked for. threads: those of a search."""
    rules, rows = _rules(model), list[GraphScores]()
    called = evenly_spaced(len(cases), settings.calls or len(cases))
    with (
        progress("evaluate", 0, len(cases) + (1 + bool(settings.seconds)) * len(called)) as advance,
        ThreadPoolExecutor(model.threads) as pool,
    ):
        # Methods that take one thread run on several graphs at the same time; a call takes all threads.
        for row in pool.map(lambda case: _row(case, rules, settings), cases):
            rows.append(row)
            advance(1)
        chosen = [rows[place] for place in called]
        for row in chosen:
            _add_call(row, model)
            advance(1)
        if settings.tabucol:
            list(pool.map(_add_tabucol_call, chosen))
        for _ in _add_search(chosen if settings.seconds else [], model.trained, settings.seconds, threads, gpus):
            advance(1)
    if not settings.best_known and not settings.suite:
        for row in rows:
            if row.best_known is not None:  # a label, which only a short search has found
                row.best_known = min(row.best_known, *row.colors.values())
    return rows


def _show(content: dict[str, Any], curves: Path) -> None:
    """Print a report, and add it to TensorBoard if the model's training has left its curves in that folder."""
    tables = {name: markdown_table(columns) for name, columns in scores.tables(content).items()}
    note, verdict, error = content["note"], content["verdict"], content["summary"]["chromatic_mae"]
    print_tables(*tables.values())
    if curves.is_dir():
        from torch.utils.tensorboard import SummaryWriter  # takes 1.5 s to import

        with errors_as_warnings("TensorBoard"), SummaryWriter(curves) as writer:
            writer.add_text("report", f"{verdict}\n\n{as_text(tables['methods'])}\n\n{note}")
            if figures := pictures(content):
                writer.add_figure("report", figures)
    if error is not None:
        print(f"The number of colors is predicted with a mean error of {error:.2f}.")
    for sentence in filter(None, (note, verdict)):
        print(sentence)


def _inputs(settings: EvaluateSettings) -> list[Path]:
    """The files that are read, and all files in the folder of packed graphs."""
    graphs: Iterable[Path] = ()
    if settings.graphs:
        graphs = settings.graphs.iterdir() if is_packed(settings.graphs) else sources.find([settings.graphs])
    return [Path(settings.model), *filter(None, [settings.best_known]), *graphs]


def _cases(settings: EvaluateSettings) -> list[Case]:
    if settings.graphs is None:
        cases = list(suites.q_coloring())
    elif is_packed(settings.graphs):
        data = PackedGraphs.open(settings.graphs)
        data.verify()
        ids, were_seen = _unseen(data, settings.exclude_selection)
        cases = [
            Case(data.graph(i), int(data.num_colors[i]), data.families[data.family[i]], was_seen=were_seen) for i in ids
        ]
    else:
        cases = [Case(_read(file)) for file in sources.find([settings.graphs])]
    if settings.limit:  # evenly spaced, because neighbours in the list are of one family
        cases = [cases[place] for place in evenly_spaced(len(cases), settings.limit)]
    file = settings.best_known or (suites.DIMACS if settings.suite == "dimacs" else None)
    if file:
        best_known, name = suites.best_known(file), cases[0].graph.name
        if not any(case.graph.name in best_known for case in cases):
            raise UserError(f"{file} names none of the graphs, such as {name!r}: set best_known to a CSV that does")
        cases = [replace(case, best_known=best_known.get(case.graph.name, case.best_known)) for case in cases]
    return cases


def _unseen(data: PackedGraphs, num_selected: int | None) -> tuple[list[int], bool]:
    """Positions of the graphs to score, and whether the training has seen them: validation graphs that did not choose
    the weights (see `PackedGraphs.selection`), all of them if too few remain, all graphs if none are for validation.
    """
    ids = data.indices("validation").tolist()
    if not ids:  # a single graph is for training
        log.warning("%s: no validation graphs: the scores are those of all graphs", data.folder)
        return list(range(len(data))), True
    selected = set() if num_selected is None else set(data.selection(num_selected).tolist())
    others = [i for i in ids if i not in selected]
    return (others, False) if len(others) >= min(len(ids), MIN_OTHERS) else (ids, bool(selected))


def _read(file: Path) -> Graph:
    if sources.is_archive(file):
        raise UserError(f"{file} is an archive: unpack it and name the folder")
    instance = sources.read(file)
    if instance.warning:
        log.warning(instance.warning)
    return instance.graph


def _rules(model: Model) -> dict[str, np.ndarray]:
    """Weights of the rules that are compared in the same seconds, by method."""
    shipped = Model(SHIPPED_MODEL, 1).rule
    others = {} if np.array_equal(model.rule, shipped) else {"shipped": shipped}
    return {"untrained": rule.untrained(), **others, "rule": model.rule}


def _row(case: Case, rules: dict[str, np.ndarray], settings: EvaluateSettings) -> GraphScores:
    """The scores of a graph by the methods that take one thread."""
    graph, lists, seconds = case.graph, case.graph.csr(), settings.seconds or COMPARED_SECONDS
    clique, sizes = first_colorings.clique_size(lists), (graph.num_nodes, graph.num_edges)
    bounds = clique, max(clique, case.target)
    row = GraphScores(graph, graph.name, case.family, *sizes, case.best_known, *bounds, published=case.published)
    _record(row, "dsatur", starmap(kernels.dsatur, [lists]))
    if settings.tabucol:
        _record(row, "tabucol", _one_method(lists, row.lower, seconds, methods.tabu_search))
        for method, weights in rules.items():
            _record(row, method, _one_method(lists, row.lower, seconds, methods.trained_rule, weights))
    return row


def _add_call(row: GraphScores, model: Model) -> None:
    """Add one call, which takes all threads."""
    graph, start = row.graph, time.monotonic()
    try:
        prediction = model.predict(graph, seconds=CALL_SECONDS)  # with the three required inputs only
        one_call, spent = from_logits(graph, prediction.logits[0]), time.monotonic() - start
    except (MemoryError, TimeoutError) as error:
        log.warning("%s: too large for the network on this machine: %s", graph.name, error)
    else:
        _record(row, "one_call", [one_call], spent)
        row.conflicts = conflicts(graph, prediction.logits[0].argmax(1))
        row.chromatic = float(prediction.chromatic[0])


def _add_search(
    rows: Sequence[GraphScores], trained: engine.SearchWeights, seconds: float, threads: int, gpus: Sequence[int]
) -> Iterator[None]:
    """Add the search to every row. Every GPU searches one graph at a time."""
    free = SimpleQueue[int | None]()
    for gpu in gpus or (None,):
        free.put(gpu)

    def search(row: GraphScores) -> None:
        row.gpu = free.get()  # nobody else has it until it is put back
        try:
            deadline = time.monotonic() + seconds
            budget = engine.Budget(deadline, row.lower, threads, gpus=() if row.gpu is None else (row.gpu,))
            better = portfolio.colorings(row.graph, trained, budget, row.clique)
            _record(row, "search", (coloring.colors for coloring in better))
        finally:
            free.put(row.gpu)

    with ThreadPoolExecutor(max(1, len(gpus))) as pool:
        yield from pool.map(search, rows)


def _add_tabucol_call(row: GraphScores) -> None:
    """Add TabuCol in the seconds that the call took, if there was a call."""
    if spent := row.seconds.get("one_call"):
        _record(row, "tabucol_call", _one_method(row.graph.csr(), row.lower, spent, methods.tabu_search))


def _picture(rows: list[GraphScores]) -> dict[str, Any] | None:
    """A connected graph for the page, with the colorings of DSATUR and of the file. It has the fewest edges of the
    graphs that the file colors with fewer colors, or of all graphs if there are none.
    """
    choices = []
    for row in rows:
        if drawn := [method for method in DRAWN if method in row.colorings]:
            choices.append((row.colors[drawn[0]] >= row.colors["dsatur"], row.num_edges, drawn[0], row))
    for _, num_edges, method, row in sorted(choices, key=lambda choice: choice[:2]):
        if num_edges and nx.is_connected(as_networkx(row.graph)):
            colorings = {name: row.colorings[name].tolist() for name in ("dsatur", method)}
            graph = {"graph": row.name, "num_nodes": row.num_nodes, "edges": row.graph.edges.tolist()}
            return graph | {"colorings": colorings}
    return None


def _record(row: GraphScores, method: str, colorings: Iterable[np.ndarray], spent: float = 0.0) -> None:
    """Note in the row what a method finds, and when; `spent` seconds came before."""
    start = time.monotonic() - spent
    timed = [(time.monotonic() - start, colors) for colors in colorings]
    row.seconds[method], row.progress[method] = time.monotonic() - start, []
    for moment, colors in timed:
        if not is_proper(row.graph, colors):
            raise RuntimeError(f"{row.name}: the coloring of {METHODS[method]} is not proper")
        # TabuCol may empty two classes at once, then skips a number.
        if (used := num_colors(colors)) < row.colors.get(method, math.inf):
            row.colors[method] = used
            row.progress[method].append((moment, used))
            if is_drawable(row.graph):
                row.colorings[method] = colors


def _one_method(
    lists: NeighbourLists, lower: int, seconds: float, method: engine.Method, rule: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Yield DSATUR's colors, then those of one method on one thread, each with fewer colors, down to `lower`."""
    budget, colors = engine.Budget(time.monotonic() + seconds, lower), kernels.dsatur(*lists)
    yield colors
    improved = engine.improvements(lists, colors, budget, {method: 1}, engine.SearchWeights(rule))
    yield from (better.colors for better in improved)
