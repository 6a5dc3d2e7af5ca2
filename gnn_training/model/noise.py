"""Noise that breaks symmetry: an integer hash, since float hashes differ between runtimes and devices."""

import torch
from torch import Tensor

PRIME = 2_147_483_629  # the largest below 2^31 but two: squares of residues stay inside int64
STRIDE = 104_729  # from the seeds of one round to those of the next


def noise(seeds: Tensor, num_nodes: int, num_colors: int) -> Tensor:
    """Pseudo-random numbers (G, N, K) of mean 0 and variance 1, a pure function of (seed, node, color).

    seeds (G,) int64. Each of four rounds multiplies and squares in the integers mod PRIME, which mixes all bits; only
    `*`, `+` and `%` on int64 are used, so every runtime computes the same.
    """
    device = seeds.device
    nodes = torch.arange(num_nodes, device=device)[None, :, None]
    colors = torch.arange(num_colors, device=device)[None, None, :]
    x = (seeds[:, None, None] % PRIME * 48_271 + nodes * 69_621 + 1) % PRIME
    x = (x * x + colors * 40_014 + 12_345) % PRIME
    for _ in range(3):
        x = (x * (x + 1_000_003) + 7) % PRIME
    return (x.float() / PRIME - 0.5) * 12**0.5
