"""The GPUs of this machine: what nvidia-smi lists, what torch can use, and one sentence if the two disagree."""

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
DRIVERS = {"13": 580, "12.8": 570, "12": 525}  # oldest NVIDIA driver for a version of CUDA, or for all with its major
DEVICE = Path("/dev/nvidiactl")  # in every container that was given a GPU
SMI_SECONDS = 20  # eight GPUs without persistence mode take ten
VISIBLE = "CUDA_VISIBLE_DEVICES"
FABRIC_MANAGER = "the fabric manager of this host does not run (CUDA error 802), so none of its GPUs can be used"
MAX_CPU_RANKS = 8  # more ranks make the global batch larger, not the job shorter


def num_ranks(settings: RankSettings) -> int:
    """Return the number of ranks on this machine: as asked, or (0) one per GPU, or one per core if there are no GPUs.
    Raises MachineError: there is no GPU where device or preset want one, or there are fewer than were named or paid
    for. UserError: more processes than GPUs.
    """
    wanted, count = settings.processes, 0 if settings.device == "cpu" else num_gpus()
    is_for_gpus = settings.device == "cuda" or getattr(settings, "preset", "") in ("single", "multi")
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
    """Return how many GPUs torch can use, after CUDA_VISIBLE_DEVICES. Raises MachineError: nvidia-smi hangs, and so
    would torch.
    """
    if not (DEVICE.exists() or shutil.which("nvidia-smi")):
        return 0  # without loading torch, which takes a second
    nvidia_smi("-L")  # raises if the driver hangs
    import torch

    with warnings.catch_warnings(action="ignore"):  # why_none says it better
        # Only is_available asks CUDA itself; device_count also counts GPUs that a driver too old cannot serve.
        return torch.cuda.device_count() if torch.cuda.is_available() else 0


def why_none() -> str:
    """Return why torch can use no GPU, and the way out."""
    import torch

    said, cuda, version = nvidia_smi("-L"), torch.version.cuda, driver()
    if said.startswith("No devices") or not (said or DEVICE.exists()):
        if "RUNPOD_POD_ID" in os.environ:
            return "this pod has no GPU, as happens to stopped pods: start a new one on the same network volume"
        return "there is no GPU: start a container with --gpus all, or take --preset cpu, or, slowly, --device cpu"
    if said and not listed():
        return f'nvidia-smi says "{said.splitlines()[0]}": restart the container, or take another host'
    if cuda is None:
        return "torch is a build for CPUs: remove the environment and start again without TORCH_INDEX_URL"
    needed = DRIVERS.get(cuda) or DRIVERS.get(cuda.split(".")[0], 0)
    if version and int(version.split(".")[0]) < needed:
        old = f"driver {version} is too old for CUDA {cuda}, which needs {needed}"
        return f"{old}: take a host with a newer driver (RunPod: allowedCudaVersions)"
    try:
        torch.cuda.init()
        error = "no error"
    except RuntimeError as failure:
        error = str(failure).splitlines()[0]
    if "Error 802" in error:
        return f"{FABRIC_MANAGER}: take another host"
    if "Found no NVIDIA driver" in error:
        return "the container has no CUDA driver: start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    if "No CUDA GPUs" in error and VISIBLE in os.environ:
        return f"{VISIBLE} ({os.environ[VISIBLE]}) hides every GPU: unset it"
    error = error[max(0, error.find("Error ")) :]
    return f'torch cannot use the GPU ("{error}"): restart the container, or take another host'


def why_fewer(count: int) -> str | None:
    """Return why torch can use only `count` GPUs, fewer than were named or are paid for; None if they are not fewer."""
    there, named, paid, why = len(listed()), _named(), os.environ.get("RUNPOD_GPU_COUNT", ""), ""
    if named is not None:
        if count < len(named):
            why = f"{VISIBLE} ({','.join(named)}) names more GPUs than torch can use"
    elif count < there:
        why = f"nvidia-smi lists {there} GPUs and torch can use {count}"
    elif paid.isdecimal() and max(count, there) < int(paid):
        why = f"this pod has {count} GPUs and is paid for {paid} (RUNPOD_GPU_COUNT)"
    return f"{why}: take another host, or go on with --processes {count}" if why else None


def select(numbers: str | None) -> dict[str, str]:
    """Leave only these GPUs to this process, if torch has not looked yet, and to its children; return what was set.

    numbers: such as 0,1,4, as nvidia-smi counts, or positions in CUDA_VISIBLE_DEVICES if that is set; None leaves all.

    Raises MachineError: there is no such GPU.
    """
    if numbers is None:
        return {}
    named, wanted = _named(), numbers.split(",")
    there = [str(number) for number in (listed() if named is None else range(len(named)))]
    is_unlisted = not there and named is None and DEVICE.exists()  # no nvidia-smi in the container: torch will tell
    if not is_unlisted and (absent := [number for number in wanted if number not in there]):
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


def listed() -> list[int]:
    """Return the numbers of the GPUs that nvidia-smi lists."""
    return [int(number) for number in re.findall(r"^GPU (\d+):", nvidia_smi("-L"), re.MULTILINE)]


def driver() -> str | None:
    """Return the version of the NVIDIA driver, such as 580.65.06; None if nvidia-smi does not tell it."""
    version = re.match(r"\d+\.[\d.]+", nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader"))
    return version and version[0]


@functools.cache
def nvidia_smi(*arguments: str) -> str:
    """Return the output of nvidia-smi, good or bad; nothing if it is not there. Raises MachineError: it hangs."""
    if not shutil.which("nvidia-smi"):
        return ""
    command = ["nvidia-smi", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    try:
        return process.communicate(timeout=SMI_SECONDS)[0].strip()
    except subprocess.TimeoutExpired:
        process.kill()  # without waiting: a driver that hangs does not let go of it
        hangs = f"nvidia-smi has not answered in {SMI_SECONDS} s, so the driver hangs"
        raise MachineError(f"{hangs}: take another host, or --device cpu") from None


def _named() -> list[str] | None:
    """The GPUs in CUDA_VISIBLE_DEVICES, numbers or UUIDs; None if it is not set."""
    value = os.environ.get(VISIBLE)
    return None if value is None else [name.strip() for name in value.split(",") if name.strip()]
