"""Color graphs properly, as well as the time allows."""

import csv
import io
import json
import logging
import os
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from gnn_training import files
from gnn_training.console import in_threads
from gnn_training.data.formats import integer
from gnn_training.data.sources import find, is_archive, read
from gnn_training.errors import NoColoringError, UserError
from gnn_training.graph import num_colors
from gnn_training.machine import require_package
from gnn_training.onnx_program.session import Model
from gnn_training.processes import interrupts
from gnn_training.search.engine import Budget, Coloring
from gnn_training.search.gpus import chosen_gpus
from gnn_training.search.portfolio import compile_all
from gnn_training.search.problem import Problem
from gnn_training.settings import ColorSettings

logger = logging.getLogger(__name__)
TABLE_LIMIT = 100_000_000  # bytes of the files of colors


def color(settings: ColorSettings) -> list[Path]:
    """Write the best coloring of every graph as soon as it is found, and return the paths; of a single graph, Ctrl-C
    takes the best so far. Without `out`, the solution of a single graph stands beside it and replaces nothing. Raises
    UserError if a graph, the start or the model cannot be read, a solution or the picture has no place, or a graph is
    too large for a picture; NoColoringError if there is no coloring as asked for. What cannot be colored does not stop
    the other graphs.
    """
    is_one = len(settings.graphs) == 1 and not os.path.isdir(settings.graphs[0])
    graphs = [path for path in find(settings.graphs) if is_one or not is_archive(path)]
    if is_one:
        outs = [settings.out or graphs[0].with_name(_name(graphs[0]))]
        if settings.out is None and os.path.lexists(outs[0]):
            raise UserError(f"{outs[0]} exists already: name it with -o to replace it, or name another file")
    elif settings.out is None or settings.picture or settings.start:
        raise UserError("several graphs need a folder for solutions, with -o, no picture and no start: name one graph")
    else:
        files.make_folder(settings.out)
        outs = [settings.out / _name(path) for path in graphs]
    if len(set(outs)) < len(outs):
        raise UserError("two graphs have the same name, and so would their solutions: color them separately")
    if settings.picture:
        require_package("matplotlib", "--picture", "'.[picture]' in a clone")
    pictures = [settings.picture] if settings.picture else []
    inputs = filter(None, [*graphs, Path(settings.model), settings.precolored, settings.allowed])
    files.require_places([*outs, *pictures], inputs)
    by_node = {
        "precolored": _read_colors(settings.precolored, True), "allowed": _read_colors(settings.allowed),
        "start": _read_colors(settings.start, True),
    }  # fmt: skip
    if settings.gpus != "none" and not is_one:
        raise UserError("GPUs search for one graph: name one, or leave out --gpus")
    model = Model(settings.model, settings.threads)
    compile_all()
    gpus = chosen_gpus(settings.gpus)

    def error_of(paths: tuple[Path, Path]) -> UserError | None:
        try:
            _color(settings, model, by_node, is_one, gpus, *paths)
        except NoColoringError as error:
            return NoColoringError(f"{paths[0]}: {error}")
        except UserError as error:
            return error
        return None

    pairs = list(zip(graphs, outs, strict=True))
    errors = list(filter(None, map(error_of, pairs) if is_one else in_threads(error_of, pairs, model.threads)))
    if is_one and errors:
        raise errors[0]
    for error in errors:
        logger.warning("%s", error)
    if errors:
        raise type(errors[0])(f"{len(errors)} of {len(graphs)} graphs were not colored; the first: {errors[0]}")
    return outs


def _color(
    settings: ColorSettings, model: Model, by_node: dict[str, dict], is_one: bool, gpus: tuple[int, ...], path: Path,
    out: Path,
) -> None:  # fmt: skip
    """Color the graph of a file and write its solution. by_node: what the files precolored, allowed and start name."""
    start = time.monotonic()
    instance = read(path)
    if instance.warning:
        logger.warning(instance.warning)
    graph, names = instance.graph, instance.names or range(instance.graph.num_nodes)
    logger.info("%s: %d nodes, %d edges, %s", graph.name, graph.num_nodes, graph.num_edges, instance.kind)
    if settings.picture:
        from gnn_training.report.page import draw, require_drawable  # needs [picture]

        require_drawable(graph)
    budget = Budget(start + settings.seconds, 1, model.threads if is_one else 1, settings.seed, gpus)
    if any(by_node.values()):
        names = list(map(str, names))
        of_name = dict(enumerate(names, 1))
        by_node = {key: {of_name.get(node, node): colors for node, colors in by_node[key].items()} for key in by_node}
    blamed = path
    try:
        constraints = settings.k or None, by_node["precolored"], by_node["allowed"], settings.equitable
        problem = Problem.create(graph, names, *constraints, budget.deadline)
        if settings.start:
            blamed = settings.start
            problem = problem.begun_with(graph, names, by_node["start"])
    except ValueError as error:
        raise UserError(f"{blamed}: {error}") from error

    best: Coloring | None = None
    kept = waiting = None  # the colors that the file has, and the write that waits or runs

    def keep(colors: np.ndarray) -> None:
        nonlocal kept
        try:
            write_solution(out, problem.named(colors), instance.names)
            kept = colors
        except UserError as error:
            logger.warning("%s; the search goes on", error)

    with ThreadPoolExecutor(1) as pool:  # the search does not wait for the disk
        try:
            for best in problem.colorings(model.trained, budget):
                if is_one:
                    logger.info("%s: %d colors (%s)", graph.name, best.num_colors, best.method)
                if problem.is_enough(best):
                    if waiting:
                        waiting.cancel()  # has no effect if it runs
                    waiting = pool.submit(keep, best.colors)
            is_interrupted = is_one and bool(interrupts)  # a destructor drops KeyboardInterrupt, and the search ends
        except KeyboardInterrupt:
            if best is None:
                raise
            is_interrupted = True
        if is_interrupted:
            logger.warning("%s: interrupted, taking the best coloring so far", graph.name)
    assert best is not None, "colorings yields one at least"
    solution = problem.solution(best, start, budget)
    if kept is not best.colors or settings.equitable:
        write_solution(out, solution.colors, instance.names)
    bound = "optimal" if solution.is_optimal else f"at least {solution.lower_bound} needed"
    classes = f", classes differ by {solution.imbalance} nodes" if settings.equitable else ""
    summary = f"{solution.num_colors} colors by {solution.method}, {bound}{classes}"
    logger.info("%s: %s, %.1f s, written to %s", graph.name, summary, solution.seconds, out)
    if settings.picture:
        with files.replace_file(settings.picture) as temporary:
            picture = draw(graph, solution.colors, solution.method, instance.names)
            picture.savefig(temporary, format=settings.picture.suffix[1:], dpi=150)
        logger.info("%s: drawn in %s", graph.name, settings.picture)


def write_solution(path: Path, colors: np.ndarray, names: Sequence[Any] = ()) -> None:
    """Write colors (N,) that count from 0. names (N,): of the nodes; without, they are numbers from 0. `.csv` has a
    line `node,color` per node, `.json` an object from node to color, colors as they are. Other files are DIMACS
    solutions: `s col K`, then `l v c` per node, both counted from 1; a comment has each name that is not v.
    StorageError if the system refuses.
    """
    pairs = list(zip(map(str, names or range(len(colors))), colors.tolist(), strict=True))
    if path.suffix == ".json":
        text = json.dumps(dict(pairs), indent=0, ensure_ascii=False)
    elif path.suffix == ".csv":
        csv.writer(table := io.StringIO(), lineterminator="\n").writerows([("node", "color"), *pairs])
        text = table.getvalue()
    else:
        lines = [f"l {node} {color + 1}" for node, (_, color) in enumerate(pairs, 1)]
        if names and names != range(1, len(colors) + 1):
            lines += [f"c {node} {' '.join(name.split())}" for node, (name, _) in enumerate(pairs, 1)]
        text = "\n".join([f"s col {num_colors(colors)}", *lines])
    files.write_text(path, text.rstrip("\n") + "\n")


def _name(graph: Path) -> str:
    return f"{PurePath(graph.name.removesuffix('.gz')).stem}.sol"


def _read_colors(path: Path | None, is_single: bool = False) -> dict[str | int, Any]:
    """The colors, or the single color, of every node that a file names: one that write_solution writes, or a table with
    a node and its colors in every line. The nodes of a DIMACS solution without names are int, from 1.
    """
    by_node: dict[str | int, Any] = {}
    if path is None:
        return by_node
    try:
        kind, entries = _entries(files.read_bytes(path, TABLE_LIMIT).decode("utf-8-sig"))
        for node, words in entries:
            colors = [integer(str(word).strip()) for word in words]
            if node in by_node or (is_single and len(colors) != 1):
                raise ValueError(f"node {node!r} stands there twice or without one color")
            by_node[node] = colors[0] if is_single else colors
    except (ValueError, csv.Error, RecursionError) as error:
        raise UserError(f"{path}: {error}; a line has a node, then its colors, such as 7,0,2") from error
    logger.info("%s: colors of %d nodes, read as %s", path, len(by_node), kind)
    return by_node


def _entries(text: str) -> tuple[str, list[tuple[str | int, list[Any]]]]:
    """What a file of colors is, and its nodes with their colors, from 0. ValueError if a line cannot be understood."""
    if text.lstrip()[:1] == "{":
        pairs = json.loads(text, object_pairs_hook=list)
        return "JSON", [(node, colors if isinstance(colors, list) else [colors]) for node, colors in pairs]
    if not re.match(r"(c.*\n|\s)*s col ", text):
        sign = next((sign for sign in "\t;" if sign in text.partition("\n")[0]), ",")
        rows = filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=sign, strict=True))
        return f"a table with {sign!r} between cells", [
            (node, words) for node, *words in rows if (node, *words) != ("node", "color")
        ]
    found, names = [], {}
    for line in text.splitlines():
        match line.split(None, 2):
            case ["l", node, color]:
                if not integer(color.strip()):
                    raise ValueError(f"{line!r} has color 0; in a DIMACS solution, nodes and colors count from 1")
                found.append((integer(node), [int(color) - 1]))
            case ["c", node, name] if node.isdecimal():
                names[int(node)] = name
            case [word, *_] if word not in ("c", "s"):
                raise ValueError(f"{line!r} is no line of a DIMACS solution")
    are_named = names.keys() == {node for node, _ in found}
    return "a DIMACS solution", [(names[node] if are_named else node, colors) for node, colors in found]
