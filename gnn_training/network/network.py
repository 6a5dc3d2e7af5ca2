"""The networks that are trained: the rule of the search, CrossoverNetwork, which says what a child takes from two
colorings, and PredictionNetwork, which sees how far a search has come and predicts what more rounds will bring.

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

HIDDEN = 64  # units of PredictionNetwork
SAVED = (1, 2, 3, 4, 5, 6, 8, 11, 15, 20, 28, 40, 60)  # colors that more rounds may save: a probability for each
HARDEST = 5.0  # decimal logarithm of the rounds that difficulty 100 stands for


class PredictionOutputs(NamedTuple):
    """What PredictionNetwork says of every search."""

    saved_logits: Tensor       # (G, T), see `chances`
    graph_type_logits: Tensor  # (G, 8)
    log_rounds: Tensor         # (G,) decimal logarithm of 1 + the rounds up to the last color that is saved

    def chances(self) -> Tensor:
        """Probabilities (G, T) of saving at least SAVED colors until the horizon. A logit is of one of them if the one
        before has come true, so they fall.
        """
        return logsigmoid(self.saved_logits.float()).cumsum(1).exp()

    def chromatic(self, num_colors: Tensor, lower: Tensor) -> Tensor:
        """Median (G,) of the number of colors at the horizon, for searches of SearchState. It falls from one color to
        the next while the probability of that rises from .45 to .55, so that rounding decides nothing.
        """
        steps = torch.tensor(SAVED).diff(prepend=torch.zeros(1, dtype=torch.int64)).to(self.saved_logits.device)
        saved = ((10 * (self.chances() - 0.5) + 0.5).clamp(0, 1) * steps).sum(1)
        return torch.maximum(num_colors - saved, lower)

    def difficulty(self, num_colors: Tensor, lower: Tensor, reached: Tensor) -> Tensor:
        """Difficulty (G,), 0 to 100: 20 times `log_rounds`, where the search is not over."""
        is_over = num_colors <= lower
        log_rounds = torch.where(is_over, reached.log1p() / torch.tensor(10.0).log(), self.log_rounds)
        return (100 / HARDEST * log_rounds).clamp(0, 100)


def initial_rule() -> Tensor:
    """Weights (NUM_WEIGHTS,) of an untrained network: every conflict weighs 1, so that a round is one of TabuCol."""
    parts, controls = {name: torch.zeros(shape) for name, shape in rule.SHAPES.items()}, len(rule.CONTROLS)
    parts["by_graph"][controls:-1] = 0.5 * torch.randn(rule.HIDDEN, len(rule.GRAPH_FEATURES))
    parts["by_graph_bias"][:controls] = torch.tensor(rule.FIRST_CONTROLS).log()
    parts["by_node"] = 0.5 * torch.randn(rule.SHAPES["by_node"])
    return torch.cat([part.flatten() for part in parts.values()])


class ColoringNetwork(nn.Module):
    """Everything that is trained. width, layers: of the crossover network."""

    def __init__(self, width: int = CROSSOVER_WIDTH, layers: int = CROSSOVER_LAYERS) -> None:
        super().__init__()
        self.rule = nn.Parameter(initial_rule())  # by evolution strategies
        self.predictions = PredictionNetwork()  # by gradient
        self.crossover = CrossoverNetwork(width, layers)  # by gradient, from the pairs of self-play

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "ColoringNetwork":
        """The network with a state dict, of any width and number of layers. ValueError if a weight is no number."""
        network = cls(*size_of(state, "crossover."))
        network.load_state_dict(state)
        if bad := [name for name, weights in network.named_parameters() if not weights.isfinite().all()]:
            raise ValueError(f"{bad[0]} has weights that are no numbers")
        return network

    def forward(
        self, states: Tensor | None, pairs: HeteroData | None
    ) -> tuple[Tensor, PredictionOutputs | None, Tensor | None]:
        """The weights of the rule, the predictions for some searches, and the conflicts of the children of pairs."""
        predictions = None if states is None else self.predictions(states)
        return self.rule, predictions, None if pairs is None else self.crossover(pairs)


class PredictionNetwork(nn.Module):
    """A perceptron of one hidden layer on the features of a search, see states.py."""

    def __init__(self, hidden: int = HIDDEN):
        super().__init__()
        outputs = len(SAVED) + len(GRAPH_TYPES) + 1
        self.layers = nn.Sequential(nn.Linear(STATE_FEATURES + 2, hidden), nn.SiLU(), nn.Linear(hidden, outputs))

    def forward(self, inputs: Tensor) -> PredictionOutputs:
        """Predictions for searches, from what `states.prediction_inputs` gives (G, STATE_FEATURES + 2)."""
        saved, types, rounds = self.layers(inputs).float().split([len(SAVED), len(GRAPH_TYPES), 1], 1)
        return PredictionOutputs(saved, types, rounds[:, 0])
