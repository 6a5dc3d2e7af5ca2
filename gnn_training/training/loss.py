"""What training minimizes: loss terms of a batch.

The rule of moving is trained by what comes out of whole searches, which have no gradient. So every graph is searched
twice, with the weights plus and minus a random change, and the gradient points away from the worse one (evolution
strategies: Rechenberg 1973, Salimans et al. 2017; the same is REINFORCE on the weights, Sehnke et al. 2010).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, smooth_l1_loss

from gnn_training.contract import UNKNOWN_TYPE
from gnn_training.graph import NeighbourLists
from gnn_training.model.network import GraphHead, Structure
from gnn_training.model.search import first_weights

WEIGHTS = {"gap": 1.0, "chromatic": 0.1, "family": 0.05, "difficulty": 0.05}
SPREAD = 0.2  # standard deviation of the random change of every weight of the rule
PER_LOG_CONFLICT = 0.15  # colors that a search is worse for conflicts that are left, times the logarithm of 1 + these
TYPICAL = 0.2  # colors: differences above it count little more, so that no graph dominates
_distance = partial(smooth_l1_loss, reduction="none", beta=0.1)


@dataclass(frozen=True)
class Batch:
    """G graphs with their labels, all tensors on one device. num_graphs: of the step on all ranks."""

    ids: np.ndarray  # (G,) int64, positions in the packed graphs
    lists: Callable[[int], NeighbourLists]  # of the graph in a row of the batch
    first: Sequence[np.ndarray]  # (N,) int16 each, colorings to start with
    structure: Structure
    num_colors: Tensor  # (G,) int64, best known
    lower: Tensor  # (G,) int64, bounds on the chromatic number
    graph_type: Tensor  # (G,) int64
    difficulty: Tensor  # (G,) float, 0 to 100
    seeds: Tensor  # (G,) int64, of the search
    change: Tensor  # (G, NUM_WEIGHTS) float, of the rule, standard normal
    num_graphs: int


# Searches every graph S times, with weights (S, G, NUM_WEIGHTS), for so many rounds: fewest colors (S, G) float, and
# the fewest conflicts (S, G) since, 0 where the lower bound is reached.
Search = Callable[[Tensor, Batch, int], tuple[Tensor, Tensor]]


class ColoringNetwork(nn.Module):
    """Everything that is trained. Called on a batch, it searches every graph twice and returns the loss terms."""

    def __init__(self) -> None:
        super().__init__()
        self.move_rule = nn.Parameter(first_weights())
        self.graph_head = GraphHead()

    def forward(self, batch: Batch, search: Search, rounds: int) -> dict[str, Tensor]:
        """Loss terms (scalars), each a sum over the graphs of the batch: divide by the global number of graphs. `gap`
        is the mean number of colors above the best known after so many rounds.
        """
        with torch.no_grad():
            change = SPREAD * batch.change
            fewest, conflicts = search(torch.stack([self.move_rule + change, self.move_rule - change]), batch, rounds)
            plus, minus = fewest + PER_LOG_CONFLICT * conflicts.log1p()  # (G,) each
            worse = (plus - minus) / ((plus - minus).abs() + TYPICAL)  # (G,) within -1 and 1
        # Its gradient is that of the expected result, up to a factor; products and sums stay float32 under autocast.
        slope = worse * (batch.change * self.move_rule).sum(1)
        upper, lower = fewest.amin(0), batch.lower.float()  # (G,)
        chromatic, types, difficulty = self.graph_head(batch.structure, lower, upper)
        span = (upper - lower).clamp(min=1)  # an error counts relative to the gap between the bounds
        known = torch.minimum(batch.num_colors, upper)
        terms = {
            "gap": fewest.mean(0) - batch.num_colors + (slope - slope.detach()),
            "chromatic": _distance(chromatic / span, known / span),
            "family": cross_entropy(types, batch.graph_type, ignore_index=UNKNOWN_TYPE, reduction="none"),
            "difficulty": _distance(difficulty / 100, batch.difficulty / 100),
        }
        return {name: values.sum() for name, values in terms.items()}
