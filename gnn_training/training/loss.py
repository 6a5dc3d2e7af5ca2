"""What training minimizes: loss terms of a batch.

The rule of moving is trained by what comes out of whole searches, which have no gradient. So every graph is searched
twice, with the weights plus and minus a random change, and the gradient points away from the worse one (evolution
strategies: Rechenberg 1973, Salimans et al. 2017; the same is REINFORCE on the weights, Sehnke et al. 2010).
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import gcd

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, smooth_l1_loss

from gnn_training.contract import UNKNOWN_TYPE
from gnn_training.graph import NeighbourLists
from gnn_training.model import search
from gnn_training.model.graphs import Graphs
from gnn_training.model.greedy import noise_table
from gnn_training.model.network import GraphHead
from gnn_training.model.program import limits
from gnn_training.solve.search_kernel import search_graph

WEIGHTS = {"gap": 1.0, "chromatic": 0.1, "family": 0.05, "difficulty": 0.05}
SPREAD = 0.2  # standard deviation of the random change of every weight of the rule
PER_LOG_CONFLICT = 0.15  # colors that a search is worse for conflicts that are left, times the logarithm of 1 + these
ROUNDS_PER_LOOK = 100  # of a search on a GPU, whether it is over
TYPICAL = 0.2  # colors: differences above it count little more, so that no graph dominates
_distance = partial(smooth_l1_loss, reduction="none", beta=0.1)


@dataclass(frozen=True)
class Batch:
    """Graphs with their labels, all tensors on one device."""

    graphs: Graphs
    lists: Sequence[NeighbourLists]  # the same graphs on the host
    first: Tensor  # (G, N) int64, colorings to start with
    num_colors: Tensor  # (G,) int64, best known
    lower: Tensor  # (G,) int64, bounds on the chromatic number
    graph_type: Tensor  # (G,) int64
    difficulty: Tensor  # (G,) float, 0 to 100
    seeds: Tensor  # (G,) int64, of the search
    change: Tensor  # (G, NUM_WEIGHTS) float, of the rule, standard normal
    graph_mask: Tensor  # (G,) float, 0 for an empty place, which counts nothing, else 1
    max_colors: int  # of the colorings to start with


class ColoringNetwork(nn.Module):
    """Everything that is trained. Called on a batch, it searches every graph twice and returns the loss terms."""

    def __init__(self) -> None:
        super().__init__()
        self.move_rule = nn.Parameter(search.first_weights())
        self.graph_head = GraphHead()

    def forward(self, batch: Batch, rounds: int) -> dict[str, Tensor]:
        """Loss terms (scalars), each a sum over the graphs of the batch: divide by the global number of graphs. `gap`
        is the mean number of colors above the best known after so many rounds.
        """
        with torch.no_grad():
            change = SPREAD * batch.change
            found = [run_searches(self.move_rule + sign * change, batch, rounds) for sign in (1, -1)]
            plus, minus = (fewest + PER_LOG_CONFLICT * conflicts.log1p() for fewest, conflicts in found)
            worse = (plus - minus) / ((plus - minus).abs() + TYPICAL)  # (G,) within -1 and 1
            fewest = (found[0][0] + found[1][0]) / 2  # (G,)
        # Its gradient is that of the expected result, up to a factor; products and sums stay float32 under autocast.
        slope = worse * (batch.change * self.move_rule).sum(1)
        upper, lower = torch.minimum(*(colors for colors, _ in found)), batch.lower.float()
        chromatic, types, difficulty = self.graph_head(batch.graphs, lower, upper)
        span = (upper - lower).clamp(min=1)  # an error counts relative to the gap between the bounds
        known = torch.minimum(batch.num_colors, upper)
        terms = {
            "gap": fewest - batch.num_colors + (slope - slope.detach()),
            "chromatic": _distance(chromatic / span, known / span),
            "family": cross_entropy(types, batch.graph_type, ignore_index=UNKNOWN_TYPE, reduction="none"),
            "difficulty": _distance(difficulty / 100, batch.difficulty / 100),
        }
        return {name: (values * batch.graph_mask).sum() for name, values in terms.items()}


@torch.no_grad()
def run_searches(weights: Tensor, batch: Batch, rounds: int) -> tuple[Tensor, Tensor]:
    """Search every graph of a batch, with weights (G, NUM_WEIGHTS) of its own: fewest colors (G,) float, and the fewest
    conflicts (G,) since, 0 where the lower bound is reached. A CPU searches graph after graph in compiled loops, on as
    many threads as torch may use; a GPU searches all at once.
    """
    if batch.first.is_cuda:
        with torch.autocast("cuda", enabled=False):
            sizes = limits(*(torch.tensor(size) for size in (batch.first.shape[1], batch.max_colors)))
            sizes = search.Limits(*(ids.to(batch.first.device) for ids in sizes))
            graph = torch.arange(len(batch.seeds), device=batch.first.device)
            task = search.Task(batch.first, batch.lower, 0 * batch.lower, graph, batch.seeds)
            look_every = gcd(rounds, ROUNDS_PER_LOOK)
            found = search.search(search.split(weights), batch.graphs, task, sizes, torch.tensor(rounds), look_every)
            fewest, conflicts = found.fewest.float(), found.conflicts
    else:
        table = noise_table(torch.arange(batch.max_colors)).numpy()

        def run(i: int) -> tuple[int, float]:
            offsets, neighbours = batch.lists[i]
            first = batch.first[i, : len(offsets) - 1].numpy()
            lower, seed = int(batch.lower[i]), int(batch.seeds[i])
            _, fewest, conflicts = search_graph(
                offsets, neighbours, first, lower, weights[i].detach().numpy(), table, seed, rounds
            )
            return fewest, conflicts

        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            results = torch.tensor(list(pool.map(run, range(len(batch.lists)))), dtype=torch.float32)
        fewest, conflicts = results.view(-1, 2).unbind(1)
    return fewest, torch.where(fewest > batch.lower, conflicts, 0)
