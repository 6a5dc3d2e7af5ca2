"""What training minimizes: loss terms of a batch.

The rule of moving is trained by what comes out of whole searches, which have no gradient. So every graph is searched
twice, with the weights plus and minus a random change, and the gradient points away from the worse one (evolution
strategies: Rechenberg 1973, Salimans et al. 2017; the same is REINFORCE on the weights, Sehnke et al. 2010).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, smooth_l1_loss

from gnn_training.contract import UNKNOWN_TYPE
from gnn_training.graph import NeighbourLists
from gnn_training.model.network import SAVED, ColoringNetwork, SearchState, States

WEIGHTS = {"gap": 1.0, "saved": 0.5, "family": 0.05, "rounds": 0.2}
SPREAD = 0.2  # standard deviation of the random change of every weight of the rule
PER_LOG_CONFLICT = 0.15  # colors that a search is worse for conflicts that are left, times the logarithm of 1 + these
TYPICAL = 0.2  # colors: differences above it count little more, so that no graph dominates


@dataclass(frozen=True)
class Batch:
    """G graphs with their labels, all tensors on one device. num_graphs: of the step on all ranks."""

    ids: np.ndarray  # (G,) int64, positions in the packed graphs
    lists: Callable[[int], NeighbourLists]  # of the graph in a row of the batch
    first: Sequence[np.ndarray]  # (N,) int16 each, colorings to start with
    num_colors: Tensor  # (G,) int64, best known
    lower: Tensor  # (G,) int64, bounds on the chromatic number
    seeds: Tensor  # (G,) int64, of the search
    change: Tensor  # (G, NUM_WEIGHTS) float, of the rule, standard normal
    num_graphs: int
    states: "StateBatch | None" = None  # None: this rank has none


@dataclass(frozen=True)
class StateBatch:
    """States of G long searches and what came later, on one device. num_states: of the step on all ranks."""

    inputs: States
    search: SearchState
    saved: Tensor  # (G,) float, colors saved until the horizon
    log_rounds: Tensor  # (G,) float, decimal logarithm of 1 + the rounds up to the last of them
    graph_type: Tensor  # (G,) int64
    num_states: int


# Searches every graph S times, with weights (S, G, NUM_WEIGHTS), for so many rounds: fewest colors (S, G) float, and
# the fewest conflicts (S, G) since, 0 where the lower bound is reached.
Searcher = Callable[[Tensor, Batch, int], tuple[Tensor, Tensor]]


class LossTerms(nn.Module):
    """The trained network. Called on a batch, it searches every graph twice and returns the loss terms."""

    thresholds: Tensor

    def __init__(self, trained: ColoringNetwork):
        super().__init__()
        self.trained = trained
        self.register_buffer("thresholds", torch.tensor(SAVED), persistent=False)  # on the device before the first step

    def forward(self, batch: Batch, search: Searcher, rounds: int) -> dict[str, Tensor]:
        """Loss terms (scalars), each divided by the number of graphs, or of states, of the step on all ranks. `gap` is
        the mean number of colors above the best known after so many rounds.
        """
        rule = self.trained.move_rule
        with torch.no_grad():
            change = SPREAD * batch.change
            fewest, conflicts = search(torch.stack([rule + change, rule - change]), batch, rounds)
            plus, minus = fewest + PER_LOG_CONFLICT * conflicts.log1p()  # (G,) each
            worse = (plus - minus) / ((plus - minus).abs() + TYPICAL)  # (G,) within -1 and 1
        # Its gradient is that of the expected result, up to a factor; products and sums stay float32 under autocast.
        slope = worse * (batch.change * rule).sum(1)
        gap = fewest.mean(0) - batch.num_colors + (slope - slope.detach())
        return {"gap": gap.sum() / batch.num_graphs, **self.of_predictions(batch.states)}

    def of_predictions(self, batch: StateBatch | None) -> dict[str, Tensor]:
        """Loss terms of PredictionNetwork: by maximum likelihood, as in survival analysis, for the colors saved."""
        network = self.trained.predictions
        if batch is None:  # all ranks need a gradient
            nothing = torch.stack([0.0 * weight.sum() for weight in network.parameters()]).sum()
            return dict.fromkeys(("saved", "family", "rounds"), nothing)
        predicted = network(batch.inputs)
        has_saved = (batch.saved[:, None] >= self.thresholds).float()  # (G, T)
        had_saved = torch.cat([torch.ones_like(has_saved[:, :1]), has_saved[:, :-1]], 1)  # the number before
        entropy = binary_cross_entropy_with_logits(predicted.saved_logits, has_saved, reduction="none")
        terms = {
            "saved": (entropy * had_saved).sum(1),
            "family": cross_entropy(
                predicted.graph_type_logits, batch.graph_type, ignore_index=UNKNOWN_TYPE, reduction="none"
            ),
            "rounds": smooth_l1_loss(predicted.log_rounds, batch.log_rounds, reduction="none", beta=0.2),
        }
        return {name: values.sum() / batch.num_states for name, values in terms.items()}
