"""What this machine offers to this process: cores, memory, ports, packages, folders that outlive the container, and the
GPUs that torch can use. A ROCm build of torch shows AMD's GPUs like NVIDIA's, and reads CUDA_VISIBLE_DEVICES.
"""

import functools
import importlib.util
import logging
import os
import re
import shlex
import shutil
import socket
import subprocess
import warnings
from collections.abc import Sequence
from pathlib import Path

from gnn_training.errors import MachineError, StorageError, UserError
from gnn_training.files import reason

log = logging.getLogger(__name__)
CONTROL_GROUPS = Path("/sys/fs/cgroup")  # cgroups(7)
OWN_GROUPS = Path("/proc/self/cgroup")
MOUNTS = Path("/proc/self/mountinfo")  # proc_pid_mountinfo(5)
# Names of the memory limit, the memory in use and the file cache in it, for control groups of versions 2 and 1.
MEMORY = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
DEVICES = (Path("/dev/nvidiactl"), Path("/dev/kfd"))  # in every container that was given a GPU of NVIDIA or of AMD
PODS = ("RUNPOD_POD_ID", "KUBERNETES_SERVICE_HOST")  # set where files cannot be copied out of an ended container
VISIBLE = "CUDA_VISIBLE_DEVICES"
SMI_SECONDS = 20  # limit for nvidia-smi; with eight GPUs without persistence mode it takes ten


def num_cores() -> int:
    """The cores within this process's affinity and the quotas of its control groups, at least 1."""
    cores = len(os.sched_getaffinity(0))
    for folder in _control_groups("cpu"):
        for files in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
            try:
                quota, period = " ".join((folder / file).read_text() for file in files).split()
                cores = min(cores, int(quota) // int(period)) if int(quota) > 0 else cores
            except (OSError, ValueError):  # no such file, or "max": no quota
                continue
    return max(1, cores)


def _control_groups(controller: str) -> list[Path]:
    """Folders of this process's control groups with a controller, and of the groups that they are in."""
    try:
        groups = [line.split(":", 2) for line in OWN_GROUPS.read_text().splitlines()]
    except OSError:
        groups = []
    folders = [CONTROL_GROUPS, CONTROL_GROUPS / controller]
    for _, controllers, path in groups:  # version 1 names controllers; a container may see the path of its host
        group = CONTROL_GROUPS / (controller if controllers else "") / path.strip("/")
        if not controllers or controller in controllers.split(","):
            folders += [folder for folder in (group, *group.parents) if folder.is_relative_to(CONTROL_GROUPS)]
    return folders


def usable_threads(requested: int) -> int:
    """The requested number of threads (0: one per core), at most one per core: more would only wait for each other."""
    if requested > (cores := num_cores()):
        log.warning("%d of %d threads are used: this process has no more cores", cores, requested)
    return min(requested or cores, cores)


def threads_per_rank(num_ranks: int) -> int:
    """The share of the cores that each rank of this machine gets."""
    return max(1, num_cores() // num_ranks)


def available_bytes() -> int:
    """The free memory of the machine or of a control group, such as that of a container, whichever is less. The memory
    of the file cache counts as free, because the system takes it back when it is needed.
    """
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    for folder in _control_groups("memory"):
        for limit, used, cache in MEMORY:
            try:
                cached = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())[cache]
                most, now = (int((folder / file).read_text()) for file in (limit, used))
                free.append(most - now + int(cached))
            except (OSError, ValueError, KeyError):  # no such file, or "max": no limit
                continue
    return max(0, min(free))


def require_port(port: int, host: str) -> None:
    """Raise MachineError if TensorBoard cannot listen on a port of an address of this machine."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        message = f"port {port} of {host} cannot be opened ({reason(error)}): name another one in --tensorboard"
        raise MachineError(message) from error


def require_package(package: str, user: str, install: str) -> None:
    """Raise UserError if a package that only `user` needs is not installed. install: what pip installs."""
    if importlib.util.find_spec(package) is None:
        raise UserError(f"{user} needs {package}: pip install {install}")


def require_storage(folders: Sequence[Path]) -> str | None:
    """Return a warning if files in one of these folders stay in this container; the last folder has the results.
    StorageError if the files could not be fetched from there.
    """
    workspace = os.environ.get("GNN_WORKSPACE")
    mount = f'start with -v "$PWD":{workspace}'
    for folder in folders:
        kind = _storage(folder)
        if kind == "tmpfs" or (kind == "container" and any(name in os.environ for name in PODS)):
            lost = f"{folder} would be lost with the container, no volume is mounted there"
            raise StorageError(f"{lost}: {mount}, or with -e GNN_NO_VOLUME=1 for a trial whose results may be lost")
    commands = [command for folder in folders if (command := copy_command(folder))]
    if not commands:
        return None
    kept = "no volume: results stay in this container, and --rm would delete them"
    return f"{kept}; {mount}, or fetch them at the end: {commands[-1]}"


def copy_command(folder: Path) -> str:
    """The command that copies a folder out of this container; "" if the folder outlives the container."""
    if _storage(folder) != "container":
        return ""
    # Docker and podman mount /etc/hostname from a folder with the name of the container.
    match = re.search(r"containers/([0-9a-f]{64})/", MOUNTS.read_text(errors="surrogateescape"))
    container = match[1][:12] if match else socket.gethostname()
    return f"docker cp {shlex.quote(f'{container}:{folder.resolve()}')} ."


def _storage(folder: Path) -> str:
    """Where files in `folder` go: to "tmpfs", to the "container" of the image, or to something that lasts, ""."""
    if not os.environ.get("GNN_WORKSPACE") or os.environ.get("GNN_NO_VOLUME") == "1":
        return ""
    point, kind, place = Path("/"), "", folder.resolve()
    for line in MOUNTS.read_text(errors="surrogateescape").splitlines():
        mount, _, source = line.partition(" - ")
        mounted = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), mount.split()[4]))
        # The innermost mount counts, and of two on one point the later one, which hides the other.
        if place.is_relative_to(mounted) and mounted.is_relative_to(point):
            point, kind = mounted, source.split()[0]
    return "container" if point == Path("/") else "tmpfs" if kind == "tmpfs" else ""


def may_have_gpus() -> bool:
    """Whether there may be GPUs here, by device nodes and tools alone."""
    return any(device.exists() for device in DEVICES) or shutil.which("nvidia-smi") is not None


def num_gpus() -> int:
    """How many GPUs torch can use, after CUDA_VISIBLE_DEVICES. MachineError if nvidia-smi hangs, as torch would."""
    if not may_have_gpus():
        return 0  # without loading torch, which takes a second
    num_expected_gpus()  # raises if the driver hangs
    import torch

    with warnings.catch_warnings(action="ignore"):  # why_no_gpu says it better
        # Only is_available asks CUDA itself; device_count also counts GPUs that a driver too old cannot serve.
        return torch.cuda.device_count() if torch.cuda.is_available() else 0


def why_no_gpu() -> str:
    """Why torch can use no GPU, in its own words, and the way out."""
    import torch

    if not may_have_gpus():
        flags = "--gpus all (AMD: --device /dev/kfd --device /dev/dri; RunPod: a new pod)"
        return f"there is no GPU: start a container with {flags}, or take --preset cpu, or, slowly, --device cpu"
    try:
        torch.cuda.init()
        words = "no error"
    except (AssertionError, RuntimeError) as error:  # AssertionError: a build for CPUs
        words = str(error).splitlines()[0]
    ways = f"correct {VISIBLE}, install torch for this GPU and driver (TORCH_INDEX_URL), or take another host"
    return f'torch {torch.__version__} cannot use the GPU ("{words}"): {ways}'


def num_expected_gpus() -> int:
    """How many GPUs CUDA_VISIBLE_DEVICES names, else how many nvidia-smi lists."""
    listed = sum(line.startswith("GPU ") for line in output_of("nvidia-smi", "-L").splitlines())
    return listed if VISIBLE not in os.environ else len(_named())


def gpu_driver() -> str:
    """The version of the NVIDIA driver, such as 580.65.06, or what nvidia-smi says instead."""
    return output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0]


def select_gpus(numbers: str | None) -> dict[str, str]:
    """Leave only these GPUs to this process, if torch has not looked yet, and to its children; return what was set.
    numbers: such as 0,1,4, as nvidia-smi counts, or positions in CUDA_VISIBLE_DEVICES if that is set; None leaves all.
    MachineError if there is no such position; `ranks.num_ranks` tells if there is no such GPU.
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


def describe_gpu(number: int) -> str:
    """Name and memory of a GPU, as torch counts, after it has computed something. MachineError if it does not."""
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
    """What a command prints, even if it fails; "" if there is no such command. MachineError if it hangs."""
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
