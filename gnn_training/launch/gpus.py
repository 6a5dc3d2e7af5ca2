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
DRIVERS = {"13": 580, "12.8": 570, "12": 525}  # oldest NVIDIA driver for a version of CUDA, or for all with its major
DEVICE = Path("/dev/nvidiactl")  # in every container that was given a GPU of NVIDIA
AMD_DEVICE = Path("/dev/kfd")  # likewise of AMD; beside it, each GPU has a dri/renderD*
SMI_SECONDS = 20  # eight GPUs without persistence mode take ten
VISIBLE = "CUDA_VISIBLE_DEVICES"
AMD_VISIBLE = ("HIP_VISIBLE_DEVICES", VISIBLE, "ROCR_VISIBLE_DEVICES")  # a ROCm build reads the first that is set
INSTALL = {"NVIDIA": "without TORCH_INDEX_URL", "AMD": "with the TORCH_INDEX_URL of PyTorch's ROCm builds"}
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
    """Return how many GPUs torch can use, after CUDA_VISIBLE_DEVICES. Raises MachineError: nvidia-smi or amd-smi hangs,
    and so would torch.
    """
    if not vendors():
        return 0  # without loading torch, which takes a second
    listing()  # raises if the driver hangs
    import torch

    with warnings.catch_warnings(action="ignore"):  # why_none says it better
        # Only is_available asks CUDA itself; device_count also counts GPUs that a driver too old cannot serve.
        return torch.cuda.device_count() if torch.cuda.is_available() else 0


def why_none() -> str:
    """Return why torch can use no GPU, and the way out."""
    import torch

    said, cuda, version, there = listing(), torch.version.cuda or "", driver(), vendors()
    build = "AMD" if torch.version.hip else "NVIDIA" if cuda else "CPUs"
    flags = "--device /dev/kfd --device /dev/dri" if build == "AMD" else "--gpus all"
    if said.startswith("No devices") or not there:
        if "RUNPOD_POD_ID" in os.environ:
            return "this pod has no GPU, as happens to stopped pods: start a new one on the same network volume"
        return f"there is no GPU: start a container with {flags}, or take --preset cpu, or, slowly, --device cpu"
    if build not in there:
        wrong = f"torch is a build for {build} and the GPUs here are from {there[0]}"
        return f"{wrong}: remove the environment or rebuild the image, and install {INSTALL[there[0]]}"
    nodes = [AMD_DEVICE, *AMD_DEVICE.parent.glob("dri/renderD*")] if build == "AMD" and AMD_DEVICE.exists() else []
    if closed := [node for node in nodes if not os.access(node, os.R_OK | os.W_OK)]:
        groups = sorted({node.stat().st_gid for node in closed})
        docker = " ".join(f"--group-add {group}" for group in groups)
        return f"this user may not open {closed[0]}: join its group, mostly render or video (docker: {docker})"
    if len(nodes) == 1:
        return f"the container has no /dev/dri/renderD*: start it with {flags}"
    if said and not listed():
        return f'{_tool()} says "{said.splitlines()[0]}": restart the container, or take another host'
    needed = DRIVERS.get(cuda) or DRIVERS.get(cuda.split(".")[0], 0)
    if version and int(version.split(".")[0]) < needed:
        old = f"driver {version} is too old for CUDA {cuda}, which needs {needed}"
        return f"{old}: take a host with a newer driver (RunPod: minCudaVersion)"
    try:
        torch.cuda.init()
        error = "no error"
    except RuntimeError as failure:
        error = str(failure).splitlines()[0]
    if "Error 802" in error:
        return f"{FABRIC_MANAGER}: take another host"
    if "Found no NVIDIA driver" in error:
        return "the container has no CUDA driver: start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    if "GPUs are available" in error and _visible() in os.environ:
        return f"{_visible()} ({os.environ[_visible()]}) hides every GPU: unset it"
    error = error[max(0, error.find("Error ")) :]
    return f'torch cannot use the GPU ("{error}"): restart the container, or take another host'


def why_fewer(count: int) -> str | None:
    """Return why torch can use only `count` GPUs, fewer than were named or are paid for; None if they are not fewer."""
    there, named, paid, why = len(listed()), _named(), os.environ.get("RUNPOD_GPU_COUNT", ""), ""
    if named is not None:
        if count < len(named):
            why = f"{_visible()} ({','.join(named)}) names more GPUs than torch can use"
    elif count < there:
        why = f"{_tool()} lists {there} GPUs and torch can use {count}"
    elif paid.isdecimal() and max(count, there) < int(paid):
        why = f"this pod has {count} GPUs and is paid for {paid} (RUNPOD_GPU_COUNT)"
    return f"{why}: take another host, or go on with --processes {count}" if why else None


def select(numbers: str | None) -> dict[str, str]:
    """Leave only these GPUs to this process, if torch has not looked yet, and to its children; return what was set.

    numbers: such as 0,1,4, as nvidia-smi counts (on AMD, as torch counts: amd-smi may have another order), or positions
    in CUDA_VISIBLE_DEVICES (on AMD, in the first of AMD_VISIBLE that is set) if that is set; None leaves all.

    Raises MachineError: there is no such GPU.
    """
    if numbers is None:
        return {}
    named, wanted = _named(), numbers.split(",")
    there = [str(number) for number in (listed() if named is None else range(len(named)))]
    # Without nvidia-smi or amd-smi in the container, torch will tell.
    is_unlisted = not there and named is None and (DEVICE.exists() or AMD_DEVICE.exists())
    if not is_unlisted and (absent := [number for number in wanted if number not in there]):
        source = f"{_tool()} lists" if named is None else f"{_visible()} ({','.join(named)}) leaves"
        known = f"{source} {', '.join(there)}" if there else why_none()
        raise MachineError(f"gpus ({numbers}): there is no GPU {', '.join(absent)}; {known}")
    variable = _visible()
    if named is None:  # CUDA's own order puts the fastest first; AMD ignores the second variable
        variables = {variable: numbers, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    else:
        variables = {variable: ",".join(named[int(number)] for number in wanted)}
        log.info("GPUs %s of %s (%s): %s", numbers, ",".join(named), variable, variables[variable])
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
    """Return the numbers of the GPUs that nvidia-smi or amd-smi lists."""
    return [int(number) for number in re.findall(r"^GPU:? (\d+)", listing(), re.MULTILINE)]


def listing() -> str:
    """Return what nvidia-smi says of the GPUs, or amd-smi if torch is a ROCm build. Raises MachineError: it hangs."""
    return amd_smi("list") if _tool() == "amd-smi" else nvidia_smi("-L")


def vendors() -> list[str]:
    """Return of whom there are GPUs here, NVIDIA or AMD, by device nodes and tools alone."""
    signs = (("NVIDIA", DEVICE, "nvidia-smi"), ("AMD", AMD_DEVICE, "amd-smi"))
    return [vendor for vendor, device, tool in signs if device.exists() or shutil.which(tool)]


def driver() -> str | None:
    """Return the version of the NVIDIA driver, such as 580.65.06; None if nvidia-smi does not tell it."""
    version = re.match(r"\d+\.[\d.]+", nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader"))
    return version and version[0]


@functools.cache
def nvidia_smi(*arguments: str) -> str:
    """Return the output of nvidia-smi, good or bad; nothing if it is not there. Raises MachineError: it hangs."""
    return _output("nvidia-smi", *arguments)


@functools.cache
def amd_smi(*arguments: str) -> str:
    """Return the output of amd-smi, good or bad; nothing if it is not there. Raises MachineError: it hangs."""
    return _output("amd-smi", *arguments)


def _output(*command: str) -> str:
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
    import torch

    return next((name for name in AMD_VISIBLE if name in os.environ), AMD_VISIBLE[0]) if torch.version.hip else VISIBLE


def _tool() -> str:
    """What lists the GPUs for which torch was built."""
    import torch

    return "amd-smi" if torch.version.hip else "nvidia-smi"
