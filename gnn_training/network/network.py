"""The networks that are trained: the rule of the search; CrossoverNetwork, which decides what a child takes from two
colorings; and PredictionNetwork, which predicts from the state of a search what more rounds will bring.

Letters in shapes: G graphs, T entries of SAVED.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from torch_geometric.data import HeteroData

from gnn_training.contract import CROSSOVER_LAYERS, CROSSOVER_WIDTH, GRAPH_TYPES
from gnn_training.network import rule
from gnn_training.network.crossover_network import CrossoverNetwork, size_of
from gnn_training.network.states import STATE_FEATURES

HIDDEN = 64  # hidden units of PredictionNetwork
SAVED = (1, 2, 3, 4, 5, 6, 8, 11, 15, 20, 28, 40, 60)  # numbers of colors saved, each with a predicted probability
HARDEST = 5.0  # decimal logarithm of the rounds from which the difficulty is 100


class PredictionOutputs(NamedTuple):
    """The outputs of PredictionNetwork for every search."""

    saved_logits: Tensor       # (G, T), see `chances`
    graph_type_logits: Tensor  # (G, 8)
    log_rounds: Tensor         # (G,) decimal logarithm of 1 + the rounds up to the last color that is saved

    def chances(self) -> Tensor:
        """Probabilities (G, T) that a search saves at least SAVED[t] colors until the horizon. Logit t assumes that
        SAVED[t - 1] colors are saved, so the probabilities fall with t.
        """
        return logsigmoid(self.saved_logits.float()).cumsum(1).exp()

    def chromatic(self, num_colors: Tensor, lower: Tensor) -> Tensor:
        """Median (G,) of the number of colors at the horizon. num_colors, lower: as in SearchState. The median falls
        to the next entry of SAVED gradually, while its probability rises from .45 to .55: rounding decides nothing.
        """
        steps = torch.tensor(SAVED).diff(prepend=torch.zeros(1, dtype=torch.int64)).to(self.saved_logits.device)
        saved = ((10 * (self.chances() - 0.5) + 0.5).clamp(0, 1) * steps).sum(1)
        return torch.maximum(num_colors - saved, lower)

    def difficulty(self, num_colors: Tensor, lower: Tensor, reached: Tensor) -> Tensor:
        """Difficulty (G,), 0 to 100: 20 times `log_rounds`, or 20 log10(1 + reached) where the search is over."""
        is_over = num_colors <= lower
        log_rounds = torch.where(is_over, reached.log1p() / torch.tensor(10.0).log(), self.log_rounds)
        return (100 / HARDEST * log_rounds).clamp(0, 100)


def initial_rule() -> Tensor:
    """Weights (NUM_WEIGHTS,) of an untrained network. Every conflict weighs 1, so a round is a round of TabuCol."""
    parts, controls = {name: torch.zeros(shape) for name, shape in rule.SHAPES.items()}, len(rule.CONTROLS)
    parts["by_graph"][controls:-1] = 0.5 * torch.randn(rule.HIDDEN, len(rule.GRAPH_FEATURES))
    parts["by_graph_bias"][:controls] = torch.tensor(rule.FIRST_CONTROLS).log()
    parts["by_node"] = 0.5 * torch.randn(rule.SHAPES["by_node"])
    return torch.cat([part.flatten() for part in parts.values()])


class ColoringNetwork(nn.Module):
    """All networks that are trained. width, layers: size of the crossover network."""

    def __init__(self, width: int = CROSSOVER_WIDTH, layers: int = CROSSOVER_LAYERS) -> None:
        super().__init__()
        self.rule = nn.Parameter(initial_rule())  # trained by evolution strategies
        self.predictions = PredictionNetwork()  # trained by gradient descent
        self.crossover = CrossoverNetwork(width, layers)  # trained by gradient descent, on the pairs of self-play

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "ColoringNetwork":
        """The network of a state dict, of any width and number of layers. ValueError if a weight is not finite."""
        network = cls(*size_of(state, "crossover."))
        network.load_state_dict(state)
        if bad := [name for name, weights in network.named_parameters() if not weights.isfinite().all()]:
            raise ValueError(f"{bad[0]} has weights that are no numbers")
        return network

    def forward(
        self, states: Tensor | None, pairs: HeteroData | None
    ) -> tuple[Tensor, PredictionOutputs | None, Tensor | None]:
        """Return the weights of the rule, the predictions for `states`, and the expected conflicts of children."""
        predictions = None if states is None else self.predictions(states)
        return self.rule, predictions, None if pairs is None else self.crossover(pairs)


class PredictionNetwork(nn.Module):
    """A perceptron with one hidden layer. Its inputs are the features of a search, see states.py."""

    def __init__(self, hidden: int = HIDDEN):
        super().__init__()
        outputs = len(SAVED) + len(GRAPH_TYPES) + 1
        self.layers = nn.Sequential(nn.Linear(STATE_FEATURES + 2, hidden), nn.SiLU(), nn.Linear(hidden, outputs))

    def forward(self, inputs: Tensor) -> PredictionOutputs:
        """Predictions for G searches. inputs (G, STATE_FEATURES + 2): see `states.prediction_inputs`."""
        saved, types, rounds = self.layers(inputs).float().split([len(SAVED), len(GRAPH_TYPES), 1], 1)
        return PredictionOutputs(saved, types, rounds[:, 0])
