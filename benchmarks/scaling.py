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
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro

from gnn_training import files
from gnn_training.console import set_up_logging
from gnn_training.data.dataset import Plan, claim, finished, label_all
from gnn_training.data.families import FAMILIES, RECIPES, Recipe, draws
from gnn_training.data.packed import PackedGraphs
from gnn_training.errors import UserError
from gnn_training.graph import NeighbourLists
from gnn_training.jobs.train import train
from gnn_training.model.session import Model
from gnn_training.settings import TrainSettings, of_preset
from gnn_training.solve.portfolio import clique_size
from gnn_training.solve.search_kernel import noise_table, search_graph
from gnn_training.training import checkpoint
from gnn_training.training.loader import first_coloring

log = logging.getLogger(__name__)
ONE = 6400  # searches of a training of size 1
GRAPHS, ITERATIONS, LABEL_SECONDS = 1200, 200, 0.5  # of training; labels matter for predictions alone
TRAINING_SIZES = ((100, 200), (100, 450), (100, 1000))
TEST_SIZES, TEST_SEED, TEST_GRAPHS = ((100, 300), (300, 600), (600, 1000)), 20_000, 84  # graphs of each size
ROUNDS, SEARCH_SEEDS = 2500, (0, 1)


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


class Scores(NamedTuple):
    """Colors of the test graphs, (graphs, search seeds) each, and the thread's seconds for all of them."""

    at_equal_rounds: np.ndarray
    at_equal_time: np.ndarray
    seconds: float


def main(options: Options) -> None:
    """Train what is missing if asked to; then write the section."""
    set_up_logging()
    shipped = Model().rule
    for cell in cells(options) if options.train else ():
        with suppress(UserError), claim(options.folder / str(cell)):  # another command has it
            run(cell, options.folder, shipped)


def cells(options: Options) -> Iterator[Cell]:
    """All trainings, the shortest first."""
    for multiple in sorted(options.multiples):
        for seed in options.seeds if multiple <= 16 else options.seeds[:3]:
            yield from (Cell(multiple, most, rounds, seed) for most in options.sizes for rounds in options.rounds)


def run(cell: Cell, folder: Path, shipped: np.ndarray) -> None:
    """Train and score a cell, unless that is done."""
    place = folder / str(cell) / "scores.json"
    if place.exists():
        return
    data = training_graphs(folder, cell.most_nodes)
    ids = data.indices("train")
    num_open = int((data.dsatur_colors[ids] > data.lower_bound[ids]).sum())
    epochs = cell.multiple * ONE / 2 / num_open
    settings = of_preset(
        TrainSettings, "cpu", data=folder / f"graphs-{cell.most_nodes}", run=folder / str(cell) / "run", steps=0,
        epochs=epochs, minutes=0, processes=1, rounds=cell.rounds, seed=cell.seed, validation_graphs=64, log_every=50,
        evaluate_every=max(10, 16 * cell.multiple), checkpoint_every=100,
    )  # fmt: skip
    train(settings)
    weights = checkpoint.load_best(settings.run)["network"]["move_rule"].numpy()
    found = scores(weights, shipped)
    rounds, equal_time = (each.tolist() for each in found[:2])
    status = json.loads((settings.run / "status.json").read_text())
    files.write_text(place, json.dumps({"rounds": rounds, "time": equal_time, "search_seconds": found.seconds,
                                        "train_seconds": status["seconds"], "weights": weights.tolist()}))  # fmt: skip


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


def scores(weights: np.ndarray, shipped: np.ndarray) -> Scores:
    """Search the test graphs for equal rounds, then for as many rounds as fit into the seconds of the shipped rule."""
    equal_rounds, equal_time, total = [], [], 0.0
    for graph in test_graphs():
        for seed in SEARCH_SEEDS:
            of_shipped, shipped_seconds = search(graph, shipped, ROUNDS, seed)
            colors, seconds = search(graph, weights, ROUNDS, seed)
            total += seconds
            equal_rounds.append((colors, of_shipped))
            fitting = math.ceil(ROUNDS * shipped_seconds / max(seconds, 1e-6))
            equal_time.append(search(graph, weights, min(fitting, 4 * ROUNDS), seed)[0])
    return Scores(np.array(equal_rounds), np.array(equal_time), total)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
