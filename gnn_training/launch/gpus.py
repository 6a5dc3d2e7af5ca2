"""The GPUs of this machine: what nvidia-smi lists, what torch can use, and one sentence where the two disagree."""

import functools
import logging
import os
import re
import shutil
import subprocess
import warnings
from pathlib import Path

from gnn_training.errors import MachineError, UserError
from gnn_training.machine import num_cores
from gnn_training.settings import RunSettings

log = logging.getLogger(__name__)
DRIVERS = {"13": 580, "12.8": 570, "12": 525}  # oldest NVIDIA driver for a version of CUDA, or all with its major
DEVICE = Path("/dev/nvidiactl")  # in every container that was given a GPU
SECONDS = 20  # for nvidia-smi: eight GPUs that nothing keeps awake take ten
VISIBLE = "CUDA_VISIBLE_DEVICES"
FABRIC_MANAGER = "the fabric manager of this host does not run (CUDA error 802), so none of its GPUs can be used"


def usable() -> int:
    """GPUs that torch can use, after CUDA_VISIBLE_DEVICES. Those cut into MIG slices count as one, all together.

    Raises:
        MachineError: nvidia-smi hangs, and so would torch.
    """
    if not (DEVICE.exists() or shutil.which("nvidia-smi")):
        return 0  # without loading torch, which takes a second
    slices = _slices()
    import torch

    with warnings.catch_warnings(action="ignore"):  # torch warns of what why_none says better
        # Only is_available asks CUDA itself; device_count counts GPUs that a driver too old cannot serve.
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if slices > 1:
        _say_once(f"MIG cuts the GPUs into {slices} slices, which NCCL cannot join: one process trains, on one of them")
    return min(count, 1) if slices else count


def why_none() -> str:
    """Why torch can use no GPU, and the way out."""
    said = _smi("-L")
    if said.startswith("No devices") or not (said or DEVICE.exists()):
        return _why_not_there()
    if said and not listed():
        return f'nvidia-smi says "{said.splitlines()[0]}": restart the container, or take another host'
    import torch

    cuda, have = torch.version.cuda, driver()
    if cuda is None:
        return "torch is a build for CPUs: remove the environment and start again without TORCH_INDEX_URL"
    needed = DRIVERS.get(cuda) or DRIVERS.get(cuda.split(".")[0], 0)
    if have and int(have.split(".")[0]) < needed:
        return (
            f"driver {have} is too old for CUDA {cuda}, which needs {needed}: "
            f"take a host with a newer driver (RunPod: allowedCudaVersions)"
        )
    return _why_not_usable()


def why_fewer(count: int) -> str | None:
    """Why `count`, the GPUs that torch can use, are fewer than were named or are paid for; None if they are not."""
    there, named = listed(), _named()
    go_on = f"take another host, or go on with --processes {count}"
    if named is not None:
        some = f"{VISIBLE} ({','.join(named)}) names more GPUs than torch can use: {go_on}"
        return some if count < len(named) else None
    if count < len(there) and not _slices():
        return f"nvidia-smi lists {len(there)} GPUs and torch can use {count}: {go_on}"
    paid = os.environ.get("RUNPOD_GPU_COUNT", "")
    if paid.isdecimal() and max(count, len(there)) < int(paid):
        return f"this pod has {count} GPUs and is paid for {paid} (RUNPOD_GPU_COUNT): {go_on}"
    return None


def select(numbers: str | None) -> dict[str, str]:
    """Leave only these GPUs to this process, if torch has not yet looked, and its children; return what was set.

    numbers: such as 0,1,4, as nvidia-smi counts, or into CUDA_VISIBLE_DEVICES if that is set; None leaves all.

    Raises:
        MachineError: there is no such GPU.
    """
    if numbers is None:
        return {}
    named, wanted = _named(), numbers.split(",")
    there = [str(number) for number in (listed() if named is None else range(len(named)))]
    unseen = not there and named is None and DEVICE.exists()  # no nvidia-smi in the container: torch will tell
    if not unseen and (absent := [number for number in wanted if number not in there]):
        source = "nvidia-smi lists" if named is None else f"{VISIBLE} ({','.join(named)}) leaves"
        known = f"{source} {', '.join(there)}" if there else why_none()
        raise MachineError(f"gpus ({numbers}): there is no GPU {', '.join(absent)}; {known}")
    if named is None:  # CUDA's own order puts the fastest first
        variables = {VISIBLE: numbers, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    else:
        variables = {VISIBLE: ",".join(named[int(number)] for number in wanted)}
        log.info("GPUs %s of %s (%s): %s", numbers, ",".join(named), VISIBLE, variables[VISIBLE])
    os.environ.update(variables)
    return variables


def describe(number: int) -> str:
    """Name and memory of a GPU, as torch counts, that has just shown that it computes.

    Raises:
        MachineError: it does not.
    """
    import torch

    try:
        name = torch.cuda.get_device_name(number)
        torch.ones(2, device=f"cuda:{number}").sum().item()
        free, total = (size / 2**30 for size in torch.cuda.mem_get_info(number))
    except RuntimeError as error:
        said = f'GPU {number} does not compute ("{str(error).splitlines()[0]}")'
        raise MachineError(f"{said}: leave it out with --gpus, or take another host") from error
    return f"{name}, {total:.0f} GiB, {free:.0f} free"


def listed() -> dict[int, int]:
    """The GPUs by number, each with the count of its MIG slices, as nvidia-smi lists them; none if it cannot."""
    slices: dict[int, int] = {}
    for line in _smi("-L").splitlines():
        if gpu := re.match(r"GPU (\d+):", line):
            slices[int(gpu[1])] = 0
        elif re.match(r"\s+MIG ", line):
            slices[list(slices)[-1]] += 1
    return slices


def driver() -> str | None:
    """Version of the NVIDIA driver, such as 580.65.06; None where nvidia-smi does not tell."""
    version = re.match(r"\d+\.[\d.]+", _smi("--query-gpu=driver_version", "--format=csv,noheader"))
    return version and version[0]


@functools.cache
def _smi(*arguments: str) -> str:
    """What nvidia-smi says, good or bad; nothing where there is none."""
    if not shutil.which("nvidia-smi"):
        return ""
    command = ["nvidia-smi", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    try:
        return process.communicate(timeout=SECONDS)[0].strip()
    except subprocess.TimeoutExpired:
        process.kill()  # and no waiting for its end: a driver that hangs does not let go of it
        hangs = f"nvidia-smi has not answered in {SECONDS} s, so the driver hangs"
        raise MachineError(f"{hangs}: take another host, or --device cpu") from None


def _named() -> list[str] | None:
    """The GPUs in CUDA_VISIBLE_DEVICES, numbers or UUIDs; None if it is not set."""
    value = os.environ.get(VISIBLE)
    return None if value is None else [name.strip() for name in value.split(",") if name.strip()]


def _slices() -> int:
    """MIG slices of all the GPUs, or of those whose numbers CUDA_VISIBLE_DEVICES holds."""
    there, named = listed(), _named() or []
    numbers = [int(name) for name in named if name.isdecimal()] or there
    return sum(there.get(number, 0) for number in numbers)


def _why_not_there() -> str:
    if "RUNPOD_POD_ID" in os.environ:
        return "this pod has no GPU, as may happen to one that was stopped: start a new one on the same network volume"
    return "there is no GPU: start a container with --gpus all, or take --preset cpu, or --device cpu to train slowly"


def _why_not_usable() -> str:
    """What CUDA says, in words that help."""
    import torch

    try:
        torch.cuda.init()
        said = "no error"
    except RuntimeError as error:
        said = str(error).splitlines()[0]
    if "Error 802" in said:
        return f"{FABRIC_MANAGER}: take another host"
    if "Found no NVIDIA driver" in said:
        return "the container has no CUDA driver: start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    if (hidden := os.environ.get(VISIBLE)) is not None and "No CUDA GPUs" in said:
        return f"{VISIBLE} ({hidden}) hides every GPU: unset it"
    error = re.search(r"Error \d+: .*", said)
    return f'torch cannot use the GPU ("{error[0] if error else said}"): restart the container, or take another host'


@functools.cache
def _say_once(sentence: str) -> None:
    log.info(sentence)


MAX_CPU_RANKS = 8  # more ranks make the global batch larger, not the job shorter


def num_gpus() -> int:
    """GPUs that torch can use.

    Raises:
        MachineError: the driver hangs.
    """
    return usable()


def num_ranks(settings: RunSettings) -> int:
    """Processes to train with: as asked, or (0) one per GPU, or one per core without GPUs.

    Raises:
        MachineError: no GPU where device or preset want one, or fewer than are named or paid for; why.
        UserError: more processes than GPUs.
    """
    count = 0 if settings.device == "cpu" else num_gpus()
    if not count and needs_gpu(settings):
        raise MachineError(why_none())
    wanted = settings.processes
    if count and not 0 < wanted <= count:
        if why := why_fewer(count):
            raise MachineError(why)
        if wanted:
            raise UserError(f"processes ({wanted}) must not exceed the GPUs ({count}): lower it or take --device cpu")
    return wanted or count or min(num_cores(), MAX_CPU_RANKS)


def uses_gpus(settings: RunSettings) -> bool:
    """Whether training would run on GPUs here."""
    return settings.device != "cpu" and num_gpus() > 0


def needs_gpu(settings: RunSettings) -> bool:
    """Whether training without a GPU is not what the user wants: asked for, or implied by the preset."""
    return settings.device == "cuda" or (settings.device == "auto" and settings.preset in ("single", "multi"))
