"""What to know before a machine is paid for: whether the whole job would start here, and what it would take."""

import logging
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from gnn_training import machine
from gnn_training.atomic import reason
from gnn_training.data.packed import MANIFEST_FILE, PackedGraphs
from gnn_training.data.recipes import RECIPES
from gnn_training.data.sample import sample
from gnn_training.data.source import locate
from gnn_training.errors import UserError
from gnn_training.memory import available_bytes
from gnn_training.settings import CheckSettings, TrainSettings
from gnn_training.words import duration

log = logging.getLogger(__name__)

DISK_GIB = 2  # the full recipe packed, checkpoints, logs and the model
DRIVERS = {"13": 580, "12": 525}  # oldest NVIDIA driver for a major version of CUDA
SAMPLE = 64  # graphs that stand for a recipe which has not been generated yet
TRAIN_SHARE = 0.8  # of a recipe's graphs; the others are for validation
GIB = 2**30
TORCH_GIB = 1.0  # what a rank takes before its first batch: libraries, and on a GPU the CUDA context


@dataclass(frozen=True)
class Finding:
    """One line of the table; problem says in a sentence why the job would not start."""

    what: str
    found: str
    problem: str | None = None


def check(settings: CheckSettings) -> None:
    """Print what was found.

    Raises:
        UserError: the job would not start here; the message has every reason.
    """
    findings = [*_software(), *_gpus(settings), *_places(settings), _graphs(settings)]
    if not any(finding.problem for finding in findings):
        findings += _cost(settings)
    _show(findings)
    problems = [finding.problem for finding in findings if finding.problem]
    if problems:
        raise UserError(f"the job would not start: {'; '.join(problems)}")
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
    """Driver, GPUs and NCCL; that there are none is a problem only to settings that need one."""
    import torch

    drivers = _drivers()
    if drivers:
        yield Finding("driver", drivers[0])
    with warnings.catch_warnings(action="ignore"):  # torch warns of what is said better below
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not gpus:
        wanted = machine.needs_gpu(settings)
        yield Finding("GPU", "none", _why_no_gpu(drivers, torch.version.cuda) if wanted else None)
        return
    for number in range(gpus):
        free, total = torch.cuda.mem_get_info(number)
        name = torch.cuda.get_device_name(number)
        yield Finding(f"GPU {number}", f"{name}, {total / GIB:.0f} GiB, {free / GIB:.0f} free")
    yield Finding("NCCL", ".".join(map(str, torch.cuda.nccl.version())))


def _drivers() -> list[str]:
    """Driver version as nvidia-smi gives it, once per GPU; empty where there is none or it does not answer."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=5).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return []


def _why_no_gpu(drivers: list[str], cuda: str | None) -> str:
    if not drivers:
        return "there is no GPU: take --preset cpu, or --device cpu to train on the CPU all the same"
    if cuda is None:
        return "torch is a build for CPUs: remove the environment and start again without TORCH_INDEX_URL"
    oldest = DRIVERS.get(cuda.split(".")[0], 0)
    if int(drivers[0].split(".")[0]) < oldest:
        return f"driver {drivers[0]} is too old for CUDA {cuda}, which needs {oldest}: take a host with a newer driver"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
    return f"torch cannot use the GPU: look at nvidia-smi and CUDA_VISIBLE_DEVICES ({visible})"


def _places(settings: CheckSettings) -> Iterator[Finding]:
    """Shared memory, which need not be large, and the folders that will be written to."""
    if os.path.isdir("/dev/shm"):
        yield Finding("/dev/shm", f"{shutil.disk_usage('/dev/shm').free / GIB:.1f} GiB free, none needed")
    for folder in dict.fromkeys((locate(settings).graphs, settings.run, settings.models)):
        there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        free = shutil.disk_usage(there).free / GIB
        problem = _why_not_writable(there)
        if free < DISK_GIB:
            problem = f"{folder} has {free:.1f} GiB free and {DISK_GIB} may be needed: free some or name another folder"
        yield Finding(f"{folder}/", f"{free:.0f} GiB free", problem)


def _why_not_writable(folder: Path) -> str | None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"{folder} cannot be written ({reason(error)}): change its owner or name another folder"


def _graphs(settings: CheckSettings) -> Finding:
    source = locate(settings)
    if source.imported is not None:
        problem = None if source.imported.exists() else f"{source.imported} does not exist: name another --data"
        return Finding("graphs", f"{source.imported}, imported first; time and memory are known after that", problem)
    if not (source.graphs / MANIFEST_FILE).exists():
        return Finding("graphs", f"{_size(settings)} of recipe {settings.recipe}, generated first")
    try:
        data = PackedGraphs.open(source.graphs)
        data.verify()
    except UserError as error:
        return Finding("graphs", str(source.graphs), str(error))
    train, validation = (len(data.indices(split)) for split in ("train", "validation"))
    problem = None if train else f"{source.graphs} has no graphs to train on: name another --data"
    return Finding("graphs", f"{source.graphs}: {train} to train on, {validation} for validation", problem)


def _cost(settings: CheckSettings) -> Iterator[Finding]:
    source = locate(settings)
    if (source.graphs / MANIFEST_FILE).exists():
        yield from _measured(settings, PackedGraphs.open(source.graphs), share=1.0)
    elif source.generated:
        with tempfile.TemporaryDirectory() as folder:
            few = sample(RECIPES[settings.recipe], SAMPLE, settings.seed, Path(folder))
            yield from _measured(settings, few, share=len(few) / (TRAIN_SHARE * _size(settings)))


def _size(settings: CheckSettings) -> int:
    """Graphs of the recipe."""
    return sum(RECIPES[settings.recipe].counts.values())


def _measured(settings: CheckSettings, data: PackedGraphs, share: float) -> Iterator[Finding]:
    """What would run, and the memory and time of it; share: of the training graphs that `data` has."""
    import torch

    from gnn_training.training.estimate import estimate

    try:
        ranks = machine.num_ranks(settings)
    except UserError as error:
        yield Finding("would run", "nothing", str(error))
        return
    on_gpu = settings.device != "cpu" and machine.num_gpus() > 0
    threads = max(1, machine.num_cores() // ranks)
    training = TrainSettings(**settings.model_dump(include=set(TrainSettings.model_fields), exclude={"data"}))
    cost = estimate(training, data, share, ranks, threads)
    need = cost.peak_bytes / GIB + TORCH_GIB
    left = torch.cuda.mem_get_info()[0] / GIB if on_gpu else available_bytes() / GIB / ranks
    tight = f"a rank needs about {need:.1f} GiB and {left:.1f} are free: lower --batch-cells or --processes"
    where = "a GPU" if on_gpu else f"{threads} of the cores"
    yield Finding("would run", f"preset {settings.preset}: {settings.steps} steps; ranks: {ranks}, each on {where}")
    yield Finding("memory", f"about {need:.1f} GiB of {left:.1f} free per rank", tight if need > left else None)
    epoch, whole = (duration(count * cost.seconds_per_step) for count in (cost.steps_per_epoch, settings.steps))
    yield Finding("time", f"about {epoch} per epoch of {cost.steps_per_epoch} steps, {whole} in all, evaluations aside")
