"""Measure what training compute buys: train with 1 to 256 times 6,400 searches, and compare the rules on fresh graphs.

    python -m benchmarks.scaling --folder FOLDER --page docs/SCALING.md  # draws what is there so far
    python -m benchmarks.scaling --folder FOLDER --train                 # first trains what is missing, shortest first

Every training is one process on one core. It resumes if it is killed; several commands may share the work.
docs/SCALING.md says how the numbers are obtained.
"""

import json
import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro
from matplotlib.figure import Figure

from benchmarks.training_speed import table
from gnn_training import files
from gnn_training.console import set_up_logging
from gnn_training.data.dataset import Plan, claim, finished, label_all
from gnn_training.data.families import FAMILIES, RECIPES, Recipe, draws
from gnn_training.data.packed import PackedGraphs
from gnn_training.errors import UserError
from gnn_training.graph import NeighbourLists
from gnn_training.jobs.train import train
from gnn_training.model.search import first_weights
from gnn_training.settings import TrainSettings, of_preset
from gnn_training.solve.portfolio import clique_size
from gnn_training.solve.search_kernel import noise_table, search_graph
from gnn_training.training import checkpoint
from gnn_training.training.loader import first_coloring

log = logging.getLogger(__name__)
ONE = 6400  # searches of a training of size 1
GRAPHS, ITERATIONS, LABEL_SECONDS = 1200, 200, 0.5  # of training; labels matter for predictions alone
TEST_SIZES, TEST_SEED, TEST_GRAPHS = ((100, 300), (300, 600), (600, 1000)), 20_000, 84  # graphs of each size
ROUNDS, SEARCH_SEEDS = 2500, (0, 1)
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
    page: Path | None = None
    """Markdown page whose section "Measured" is replaced; None prints the section."""


class Cell(NamedTuple):
    """One training."""

    multiple: int
    most_nodes: int
    rounds: int
    seed: int

    def __str__(self) -> str:
        return f"{self.multiple}x-{self.most_nodes}nodes-{self.rounds}rounds-seed{self.seed}"


class TestGraph(NamedTuple):
    """A graph that no training has seen."""

    family: str
    lists: NeighbourLists
    first: np.ndarray  # (N,) int64, coloring to start with
    clique: int


def main(options: Options) -> None:
    """Train what is missing if asked to; then write the section."""
    set_up_logging()
    for cell in cells(options) if options.train else ():
        try:
            with claim(options.folder / str(cell)):
                run(cell, options.folder)
        except UserError as error:  # such as another command that trains it
            log.warning("%s is left out: %s", cell, error)
    section = measured(options.folder)
    if options.page:
        draw(options.folder, options.page.with_suffix(".svg"))
        files.write_text(options.page, options.page.read_text().partition(HEADING)[0] + section)
    else:
        print(section)


def cells(options: Options) -> Iterator[Cell]:
    """All trainings, the shortest first."""
    for multiple in sorted(options.multiples):
        for seed in options.seeds if multiple <= 16 else options.seeds[:3]:
            yield from (Cell(multiple, most, rounds, seed) for most in options.sizes for rounds in options.rounds)


def run(cell: Cell, folder: Path) -> None:
    """Train and score a cell, unless that is done."""
    place, data = folder / str(cell) / SCORES, training_graphs(folder, cell.most_nodes)
    if place.exists():
        return
    settings = of_preset(
        TrainSettings, "cpu", data=data.folder, run=folder / str(cell) / "run", processes=1,
        searches=cell.multiple * ONE, rounds=cell.rounds, seed=cell.seed, validation_graphs=64,
        checkpoint_every=100, log_every=50,
    )  # fmt: skip
    train(settings)
    weights = checkpoint.load_best(settings.run)["network"]["move_rule"].numpy()
    seconds = json.loads((settings.run / "status.json").read_text())["seconds"]
    files.write_text(place, json.dumps({"cell": cell, "train_seconds": seconds} | scores(weights)))


def training_graphs(folder: Path, most_nodes: int) -> PackedGraphs:
    """Graphs of 100 to `most_nodes` nodes in the shares of the recipe cpu, made at the first call."""
    recipe = Recipe(RECIPES["cpu"].counts, ((100, most_nodes, 1.0),), ITERATIONS)
    origin = {"most_nodes": most_nodes, "graphs": GRAPHS}
    place = folder / f"graphs-{most_nodes}"
    with claim(place):
        plan = Plan(tuple(recipe.counts), ITERATIONS, LABEL_SECONDS, 0, origin)
        return finished(place, origin) or label_all(list(draws(recipe, 0, GRAPHS)), place, plan, workers=1)


@cache
def test_graphs() -> list[TestGraph]:
    """Fresh graphs of all families, as many of each size, without those whose first coloring is optimal."""
    found = []
    for low, high in TEST_SIZES:
        recipe, kept = Recipe(dict.fromkeys(FAMILIES, 1), ((low, high, 1.0),), 0), []
        for draw in draws(recipe, TEST_SEED, 2 * TEST_GRAPHS):
            lists = draw.load().graph.csr()
            first, clique = first_coloring(lists).astype(np.int64), clique_size(lists)
            if first.max() + 1 > clique:
                kept.append(TestGraph(draw.family, lists, first, clique))
        found += [kept[i] for i in np.linspace(0, len(kept) - 1, min(TEST_GRAPHS, len(kept))).astype(int)]
    return found


def search(graph: TestGraph, weights: np.ndarray, rounds: int, seed: int) -> tuple[int, float]:
    """Colors found in so many rounds, and the seconds of this thread."""
    started = time.thread_time()
    table = noise_table(int(graph.first.max()) + 1)
    stop = np.zeros(1, np.uint8)
    _, colors, _ = search_graph(*graph.lists, graph.first, 0, graph.clique, weights, table, seed, rounds, stop)
    return colors, time.thread_time() - started


def scores(weights: np.ndarray) -> dict[str, list]:
    """Colors of every search of a test graph by the untrained rule and by this one, with equal rounds, and by this one
    with as many rounds as fit into the seconds of the untrained rule.
    """
    untrained = first_weights().numpy()
    found: dict[str, list] = {"untrained": [], "rounds": [], "time": []}
    for graph in test_graphs():
        for seed in SEARCH_SEEDS:
            before, allowed = search(graph, untrained, ROUNDS, seed)
            colors, taken = search(graph, weights, ROUNDS, seed)
            fitting = min(math.ceil(ROUNDS * allowed / max(taken, 1e-6)), 4 * ROUNDS)
            in_time, _ = search(graph, weights, fitting, seed)
            for name, value in zip(found, (before, colors, in_time), strict=True):
                found[name].append(value)
    return found


def gain(found: dict, measure: str) -> np.ndarray:
    """Colors (graphs,) that training saves, mean over search seeds; measure: "rounds" or "time"."""
    return (np.array(found["untrained"]) - found[measure]).reshape(-1, len(SEARCH_SEEDS)).mean(1)


def results(folder: Path) -> list[dict]:
    """What has been scored, the shortest trainings first."""
    found = [json.loads(path.read_text()) for path in folder.glob(f"*/{SCORES}")]
    return sorted(found, key=lambda one: one["cell"])


def measured(folder: Path) -> str:
    """The section with the tables."""
    rows, graphs = results(folder), test_graphs()
    columns: dict[str, list[object]] = {}
    for one in rows:
        multiple, most_nodes, rounds, seed = one["cell"]
        row = {"searches": f"{multiple * ONE:,}", "nodes": f"100 to {most_nodes}", "rounds": rounds, "seed": seed}
        row["minutes"] = round(one["train_seconds"] / 60, 1)
        for measure in ("rounds", "time"):
            saved = gain(one, measure)
            row[f"saved, equal {measure}"] = f"{saved.mean():.3f} ± {saved.std() / math.sqrt(len(saved)):.3f}"
            parts = np.array_split(saved, len(TEST_SIZES))  # of equal length, in the order of sizes
            for (low, high), part in zip(TEST_SIZES, parts, strict=True):
                row[f"{low} to {high}, {measure}"] = f"{part.mean():.2f}"
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    families = sorted({graph.family for graph in graphs})
    places = {family: [i for i, graph in enumerate(graphs) if graph.family == family] for family in families}
    by_family: dict[str, Sequence[object]] = {
        "family": families,
        "graphs": [len(places[family]) for family in families],
    }
    for kind in dict.fromkeys(tuple(one["cell"][:3]) for one in rows):
        mean = np.mean([gain(one, "time") for one in rows if tuple(one["cell"][:3]) == kind], axis=0)
        multiple, most_nodes, rounds = kind
        title = f"{multiple}x, to {most_nodes}, {rounds} rounds"
        by_family[title] = [f"{mean[places[family]].mean():.2f}" for family in families]
    tables = table(columns), "Colors saved in equal time, by family:", table(by_family)
    return "\n\n".join([HEADING.strip(), *tables]) + "\n"


def draw(folder: Path, file: Path) -> None:
    """Colors saved against searches, a line for every size of training graphs and number of rounds."""
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes, rows = figure.subplots(), results(folder)
    for kind in sorted({tuple(one["cell"][1:3]) for one in rows}):
        by_searches: dict[int, list[float]] = {}
        for one in rows:
            if tuple(one["cell"][1:3]) == kind:
                by_searches.setdefault(one["cell"][0] * ONE, []).append(float(gain(one, "rounds").mean()))
        means = np.array([np.mean(group) for group in by_searches.values()])
        ends = np.array([[min(group), max(group)] for group in by_searches.values()]).T
        axes.errorbar(
            [*by_searches], means, abs(ends - means), marker="o", label="100 to {} nodes, {} rounds".format(*kind)
        )
    axes.set(xscale="log", xlabel="searches in training", ylabel="colors saved, equal rounds")
    axes.legend()
    figure.savefig(file)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
