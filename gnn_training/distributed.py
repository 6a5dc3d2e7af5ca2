"""The process group. A process that was started alone is a group of one, so there is one code path."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gnn_training.errors import MachineError, TrainingError, UserError

TIMEOUT = timedelta(minutes=5)  # a lost rank must not leave the others waiting for half an hour of rent
TIMED_OUT = "Timed out waiting", "wait timeout"  # words of gloo and of the store of a group


@dataclass(frozen=True)
class Runtime:
    """Rank, number of ranks and device. They are passed as an argument; nothing else reads the environment for them."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """True on the one rank that writes. Only writing may depend on it: no collective, no break, no step."""
        return self.rank == 0

    def total(self, x: Tensor) -> Tensor:
        """Sum of x over all ranks, in place."""
        dist.all_reduce(x, dist.ReduceOp.SUM)
        return x

    def any_rank(self, *flags: bool) -> list[bool]:
        """For each flag, whether it is set on at least one rank: the same answer on all of them."""
        x = torch.tensor(flags, dtype=torch.int32)
        dist.all_reduce(x, dist.ReduceOp.MAX)
        return [bool(value) for value in x.tolist()]

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.any_rank(False)

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value on every rank."""
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of ranks, on every rank."""
        values = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    @property
    def device_name(self) -> str:
        """The GPU's name, or "cpu"."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"


@contextmanager
def join(device: str = "auto", timeout: timedelta = TIMEOUT) -> Iterator[Runtime]:
    """Join the process group that torchrun describes, or a group of one. timeout: of every collective. MachineError if
    CUDA is requested but missing, if this rank has no GPU of its own, or if the GPU lacks memory. TrainingError if
    another rank does not come within the timeout. UserError if variables of torchrun are missing or wrong.

    DistributedDataParallel must be gone when the body ends, so create it in a function that the body calls. Else it is
    the last owner of the group, and torch may wait for a thread of gloo that waits for Python.
    """
    # Some clusters set WORLD_SIZE to the number of machines: it is torchrun's only if RANK is set, too.
    has_launcher = "RANK" in os.environ
    try:
        rank, world_size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE")) if has_launcher else (0, 1)
        where = _device(device, int(os.environ.get("LOCAL_RANK", 0)))
    except (KeyError, ValueError) as error:
        wrong = f"RANK is set, and a variable of torchrun is missing or no number: {error}"
        raise UserError(f"{wrong}; unset RANK, or start with torchrun") from error
    is_gpu = where.type == "cuda"
    backend = "cpu:gloo,cuda:nccl" if is_gpu else "gloo"  # what the host decides uses no GPU
    with tempfile.TemporaryDirectory() as folder:
        try:
            dist.init_process_group(
                backend, timeout=timeout, rank=rank, world_size=world_size, device_id=where if is_gpu else None,
                store=None if has_launcher else dist.FileStore(f"{folder}/store", 1),
            )  # fmt: skip
            yield Runtime(rank, world_size, where)
        except torch.OutOfMemoryError as error:
            advice = "lower --batch-size or --batch-pairs"
            raise MachineError(f"the GPU of rank {rank} has too little memory: {advice}") from error
        except RuntimeError as error:
            if not any(words in str(error) for words in TIMED_OUT):
                raise
            waited = f"rank {rank} has waited {timeout.seconds} s for another rank, which hangs or is stopped"
            raise TrainingError(f"{waited}; look at its machine, then start again") from error
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def in_group(measure: Callable) -> Callable:
    """Make measure(settings, rt, ...) callable without rt. Each call joins a group, on the device of the settings,
    which outlives the network of `measure`.
    """

    @wraps(measure)
    def joined(settings: Any, **options: Any) -> Any:
        with join(settings.device) as rt:
            return measure(settings, rt, **options)

    return joined


def _device(requested: str, local_rank: int) -> torch.device:
    if requested == "cuda" and not torch.cuda.is_available():
        raise MachineError("device is cuda but torch finds no GPU: see coloring-gnn check --device cuda")
    if requested == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise MachineError(f"rank {local_rank} has no GPU: there are {torch.cuda.device_count()}, lower --ranks")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
