"""Test whether the ranks of this machine reach each other: they add up a tensor, and the sum must be exactly right."""

import logging
import time
from datetime import timedelta

import torch

from gnn_training.distributed import Runtime, join
from gnn_training.errors import MachineError
from gnn_training.launch import gpus
from gnn_training.launch.nccl import WRONG_SUM
from gnn_training.launch.ranks import launch
from gnn_training.settings import PreflightSettings

log = logging.getLogger(__name__)
TIMEOUT = timedelta(seconds=60)
REPEATS = 5  # the first one also connects
PERIOD = 1009  # of the numbers that are added up: small enough for exact sums in float32, not a power of two


def preflight(settings: PreflightSettings) -> None:
    """Add up a tensor over all ranks of this machine and log the bandwidth.

    Raises:
        MachineError: a rank has no GPU, or a sum is wrong.
        TrainingError: a rank failed.
    """
    gpus.select(settings.gpus)
    num_ranks = gpus.num_ranks(settings)
    seconds = launch(add_up, settings, num_ranks)
    # NCCL's own tests call this the bus bandwidth: what a link carries, whatever the number of ranks.
    rate = 2 * (num_ranks - 1) / num_ranks * settings.mebibytes * 2**20 / seconds / 1e9
    log.info("all-reduce of %d MiB over %d ranks: %.1f GB/s of bus bandwidth", settings.mebibytes, num_ranks, rate)


def add_up(settings: PreflightSettings) -> float:
    """As one rank, add up a tensor over all ranks a few times; return the shortest time in seconds.

    Raises:
        MachineError: a sum is wrong on some rank; all ranks raise.
    """
    with join(settings.device, TIMEOUT) as rt:
        count = settings.mebibytes * 2**20 // torch.float32.itemsize
        ramp = (torch.arange(count, device=rt.device) % PERIOD).float()
        expected = rt.world_size * ramp + sum(range(rt.world_size))
        sums = [_timed_sum(rt, ramp + rt.rank) for _ in range(REPEATS)]
        [is_wrong] = rt.any(not all(torch.equal(total, expected) for total, _ in sums))
        if is_wrong:
            raise MachineError(f"{WRONG_SUM} over {rt.world_size} ranks: take another host")
        return min(seconds for _, seconds in sums)


def _timed_sum(rt: Runtime, x: torch.Tensor) -> tuple[torch.Tensor, float]:
    _synchronize(rt)
    started = time.monotonic()
    rt.total(x)
    _synchronize(rt)
    return x, time.monotonic() - started


def _synchronize(rt: Runtime) -> None:
    if rt.device.type == "cuda":
        torch.cuda.synchronize()
