"""Test whether the ranks of this machine reach each other: they add up a tensor, and the sum must be exactly right."""

import logging
import time
from datetime import timedelta

import torch

from gnn_training.distributed import join
from gnn_training.errors import MachineError
from gnn_training.launch import gpus
from gnn_training.launch.ranks import launch
from gnn_training.settings import RankSettings

log = logging.getLogger(__name__)
TIMEOUT = timedelta(seconds=60)
BYTES = 2**26  # of the tensor
REPEATS = 5  # the first one also connects
PERIOD = 1009  # of the numbers that are added up: small enough for exact sums in float32, not a power of two


def preflight(settings: RankSettings) -> None:
    """Add up a tensor over all ranks of this machine and log the bandwidth. Raises MachineError: a rank has no GPU, or
    a sum is wrong. TrainingError: a rank failed.
    """
    gpus.select(settings.gpus)
    num_ranks = gpus.num_ranks(settings)
    seconds = launch(add_up, settings.device, num_ranks)
    # NCCL's own tests call this the bus bandwidth: what a link carries, whatever the number of ranks.
    rate = 2 * (num_ranks - 1) / num_ranks * BYTES / seconds / 1e9
    log.info("all-reduce of %d MiB over %d ranks: %.1f GB/s of bus bandwidth", BYTES // 2**20, num_ranks, rate)


def add_up(device: str) -> float:
    """As one rank, add up a tensor over all ranks a few times; return the shortest time in seconds. Raises
    MachineError: a sum is wrong on some rank; all ranks raise.
    """
    with join(device, TIMEOUT) as rt:
        ramp = (torch.arange(BYTES // torch.float32.itemsize, device=rt.device) % PERIOD).float()
        expected = rt.world_size * ramp + sum(range(rt.world_size))
        wait = torch.cuda.synchronize if rt.device.type == "cuda" else lambda: None
        is_wrong, times = False, []
        for _ in range(REPEATS):
            x = ramp + rt.rank
            wait()
            started = time.monotonic()
            rt.total(x)
            wait()
            times.append(time.monotonic() - started)
            is_wrong |= not torch.equal(x, expected)
        if any(rt.any(is_wrong)):
            raise MachineError(f"the ranks add up wrongly over {rt.world_size} ranks: take another host")
        return min(times)
