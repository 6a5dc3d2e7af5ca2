"""With which variables of NCCL the GPUs of this machine reach each other: tried before hours are paid for."""

import logging
import os
import re
from collections.abc import Callable

from gnn_training.errors import MachineError
from gnn_training.launch.gpus import FABRIC_MANAGER
from gnn_training.processes import TIMED_OUT

log = logging.getLogger(__name__)
FALLBACKS = (
    {},
    {"NCCL_NVLS_ENABLE": "0"},  # NVSwitch machines whose containers lack /dev/nvidia-caps need this
    {"NCCL_NVLS_ENABLE": "0", "NCCL_P2P_DISABLE": "1"},
)
WRONG_SUM = "the ranks add up wrongly"
HOPELESS = {  # what no variable mends
    r"Error 802|system not yet initialized": f"{FABRIC_MANAGER}: take another host",
    r"Duplicate GPU detected": "two processes were given one GPU: lower --processes, or look at CUDA_VISIBLE_DEVICES",
    r"CUDA out of memory|busy or unavailable": "another program uses a GPU: end it (see nvidia-smi) or change hosts",
    r"no kernel image": "torch has no code for this kind of GPU: take another kind",
}


def working_environment(attempt: Callable[[dict[str, str]], tuple[int, str]]) -> dict[str, str]:
    """The first fallback on which the ranks add up a tensor, as variables to train with; what is set already stays.

    attempt: run the preflight with these variables added; return its exit code, 124 if it was cut for taking too long,
    and what its processes wrote to stderr.

    Raises:
        MachineError: no fallback helps, with what the last one said.
    """
    tried: list[dict[str, str]] = []
    for fallback in FALLBACKS:
        variables = {name: value for name, value in fallback.items() if name not in os.environ}
        if variables in tried:
            continue
        tried.append(variables)
        words = " ".join(f"{name}={value}" for name, value in variables.items()) or "no variables"
        code, said = attempt(variables)
        if code == 0:
            _praise(variables, words)
            return variables
        cause = _cause(code, said)
        log.warning("links: all-reduce fails with %s: %s", words, cause)
    raise MachineError(f"the GPUs do not reach each other ({cause}): take another host, or one GPU with --processes 1")


def _praise(variables: dict[str, str], words: str) -> None:
    if "NCCL_P2P_DISABLE" in variables:
        log.warning("links: WARNING: only %s works. All traffic goes through the CPU, SLOW: take another host", words)
    elif variables:
        log.info("links: %s works and is kept for training", words)


def _cause(code: int, said: str) -> str:
    """What went wrong, in one line.

    Raises:
        MachineError: it is nothing that another fallback could mend.
    """
    for pattern, sentence in HOPELESS.items():
        if re.search(pattern, said):
            raise MachineError(sentence)
    if door := re.search(r"^gnn_training: (.*)$", said, re.MULTILINE):
        if WRONG_SUM not in door[1]:
            raise MachineError(door[1])
        return WRONG_SUM
    if code == TIMED_OUT or "Watchdog caught collective operation timeout" in said:
        return "no answer in time"
    errors = re.findall(r"^Last error:\n(.+)$|^(?:\[rank\d+\]: ?)?([\w.]+(?:Error|Exception): .+)$", said, re.MULTILINE)
    return next((nccl for nccl, _ in errors if nccl), "") or (errors[0][1] if errors else f"exit code {code}")
