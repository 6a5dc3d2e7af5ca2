"""Measure what more graphs and wider networks buy for the predictions of a search's end.

    python -m benchmarks.predictions --folder FOLDER

Makes graphs with long searches, trains a PredictionNetwork on parts of them, and compares it on fresh graphs. A killed
command resumes with the next training. docs/SCALING.md says what the columns mean.
"""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import tyro
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from gnn_training import files
from gnn_training.console import markdown_table, print_tables, set_up_logging
from gnn_training.contract import CALL_ROUNDS, rounds_by_size
from gnn_training.data.families import RECIPES, Recipe, graph_specs
from gnn_training.data.labels import LabelPlan, label_all
from gnn_training.data.packed import PackedGraphs
from gnn_training.network.network import SAVED, PredictionNetwork
from gnn_training.onnx_program.session import Model
from gnn_training.training.learner import LOSS_WEIGHTS, learning_rate, prediction_terms
from gnn_training.training.loader import DeviceDataset, EqualCostSampler

log = logging.getLogger(__name__)
TEST_SEED = 30_000
MOVES, LABEL_SECONDS = 10_000, 10.0  # of the search for labels
RATE, WARM_UP, DECAY, CLIP, EMA = 0.003, 10, 0.01, 1.0, 0.95  # as in training, see learner.py
INTERVAL = 0.1, 0.9  # quantiles
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Options:
    """What to train, and where."""

    folder: Path
    """Folder for graphs and scores."""
    graphs: int = 576
    """Training graphs."""
    test_graphs: int = 250
    """Fresh graphs, of which those that a call leaves open are scored."""
    sizes: tuple[int, int] = (30, 1000)
    """Fewest and most nodes."""
    parts: tuple[float, ...] = (0.125, 0.25, 0.5, 1.0)
    """Shares of the training graphs, with the first of `widths`."""
    widths: tuple[int, ...] = (64, 32, 128)
    """Hidden units of the network; all but the first with all graphs."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of trainings."""
    steps: int = 3000
    """Optimizer steps of every training."""
    batch: int = 8
    """States in a step."""


class Cell(NamedTuple):
    """One training."""

    graphs: int
    width: int
    seed: int


def main(options: Options) -> None:
    """Train and score what is missing, then print the table."""
    set_up_logging()
    torch.set_num_threads(1)
    data = labelled(options.folder / "train", 0, options.graphs, options.sizes)
    test = labelled(options.folder / "test", TEST_SEED, options.test_graphs, options.sizes)
    rows: dict[Cell, dict[str, float]] = {}
    for cell in cells(options):
        place = options.folder / f"{'-'.join(map(str, cell))}-{options.steps}.json"
        if not place.exists():
            scores = score(trained(data, cell, options), test)
            files.write_text(place, json.dumps(scores))
            log.info("%s: %s", cell, scores)
        rows[cell] = json.loads(place.read_text())
    kinds = list(dict.fromkeys(cell[:2] for cell in rows))
    columns: dict[str, list[object]] = {name: [kind[i] for kind in kinds] for i, name in enumerate(Cell._fields[:2])}
    for name in next(iter(rows.values())):
        values = [[rows[cell][name] for cell in rows if cell[:2] == kind] for kind in kinds]
        columns[name] = [f"{np.mean(each):.3f} ({min(each):.3f} to {max(each):.3f})" for each in values]
    print_tables(markdown_table(columns))


def cells(options: Options) -> Iterator[Cell]:
    """All trainings, the smallest first."""
    kinds = [(round(part * options.graphs), options.widths[0]) for part in options.parts]
    kinds += [(options.graphs, width) for width in options.widths[1:]]
    yield from (Cell(*kind, seed) for kind in kinds for seed in options.seeds)


def labelled(folder: Path, seed: int, graphs: int, sizes: tuple[int, int]) -> PackedGraphs:
    """Graphs in the shares of the recipe cpu, each with a long search by the shipped rule; made at the first call."""
    recipe = Recipe(RECIPES["cpu"].counts, ((*sizes, 1.0),), MOVES)
    rule = Model().rule
    origin = {"graphs": graphs, "seed": seed, "sizes": [*sizes], "rule": rule.tolist()}
    plan = LabelPlan(
        tuple(recipe.counts), MOVES, LABEL_SECONDS, seed, origin,
        rule=tuple(rule.tolist()), long_search_every=1,
    )  # fmt: skip
    return label_all(graph_specs(recipe, seed, graphs), folder, plan, workers=1)


def trained(data: PackedGraphs, cell: Cell, options: Options) -> PredictionNetwork:
    """A network that has learned from the first states of an order by chance, its averaged weights."""
    torch.manual_seed(cell.seed)
    network = PredictionNetwork(cell.width)
    dataset = DeviceDataset(data, CPU)
    chosen = np.random.default_rng(cell.seed).permutation(len(data))[: cell.graphs]
    ids = np.flatnonzero(np.isin(dataset.state_graph, chosen))
    sampler = EqualCostSampler(ids, np.ones(len(ids)), options.batch, 1, 0, cell.seed)
    average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(EMA))
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=DECAY)
    for step, plan in enumerate(islice(sampler.starting_at(0), options.steps)):
        batch = dataset.states(plan.ids, len(plan.ids), cell.seed, step)
        assert batch is not None
        losses = prediction_terms(network(batch.inputs), batch)
        optimizer.zero_grad()
        sum(LOSS_WEIGHTS[name] * loss for name, loss in losses.items()).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), CLIP)
        optimizer.param_groups[0]["lr"] = learning_rate(step, RATE, WARM_UP, options.steps)
        optimizer.step()
        average.update_parameters(network)
    return average.module


@torch.no_grad()
def score(network: PredictionNetwork, test: PackedGraphs) -> dict[str, float]:
    """What the network says after the rounds of a call about a hundred times as many, on graphs that are open then."""
    dataset = DeviceDataset(test, CPU)
    sizes = test.num_nodes[dataset.state_graph].astype(np.int64)
    after_call = np.flatnonzero(test.state_rounds == np.minimum(CALL_ROUNDS, rounds_by_size(sizes)))
    batch = dataset.states(after_call, len(after_call))
    assert batch is not None
    predicted, saved = network(batch.inputs), batch.saved
    error = predicted.chromatic(batch.num_colors, batch.lower) - batch.num_colors + saved
    log_rounds = torch.stack([predicted.log_rounds, batch.log_rounds], 1).numpy()
    low, high = distribution_at(predicted.chances().numpy(), saved.numpy())
    held = np.clip(INTERVAL[1], low, high) - np.clip(INTERVAL[0], low, high)
    ranks = np.argsort(np.argsort(log_rounds, axis=0), axis=0)
    return {
        "negative log likelihood": float(prediction_terms(predicted, batch)["saved"]),
        "error of the median, colors": float(error.abs().mean()),
        "error of the colors of the call": float(saved.mean()),
        "rank correlation of the rounds": float(np.corrcoef(ranks.T)[0, 1]),
        "in the 80% interval": float(np.mean((low < INTERVAL[1]) & (high > INTERVAL[0]))),
        "in it, ends shared": float(np.mean(held / np.maximum(high - low, 1e-9))),
    }


def distribution_at(chances: np.ndarray, saved: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Predicted probabilities (B,) of saving fewer colors than the step of SAVED that `saved` (B,) belongs to, and at
    most so many. chances (B, steps): of saving as many as a step at least.
    """
    fewer = np.pad(1 - chances.astype(float), ((0, 0), (1, 1)), constant_values=(0, 1))
    graphs, step = np.arange(len(saved)), np.searchsorted(SAVED, saved, side="right")
    return fewer[graphs, step], fewer[graphs, step + 1]


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
