"""The least time that a training step can take on a machine, by formula (Williams, Waterman and Patterson 2009).

docs/SPEED.md shows the counts as a table. Letters: G graphs, N nodes, K colors, D width of the state, H hidden width.
"""

from typing import NamedTuple

import torch
from torch.utils.benchmark import Timer

from gnn_training.model.network import NUM_INVARIANTS, NUM_PAIR_FEATURES
from gnn_training.training.sampler import Shape

SIZES = {"cpu": (512, 1024, 2048), "cuda": (4096, 8192, 16384)}  # rows and columns of the matrices timed
FLOAT = 4  # bytes of a number that takes no part in a sum over neighbours


class Ceilings(NamedTuple):
    """The fastest matrix product and the fastest copy of a machine."""

    flops_per_second: float
    bytes_per_second: float


class Phase(NamedTuple):
    """Floating-point operations of matrix products (a multiplication and an addition are two), and bytes moved."""

    flops: float
    bytes: float

    def seconds(self, ceilings: Ceilings) -> float:
        """The least time: a phase ends when its operations are done and its bytes are moved."""
        return max(self.flops / ceilings.flops_per_second, self.bytes / ceilings.bytes_per_second)


def forward(shape: Shape, width: int, number_bytes: int) -> list[Phase]:
    """Phases of a round: soft colors and messages, their sums over neighbours, the update.

    number_bytes: of a number in the sums over neighbours, 2 in bf16.
    """
    G, N, K, D, H = shape.graphs, shape.nodes, shape.colors, width, 2 * width
    pairs = G * N * K
    maps = pairs * ((2 * D + NUM_PAIR_FEATURES) * H + H * 2 * D)
    maps += G * N * (2 * D + NUM_INVARIANTS + 4) * H + G * K * (D + 3) * H + G * (D + 7) * H
    messages = number_bytes * pairs * (D + 1)  # p and p h, or their sums
    return [
        Phase(2 * D * pairs, FLOAT * pairs * (D + 1) + messages),
        Phase(2 * pairs * N * (D + 1), 2 * messages + number_bytes * G * N * N),
        Phase(2 * maps, FLOAT * pairs * (2 * D + 2) + messages),
    ]


def backward(shape: Shape, width: int, number_bytes: int) -> list[Phase]:
    """The same phases from the last: products for inputs and weights; the edges of the sums need no gradient."""
    soft, sums, update = forward(shape, width, number_bytes)
    numbers = shape.graphs * shape.nodes * shape.colors * (width + 1)
    return [
        Phase(2 * update.flops, update.bytes + (FLOAT + number_bytes) * numbers),
        sums,
        Phase(2 * soft.flops, soft.bytes + 2 * FLOAT * numbers),
    ]


def phases_of_step(shape: Shape, rounds: int, no_gradient_rounds: int, width: int, number_bytes: int) -> list[Phase]:
    """All phases of a step: what is alike in all rounds is added up."""
    once = [(rounds + no_gradient_rounds, phase) for phase in forward(shape, width, number_bytes)]
    back = [(rounds, phase) for phase in backward(shape, width, number_bytes)]
    return [Phase(times * phase.flops, times * phase.bytes) for times, phase in once + back]


def measure_ceilings(device: torch.device, precision: torch.dtype) -> Ceilings:
    """The best of several sizes, with as many threads as torch has now. Small matrices stay in the caches of a CPU."""
    products, copies = [], []
    for size in SIZES[device.type]:
        a = torch.randn(size, size, device=device).to(precision)
        products.append(2 * size**3 / _seconds("torch.mm(a, a, out=out)", a))
        copies.append(2 * a.nbytes / _seconds("out.copy_(a)", a))
    return Ceilings(max(products), max(copies))


def _seconds(statement: str, a: torch.Tensor) -> float:
    names = {"torch": torch, "a": a, "out": torch.empty_like(a)}
    timer = Timer(statement, globals=names, num_threads=torch.get_num_threads())
    return min(timer.blocked_autorange(min_run_time=0.5).times)
