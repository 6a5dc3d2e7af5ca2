"""What to know before a machine is paid for: would the whole job start here, and what would it take?"""

import logging
import os
import platform
import resource
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch

from gnn_training import machine
from gnn_training.console import duration, markdown_table, print_tables
from gnn_training.data.families import RECIPES
from gnn_training.data.location import DataLocation, locate, output_folders
from gnn_training.data.packed import PackedGraphs, is_packed
from gnn_training.distributed import Runtime, in_group
from gnn_training.errors import MachineError, StorageError, UserError
from gnn_training.ranks import launch, num_ranks, uses_gpus
from gnn_training.settings import EVALUATIONS, SEARCHES, CheckSettings, RunSettings, TrainSettings
from gnn_training.training.logbook import require_logger
from gnn_training.training.self_check import self_check, try_largest_step, try_step
from gnn_training.training.trainer import prepare

log = logging.getLogger(__name__)
DISK_GIB = 2  # room for the packed full recipe, checkpoints, logs and the model
STEPS = 10  # training steps that are timed
GIB = 2**30
CUDA_GIB = 1.0  # memory that a rank takes on its GPU besides tensors
Check = tuple[str, Callable[[], str | None]]  # title; function that returns what was found, or raises a UserError
# Rounds per second of a GPU in a training on recipe cpu: of an H200 as measured (docs/GPU.md), of others by their
# number of processors.
ROUNDS_PER_SECOND = {"h100": 12e6, "h200": 12e6, "b200": 13e6}
MEASURED = ("h200", 1)  # kind and number of GPUs with a measured speed; other speeds are calculated
MIN_EFFICIENCY = 0.5  # efficiency: the time on one GPU, divided by the summed time of all GPUs
LABEL_SECONDS = 0.3  # seconds of a core to generate and label a graph of recipe full; see docs/LOG.md
OTHER_MINUTES = 3  # minutes of check, export, verify, evaluate and pack; see docs/LOG.md


class Measurement(NamedTuple):
    """What a few steps of a training took."""

    peak_bytes: int  # of memory, on a GPU of its own
    num_steps: int  # of the whole training
    seconds_per_step: float
    waiting: float  # share of the time in which ranks wait for the slowest


def check(settings: CheckSettings) -> None:
    """Print a table of what was found. UserError if the job would not start here: the message has every reason, the
    class is that of the first.
    """
    if settings.assume:
        about, table, advice = estimate(settings, *settings.assume.split("x"))
        print_tables(markdown_table({"": list(about), "the job": list(about.values())}), markdown_table(table))
        print(advice)
        return
    machine.select_gpus(settings.gpus)  # before torch looks for them
    rows: list[tuple[str, str | None, str]] = []
    problems: list[UserError] = []
    for title, look in _checks(settings, problems):
        finding, verdict = None, "ok"
        try:
            finding = look()
        except UserError as error:
            verdict = "PROBLEM"
            problems.append(error)
        rows.append((title, finding, verdict))
    print_tables(markdown_table(dict(zip(("", "found", "verdict"), zip(*rows, strict=True), strict=True))))
    if problems:
        raise type(problems[0])(f"the job would not start: {'; '.join(map(str, problems))}")
    log.info("the job would start")


def estimate(settings: CheckSettings, kind: str, most: str) -> tuple[dict[str, str], dict[str, list], str]:
    """Return what the job does, a table of its time and cost on up to `most` GPUs of a kind, and a sentence that says
    how many of these GPUs the job is worth.
    """
    graphs, rows = RECIPES[settings.recipe].num_graphs, list[dict]()
    training = settings.train_settings(settings.run, are_generated=True)
    evaluated = settings.validation_graphs or graphs // 5  # see labelling.split
    for count in sorted({1, int(most), *(c for c in (2, 4) if c < int(most))}):
        per_step = settings.batch_size * count
        steps = training.num_steps(per_step)
        rounds = 2 * per_step * steps * settings.rounds
        rounds += settings.validation_rounds * evaluated * (EVALUATIONS + 2)
        searching = rounds / (ROUNDS_PER_SECOND[kind] * count) / 60
        minutes = searching + settings.self_play + OTHER_MINUTES  # the GPUs play the games, too
        efficiency = (rows[0]["minutes"] if rows else minutes) / (count * minutes)
        row = {"GPUs": f"{count} x {kind.upper()}", "steps": steps, "minutes of searches": searching,
               "minutes": minutes, "efficiency": efficiency}  # fmt: skip
        if settings.price_per_hour:
            row["cost"] = minutes / 60 * settings.price_per_hour * count / int(most)
        rows.append(row | {"speed": "measured" if (kind, count) == MEASURED else "estimated"})
    worth = [row for row in rows if row["efficiency"] >= MIN_EFFICIENCY][-1]
    about = {
        "graphs": f"{graphs} of recipe {settings.recipe}; {LABEL_SECONDS * graphs / 60:.0f} minutes of a core to "
        "generate and label them: do that on a machine without GPUs",
        "searches": f"{training.searches or SEARCHES if not settings.steps else 'two for every graph of a step'}, of "
        f"{settings.rounds} rounds",
        "minutes": f"those of searches, by the rounds per second of one H200, {settings.self_play:g} of self-play, "
        f"and {OTHER_MINUTES} to check, export and evaluate on the cores",
    }
    advice = f"This job is worth {worth['GPUs']}."
    if worth is not rows[-1]:
        advice += " More would be used for less than half of their time; larger graphs and more --searches need them."
    return about, {title: [row[title] for row in rows] for title in rows[0]}, advice


def _checks(settings: RunSettings, problems: list[UserError]) -> Iterator[Check]:
    cuda, rocm, source = torch.version.cuda, torch.version.hip, locate(settings)
    folders = output_folders(settings, source)
    build = f"CUDA {cuda}" if cuda else f"ROCm {rocm}" if rocm else "CPU build"
    yield "Python", platform.python_version
    yield "torch", lambda: f"{torch.__version__}, {build}"
    yield "cores", lambda: f"{machine.num_cores()}, {machine.available_bytes() / GIB:.1f} GiB memory free"
    if settings.device != "cpu":
        yield from _gpu_rows()
    yield "ranks", partial(_ranks, settings)
    for folder in folders:
        yield f"{folder}/", partial(_free_space, folder)
    yield "volume", partial(machine.require_storage, folders)
    if port := settings.tensorboard:
        yield f"TensorBoard, port {port}", partial(machine.require_port, port, settings.tensorboard_host)
    if logger := settings.logger:
        yield f"logger {logger}", partial(require_logger, logger)
    yield "graphs", partial(_graphs, source)
    if not problems and is_packed(source.graphs):  # otherwise there is nothing to measure
        ranks, training = num_ranks(settings), settings.train_settings(source.graphs, source.generated)
        measured: list[Measurement] = []

        def measure_memory() -> str:
            free = torch.cuda.mem_get_info()[0] if uses_gpus(settings) else machine.available_bytes() / ranks
            measured.append(launch(measure_steps, training, ranks))  # a single rank is this process
            return _memory(settings, measured[0].peak_bytes / GIB, free / GIB)

        yield "memory", measure_memory
        if not measured:
            return
        measurement = measured[0]
        yield "balance", lambda: f"ranks wait for the slowest for {measurement.waiting:.0%} of the time"
        playing = 0 if settings.games else 60 * settings.self_play
        total = duration(measurement.seconds_per_step * measurement.num_steps + playing)
        yield "training", lambda: f"about {total} for {measurement.num_steps} steps and self-play, and the evaluations"


def _gpu_rows() -> Iterator[Check]:
    try:
        count = machine.num_gpus()
    except MachineError:  # the ranks tell why
        return
    yield "driver", lambda: machine.gpu_driver() or "none"
    for number in range(count):
        yield f"GPU {number}", partial(machine.describe_gpu, number)
    if count:
        yield "NCCL", lambda: ".".join(map(str, torch.cuda.nccl.version()))


def _ranks(settings: RunSettings) -> str:
    ranks = num_ranks(settings)
    place = "a GPU" if uses_gpus(settings) else f"{machine.threads_per_rank(ranks)} of the cores"
    return f"{ranks}, each on {place}"


def _free_space(folder: Path) -> str:
    # Path.exists raises where searching is forbidden.
    existing = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    free = shutil.disk_usage(existing).free / GIB
    if free < DISK_GIB:
        few = f"{folder} has {free:.1f} GiB free and {DISK_GIB} may be needed"
        raise StorageError(f"{few}: free some or name another folder")
    return f"{free:.0f} GiB free"


def _graphs(source: DataLocation) -> str:
    if source.imported is not None and not os.path.exists(source.imported):
        raise UserError(f"{source.imported} does not exist: name another --data")
    if source.imported is not None or not is_packed(source.graphs):
        return f"{source.description}; time and memory are known after that"
    data = PackedGraphs.open(source.graphs)
    data.verify()
    train, validation = (len(data.indices(split)) for split in ("train", "validation"))
    if not train:
        raise UserError(f"{source.graphs} has no graphs to train on: name another --data")
    return f"{source.description}: {train} to train on, {validation} for validation"


@in_group
def measure_steps(settings: TrainSettings, rt: Runtime) -> Measurement:
    """Take a few steps of the training as one rank, and measure them."""
    loader, monitor, learner = prepare(settings, PackedGraphs.open(settings.data), rt)
    if not self_check(learner, loader, rt):  # on GPUs, it also takes the step that needs most memory
        try_largest_step(learner, loader)
    batches = list(islice(loader.starting_at(0), STEPS))
    if rt.device.type == "cuda":
        for batch in batches:
            try_step(learner, *batch)  # brings their graphs to the GPU
    monitor.restart()
    started = time.monotonic()
    for batch in batches:
        learner.update(*batch)
        learner.reduce()
    seconds = (time.monotonic() - started) / STEPS
    waiting, kinds = monitor.report(STEPS * seconds)["waiting_share"], Counter(rt.gather(rt.device_name))
    if rt.is_main and len(kinds) > 1:
        unequal = " and ".join(f"{number} x {name}" for name, number in kinds.items())
        log.warning("unequal GPUs, %s: every step waits for the slowest, so leave slow ones out with --gpus", unequal)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if rt.device.type == "cuda":
        peak = torch.cuda.max_memory_reserved()
    return Measurement(peak, learner.num_steps, seconds, waiting)


def _memory(settings: RunSettings, need: float, free: float) -> str:
    need += CUDA_GIB if uses_gpus(settings) else 0.0
    if need > free:
        tight = f"a rank needs about {need:.1f} GiB and {free:.1f} are free"
        raise MachineError(f"{tight}: lower --batch-size or --ranks")
    return f"about {need:.1f} GiB of {free:.1f} free per rank"
