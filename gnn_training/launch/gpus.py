"""The GPUs of this machine: what nvidia-smi or amd-smi lists, what torch can use, and one sentence if they disagree."""

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
from gnn_training.settings import RankSettings

log = logging.getLogger(__name__)
DEVICE = Path("/dev/nvidiactl")  # in every container that was given a GPU of NVIDIA
AMD_DEVICE = Path("/dev/kfd")  # likewise of AMD
SMI_SECONDS = 20  # eight GPUs without persistence mode take ten
MAX_CPU_RANKS = 8  # more ranks make the global batch larger, not the job shorter


def num_ranks(settings: RankSettings) -> int:
    """Return the number of ranks on this machine: as asked, or (0) one per GPU, or one per core if there are no GPUs.
    Raises MachineError: there is no GPU where device or preset want one, or there are fewer than were named or paid
    for. UserError: more processes than GPUs.
    """
    wanted, count = settings.processes, 0 if settings.device == "cpu" else num_gpus()
    is_for_gpus = settings.device == "cuda" or settings.gpus or getattr(settings, "preset", "") in ("single", "multi")
    if not count and is_for_gpus and settings.device != "cpu":
        raise MachineError(why_none())
    if count and not 0 < wanted <= count:
        if why := why_fewer(count):
            raise MachineError(why)
        if wanted:
            raise UserError(f"processes ({wanted}) must not exceed the GPUs ({count}): lower it or take --device cpu")
    return wanted or count or min(num_cores(), MAX_CPU_RANKS)


def on_gpus(settings: RankSettings) -> bool:
    """Return whether the ranks would run on GPUs here."""
    return settings.device != "cpu" and num_gpus() > 0


def num_gpus() -> int:
    """Return how many GPUs torch can use, after CUDA_VISIBLE_DEVICES. Raises MachineError: nvidia-smi or amd-smi hangs,
    and so would torch.
    """
    if not are_there():
        return 0  # without loading torch, which takes a second
    listing()  # raises if the driver hangs
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
    ways = f"set {_visible()} right, install torch for this GPU and driver (TORCH_INDEX_URL), or take another host"
    return f'torch {torch.__version__} cannot use the GPU ("{words}"): {ways}'


def why_fewer(count: int) -> str | None:
    """Return why torch can use only `count` GPUs, fewer than were named or are here; None if they are not fewer."""
    named, source, number = _named(), f"{_tool()} lists", num_listed()
    if named is not None:
        source, number = f"{_visible()} ({','.join(named)}) names", len(named)
    if count >= number:
        return None
    return f"{source} {number} GPUs and torch can use {count}: take another host, or go on with --processes {count}"


def select(numbers: str | None) -> dict[str, str]:
    """Leave only these GPUs to this process, if torch has not looked yet, and to its children; return what was set.

    numbers: such as 0,1,4, as nvidia-smi counts (on AMD, as torch counts: amd-smi may have another order), or positions
    in CUDA_VISIBLE_DEVICES (on AMD, in HIP_VISIBLE_DEVICES) if that is set; None leaves all.

    Raises MachineError: there is no such position. `num_ranks` tells if there is no such GPU.
    """
    if numbers is None:
        return {}
    variable, named, wanted = _visible(), _named(), [int(number) for number in numbers.split(",")]
    if named is None:  # CUDA's own order puts the fastest first; AMD ignores the second variable
        variables = {variable: numbers, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    elif max(wanted) < len(named):
        variables = {variable: ",".join(named[number] for number in wanted)}
        log.info("GPUs %s of %s (%s): %s", numbers, ",".join(named), variable, variables[variable])
    else:
        raise MachineError(f"gpus ({numbers}) are counted from 0 in {variable} ({','.join(named)}): name lower ones")
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
        said = f'GPU {number} does not compute ("{str(error).splitlines()[0]}")'
        raise MachineError(f"{said}: leave it out with --gpus, or take another host") from error


def num_listed() -> int:
    """Return how many GPUs nvidia-smi or amd-smi lists."""
    return len(re.findall(r"^GPU:? \d", listing(), re.MULTILINE))


def listing() -> str:
    """Return what nvidia-smi says of the GPUs, or amd-smi if torch is a ROCm build. Raises MachineError: it hangs."""
    return output_of("amd-smi", "list") if _tool() == "amd-smi" else output_of("nvidia-smi", "-L")


def are_there() -> bool:
    """Return whether there may be GPUs here, by device nodes and tools alone."""
    return any(device.exists() for device in (DEVICE, AMD_DEVICE)) or any(map(shutil.which, ("nvidia-smi", "amd-smi")))


def driver() -> str | None:
    """Return the version of the NVIDIA driver, such as 580.65.06; None if nvidia-smi does not tell it."""
    version = re.match(r"\d+\.[\d.]+", output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"))
    return version and version[0]


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


def _named() -> list[str] | None:
    """The GPUs in CUDA_VISIBLE_DEVICES or its like, numbers or UUIDs; None if it is not set."""
    value = os.environ.get(_visible())
    return None if value is None else [name.strip() for name in value.split(",") if name.strip()]


def _visible() -> str:
    """The variable that tells torch which GPUs it may use."""
    return "HIP_VISIBLE_DEVICES" if _tool() == "amd-smi" else "CUDA_VISIBLE_DEVICES"


def _tool() -> str:
    """What lists the GPUs for which torch was built."""
    import torch

    return "amd-smi" if torch.version.hip else "nvidia-smi"
