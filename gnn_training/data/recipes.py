"""Recipes of training sets: how many graphs of each family, and how large."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gnn_training.data import families
from gnn_training.graph import Instance

TRAIN_SHARE = 0.8  # the other graphs are for validation
Sizes = tuple[tuple[int, int, float], ...]
"""(fewest nodes, most nodes, share of the graphs)."""


@dataclass(frozen=True)
class Recipe:
    """Number of graphs per family, their sizes, and the iterations after which the search for a label gives up."""

    counts: dict[str, int]
    sizes: Sizes
    iterations: int

    @property
    def num_graphs(self) -> int:
        """Graphs of all families, for training and validation."""
        return sum(self.counts.values())

    @property
    def num_training(self) -> int:
        """Graphs in the training split."""
        return round(TRAIN_SHARE * self.num_graphs)


@dataclass(frozen=True)
class Draw:
    """Graph `index` of a family, before it is drawn."""

    seed: int
    family: str
    index: int
    sizes: Sizes

    def load(self) -> Instance:
        """Draw the graph. It depends on the fields alone."""
        return families.draw(self.seed, self.family, self.index, self.num_nodes)

    @property
    def num_nodes(self) -> int:
        """Size to ask the family for. A golden ratio sequence keeps the shares of the sizes in any run of indices."""
        bounds = np.cumsum([share for *_, share in self.sizes[:-1]])
        low, high, _ = self.sizes[np.searchsorted(bounds, self.index * 0.6180339887498949 % 1, side="right")]
        rng = np.random.default_rng([self.seed, zlib.crc32(self.family.encode()), self.index, high])
        return int(rng.integers(low, high + 1))


def draws(recipe: Recipe, seed: int, graphs: int = 0) -> Iterator[Draw]:
    """The graphs of a recipe. `graphs`, if above 0, is another total with the same shares of the families."""
    total = recipe.num_graphs
    wanted = graphs or total
    before = 0
    for family, count in recipe.counts.items():
        after = before + count
        for index in range(after * wanted // total - before * wanted // total):
            yield Draw(seed, family, index, recipe.sizes)
        before = after


# Graphs per family: (full, cpu).
_COUNTS = {
    "er_sparse": (2000, 60),
    "er_light": (1000, 450),
    "er_dense": (1800, 500),
    "er_heavy": (800, 350),
    "planted": (1200, 500),
    "interval": (1200, 120),
    "wavelength": (600, 80),
    "leighton": (1400, 240),
    "clique_union": (500, 160),
    "geometric": (1100, 250),
    "geometric_complement": (700, 180),
    "queen": (400, 110),
    "rook": (200, 40),
    "mycielski": (600, 50),
    "barabasi_albert": (900, 90),
    "watts_strogatz": (600, 70),
}
FULL = Recipe(
    counts={family: full for family, (full, _) in _COUNTS.items()},
    sizes=((10, 49, 0.30), (50, 199, 0.40), (200, 499, 0.25), (500, 999, 0.05)),
    iterations=200_000,
)
CPU = Recipe(
    counts={family: cpu for family, (_, cpu) in _COUNTS.items()},
    sizes=((36, 130, 12 / 13), (131, 330, 1 / 13)),
    iterations=100_000,
)
SMOKE = Recipe(
    counts=dict.fromkeys(families.FAMILIES, 12) | {"er_dense": 20},
    sizes=((10, 60, 1.0),),
    iterations=5_000,
)
RECIPES = {"full": FULL, "cpu": CPU, "smoke": SMOKE}
