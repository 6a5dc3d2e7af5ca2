"""Label graphs on all cores, drop copies, split into train and validation, write. Any number of workers gives the same.

Each finished chunk is a file in `.parts/` of the output folder, so the same command continues after an interruption.
"""

import hashlib
import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnn_training import files
from gnn_training.console import progress
from gnn_training.contract import CALL_ROUNDS, HORIZON, rounds_by_size
from gnn_training.data import packed
from gnn_training.data.families import GraphSpec
from gnn_training.data.packed import Columns, Label, PackedGraphs, Row
from gnn_training.data.sources import read
from gnn_training.errors import UserError
from gnn_training.graph import Graph, Instance, NeighbourLists
from gnn_training.network.crossover_weights import from_text, zero_weights
from gnn_training.processes import run_in_processes

if TYPE_CHECKING:
    from gnn_training.search import engine

log = logging.getLogger(__name__)
CHUNK = 16  # graphs per part: what a kill can lose per worker
MOVE_WORK = 50  # of the search on one move, besides the visits of neighbours
PATIENCE_NODES = 36  # up to so many, `Plan.moves`; on larger graphs more in proportion
SIZE_BOUNDS = (50, 200, 500)  # the split is stratified by family and by these numbers of nodes
MIN_VALIDATION = 20  # validation graphs that a folder of fewer than five times as many graphs should have
STATES, FIRST_STATE, LATEST_STATE = 5, 16, 5  # of a long search that are kept, from round 16 to a fifth of all
SEARCHED_NODES = 2048  # larger graphs have no long search
TRAIN_MOVES = 500  # at most, of the search for labels of training graphs: rules learn without labels
IMPROVED = ("coloring", "num_colors", "lower_bound", "optimal")  # what a longer search for a label may change
PARTS, VALIDATION = ".parts", "validation"  # a folder, and the parts in it of validation graphs

Source = GraphSpec | Path  # what a worker makes a graph of; its repr identifies it
Redraw = Callable[[list[Any]], Sequence[Source]]  # returns other sources in the place of copies


@dataclass(frozen=True)
class LabelPlan:
    """How to label: everything besides the sources that the result depends on."""

    families: tuple[str, ...]  # every family that an instance may have
    moves: int  # of TabuCol in vain after which the search for fewer colors gives up
    seconds: float  # limit per graph
    seed: int
    origin: dict = field(default_factory=dict)  # JSON for the manifest
    skip_bad: bool = False  # leave out sources whose load raises UserError, instead of stopping at the first
    rule: tuple[float, ...] = ()  # weights of the trained rule, which then searches too
    crossover: str = ""  # weights of the crossover network, JSON; without, children take the largest classes
    long_search_every: int = 0  # of so many graphs, one gets a long search; 0 for none

    @property
    def trained(self) -> "engine.SearchWeights":
        """What a search takes of the model."""
        from gnn_training.search import engine  # compiled, which only workers need

        weights = from_text(self.crossover) if self.crossover else zero_weights()
        return engine.SearchWeights(np.array(self.rule, np.float32) if self.rule else None, weights)


def label_all(
    sources: Iterable[Source], folder: Path, plan: LabelPlan, workers: int = 0, redraw: Redraw | None = None,
    gpus: Sequence[int] = (),
) -> PackedGraphs:  # fmt: skip
    """Label every source with `workers` processes (0: one per core), write the packed graphs to `folder`, return them.
    The longer searches for validation graphs are those of the GPUs, if there are any. Copies, skipped sources and the
    notes of instances are logged. If the folder has graphs of this origin already, nothing happens. UserError for a bad
    source, graphs of another origin, or a folder that another process is writing.
    """
    with files.lock_folder(folder):
        if _is_finished(folder, plan.origin):
            return PackedGraphs.open(folder)
        pending = list(sources)
        work = repr((packed.VERSION, CHUNK, plan, pending))  # other work has parts of its own
        parts = folder / PARTS / hashlib.sha256(work.encode()).hexdigest()[:16]
        files.make_folder(parts)
        kept = _label_without_copies(pending, parts, plan, workers, redraw)
        if not kept:
            raise UserError(f"{folder}: there is no graph to write; name sources that have at least one")
        rows = [row for _, row in kept]
        every = min(5, max(2, len(rows) // MIN_VALIDATION))  # of few graphs, more are needed to see what training gains
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
    found = _label([source for source, _ in kept], parts, VALIDATION, plan, workers)
    for (_, row), (_, better) in zip(kept, found, strict=True):
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
    """The split (G,) uint8, 0 train and 1 validation: one graph in so many, in an order by family (G,), number of
    nodes (G,) and chance.
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
    """Label the sources, then what is drawn in the place of copies, and so on. Of equal graphs the first stays."""
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
    """Label sources, or read what an earlier run labelled; return those that could be read, and their graphs, in order.
    Validation graphs, which have been labelled once, get longer searches, and no second warning.
    """
    is_validation, count = name == VALIDATION, -(-len(pending) // CHUNK)
    # Every count-th source makes all chunks alike, so the speed and the time left can be trusted.
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
    """Tell what is wrong with sources, and how many graphs were read as what."""
    counts: dict[str, np.ndarray] = {}  # of graphs, nodes and edges
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


def label(
    instance: Instance, moves: int, seconds: float, seed: int, trained: "engine.SearchWeights | None" = None
) -> Label:
    """Search a coloring, `seconds` at most. Below that limit the label depends on the other arguments alone. On
    geometric graphs, other methods need up to 5 colors more than the trained rule.
    """
    from gnn_training.search import engine, first_colorings, kernels, portfolio

    portfolio.compile_all()
    trained = trained or engine.UNTRAINED
    deadline, graph = time.monotonic() + seconds, instance.graph
    lists = graph.csr()
    greedy = kernels.dsatur(*lists)
    dsatur_colors, given = int(greedy.max()) + 1, instance.coloring
    lower = first_colorings.clique_size(lists)
    first = first_colorings.first_coloring(lists, greedy) if dsatur_colors > lower else greedy.astype(np.int16)
    best = greedy if given is None or given.max() >= greedy.max() else given
    if instance.optimal:
        assert given is not None
        lower = int(given.max()) + 1
    work = len(lists.neighbours) / graph.num_nodes + MOVE_WORK  # of a move
    patience = int(moves * work * moves_factor(graph.num_nodes))
    methods: dict[engine.Method, float] = {portfolio.crossover_search: 2, portfolio.fewer_colors: 0.5}
    if trained.rule is not None:
        methods[portfolio.trained_rule] = 1
    budget = engine.Budget(deadline, lower, seed=seed)
    for better in engine.improvements(lists, best, budget, methods, trained, patience):
        best = better.colors
    num_colors = int(best.max()) + 1
    return Label(best.astype(np.int16), first, num_colors, lower, dsatur_colors, lower == num_colors)


def moves_factor(num_nodes: int) -> float:
    """By how much a graph of so many nodes needs more moves than a small one."""
    return max(1.0, num_nodes / PATIENCE_NODES)


def long_search(known: Label, graph: Graph, rule: np.ndarray, seed: int) -> Label:
    """The label with a search of HORIZON times the rounds of a call: when it had how few colors, and what it had seen
    after the rounds of a call and at STATES other times, which are drawn by `seed`.
    """
    from gnn_training.search.first_colorings import clique_size
    from gnn_training.search.search_kernel import SearchTask, search_graph

    lists = graph.csr()
    n, num_colors, clique = graph.num_nodes, int(known.first.max()) + 1, clique_size(lists)
    if num_colors <= clique:
        return known
    call = min(CALL_ROUNDS, rounds_by_size(n))
    rng = np.random.default_rng([seed, n, len(lists.neighbours)])
    bounds = math.log(FIRST_STATE), math.log(HORIZON * call / LATEST_STATE)
    times = np.array(sorted({call, *np.exp(rng.uniform(*bounds, STATES)).astype(int).tolist()}))
    end = search_graph(lists, SearchTask(known.first, HORIZON * call, seed, clique, times=times), rule)
    reached, rounds = end.reached[end.num_colors :][::-1], times[: len(end.states)]
    return replace(
        known,
        search_rounds=HORIZON * call,
        clique=clique,
        search_colors=end.num_colors,
        reached=reached,
        state_rounds=rounds,
        states=_features(end, lists, num_colors, clique, reached, rounds),
    )


def _features(
    end: Any, lists: NeighbourLists, num_colors: int, clique: int, reached: np.ndarray, rounds: np.ndarray
) -> np.ndarray:
    """What the network sees (S, STATE_FEATURES) of the states of a search after some rounds (S,). reached: after how
    many it had ever fewer colors.
    """
    import torch  # which only workers with long searches need

    from gnn_training.network.states import SearchState, features

    saved = np.searchsorted(reached, rounds, "right") - 1
    colors, *counts = end.states.swapaxes(0, 1)
    degrees = np.broadcast_to(np.diff(lists.offsets), colors.shape)
    of_graph = num_colors - saved, np.full(len(rounds), clique), rounds, reached[saved], end.state_conflicts
    of_node = degrees, *counts
    degree, *rest = (torch.tensor(values, dtype=torch.float32) for values in (*of_node, *of_graph))
    state = SearchState(torch.tensor(colors, dtype=torch.int64), *rest)
    return features(torch.ones(colors.shape, dtype=torch.bool), degree, state, torch.arange(num_colors)).numpy()


def fingerprint(graph: Graph) -> int:
    """64 bits that do not depend on the order of the nodes. Above 2,000 nodes, only equal edge lists agree. Color
    refinement (Weisfeiler and Leman 1968) over all pairs of nodes; a pair is marked by adjacency and the number of
    common neighbours. Unlike plain refinement it tells regular graphs apart, except strongly regular ones.
    """
    if graph.num_nodes > 2_000:  # N x N costs too much
        content = np.int64(graph.num_nodes).tobytes() + graph.edges.tobytes()
    else:
        adjacency = graph.adjacency().astype(np.float32)
        marks = (adjacency @ adjacency * 2 + adjacency).astype(np.int32)
        pairs = _mix(np.arange(marks.max() + 1, dtype=np.uint64))[marks]
        colors = _mix(graph.degrees().astype(np.uint64))
        for _ in range(3):
            colors = _mix(colors + pairs @ colors)  # a sum does not depend on the order
        content = np.array([graph.num_nodes, graph.num_edges]).tobytes() + np.sort(colors).tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _mix(x: np.ndarray) -> np.ndarray:
    """Scatter 64-bit words: the finalizer of splitmix64 (Steele and others 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
