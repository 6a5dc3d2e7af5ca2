"""Label graphs on all cores, drop copies, split into train and validation, write: the same with any number of workers.

Each finished chunk is a file in `.parts/` of the output folder, so the same command continues after an interruption.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnn_training import files
from gnn_training.console import progress
from gnn_training.data import packed
from gnn_training.data.families import GraphSpec
from gnn_training.data.label import fingerprint, label, long_search, moves_factor
from gnn_training.data.packed import Columns, PackedGraphs, Row
from gnn_training.data.sources import read
from gnn_training.errors import UserError
from gnn_training.network.crossover_weights import from_text, zero_weights
from gnn_training.processes import run_in_processes

if TYPE_CHECKING:
    from gnn_training.search import engine

log = logging.getLogger(__name__)
CHUNK = 16  # graphs per part: what a kill can lose per worker
SIZE_BOUNDS = (50, 200, 500)  # the split is stratified by family and by these numbers of nodes
MIN_VALIDATION = 20  # validation graphs to have in a folder of fewer than 100 graphs, but at most half of them
SEARCHED_NODES = 2048  # larger graphs have no long search
TRAIN_MOVES = 500  # most moves without a gain for the label of a training graph: rules learn without labels
IMPROVED = ("coloring", "num_colors", "lower_bound", "optimal")  # what a longer search for a label may change
PARTS, VALIDATION = ".parts", "validation"  # the folder of parts, and how names of parts of validation graphs begin

Source = GraphSpec | Path  # what a worker turns into a graph; its repr identifies it
Redraw = Callable[[list[Any]], Sequence[Source]]  # returns other sources that replace copies


@dataclass(frozen=True)
class LabelPlan:
    """Everything that the labels depend on, besides the sources."""

    families: tuple[str, ...]  # every family that an instance may have
    moves: int  # the search gives up after so many moves of TabuCol without a better coloring
    seconds: float  # limit per graph
    seed: int
    origin: dict = field(default_factory=dict)  # JSON for the manifest
    skip_bad: bool = False  # leave out sources whose load raises UserError, instead of stopping at the first
    rule: tuple[float, ...] = ()  # weights of the trained rule, which takes part in the search; () for none
    crossover: str = ""  # weights of the crossover network as JSON; "": children take the largest classes
    long_search_every: int = 0  # one in so many graphs gets a long search; 0 for none
    max_long_searches: int = 0  # instead, the number of long searches for all sources, at most; 0 if it is not known

    @property
    def trained(self) -> "engine.SearchWeights":
        """The weights of the model that a search uses."""
        from gnn_training.search import engine  # compiled, which only workers need

        weights = from_text(self.crossover) if self.crossover else zero_weights()
        return engine.SearchWeights(np.array(self.rule, np.float32) if self.rule else None, weights)


def label_all(
    sources: Iterable[Source], folder: Path, plan: LabelPlan, workers: int = 0, redraw: Redraw | None = None,
    gpus: Sequence[int] = (),
) -> PackedGraphs:  # fmt: skip
    """Label every source with `workers` processes (0: one per core), write the packed graphs to `folder`, return them.
    GPUs, if any are given, run the longer searches for validation graphs. Copies, skipped sources and the notes of
    instances are logged. If the folder has graphs of this origin already, nothing happens. UserError for a bad source,
    graphs of another origin, or a folder that another process is writing.
    """
    with files.lock_folder(folder):
        if _is_finished(folder, plan.origin):
            return PackedGraphs.open(folder)
        pending = list(sources)
        if plan.max_long_searches:
            plan = replace(plan, long_search_every=-(-len(pending) // plan.max_long_searches))
        work = repr((packed.VERSION, CHUNK, plan, pending))  # other work has parts of its own
        parts = folder / PARTS / hashlib.sha256(work.encode()).hexdigest()[:16]
        files.make_folder(parts)
        kept = _label_without_copies(pending, parts, plan, workers, redraw)
        if not kept:
            raise UserError(f"{folder}: there is no graph to write; name sources that have at least one")
        rows = [row for _, row in kept]
        every = min(5, max(2, len(rows) // MIN_VALIDATION))  # a larger share of few graphs, to see what training gains
        num_nodes, family = (np.array([row[name] for row in rows]) for name in ("num_nodes", "family"))
        for row, part in zip(rows, split(num_nodes, family, plan.seed, every), strict=True):
            row["split"] = part
        _label_longer([(source, row) for source, row in kept if row["split"]], parts, plan, workers, gpus)
        graphs = packed.write(folder, packed.join(rows), plan.families, plan.origin)
        shutil.rmtree(folder / PARTS)
    ids, counts = graphs.indices("validation"), f"{len(graphs)} graphs from {len(pending)} sources"
    if len(ids):
        below, proven = (graphs.dsatur_colors - graphs.num_colors)[ids].mean(), 100 * graphs.optimal[ids].mean()
        counts += f", {len(ids)} for validation: labels {below:.2f} colors below DSATUR, {proven:.0f}% proven optimal"
    log.info(counts)
    return graphs


def _label_longer(
    kept: list[tuple[Source, Row]], parts: Path, plan: LabelPlan, workers: int, gpus: Sequence[int]
) -> None:
    """Put better labels into the rows of validation graphs."""
    if gpus:
        from gnn_training.data.gpu_labels import improve_labels  # loads numba's CUDA

        moves = [int(plan.moves * moves_factor(row["num_nodes"])) for _, row in kept]
        too_large = improve_labels([row for _, row in kept], moves, plan.seconds, plan.trained, plan.seed, gpus)
        kept = [kept[i] for i in too_large]
    relabelled = _label([source for source, _ in kept], parts, VALIDATION, plan, workers)
    if len(relabelled) < len(kept):
        raise UserError(f"{parts.parent.parent}: a file has changed while it was imported; start again")
    for (_, row), (_, better) in zip(kept, relabelled, strict=True):
        row |= {name: better[name] for name in IMPROVED}


def _is_finished(folder: Path, origin: dict) -> bool:
    """Whether a locked folder has graphs made from `origin`; UserError if it has others."""
    manifest = packed.read_manifest(folder)
    if manifest is None:
        if (folder / packed.GRAPHS_FILE).exists() and not (folder / PARTS).exists():
            raise UserError(f"{folder}: has {packed.GRAPHS_FILE} without a manifest; name another --out or remove it")
        return False
    if manifest["origin"] != origin:
        raise UserError(f"{folder}: has graphs of other sources or settings; name another --out or remove it")
    shutil.rmtree(folder / PARTS, ignore_errors=True)  # left by a kill between the manifest and the end
    log.info("%s: already has these %d graphs", folder, manifest["graphs"])
    return True


def split(num_nodes: np.ndarray, family: np.ndarray, seed: int, every: int = 5) -> np.ndarray:
    """The split (G,) uint8: 0 for train, 1 for validation. One in `every` graphs is for validation, in an order by
    family (G,), size class of num_nodes (G,) and chance.
    """
    graphs = len(num_nodes)
    chance = np.random.default_rng([seed, graphs]).random(graphs)
    order = np.lexsort((chance, np.searchsorted(SIZE_BOUNDS, num_nodes, side="right"), family))
    result = np.zeros(graphs, dtype=np.uint8)
    result[order[max(1, min(2, graphs - 1)) :: every]] = 1
    return result


def _label_without_copies(
    pending: Sequence[Source], parts: Path, plan: LabelPlan, workers: int, redraw: Redraw | None
) -> list[tuple[Source, Row]]:
    """Label the sources, then those that replace copies, and so on. Of equal graphs, the first stays."""
    kept: dict[int, tuple[Source, Row]] = {}  # by fingerprint
    for number in range(10):  # a family of few small graphs runs out of new ones
        duplicates = []
        for source, row in _label(pending, parts, str(number), plan, workers):
            if kept.setdefault(int(row["fingerprint"]), (source, row))[1] is not row:
                duplicates.append(source)
        if duplicates:
            log.info("copies of other graphs, %s: %d", "replaced" if redraw else "left out", len(duplicates))
        if not duplicates or not redraw:
            break
        pending = redraw(duplicates)
    return list(kept.values())


def _label(
    pending: Sequence[Source], parts: Path, name: str, plan: LabelPlan, workers: int
) -> list[tuple[Source, Row]]:
    """Label sources, or read the parts that an earlier run labelled; return the sources that could be read and their
    rows, in order. Validation graphs have been labelled once: they get longer searches, and no second warning.
    """
    is_validation, count = name == VALIDATION, -(-len(pending) // CHUNK)
    # A chunk has every count-th source, so all chunks are alike and the speed and the time left can be trusted.
    chunks = {parts / f"{name}-{c:06d}.safetensors": range(c, len(pending), count) for c in range(count)}
    done = {path: _read_part(path) for path in chunks}
    missing = [(path, [(i, pending[i]) for i in chunks[path]], plan) for path, part in done.items() if part is None]
    ready = len(pending) - sum(len(places) for _, places, _ in missing)
    if missing:
        if ready:
            log.info("continuing: %d of %d graphs are labelled", ready, len(pending))
        jobs = run_in_processes(_label_chunk, [(*call, is_validation) for call in missing], workers)
        with (
            progress("labelling validation graphs" if is_validation else "labelling", ready, len(pending)) as advance,
            closing(jobs),
        ):  # a signal may come here
            for number in jobs:
                advance(len(missing[number][1]))
    finished = [part or packed.read_columns(path) for path, part in done.items()]
    if not is_validation:
        _log_sources(finished)
    labelled: list[tuple[int, Row]] = []
    for tensors, metadata in finished:
        labelled += zip(json.loads(metadata["positions"]), packed.rows(tensors), strict=True)
    return [(pending[i], row) for i, row in sorted(labelled, key=itemgetter(0))]


def _log_sources(finished: Iterable[tuple[Columns, dict[str, str]]]) -> None:
    """Log what is wrong with sources, and how many graphs were read from each kind of file."""
    counts: dict[str, np.ndarray] = {}  # by kind: numbers of graphs, nodes and edges
    for tensors, metadata in finished:
        for kind, *sizes in zip(json.loads(metadata["kinds"]), tensors["num_nodes"], tensors["num_edges"], strict=True):
            counts[kind] = counts.get(kind, 0) + np.array([1, *sizes], np.int64)
        for note in json.loads(metadata["notes"]):
            log.warning(note)
    for kind, (graphs, nodes, edges) in counts.items():
        if kind:
            log.info("%d graphs, %d nodes, %d edges, %s", graphs, nodes, edges, kind)


def _read_part(path: Path) -> tuple[Columns, dict[str, str]] | None:
    """The tensors and the metadata of a part; None if it is missing or damaged."""
    try:
        return packed.read_columns(path) if path.exists() else None
    except UserError as error:
        log.warning("%s; its graphs are labelled again", error)
        return None


def _label_chunk(path: Path, places: list[tuple[int, Source]], plan: LabelPlan, is_validation: bool) -> None:
    """Label the sources of one chunk and write its part, with positions and notes as metadata."""
    moves = plan.moves if is_validation else min(plan.moves, TRAIN_MOVES)
    every = 0 if is_validation else plan.long_search_every
    rows: list[Row] = []
    metadata: dict[str, list] = {"positions": [], "kinds": [], "notes": []}
    for position, source in places:
        try:
            instance = source.instance() if isinstance(source, GraphSpec) else read(source)
            packed.check_size(instance.graph)
        except UserError as error:
            if not plan.skip_bad:
                raise
            metadata["notes"].append(f"left out: {error}")
            continue
        metadata["notes"] += [instance.warning] if instance.warning else []
        best = label(instance, moves, plan.seconds, plan.seed, plan.trained)
        if every and plan.rule and position % every == 0 and instance.graph.num_nodes <= SEARCHED_NODES:
            best = long_search(best, instance.graph, np.array(plan.rule, np.float32), plan.seed)
        rows.append(packed.row(instance, best, plan.families) | {"fingerprint": fingerprint(instance.graph)})
        metadata["positions"].append(position)
        metadata["kinds"].append(instance.kind)
    packed.write_columns(path, packed.join(rows), {name: json.dumps(values) for name, values in metadata.items()})
