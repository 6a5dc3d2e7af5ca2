"""The state of a search as input of PredictionNetwork: a vector of the same length for every graph.

Letters in shapes: G graphs, N nodes (padded), K colors, A features of a node.
"""

from typing import NamedTuple

import torch
from torch import Tensor

NONE_SINCE = 1e5  # `fewest_conflicts` from here on mean rule.NONE_FOUND, which is no number of conflicts
# Mean and standard deviation of every feature, on 200 graphs of 30 to 1,000 nodes in the shares of recipe `cpu`. The
# first nine features are of the whole search; then come the mean, the spread and the peak of seven numbers of nodes.
FEATURE_MEAN_STD = (
    (6.2, 0.62), (3.8, 0.79), (3.2, 0.92), (0.63, 0.28), (16, 17), (7, 2.1), (6.5, 2.3), (-0.49, 0.78), (1.1, 0.65),
    (4.9, 0.96), (0.44, 0.52), (1.3, 1.1), (0.026, 0.058), (1.3, 1.2), (0.39, 0.25), (0.085, 0.078),
    (0.29, 0.29), (0.54, 0.37), (0.6, 0.26), (0.11, 0.092), (1, 0.55), (0.065, 0.047), (0.27, 0.18),
    (5, 0.92), (0.7, 0.75), (1.5, 1.1), (0.04, 0.096), (1.9, 1.5), (0.39, 0.25), (0.14, 0.16),
)  # fmt: skip
LARGEST = 4.0  # features are clipped to so many standard deviations from the mean
STATE_FEATURES = len(FEATURE_MEAN_STD)


class SearchState(NamedTuple):
    """What a search of every graph has seen. The first five fields are about its last coloring."""

    colors: Tensor  # (G, N) int64
    free: Tensor  # (G, N) float, open colors without a conflict, other than the node's own
    one: Tensor  # (G, N) float, open colors with one conflict
    conflicts: Tensor  # (G, N) float
    moves: Tensor  # (G, N) float
    num_colors: Tensor  # (G,) float, fewest so far
    lower: Tensor  # (G,) float, lower bound of the number of colors
    rounds: Tensor  # (G,) float, made so far
    reached: Tensor  # (G,) float, the round in which `num_colors` were reached
    fewest_conflicts: Tensor  # (G,) float, since round `reached`, with one color less


def features(exists: Tensor, degrees: Tensor, search: SearchState, color_ids: Tensor) -> Tensor:
    """Features (G, STATE_FEATURES) of searches. exists: (G, N) bool; degrees: (G, N); color_ids: (K,)."""
    mask, d, k = exists.float(), degrees.float(), search.num_colors
    n = mask.sum(1)  # (G,)
    sizes = (0.0 * n[:, None] * color_ids).scatter_add(1, search.colors, mask)  # (G, K)
    crowding = torch.where(exists, sizes.gather(1, search.colors) * (k / n)[:, None], 1.0)
    counts = torch.stack([d, search.free, search.one, search.conflicts, search.moves], 1).log1p()
    of_nodes = torch.cat([counts, torch.stack([d / n[:, None], crowding.log()], 1)], 1)  # (G, A, N)

    def mean(x: Tensor) -> Tensor:
        return (x * mask[:, None]).sum(2) / n[:, None]

    center = mean(of_nodes)  # (G, A)
    spread = (mean((of_nodes - center[:, :, None]) ** 2) + 1e-6).sqrt()
    peak = mean(of_nodes.exp()).log()  # a smooth maximum
    rounds, since = search.rounds.log1p(), (search.rounds - search.reached).log1p()
    conflicts = torch.where(search.fewest_conflicts < NONE_SINCE, search.fewest_conflicts, 0).log1p()
    of_search = torch.stack(
        [n.log(), k.log(), search.lower.log(), search.lower / k, n / k, rounds, since, since - rounds, conflicts], 1
    )
    typical = of_search.new_tensor(FEATURE_MEAN_STD)  # (STATE_FEATURES, 2)
    values = (torch.cat([of_search, center, spread, peak], 1) - typical[:, 0]) / typical[:, 1]
    return values.clamp(-LARGEST, LARGEST)


def prediction_inputs(features: Tensor, rounds: Tensor, horizon: Tensor) -> Tensor:
    """Inputs (G, STATE_FEATURES + 2) of PredictionNetwork. rounds: (G,) float, made so far; horizon: (G,) float, rounds
    to predict for, or 0 to predict the best that any method may find.
    """
    is_limited = horizon > 0
    longer = torch.where(is_limited, (horizon.clamp(min=1).log1p() - rounds.log1p()) / 2, 0.0)
    return torch.cat([features, torch.stack([longer, 1.0 - is_limited.float()], 1)], 1)
