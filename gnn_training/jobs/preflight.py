"""Whether the ranks reach each other: they add a tensor up, and the sum must be exactly right."""

import logging
import time
from datetime import timedelta

import torch

from gnn_training.distributed import Runtime, join
from gnn_training.errors import MachineError
from gnn_training.launch.nccl import WRONG_SUM
from gnn_training.settings import PreflightSettings

log = logging.getLogger(__name__)
TIMEOUT = timedelta(seconds=60)
REPEATS = 5  # the first one also connects
PERIOD = 1009  # of the numbers that are added up: small enough for exact sums of float32, no power of two


def preflight(settings: PreflightSettings) -> None:
    """Add a tensor up over all ranks a few times; rank 0 logs the bandwidth.

    Raises:
        MachineError: a sum is wrong on some rank; all ranks raise.
    """
    with join(settings.device, TIMEOUT) as rt:
        count = settings.mebibytes * 2**20 // torch.float32.itemsize
        ramp = (torch.arange(count, device=rt.device) % PERIOD).float()
        expected = rt.world_size * ramp + sum(range(rt.world_size))
        sums = [_timed_sum(rt, ramp + rt.rank) for _ in range(REPEATS)]
        [wrong] = rt.any(not all(torch.equal(total, expected) for total, _ in sums))
        if wrong:
            raise MachineError(f"{WRONG_SUM} over {rt.world_size} ranks: take another host")
        if rt.is_main:
            _report(rt, settings.mebibytes, min(seconds for _, seconds in sums))


def _timed_sum(rt: Runtime, x: torch.Tensor) -> tuple[torch.Tensor, float]:
    _wait(rt)
    started = time.monotonic()
    rt.total(x)
    _wait(rt)
    return x, time.monotonic() - started


def _wait(rt: Runtime) -> None:
    if rt.device.type == "cuda":
        torch.cuda.synchronize()


def _report(rt: Runtime, mebibytes: int, seconds: float) -> None:
    # What a link carries, whatever the number of ranks; NCCL's own tests call it bus bandwidth.
    rate = 2 * (rt.world_size - 1) / rt.world_size * mebibytes * 2**20 / seconds / 1e9
    log.info("all-reduce of %d MiB over %d ranks: %.1f GB/s of bus bandwidth", mebibytes, rt.world_size, rate)
