"""Recipes of training sets: how many graphs of each family, and how large."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gnn_training.data import families
from gnn_training.graph import Instance

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
        """Graphs in the training split, four of five."""
        return round(0.8 * self.num_graphs)


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
    total, before = recipe.num_graphs, 0
    wanted = graphs or total
    for family, count in recipe.counts.items():
        for index in range((before + count) * wanted // total - before * wanted // total):
            yield Draw(seed, family, index, recipe.sizes)
        before += count


RECIPES = {
    "full": Recipe(
        counts={name: family.full for name, family in families.FAMILIES.items()},
        sizes=((10, 49, 0.30), (50, 199, 0.40), (200, 499, 0.25), (500, 999, 0.05)),
        iterations=200_000,
    ),
    "cpu": Recipe(
        counts={name: family.cpu for name, family in families.FAMILIES.items()},
        sizes=((36, 130, 12 / 13), (131, 330, 1 / 13)),
        iterations=100_000,
    ),
    "smoke": Recipe(dict.fromkeys(families.FAMILIES, 12) | {"er_dense": 20}, ((10, 60, 1.0),), iterations=5_000),
}
