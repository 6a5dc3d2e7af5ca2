"""How fast training is: beside PyG's ways to write it, beside the machine's limits, on more ranks, and as it grows."""

import json
import logging
import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from gnn_training import atomic
from gnn_training.data.packed import PackedGraphs
from gnn_training.data.recipes import RECIPES
from gnn_training.data.sample import sample
from gnn_training.host import machine
from gnn_training.settings import BenchmarkSettings, TrainSettings, of_preset

log = logging.getLogger(__name__)

# Read when torch is loaded: else its profiler says on stderr that it starts, stops and finds no GPU.
QUIET = {"KINETO_LOG_LEVEL": "99", "TORCH_CPP_LOG_LEVEL": "ERROR"}
LIBRARIES = ("torch", "torch-geometric", "numpy")


def benchmark(settings: BenchmarkSettings) -> None:
    """Measure, print the tables, write JSON and plot.

    Raises:
        UserError: there is no place for the files, no data, or not the device that is asked for.
    """
    files = [file for file in (settings.report, settings.plot) if file]
    atomic.expect_folders(files)
    os.environ.update(QUIET)
    with _graphs(settings) as data:
        report = _report(settings, data)
    _show(report)
    if settings.report:
        atomic.write_text(settings.report, json.dumps(report, indent=1) + "\n")
    if settings.plot:
        _plot(report, settings.plot)
    for file in files:
        log.info("wrote %s", file)


@contextmanager
def _graphs(settings: BenchmarkSettings) -> Iterator[PackedGraphs]:
    if settings.data:
        yield PackedGraphs.open(settings.data)
        return
    with tempfile.TemporaryDirectory() as folder:
        log.info("drawing %d graphs of recipe %s", settings.graphs, settings.recipe)
        yield sample(RECIPES[settings.recipe], settings.graphs, settings.seed, Path(folder))


def _report(settings: BenchmarkSettings, data: PackedGraphs) -> dict:
    """The measurements, what is asked for most on top, and where they were made."""
    from gnn_training.speed.measure import measure  # loads torch

    same = {name: getattr(settings, name) for name in ("device", "precision", "compile", "seed")}
    training = of_preset(TrainSettings, settings.preset).model_copy(update={**same, "data": data.folder})
    whole = len(data.indices("train")) if settings.data else RECIPES[settings.recipe].num_training
    found = measure(training, data, whole, settings.ranks, settings.seconds)
    over = {name: found["graphs_per_second"] / peer["graphs_per_second"] for name, peer in found["peers"].items()}
    return {
        **{f"speedup_over_{name}": times for name, times in over.items()},
        **(_on_all_cores(over, found["ranks"]) if found["device"] == "cpu" else {}),
        "speedup_by_ranks": {row["ranks"]: row["speedup"] for row in found["ranks"]},
        "planned_imbalance": {row["ranks"]: row["imbalance"] for row in found["balance"]},
        **found,
        "settings": settings.model_dump(mode="json"),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        "processor": platform.machine(),
    }  # fmt: skip


def _on_all_cores(over: dict[str, float], ranks: list[dict]) -> dict[str, float]:
    """Ours as measured on the most ranks, one for each core; the peers as if every core made them faster by a whole."""
    if not ranks or ranks[-1]["ranks"] != machine.num_cores():
        return {}
    share = ranks[-1]["speedup"] / ranks[-1]["ranks"]
    return {f"speedup_over_{name}_all_cores": times * share for name, times in over.items()}


def _show(report: dict) -> None:
    from gnn_training.speed.tables import tables

    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = 160  # a log does not fold
    for table in tables(report):
        console.print(table)
        console.print()


def _plot(report: dict, file: Path) -> None:
    from gnn_training.speed.plot import draw

    atomic.write_figure(file, draw(report["growth"]["measured"]))
