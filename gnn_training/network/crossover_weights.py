"""The weights of the crossover network, and their text in a model file.

Letters in shapes: F features, D width, L layers.
"""

import json
import math
from functools import cache
from typing import NamedTuple

import numpy as np

from gnn_training.contract import MAX_WEIGHT

# A node in a coloring has these features: neighbours of its color; largest share of its class that lies in one class of
# the other coloring; share that lies in the node's class of that coloring; degree; nodes its class could take; moves
# since its last one; other colors without a conflict; size of its class; and for all nodes: density, nodes per color.
FEATURES = (
    "conflicts", "class_agreement", "agreement", "degree", "takes", "age", "free", "size", "density", "nodes_per_color",
)  # fmt: skip
MESSAGES = 4  # messages to a node from: itself, its class, itself in the other coloring, its class of that coloring
F = len(FEATURES)


class CrossoverWeights(NamedTuple):
    """The weights of a network with L layers, all float32."""

    first: np.ndarray  # (F, D)
    first_bias: np.ndarray  # (D,)
    layers: np.ndarray  # (L, MESSAGES, D, D)
    layer_biases: np.ndarray  # (L, D)
    out: np.ndarray  # (D,)
    direct: np.ndarray  # (F,)

    @property
    def size(self) -> tuple[int, int]:
        """Width and number of layers."""
        return len(self.out), len(self.layers)


def shapes(width: int, layers: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights by name."""
    d = width
    sizes = (F, d), (d,), (layers, MESSAGES, d, d), (layers, d), (d,), (F,)
    return dict(zip(CrossoverWeights._fields, sizes, strict=True))


def to_text(weights: CrossoverWeights) -> str:
    """JSON of a dict from names to nested lists. `from_text` reads exactly the same weights."""
    digits = np.vectorize(lambda weight: float(f"{weight:.9g}"), otypes=[float])
    return json.dumps({name: digits(part).tolist() for name, part in weights._asdict().items()})


@cache
def from_text(text: str) -> CrossoverWeights:
    """Weights of any width and number of layers, as `to_text` writes them. Raises KeyError, TypeError or ValueError if
    an array is missing or has another shape, or if a weight is not finite or its absolute value is above MAX_WEIGHT.
    """
    numbers = json.loads(text)
    parts = [np.array(numbers[name], dtype=np.float32) for name in CrossoverWeights._fields]
    expected = shapes(width=len(numbers["out"]), layers=len(numbers["layers"]))
    for part, (name, shape) in zip(parts, expected.items(), strict=True):
        if part.shape != (shape if math.prod(shape) else (0,)):  # JSON keeps no shape of an empty array
            raise ValueError(f"{name} of crossover has shape {part.shape}, not {shape}")
        if not np.abs(part).max(initial=0) <= MAX_WEIGHT:
            raise ValueError(f"{name} of crossover must be {MAX_WEIGHT:g} at most")
    return CrossoverWeights(*(part.reshape(shape) for part, shape in zip(parts, expected.values(), strict=True)))


def zero_weights(width: int = 1, layers: int = 0) -> CrossoverWeights:
    """Weights of zero. With them every value is 1, so a child takes the class with most nodes left, as in GPX."""
    return CrossoverWeights(*(np.zeros(shape, dtype=np.float32) for shape in shapes(width, layers).values()))
