"""The GPUs of this machine: which of them torch can use, and a sentence if there are none or fewer than expected. AMD's
are those of NVIDIA to a ROCm build of torch, which also reads CUDA_VISIBLE_DEVICES.
"""

import functools
import logging
import os
import shutil
import subprocess
import warnings
from pathlib import Path

from gnn_training.errors import MachineError, UserError
from gnn_training.machine import num_cores
from gnn_training.settings import RankSettings

log = logging.getLogger(__name__)
DEVICES = (Path("/dev/nvidiactl"), Path("/dev/kfd"))  # in every container that was given a GPU of NVIDIA or of AMD
VISIBLE = "CUDA_VISIBLE_DEVICES"
SMI_SECONDS = 20  # eight GPUs without persistence mode take ten
MAX_CPU_RANKS = 8  # more ranks make the global batch larger, not the job shorter


def num_ranks(settings: RankSettings) -> int:
    """Return the number of ranks on this machine: as asked, or (0) one per GPU, or one per core if there are no GPUs.
    Raises MachineError: there is no GPU where device or preset ask for one, or torch can use fewer than were named or
    are here. UserError: more processes than GPUs.
    """
    requested, count = settings.processes, 0 if settings.device == "cpu" else num_gpus()
    is_for_gpus = settings.device == "cuda" or settings.gpus or getattr(settings, "preset", "") in ("single", "multi")
    if not count and is_for_gpus and settings.device != "cpu":
        raise MachineError(why_none())
    if count and not 0 < requested <= count:
        if count < (expected := num_expected()):
            ways = f"take another host, correct {VISIBLE}, or go on with --processes {count}"
            raise MachineError(f"there are {expected} GPUs and torch can use {count}: {ways}")
        if requested:
            message = f"processes ({requested}) must not exceed the GPUs ({count}): lower it or take --device cpu"
            raise UserError(message)
    return requested or count or min(num_cores(), MAX_CPU_RANKS)


def on_gpus(settings: RankSettings) -> bool:
    """Return whether the ranks would run on GPUs here."""
    return settings.device != "cpu" and num_gpus() > 0


def are_there() -> bool:
    """Return whether there may be GPUs here, by device nodes and tools alone."""
    return any(device.exists() for device in DEVICES) or shutil.which("nvidia-smi") is not None


def num_gpus() -> int:
    """Return how many GPUs torch can use, after CUDA_VISIBLE_DEVICES. Raises MachineError: nvidia-smi hangs, and so
    would torch.
    """
    if not are_there():
        return 0  # without loading torch, which takes a second
    num_expected()  # raises if the driver hangs
    import torch

    with warnings.catch_warnings(action="ignore"):  # why_none says it better
        # Only is_available asks CUDA itself; device_count also counts GPUs that a driver too old cannot serve.
        return torch.cuda.device_count() if torch.cuda.is_available() else 0


def why_none() -> str:
    """Return why torch can use no GPU, in its own words, and the way out."""
    import torch

    if not are_there():
        flags = "--gpus all (AMD: --device /dev/kfd --device /dev/dri; RunPod: a new pod)"
        return f"there is no GPU: start a container with {flags}, or take --preset cpu, or, slowly, --device cpu"
    try:
        torch.cuda.init()
        words = "no error"
    except (AssertionError, RuntimeError) as error:  # AssertionError: a build for CPUs
        words = str(error).splitlines()[0]
    ways = f"correct {VISIBLE}, install torch for this GPU and driver (TORCH_INDEX_URL), or take another host"
    return f'torch {torch.__version__} cannot use the GPU ("{words}"): {ways}'


def num_expected() -> int:
    """Return how many GPUs CUDA_VISIBLE_DEVICES names, else how many nvidia-smi lists."""
    listed = sum(line.startswith("GPU ") for line in output_of("nvidia-smi", "-L").splitlines())
    return listed if VISIBLE not in os.environ else len(_named())


def driver() -> str:
    """Return the version of the NVIDIA driver, such as 580.65.06, or what nvidia-smi says instead."""
    return output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0]


def select(numbers: str | None) -> dict[str, str]:
    """Leave only these GPUs to this process, if torch has not looked yet, and to its children; return what was set.

    numbers: such as 0,1,4, as nvidia-smi counts, or positions in CUDA_VISIBLE_DEVICES if that is set; None leaves all.

    Raises MachineError: there is no such position. `num_ranks` tells if there is no such GPU.
    """
    if numbers is None:
        return {}
    variables = {VISIBLE: numbers, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # CUDA's own order puts the fastest first
    if VISIBLE in os.environ:
        named, positions = _named(), [int(number) for number in numbers.split(",")]
        if max(positions) >= len(named):
            raise MachineError(f"gpus ({numbers}) are counted from 0 in {VISIBLE} ({','.join(named)}): name lower ones")
        variables = {VISIBLE: ",".join(named[position] for position in positions)}
        log.info("GPUs %s of %s (%s): %s", numbers, ",".join(named), VISIBLE, variables[VISIBLE])
    os.environ.update(variables)
    return variables


def describe(number: int) -> str:
    """Return name and memory of a GPU, as torch counts, after it has computed something. Raises MachineError: it does
    not compute.
    """
    import torch

    try:
        torch.ones(2, device=f"cuda:{number}").sum().item()
        free, total = (size / 2**30 for size in torch.cuda.mem_get_info(number))
        return f"{torch.cuda.get_device_name(number)}, {total:.0f} GiB, {free:.0f} free"
    except RuntimeError as error:
        problem = f'GPU {number} does not compute ("{str(error).splitlines()[0]}")'
        raise MachineError(f"{problem}: leave it out with --gpus, or take another host") from error


@functools.cache
def output_of(*command: str) -> str:
    """Return what a command prints, good or bad; nothing if it is not there. Raises MachineError: it hangs."""
    if not shutil.which(command[0]):
        return ""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    try:
        return process.communicate(timeout=SMI_SECONDS)[0].strip()
    except subprocess.TimeoutExpired:
        process.kill()  # without waiting: a driver that hangs does not let go of it
        hangs = f"{command[0]} has not answered in {SMI_SECONDS} s, so the driver hangs"
        raise MachineError(f"{hangs}: take another host, or --device cpu") from None


def _named() -> list[str]:
    """The GPUs in CUDA_VISIBLE_DEVICES, numbers or UUIDs."""
    return [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
