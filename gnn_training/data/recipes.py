"""Which graphs a training set holds: families, counts and sizes, as data."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gnn_training.data import families
from gnn_training.data.labels import Instance

TRAIN_SHARE = 0.8  # of the graphs; the others are for validation
Sizes = tuple[tuple[int, int, float], ...]
"""(fewest nodes, most nodes, share of the graphs)."""


@dataclass(frozen=True)
class Recipe:
    """counts: graphs per family; iterations: how long a number of colors may resist the search for labels."""

    counts: dict[str, int]
    sizes: Sizes
    iterations: int

    @property
    def num_graphs(self) -> int:
        """Of all families, for training and validation."""
        return sum(self.counts.values())

    @property
    def num_training(self) -> int:
        """Those of them that are trained on."""
        return round(TRAIN_SHARE * self.num_graphs)


@dataclass(frozen=True)
class Draw:
    """Graph `index` of a family, not drawn yet."""

    seed: int
    family: str
    index: int
    sizes: Sizes

    def load(self) -> Instance:
        """Draw it: the same graph for the same fields, whoever asks and when."""
        return families.draw(self.seed, self.family, self.index, self.num_nodes)

    @property
    def num_nodes(self) -> int:
        """Nodes to ask the family for; a golden ratio sequence keeps the shares in every stretch of indices."""
        bounds = np.cumsum([share for *_, share in self.sizes[:-1]])
        low, high, _ = self.sizes[np.searchsorted(bounds, self.index * 0.6180339887498949 % 1, side="right")]
        rng = np.random.default_rng([self.seed, zlib.crc32(self.family.encode()), self.index, high])
        return int(rng.integers(low, high + 1))


def draws(recipe: Recipe, seed: int, graphs: int = 0) -> Iterator[Draw]:
    """The graphs of a recipe; another total than its own keeps the shares of the families."""
    total = recipe.num_graphs
    wanted = graphs or total
    before = 0
    for family, count in recipe.counts.items():
        after = before + count
        for index in range(after * wanted // total - before * wanted // total):
            yield Draw(seed, family, index, recipe.sizes)
        before = after


FULL = Recipe(
    counts={
        "er_sparse": 2000,
        "er_light": 1000,
        "er_dense": 1800,
        "er_heavy": 800,
        "planted": 1200,
        "interval": 1200,
        "wavelength": 600,
        "leighton": 1400,
        "clique_union": 500,
        "geometric": 1100,
        "geometric_complement": 700,
        "queen": 400,
        "rook": 200,
        "mycielski": 600,
        "barabasi_albert": 900,
        "watts_strogatz": 600,
    },
    sizes=((10, 49, 0.30), (50, 199, 0.40), (200, 499, 0.25), (500, 999, 0.05)),
    iterations=200_000,
)
CPU = Recipe(
    counts={
        "er_sparse": 60,
        "er_light": 450,
        "er_dense": 500,
        "er_heavy": 350,
        "planted": 500,
        "interval": 120,
        "wavelength": 80,
        "leighton": 240,
        "clique_union": 160,
        "geometric": 250,
        "geometric_complement": 180,
        "queen": 110,
        "rook": 40,
        "mycielski": 50,
        "barabasi_albert": 90,
        "watts_strogatz": 70,
    },
    sizes=((36, 130, 12 / 13), (131, 330, 1 / 13)),
    iterations=100_000,
)
SMOKE = Recipe(
    counts=dict.fromkeys(families.FAMILIES, 12) | {"er_dense": 20},
    sizes=((10, 60, 1.0),),
    iterations=5_000,
)
RECIPES = {"full": FULL, "cpu": CPU, "smoke": SMOKE}
