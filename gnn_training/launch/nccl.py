"""The variables of NCCL with which the GPUs of this machine reach each other: tried before hours are paid for."""

import logging
import os
import re
import shutil
from collections.abc import Callable

from gnn_training.errors import MachineError
from gnn_training.launch.gpus import FABRIC_MANAGER
from gnn_training.processes import TIMED_OUT

log = logging.getLogger(__name__)
# RCCL, the NCCL of AMD GPUs, reads the same variables. NVLS does not exist there.
FALLBACKS: tuple[dict[str, str], ...] = (
    {},
    {"NCCL_NVLS_ENABLE": "0"},  # needed on NVSwitch machines whose containers lack /dev/nvidia-caps
    {"NCCL_NVLS_ENABLE": "0", "NCCL_P2P_DISABLE": "1"},
    {"NCCL_NVLS_ENABLE": "0", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},  # without P2P, data goes through shm
)
SHM_BYTES = 2**30  # eight ranks need a few hundred MB; Docker gives 64 MB
WRONG_SUM = "the ranks add up wrongly"
HOPELESS = {  # what no variable can change
    r"Error 802|system not yet initialized": f"{FABRIC_MANAGER}: take another host",
    r"Duplicate GPU detected": "two processes were given one GPU: lower --processes, or look at CUDA_VISIBLE_DEVICES",
    r"(CUDA|HIP) out of memory|busy or unavailable": "another program uses a GPU: end it (see nvidia-smi or amd-smi)"
    " or change hosts",
    r"no kernel image|invalid device function": "torch has no code for this kind of GPU: take another kind",
}


def working_variables(attempt: Callable[[dict[str, str]], tuple[int, str]]) -> dict[str, str]:
    """Return the first fallback with which an all-reduce works. A variable that is set already stays as it is.

    attempt: runs the preflight with these variables; returns its exit code, 124 after the time limit, and its stderr.

    Raises MachineError: no fallback works; the message has the last cause.
    """
    free = [{name: value for name, value in each.items() if name not in os.environ} for each in FALLBACKS]
    for number, variables in enumerate(free):
        if variables in free[:number]:
            continue
        words = " ".join(f"{name}={value}" for name, value in variables.items()) or "no variables"
        code, stderr = attempt(variables)
        if code == 0:
            if "NCCL_SHM_DISABLE" in variables:
                words += f", through the network, SLOW: {_more_shm()}take another host"
            elif "NCCL_P2P_DISABLE" in variables:
                words += ", through the CPU, SLOW: take another host"
            if variables:
                log.warning("NCCL works only with %s", words)
            return variables
        cause = _cause(code, stderr)
        log.warning("NCCL: all-reduce fails with %s: %s", words, cause)
    failure = f"the GPUs do not reach each other ({cause})"
    raise MachineError(f"{failure}: {_more_shm()}take another host, or one GPU with --processes 1")


def _more_shm() -> str:
    """The first advice if /dev/shm is small, otherwise nothing."""
    size = shutil.disk_usage("/dev/shm").total
    if size >= SHM_BYTES:
        return ""
    return f"start the container with --shm-size=1g (/dev/shm has {size // 2**20} MiB), or "


def _cause(code: int, stderr: str) -> str:
    """Return what went wrong, in one line. Raises MachineError: no fallback can help."""
    for pattern, sentence in HOPELESS.items():
        if re.search(pattern, stderr):
            raise MachineError(sentence)
    if code == TIMED_OUT or "Watchdog caught collective operation timeout" in stderr:
        return "no answer in time"
    said = re.findall(r"^coloring-gnn: (.*)$", stderr, re.MULTILINE) or [f"exit code {code}"]
    if code == MachineError.exit_code and WRONG_SUM not in said[-1]:
        raise MachineError(said[-1])
    return said[-1]
