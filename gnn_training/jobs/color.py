"""Color graphs properly, as well as the time allows."""

import csv
import io
import json
import logging
import os
import re
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from gnn_training import files
from gnn_training.console import in_threads
from gnn_training.data.formats import integer
from gnn_training.data.sources import find, is_archive, read
from gnn_training.errors import NoColoringError, UserError
from gnn_training.graph import Instance, num_colors
from gnn_training.machine import require_package
from gnn_training.onnx_program.session import Model
from gnn_training.processes import interrupts
from gnn_training.search.engine import Budget, Coloring
from gnn_training.search.gpu_workers import chosen_gpus
from gnn_training.search.portfolio import compile_all
from gnn_training.search.problem import Problem
from gnn_training.settings import ColorSettings

log = logging.getLogger(__name__)
TABLE_LIMIT = 100_000_000  # most bytes of a file of colors


def color(settings: ColorSettings) -> list[Path]:
    """Write the best coloring of every graph as soon as it is found; return the paths of the solutions. For a single
    graph, Ctrl-C takes the best so far. Without `out`, the solution of a single graph stands beside it and replaces
    nothing. Archives in folders are left out. A graph that cannot be colored does not stop the others. UserError if a
    graph, the start or the model cannot be read, a solution or the picture has no place, a graph is too large for a
    picture, an archive is named, or there are only archives; NoColoringError if there is no coloring as asked for.
    """
    is_one = len(settings.graphs) == 1 and not os.path.isdir(settings.graphs[0])
    paths = find(settings.graphs)
    graphs = [path for path in paths if not is_archive(path)]
    for path in paths:
        if is_archive(path) and (path in settings.graphs or not graphs):
            raise UserError(f"{path} is an archive: unpack it and name the folder")
    outs = _outputs(settings, graphs, is_one)
    named = {"precolored": settings.precolored, "allowed": settings.allowed, "start": settings.start}
    given = {name: _read_colors(path, name != "allowed") for name, path in named.items() if path}
    if settings.gpus != "none" and not is_one:
        raise UserError("GPUs search for one graph: name one, or leave out --gpus")
    model = Model(settings.model, settings.threads)
    compile_all()
    job, pairs = _Job(settings, is_one, given, model, chosen_gpus(settings.gpus)), zip(graphs, outs, strict=True)
    results = map(job.error_of, pairs) if is_one else in_threads(job.error_of, list(pairs), model.threads)
    errors = list(filter(None, results))
    if is_one and errors:
        raise errors[0]
    for error in errors:
        log.warning("%s", error)
    if errors:
        raise type(errors[0])(f"{len(errors)} of {len(graphs)} graphs were not colored; the first: {errors[0]}")
    return outs


def _outputs(settings: ColorSettings, graphs: list[Path], is_one: bool) -> list[Path]:
    """Where the solutions go. UserError if they, or the picture, have no place."""
    names = [f"{PurePath(path.name.removesuffix('.gz')).stem}.sol" for path in graphs]
    if is_one:
        outs = [settings.out or graphs[0].with_name(names[0])]
        if settings.out is None and os.path.lexists(outs[0]):
            raise UserError(f"{outs[0]} exists already: name it with -o to replace it, or name another file")
    elif settings.out is None or settings.picture or settings.start:
        raise UserError("several graphs need a folder for solutions, with -o, no picture and no start: name one graph")
    else:
        files.make_folder(settings.out)
        outs = [settings.out / name for name in names]
    if len(set(outs)) < len(outs):
        raise UserError("two graphs have the same name, and so would their solutions: color them separately")
    if settings.picture:
        require_package("matplotlib", "--picture", "'.[picture]' in a clone")
    inputs = filter(None, [*graphs, Path(settings.model), settings.precolored, settings.allowed])
    files.require_places([*outs, *filter(None, [settings.picture])], inputs)
    return outs


@dataclass(frozen=True)
class _Job:
    """How to color each graph of a command. given: what the files precolored, allowed and start have, by node."""

    settings: ColorSettings
    is_one: bool
    given: dict[str, dict]
    model: Model
    gpus: tuple[int, ...]

    def error_of(self, paths: tuple[Path, Path]) -> UserError | None:
        """Color the graph of a file and write its solution to another; return the error that prevented it."""
        try:
            self.color(*paths)
        except NoColoringError as error:
            return NoColoringError(f"{paths[0]}: {error}")
        except UserError as error:
            return error
        return None

    def color(self, path: Path, out: Path) -> None:
        """Color the graph of a file and write its solution."""
        start, settings = time.monotonic(), self.settings
        instance = read(path)
        graph = instance.graph
        if instance.warning:
            log.warning(instance.warning)
        log.info("%s: %d nodes, %d edges, %s", graph.name, graph.num_nodes, graph.num_edges, instance.kind)
        if settings.picture:
            from gnn_training.report.page import draw, require_drawable  # needs [picture]

            require_drawable(graph)
        threads = self.model.threads if self.is_one else 1
        budget = Budget(start + settings.seconds, 1, threads, settings.seed, self.gpus)
        problem = self.problem(path, instance, budget.deadline)
        best, is_written = self.search(problem, budget, instance, out)
        solution = problem.solution(best, start, budget)
        if not is_written or settings.equitable:
            write_solution(out, solution.colors, instance.names)
        bound = "optimal" if solution.is_optimal else f"at least {solution.lower_bound} needed"
        classes = f", classes differ by {solution.imbalance} nodes" if settings.equitable else ""
        summary = f"{solution.num_colors} colors by {solution.method}, {bound}{classes}"
        log.info("%s: %s, %.1f s, written to %s", graph.name, summary, solution.seconds, out)
        if settings.picture:
            with files.replace_file(settings.picture) as temporary:
                picture = draw(graph, solution.colors, solution.method, instance.names)
                picture.savefig(temporary, format=settings.picture.suffix[1:], dpi=150)
            log.info("%s: drawn in %s", graph.name, settings.picture)

    def problem(self, path: Path, instance: Instance, deadline: float) -> Problem:
        """The graph of a file with the constraints. UserError names the file that does not fit."""
        names, given = instance.names or range(instance.graph.num_nodes), self.given
        if any(given.values()):
            names = list(map(str, names))
            of_number = dict(enumerate(names, 1))
            given = {key: {of_number.get(node, node): colors for node, colors in given[key].items()} for key in given}
        wrong, colors = path, (given.get("precolored"), given.get("allowed"))
        try:
            problem = Problem.create(
                instance.graph, names, self.settings.k or None, *colors, self.settings.equitable, deadline
            )
            if self.settings.start:
                wrong = self.settings.start
                problem = problem.with_start(instance.graph, names, given["start"])
        except ValueError as error:
            raise UserError(f"{wrong}: {error}") from error
        return problem

    def search(self, problem: Problem, budget: Budget, instance: Instance, out: Path) -> tuple[Coloring, bool]:
        """The best coloring until the budget is spent or a signal comes, and whether `out` has it."""
        best: Coloring | None = None
        writing: tuple[Coloring, Future[bool]] | None = None  # the last coloring, whose writing waits or runs
        name = instance.graph.name
        with ThreadPoolExecutor(1) as pool:  # the search does not wait for the disk
            try:
                for best in problem.colorings(self.model.trained, budget):
                    if self.is_one:
                        log.info("%s: %d colors (%s)", name, best.num_colors, best.method)
                    if problem.is_enough(best):
                        if writing:
                            writing[1].cancel()  # has no effect if it runs
                        colors = problem.named(best.colors)
                        writing = best, pool.submit(_try_to_write, out, colors, instance.names)
                is_interrupted = self.is_one and bool(interrupts)  # a destructor drops KeyboardInterrupt
            except KeyboardInterrupt:
                if best is None:
                    raise
                is_interrupted = True
            if is_interrupted:
                log.warning("%s: interrupted, taking the best coloring so far", name)
        assert best is not None, "colorings yields one at least"
        return best, writing is not None and writing[0] is best and writing[1].result()


def _try_to_write(path: Path, colors: np.ndarray, names: Sequence[Any]) -> bool:
    """Write a solution; return whether that worked. A warning tells why not."""
    try:
        write_solution(path, colors, names)
    except UserError as error:
        log.warning("%s; the search goes on", error)
        return False
    return True


def write_solution(path: Path, colors: np.ndarray, names: Sequence[Any] = ()) -> None:
    """Write colors (N,) that count from 0. names (N,): those of the nodes; without, nodes are numbers from 0. A `.csv`
    file has a line `node,color` per node, a `.json` file an object from node to color, both with colors from 0. Other
    files are DIMACS solutions: `s col K`, then `l v c` per node, both counted from 1, and comments with names other
    than v. StorageError if the system refuses.
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


def _read_colors(path: Path, is_single: bool) -> dict[str | int, Any]:
    """Read the colors, or with `is_single` the one color, of every node in a file: one that write_solution writes, or a
    table with a node and its colors in every line. The nodes of a DIMACS solution without names are int, from 1.
    """
    by_node: dict[str | int, Any] = {}
    try:
        kind, entries = _entries(files.read_bytes(path, TABLE_LIMIT).decode("utf-8-sig"))
        for node, words in entries:
            colors = [integer(str(word).strip()) for word in words]
            if node in by_node or (is_single and len(colors) != 1):
                raise ValueError(f"node {node!r} stands there twice or without one color")
            by_node[node] = colors[0] if is_single else colors
    except (ValueError, csv.Error, RecursionError) as error:
        raise UserError(f"{path}: {error}; a line has a node, then its colors, such as 7,0,2") from error
    log.info("%s: colors of %d nodes, read as %s", path, len(by_node), kind)
    return by_node


def _entries(text: str) -> tuple[str, list[tuple[str | int, list[Any]]]]:
    """The kind of a file of colors, and its nodes with their colors, from 0. ValueError for a wrong line."""
    if text.lstrip()[:1] == "{":
        pairs = json.loads(text, object_pairs_hook=list)
        return "JSON", [(node, colors if isinstance(colors, list) else [colors]) for node, colors in pairs]
    if not re.match(r"(c.*\n|\s)*s col ", text):
        sign = next((sign for sign in "\t;" if sign in text.partition("\n")[0]), ",")
        rows = filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=sign, strict=True))
        return f"a table with {sign!r} between cells", [
            (node, words) for node, *words in rows if (node, *words) != ("node", "color")
        ]
    by_node, names = [], {}
    for line in text.splitlines():
        match line.split(None, 2):
            case ["l", node, color]:
                if not integer(color.strip()):
                    raise ValueError(f"{line!r} has color 0; in a DIMACS solution, nodes and colors count from 1")
                by_node.append((integer(node), [int(color) - 1]))
            case ["c", node, name] if node.isdecimal():
                names[int(node)] = name
            case [word, *_] if word not in ("c", "s"):
                raise ValueError(f"{line!r} is no line of a DIMACS solution")
    are_named = names.keys() == {node for node, _ in by_node}
    return "a DIMACS solution", [(names[node] if are_named else node, colors) for node, colors in by_node]
