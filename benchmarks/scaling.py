"""Measure what training compute buys: train with 1 to 256 times 6,400 searches, and compare the rules on fresh graphs.

    python -m benchmarks.scaling --folder FOLDER          # writes what is there so far
    python -m benchmarks.scaling --folder FOLDER --train  # first trains what is missing, shortest first

Every training is one process on one core. It resumes if it is killed; several commands may share the work. What is
scored goes into docs/SCALING.json and is not trained again, so another machine can go on. docs/SCALING.md says how the
numbers are obtained.
"""

import json
import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import tyro
from matplotlib.figure import Figure

from gnn_training import files
from gnn_training.console import as_text, markdown_table, set_up_logging
from gnn_training.data.families import Recipe, graph_specs
from gnn_training.data.labels import LabelPlan, label_all
from gnn_training.data.packed import PackedGraphs, evenly_spaced
from gnn_training.errors import UserError
from gnn_training.files import lock_folder
from gnn_training.graph import Graph, NeighbourLists
from gnn_training.jobs.train import train
from gnn_training.network import rule
from gnn_training.search.first_colorings import clique_size, first_coloring
from gnn_training.search.portfolio import compile_all
from gnn_training.search.search_kernel import SearchTask, search_graph
from gnn_training.settings import TrainSettings, from_preset
from gnn_training.training import checkpoint
from gnn_training.training.learner import LR_SCALINGS

log = logging.getLogger(__name__)
ONE = 6400  # searches of a training of size 1
# Graphs per family of recipe `cpu` in version 0.6, whose rows stand in docs/SCALING.json.
MIXTURE = {
    "er_sparse": 40, "er_light": 160, "er_dense": 180, "er_heavy": 140, "planted": 180, "interval": 20,
    "wavelength": 20, "leighton": 120, "clique_union": 60, "geometric": 100, "geometric_complement": 80, "queen": 60,
    "rook": 10, "mycielski": 10, "barabasi_albert": 10, "watts_strogatz": 30,
}  # fmt: skip
MOVES, LABEL_SECONDS = 200, 0.05  # of training; labels matter for predictions alone
TEST_SIZES, TEST_SEED = ((100, 300), (300, 600), (600, 1000)), 20_000
ROUNDS, SEARCH_SEEDS = 2500, (0, 1)
RATE = TrainSettings(weights=None).peak_rate
BATCH = 24  # graphs per rank and step
SCORES, HEADING = "scores.json", "## Measured\n"


@dataclass(frozen=True)
class Options:
    """What to train, and where."""

    folder: Path
    """Folder for graphs, trainings and scores."""
    train: bool = False
    """Train and score what is missing."""
    multiples: tuple[int, ...] = (1, 4, 16, 64, 256)
    """Sizes of trainings, in 6,400 searches."""
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    """Seeds of trainings up to 16; larger ones take the first three."""
    sizes: tuple[int, ...] = (200, 450, 1000)
    """Most nodes of the training graphs."""
    rounds: tuple[int, ...] = (1500,)
    """Rounds of the searches in trainings."""
    ranks: tuple[int, ...] = (1,)
    """Ranks to simulate on one core: each multiplies the searches of a step and divides the number of steps."""
    lr_scaling: tuple[Literal["none", "sqrt", "linear"], ...] = ("none",)
    """How the learning rate grows with the number of ranks."""
    graphs: int = 1200
    """Training graphs."""
    test_graphs: int = 84
    """Test graphs of each size; scores of other numbers cannot stand on one page."""
    page: Path = Path("docs/SCALING.md")
    """Markdown page whose section "Measured" is replaced. A .json beside it has the scores, an .svg the figure."""


class Cell(NamedTuple):
    """One training."""

    multiple: int
    most_nodes: int
    rounds: int
    ranks: int
    lr_scaling: Literal["none", "sqrt", "linear"]
    seed: int

    def __str__(self) -> str:
        kind = f"{self.multiple}x-{self.most_nodes}nodes-{self.rounds}rounds"
        return f"{kind}-{self.ranks}ranks-{self.lr_scaling}-seed{self.seed}"


class Result(NamedTuple):
    """The scores of a training: colors that every search of a test graph saves over the untrained rule."""

    cell: Cell
    train_seconds: int
    rounds: Sequence[int]  # with equal rounds
    time: Sequence[int]  # in equal time
    weights: list[float]  # of the rule

    def saved(self, measure: str) -> np.ndarray:
        """Colors (graphs,) that training saves, mean over search seeds; measure: "rounds" or "time"."""
        return np.array(getattr(self, measure)).reshape(-1, len(SEARCH_SEEDS)).mean(1)


class TestGraph(NamedTuple):
    """A graph that no training has seen."""

    family: str
    lists: NeighbourLists
    first: np.ndarray  # (N,) int32, coloring to start with
    clique: int


def main(options: Options) -> None:
    """Train what is missing if asked to; then write the page, its figure and its scores."""
    set_up_logging()
    for cell in cells(options) if options.train else ():
        if cell in [result.cell for result in results(options)]:
            continue
        try:
            with lock_folder(options.folder / str(cell)):
                run(cell, options)
        except UserError as error:  # such as another command that trains it
            log.warning("%s is left out: %s", cell, error)
    found = results(options)
    lines = ",\n".join(json.dumps(result._asdict(), separators=(",", ":")) for result in found)
    files.write_text(options.page.with_suffix(".json"), f"[\n{lines}\n]\n")
    draw(found, options.page.with_suffix(".svg"))
    files.write_text(options.page, options.page.read_text().partition(HEADING)[0] + measured(found))


def cells(options: Options) -> Iterator[Cell]:
    """All trainings, the shortest first."""
    for multiple in sorted(options.multiples):
        for seed in options.seeds if multiple <= 16 else options.seeds[:3]:
            kinds = product(options.sizes, options.rounds, options.ranks, options.lr_scaling)
            yield from (Cell(multiple, *kind, seed) for kind in kinds)


def run(cell: Cell, options: Options) -> None:
    """Train and score a cell."""
    folder, data = options.folder, training_graphs(options.folder, cell.most_nodes, options.graphs)
    settings = from_preset(
        TrainSettings, "cpu", data=data.folder, run=folder / str(cell) / "run", ranks=1,
        weights=None, searches=cell.multiple * ONE, rounds=cell.rounds, seed=cell.seed, validation_graphs=64,
        batch_size=BATCH * cell.ranks, learning_rate=RATE * LR_SCALINGS[cell.lr_scaling](cell.ranks),
        checkpoint_every=100, log_every=50, self_play=0.0,  # which trains crossover alone
    )  # fmt: skip
    train(settings)
    weights = checkpoint.load(settings.run)["network"]["rule"].numpy()
    seconds = json.loads((settings.run / "status.json").read_text())["seconds"]
    result = score(cell, seconds, weights, test_graphs(options.test_graphs))
    files.write_text(folder / str(cell) / SCORES, json.dumps(result._asdict()))


def training_graphs(folder: Path, most_nodes: int, graphs: int) -> PackedGraphs:
    """Graphs of 100 to `most_nodes` nodes in the shares of MIXTURE, made at the first call."""
    recipe = Recipe(MIXTURE, ((100, most_nodes, 1.0),), MOVES)
    origin = {"most_nodes": most_nodes, "graphs": graphs}
    place = folder / f"graphs-{most_nodes}"
    plan = LabelPlan(tuple(recipe.counts), MOVES, LABEL_SECONDS, 0, origin)
    return label_all(graph_specs(recipe, 0, graphs), place, plan, workers=1)


@cache
def test_graphs(of_size: int) -> list[TestGraph]:
    """Fresh graphs of the families of MIXTURE, as many of each size, without those whose first coloring is optimal."""
    compile_all()  # before that, cliques are smaller, and so more graphs are left
    found = []
    for low, high in TEST_SIZES:
        recipe, kept = Recipe(dict.fromkeys(MIXTURE, 1), ((low, high, 1.0),), 0), []
        for draw in graph_specs(recipe, TEST_SEED, 2 * of_size):
            kept += unsolved(draw.family, draw.instance().graph)
        found += [kept[i] for i in evenly_spaced(len(kept), of_size)]
    return found


def unsolved(family: str, graph: Graph) -> list[TestGraph]:
    """The graph to test on; none if its first coloring has no more colors than a clique."""
    lists = graph.csr()
    first, clique = first_coloring(lists).astype(np.int32), clique_size(lists)
    return [TestGraph(family, lists, first, clique)] if first.max() + 1 > clique else []


def timed_search(graph: TestGraph, weights: np.ndarray, rounds: int, seed: int) -> tuple[int, float]:
    """Colors found in so many rounds, and the seconds of this thread."""
    started = time.thread_time()
    found = search_graph(graph.lists, SearchTask(graph.first, rounds, seed, graph.clique), weights)
    return found.num_colors, time.thread_time() - started


def savings(graph: TestGraph, weights: np.ndarray, seed: int) -> tuple[int, int]:
    """Colors that these weights save over the untrained rule in as many rounds, and in as many as fit into its
    seconds.
    """
    before, allowed = timed_search(graph, rule.untrained(), ROUNDS, seed)
    colors, taken = timed_search(graph, weights, ROUNDS, seed)
    fitting = min(math.ceil(ROUNDS * allowed / max(taken, 1e-6)), 4 * ROUNDS)
    return before - colors, before - timed_search(graph, weights, fitting, seed)[0]


def score(cell: Cell, train_seconds: float, weights: np.ndarray, graphs: list[TestGraph]) -> Result:
    """Search every test graph."""
    rounds, in_time = zip(*(savings(graph, weights, seed) for graph in graphs for seed in SEARCH_SEEDS), strict=True)
    return Result(cell, round(train_seconds), rounds, in_time, [float(f"{x:.7g}") for x in weights])


def results(options: Options) -> list[Result]:
    """What has been scored, here or before, the shortest trainings first."""
    record = options.page.with_suffix(".json")
    known = json.loads(record.read_text()) if record.exists() else []
    known += [json.loads(path.read_text()) for path in options.folder.glob(f"*/{SCORES}")]
    by_cell = {Cell(*one["cell"]): one for one in known}
    return [Result(**by_cell[cell] | {"cell": cell}) for cell in sorted(by_cell)]


def measured(found: Sequence[Result]) -> str:
    """The section with the table, a row for each kind of training, a column for each size of training graphs."""
    kinds = sorted({(cell.multiple, cell.rounds, cell.ranks, cell.lr_scaling) for cell, *_ in found})
    columns = {"searches": [f"{multiple * ONE:,}" for multiple, *_ in kinds]}
    columns |= {name: [str(kind[i]) for kind in kinds] for i, name in enumerate(("rounds", "ranks", "--lr-scaling"), 1)}
    for size in sorted({result.cell.most_nodes for result in found}):
        of_seeds = [[one for one in found if one.cell[:5] == (first, size, *others)] for first, *others in kinds]
        columns[f"to {size} nodes"] = [means(seeds) if seeds else "" for seeds in of_seeds]
    meaning = "Colors saved in equal rounds, in equal time; means of so many seeds."
    return f"{HEADING}\n{meaning}\n\n{as_text(markdown_table(columns))}\n"


def means(seeds: Sequence[Result]) -> str:
    """Colors saved in equal rounds and in equal time, and the number of seeds."""
    rounds, time = (np.mean([result.saved(measure) for result in seeds]) for measure in ("rounds", "time"))
    return f"{rounds:.2f}, {time:.2f} ({len(seeds)})"


def draw(found: Sequence[Result], file: Path) -> None:
    """Colors saved against searches, a line for every size of training graphs, bars from worst to best seed: the
    trainings, the shortest first, on one rank with the rounds of the preset.
    """
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    plain = [result for result in found if (result.cell.rounds, result.cell.ranks) == (1500, 1)]
    for most_nodes in sorted({result.cell.most_nodes for result in plain}):
        scores: dict[int, list[float]] = {}  # by searches
        for result in plain:
            if result.cell.most_nodes == most_nodes:
                scores.setdefault(result.cell.multiple * ONE, []).append(result.saved("rounds").mean())
        means = np.array([np.mean(one) for one in scores.values()])
        ends = np.array([[min(one), max(one)] for one in scores.values()]).T
        label = f"100 to {most_nodes} nodes"
        axes.errorbar([*scores], means, abs(ends - means), marker="o", capsize=3, label=label)
    axes.set(xscale="log", xlabel="searches in training", ylabel="colors saved, equal rounds")
    axes.legend()
    figure.savefig(file)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
