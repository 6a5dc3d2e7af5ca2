"""What to know before a machine is paid for: whether the whole job would start here, and what it would take."""

import logging
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from gnn_training import machine
from gnn_training.console import duration
from gnn_training.data.packed import MANIFEST_FILE, PackedGraphs
from gnn_training.data.sources import locate, written
from gnn_training.errors import MachineError, StorageError, UserError
from gnn_training.launch import gpus
from gnn_training.machine import available_bytes
from gnn_training.settings import CheckSettings, TrainSettings

if TYPE_CHECKING:
    from gnn_training.data.recipes import Recipe
log = logging.getLogger(__name__)
DISK_GIB = 2  # the full recipe packed, checkpoints, logs and the model
SAMPLE = 64  # graphs that stand for a recipe which has not been generated yet
GIB = 2**30
TORCH_GIB = 1.0  # what a rank takes before its first batch: libraries, and on a GPU the CUDA context


@dataclass(frozen=True)
class Finding:
    """One line of the table; problem says why the job would not start."""

    what: str
    found: str
    problem: UserError | None = None


def check(settings: CheckSettings) -> None:
    """Print what was found.

    Raises:
        UserError: the job would not start here; the message has every reason, the class is that of the first.
    """
    gpus.select(settings.gpus)  # before torch looks for them
    findings = [*_software(), *_gpus(settings), *_places(settings), *_port(settings), _graphs(settings)]
    if not any(finding.problem for finding in findings):
        findings += _cost(settings)
    _show(findings)
    problems = [finding.problem for finding in findings if finding.problem]
    if problems:
        raise type(problems[0])(f"the job would not start: {'; '.join(map(str, problems))}")
    log.info("the job would start")


def _show(findings: list[Finding]) -> None:
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = 160  # a log does not fold
    table = Table(box=box.MARKDOWN)
    for title in ("", "found", "verdict"):
        table.add_column(title)
    for finding in findings:
        table.add_row(finding.what, finding.found, "PROBLEM" if finding.problem else "ok")
    console.print(table)


def _software() -> Iterator[Finding]:
    import torch

    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    yield Finding("Python", platform.python_version())
    yield Finding("torch", f"{torch.__version__}, {cuda}")
    yield Finding("cores", f"{machine.num_cores()}, {available_bytes() / GIB:.1f} GiB memory free")


def _gpus(settings: CheckSettings) -> Iterator[Finding]:
    """Driver, GPUs, NCCL and ranks; that there are no GPUs is a problem only to settings that need one."""
    try:
        if settings.device != "cpu":
            yield from _driver_and_gpus()
        ranks = gpus.num_ranks(settings)
    except UserError as error:
        yield Finding("ranks", "none", error)
        return
    place = "a GPU" if gpus.uses_gpus(settings) else f"{machine.threads_per_rank(ranks)} of the cores"
    yield Finding("ranks", f"{ranks}, each on {place}")


def _driver_and_gpus() -> Iterator[Finding]:
    import torch

    count = gpus.num_gpus()
    yield Finding("driver", gpus.driver() or "none")
    if not count:
        yield Finding("GPU", "none")
        return
    yield from map(_gpu, range(count))
    yield Finding("NCCL", ".".join(map(str, torch.cuda.nccl.version())))


def _gpu(number: int) -> Finding:
    try:
        return Finding(f"GPU {number}", gpus.describe(number))
    except MachineError as error:
        return Finding(f"GPU {number}", "does not compute", error)


def _port(settings: CheckSettings) -> Iterator[Finding]:
    if settings.tensorboard:
        try:
            machine.require_port(settings.tensorboard)
            yield Finding("TensorBoard", f"port {settings.tensorboard} is free")
        except MachineError as error:
            yield Finding("TensorBoard", f"port {settings.tensorboard}", error)


def _places(settings: CheckSettings) -> Iterator[Finding]:
    """Shared memory, which need not be large, and the folders that will be written to."""
    if os.path.isdir("/dev/shm"):
        yield Finding("/dev/shm", f"{shutil.disk_usage('/dev/shm').free / GIB:.1f} GiB free, none needed")
    folders = written(settings)
    for folder in folders:
        free = shutil.disk_usage(machine.nearest(folder)).free / GIB
        few = f"{folder} has {free:.1f} GiB free and {DISK_GIB} may be needed: free some or name another folder"
        yield Finding(f"{folder}/", f"{free:.0f} GiB free", StorageError(few) if free < DISK_GIB else None)
    lost = machine.storage_problem(folders)
    yield Finding("volume", "in doubt" if lost else "keeps what is written", StorageError(lost) if lost else None)


def _graphs(settings: CheckSettings) -> Finding:
    source = locate(settings)
    if source.imported is not None:
        missing = UserError(f"{source.imported} does not exist: name another --data")
        problem = None if source.imported.exists() else missing
        return Finding("graphs", f"{source.imported}, imported first; time and memory are known after that", problem)
    if not (source.graphs / MANIFEST_FILE).exists():
        return Finding("graphs", f"{_recipe(settings).num_graphs} of recipe {settings.recipe}, generated first")
    try:
        data = PackedGraphs.open(source.graphs)
        data.verify()
    except UserError as error:
        return Finding("graphs", str(source.graphs), error)
    train, validation = (len(data.indices(split)) for split in ("train", "validation"))
    problem = None if train else UserError(f"{source.graphs} has no graphs to train on: name another --data")
    return Finding("graphs", f"{source.graphs}: {train} to train on, {validation} for validation", problem)


def _cost(settings: CheckSettings) -> Iterator[Finding]:
    source = locate(settings)
    if (source.graphs / MANIFEST_FILE).exists():
        yield from _measured(settings, PackedGraphs.open(source.graphs), share=1.0)
    elif source.generated:
        from gnn_training.data.dataset import sample

        with tempfile.TemporaryDirectory() as folder:
            few = sample(_recipe(settings), SAMPLE, settings.seed, Path(folder))
            yield from _measured(settings, few, share=len(few) / _recipe(settings).num_training)


def _recipe(settings: CheckSettings) -> "Recipe":
    from gnn_training.data.recipes import RECIPES  # with all the families, which packed graphs need not wait for

    return RECIPES[settings.recipe]


def _measured(settings: CheckSettings, data: PackedGraphs, share: float) -> Iterator[Finding]:
    """Memory and time of what would run; share: of the training graphs that `data` has."""
    import torch

    from gnn_training.training.estimate import estimate

    ranks, on_gpu = gpus.num_ranks(settings), gpus.uses_gpus(settings)
    training = TrainSettings(**settings.model_dump(include=set(TrainSettings.model_fields), exclude={"data"}))
    cost = estimate(training, data, share, ranks, machine.threads_per_rank(ranks))
    need = cost.peak_bytes / GIB + TORCH_GIB
    left = torch.cuda.mem_get_info()[0] / GIB if on_gpu else available_bytes() / GIB / ranks
    tight = MachineError(
        f"a rank needs about {need:.1f} GiB and {left:.1f} are free: lower --batch-size or --processes"
    )
    yield Finding("memory", f"about {need:.1f} GiB of {left:.1f} free per rank", tight if need > left else None)
    epoch, whole = (duration(count * cost.seconds_per_step) for count in (cost.steps_per_epoch, settings.steps))
    steps = f"about {epoch} per epoch of {cost.steps_per_epoch} steps, {whole} for all {settings.steps}"
    yield Finding("time", f"{steps}, evaluations aside")
