"""The time that the machine's limits leave to a training step, by formula, and the limits as measured here.

Williams, Waterman and Patterson 2009. docs/SPEED.md derives the counts.
"""

from dataclasses import dataclass

import torch
from torch.utils.benchmark import Timer

from gnn_training.model.network import NUM_INVARIANTS
from gnn_training.training.batches import Shape

MATRICES = {"cpu": (512, 1024, 2048), "cuda": (4096, 8192, 16384)}
COPIES = {"cpu": (2**18, 2**22, 2**26), "cuda": (2**28, 2**30)}  # bytes; on a CPU, caches count
FLOAT = 4  # bytes of a number that takes no part in a product of matrices


@dataclass(frozen=True)
class Ceilings:
    """What this machine does at best with as many threads as a rank has: products in a precision, and copies."""

    flops_per_second: float
    bytes_per_second: float


@dataclass(frozen=True)
class Work:
    """Floating-point operations of products, and bytes that must move, of one phase."""

    flops: float
    bytes: float

    def seconds(self, ceilings: Ceilings) -> float:
        """At least: it cannot end before its operations are done, nor before its bytes are moved."""
        return max(self.flops / ceilings.flops_per_second, self.bytes / ceilings.bytes_per_second)


def ceilings(device: torch.device, precision: torch.dtype) -> Ceilings:
    """Measure them: the best of several sizes."""
    return Ceilings(
        max(_flops_per_second(size, device, precision) for size in MATRICES[device.type]),
        max(_bytes_per_second(size, device) for size in COPIES[device.type]),
    )


def _flops_per_second(size: int, device: torch.device, precision: torch.dtype) -> float:
    a, out = (torch.randn(size, size, device=device).to(precision) for _ in range(2))
    return 2 * size**3 / _seconds("torch.mm(a, a, out=out)", a=a, out=out)


def _bytes_per_second(size: int, device: torch.device) -> float:
    source, target = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * size / _seconds("target.copy_(source)", source=source, target=target)


def _seconds(statement: str, **names: torch.Tensor) -> float:
    timer = Timer(statement, globals={"torch": torch, **names}, num_threads=torch.get_num_threads())
    return min(timer.blocked_autorange(min_run_time=0.3).times)


def forward(shape: Shape, width: int, hidden: int, product_bytes: int) -> list[Work]:
    """One round: soft colors and messages, their sums over neighbours, the update.

    product_bytes: of a number in the sums over neighbours; all the others are kept in FLOAT bytes.
    """
    G, N, K, D, H = shape.graphs, shape.nodes, shape.colors, width, hidden
    cells = G * N * K
    maps = cells * ((2 * D + 7) * H + H * 2 * D)
    maps += G * N * (2 * D + NUM_INVARIANTS + 4) * H + G * K * (D + 3) * H + G * (D + 7) * H
    messages = product_bytes * cells * (D + 1)  # p and p h, or their sums
    state = FLOAT * cells * D
    return [
        Work(2 * D * cells, state + FLOAT * cells + messages),  # reads h; writes p, and both once more to be summed
        _sums(shape, width, product_bytes),
        Work(2 * maps, 2 * state + messages + 2 * FLOAT * cells),  # reads h, sums, p and z; writes h
    ]


def backward(shape: Shape, width: int, hidden: int, product_bytes: int) -> list[Work]:
    """The same from its end: linear maps twice, for inputs and weights; the sums once, the edges need no gradient."""
    soft, _, update = forward(shape, width, hidden, product_bytes)
    cells = shape.graphs * shape.nodes * shape.colors
    gradients = FLOAT * cells * (width + 1)  # of h and p
    messages = product_bytes * cells * (width + 1)
    return [
        Work(2 * update.flops, update.bytes + gradients + messages),  # reads one more state; writes that of the sums
        _sums(shape, width, product_bytes),
        Work(2 * soft.flops, soft.bytes + 2 * gradients),
    ]


def _sums(shape: Shape, width: int, product_bytes: int) -> Work:
    rows = shape.graphs * shape.nodes
    columns = shape.colors * (width + 1)
    return Work(2 * rows * shape.nodes * columns, product_bytes * (2 * rows * columns + rows * shape.nodes))


def step_seconds(
    shape: Shape, rounds: int, free_rounds: int, width: int, hidden: int, product_bytes: int, limits: Ceilings
) -> float:
    """The least time that the rounds of a step can take, phase after phase."""
    once, back = (
        sum(phase.seconds(limits) for phase in phases(shape, width, hidden, product_bytes))
        for phases in (forward, backward)
    )
    return (rounds + free_rounds) * once + rounds * back
