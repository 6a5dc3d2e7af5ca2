"""Labels for many graphs: over all cores, interruptible at any moment, the same for any number of workers.

Work is cut in chunks; each finished chunk is a file in `.parts/` of the output folder, so a killed run continues
where it was. When all are there, copies are dropped (and replaced, if the caller knows how), the graphs are split and
written in packed form, and the parts removed.
"""
# DOC A number per graph that isomorphic graphs share, to find copies.
# DOC A few graphs of a recipe with labels that cost nothing: to measure a training before its data is there.

import fcntl
import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TextIO

import numpy as np

from gnn_training import files
from gnn_training.coloring import greedy_along
from gnn_training.console import progress
from gnn_training.data import packed
from gnn_training.data.labels import Instance, Label
from gnn_training.data.packed import Columns, PackedGraphs, Record
from gnn_training.data.recipes import Recipe, draws
from gnn_training.errors import StorageError, UserError
from gnn_training.graph import Graph
from gnn_training.processes import run_in_processes, sigterm_raises

log = logging.getLogger(__name__)
CHUNK = 16  # graphs per part: what a kill can lose per worker
SIZE_BOUNDS = (50, 200, 500)  # the split is stratified by family and by these numbers of nodes
_VALIDATION_EVERY = 5
_ROUNDS = 10  # a family of few small graphs runs out of new ones
_PARTS = ".parts"


class GraphSource(Protocol):
    """A graph to come: a small picklable value whose repr tells it from others, made a graph in a worker process."""

    def load(self) -> Instance:
        """Draw or read the graph; UserError if it is no good."""
        ...


Redraw = Callable[[list[GraphSource]], Sequence[GraphSource]]


@dataclass(frozen=True)
class Plan:
    """How to label: all that the result depends on besides the sources.

    families: every name that an instance may carry. iterations: how long a number of colors may resist the search;
    seconds: per graph, at most. skip_bad: leave out sources whose load raises UserError instead of stopping at the
    first. origin: JSON for the manifest.
    """

    families: tuple[str, ...]
    iterations: int
    seconds: float
    seed: int
    origin: dict = field(default_factory=dict)
    skip_bad: bool = False


def label_all(
    sources: Sequence[GraphSource], folder: Path, plan: Plan, workers: int = 0, redraw: Redraw | None = None
) -> PackedGraphs:
    """Label every source, write the packed graphs to `folder` and return them.

    workers: processes, 0 takes every core. redraw: given the sources that turned out to be copies, returns others to
    take instead. What is worth telling about single graphs (Instance.note, bad sources, copies) is logged.

    Raises:
        UserError: a bad source, a folder that cannot be written or is in use, a worker that died.
    """
    parts = folder / _PARTS
    with _lock_parts(parts, repr((packed.VERSION, CHUNK, plan, list(sources)))), _told_how_to_continue():
        tensors = _without_copies(sources, parts, plan, workers, redraw)
        if not len(tensors["num_nodes"]):
            raise UserError(f"{folder}: no graph is left to write; name sources that hold at least one")
        tensors["split"] = split(tensors, plan.seed)
        graphs = packed.write(folder, tensors, plan.families, plan.origin)
        shutil.rmtree(parts)
    report(graphs)
    return graphs


def finished(folder: Path, origin: dict) -> PackedGraphs | None:
    """The graphs of `folder` if they were made from `origin`; None if there are none yet.

    Raises:
        UserError: the folder holds other graphs, or damaged ones.
    """
    manifest = packed.read_manifest(folder)
    if manifest is None and (folder / packed.GRAPHS_FILE).exists() and not (folder / _PARTS).exists():
        raise UserError(f"{folder}: holds {packed.GRAPHS_FILE} without a manifest; name another --out or remove it")
    if manifest is None:
        return None
    if manifest["origin"] != origin:
        raise UserError(f"{folder}: holds graphs of other sources or settings; name another --out or remove it")
    shutil.rmtree(folder / _PARTS, ignore_errors=True)  # a kill may have come between the manifest and this
    log.info("%s: already holds these %d graphs", folder, manifest["graphs"])
    return PackedGraphs.open(folder)


def split(tensors: Columns, seed: int) -> np.ndarray:
    """(G,) uint8, 0 train and 1 validation: every fifth graph in an order by family, size and then chance."""
    graphs = len(tensors["num_nodes"])
    chance = np.random.default_rng([seed, graphs]).random(graphs)
    order = np.lexsort((chance, np.searchsorted(SIZE_BOUNDS, tensors["num_nodes"], side="right"), tensors["family"]))
    result = np.zeros(graphs, dtype=np.uint8)
    result[order[max(1, min(2, graphs - 1)) :: _VALIDATION_EVERY]] = 1
    return result


def report(graphs: PackedGraphs) -> None:
    """Log per family how far the labels lie below DSATUR and how many are proven."""
    log.info("%-22s %7s %7s %9s %8s", "family", "graphs", "nodes", "saved", "proven")
    rows = [(name, graphs.family == number) for number, name in enumerate(graphs.families)]
    for name, chosen in [*rows, ("all", np.full(len(graphs), True))]:
        if chosen.any():
            saved = (graphs.dsatur_colors[chosen] - graphs.num_colors[chosen]).mean()
            proven, nodes = 100 * graphs.optimal[chosen].mean(), graphs.num_nodes[chosen].mean()
            log.info("%-22s %7d %7.0f %9.2f %7.0f%%", name, chosen.sum(), nodes, saved, proven)
    log.info("saved: colors of DSATUR above the label, mean; proven: labels that no coloring can beat")


def _without_copies(
    pending: Sequence[GraphSource], parts: Path, plan: Plan, workers: int, redraw: Redraw | None
) -> Columns:
    """Label sources, then what is drawn for those that were copies, and so on; the first of equals stays."""
    rounds: list[Columns] = []
    keep: list[tuple[int, int]] = []
    seen: dict[int, str] = {}
    while pending and len(rounds) < _ROUNDS:
        labelled, positions = _label(pending, parts / str(len(rounds)), plan, workers)
        copies = []
        for row, mark in enumerate(labelled["fingerprint"].tolist()):
            name = packed.name(labelled, row)
            if mark in seen:
                log.debug("%s is a copy of %s", name, seen[mark])
                copies.append(pending[positions[row]])
            else:
                seen[mark] = name
                keep.append((len(rounds), row))
        if copies:
            log.info("copies of other graphs, %s: %d", "replaced" if redraw else "left out", len(copies))
        rounds.append(labelled)
        pending = redraw(copies) if redraw and copies else []
    return packed.select(rounds, keep)


def _label(pending: Sequence[GraphSource], parts: Path, plan: Plan, workers: int) -> tuple[Columns, list[int]]:
    """Label sources, or read what an earlier run labelled; in their order, with the position of each."""
    count = -(-len(pending) // CHUNK)
    # Taking every count-th source makes all chunks alike, so rate and time left can be trusted.
    chunks = {parts / f"{c:06d}.safetensors": range(c, len(pending), count) for c in range(count)}
    missing = [(path, [(i, pending[i]) for i in places], plan) for path, places in chunks.items() if not path.exists()]
    ready = len(pending) - sum(len(places) for _, places, _ in missing)
    if missing and ready:
        log.info("continuing: %d of %d graphs are labelled", ready, len(pending))
    if missing:
        with (
            progress("labelling", ready, len(pending), log) as advance,
            closing(run_in_processes(_label_chunk, missing, workers)) as ended,  # a signal may come in advance()
        ):
            for number in ended:
                advance(len(missing[number][1]))
    return _gather(list(chunks))


def _gather(paths: Sequence[Path]) -> tuple[Columns, list[int]]:
    """The graphs of all parts in the order of their positions, and these; notes are logged."""
    columns, places = [], []
    for number, path in enumerate(paths):
        tensors, metadata = packed.read_columns(path)
        columns.append(tensors)
        places += [(position, (number, row)) for row, position in enumerate(json.loads(metadata["positions"]))]
        for note in json.loads(metadata["notes"]):
            log.warning(note)
    places.sort()
    return packed.select(columns, [row for _, row in places]), [position for position, _ in places]


def _label_chunk(path: Path, places: list[tuple[int, GraphSource]], plan: Plan) -> None:
    pass
    from gnn_training.data.labels import label

    records, positions, notes = [], [], []
    for position, source in places:
        try:
            instance = source.load()
            packed.check_size(instance.graph)
        except UserError as error:
            if not plan.skip_bad:
                raise
            notes.append(f"left out: {error}")
            continue
        if instance.note:
            notes.append(instance.note)
        best = label(instance, plan.iterations, plan.seconds, plan.seed)
        records.append(Record(instance, best, fingerprint(instance.graph)))
        positions.append(position)
    metadata = {"positions": json.dumps(positions), "notes": json.dumps(notes)}
    packed.write_columns(path, packed.columns(records, plan.families), metadata)


def _lock_parts(parts: Path, command: str) -> TextIO:
    """Make the parts those of this command, removing another's; ours alone until what is returned is closed."""
    key = hashlib.sha256(command.encode()).hexdigest()
    try:
        parts.mkdir(parents=True, exist_ok=True)
        lock = open(parts / "lock", "a+")  # noqa: SIM115 - the caller closes it
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.seek(0)
        if lock.read() != key:
            for old in filter(Path.is_dir, parts.iterdir()):
                shutil.rmtree(old)
            lock.truncate(0)
            lock.write(key)
            lock.flush()
        return lock
    except BlockingIOError as error:
        raise UserError(f"{parts.parent}: another process is filling it; wait or name another --out") from error
    except OSError as error:
        raise StorageError(f"{parts.parent}: cannot be written ({files.reason(error)}); name another --out") from error


@contextmanager
def _told_how_to_continue() -> Iterator[None]:
    try:
        with sigterm_raises():
            yield
    except (KeyboardInterrupt, SystemExit):
        log.warning("interrupted; the same command continues")
        raise


_REFINEMENTS = 3
_DENSE_NODES = 2_000


def fingerprint(graph: Graph) -> int:
    """64 bits that do not depend on the order of the nodes.

    Color refinement (Weisfeiler and Leman 1968) over all pairs of nodes, a pair being marked by adjacency and its
    number of common neighbours. That tells regular graphs apart, which plain refinement does not; only strongly
    regular ones still agree. Above 2,000 nodes, where n x n costs too much, only equal edge lists agree.
    """
    if graph.num_nodes > _DENSE_NODES:
        return _digest(np.int64(graph.num_nodes), graph.edges)
    adjacency = graph.adjacency().astype(np.float32)
    marks = (adjacency @ adjacency * 2 + adjacency).astype(np.int32)
    pairs = _mix(np.arange(marks.max() + 1, dtype=np.uint64))[marks]
    colors = _mix(graph.degrees().astype(np.uint64))
    for _ in range(_REFINEMENTS):
        colors = _mix(colors + pairs @ colors)  # a sum over pairs forgets their order
    return _digest(np.int64(graph.num_nodes), np.int64(graph.num_edges), np.sort(colors))


def _mix(x: np.ndarray) -> np.ndarray:
    """Scatter 64-bit words: the finalizer of splitmix64 (Steele and others 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _digest(*arrays: np.ndarray) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays:
        digest.update(array.tobytes())
    return int.from_bytes(digest.digest(), "little")


def sample(recipe: Recipe, graphs: int, seed: int, folder: Path) -> PackedGraphs:
    """Draw `graphs` graphs in the recipe's proportions and pack them into `folder`, all of them for training."""
    instances = [draw.load() for draw in draws(recipe, seed, graphs)]
    records = [Record(instance, _greedy_label(instance)) for instance in instances]
    families = tuple(recipe.counts)
    return packed.write(folder, packed.columns(records, families), families, {"sample": graphs})


def _greedy_label(instance: Instance) -> Label:
    """First fit from the largest degree down: a little above what a search would find, so costs are not too low."""
    graph = instance.graph
    colors = greedy_along(graph, np.argsort(-graph.degrees(), kind="stable"))
    count = int(colors.max()) + 1
    return Label(colors.astype(np.int16), count, 1, count, optimal=False, difficulty=0.0)
