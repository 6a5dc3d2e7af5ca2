"""What many ranks would do, without them: how evenly the plan deals, and how long an epoch would take."""

from dataclasses import dataclass

import numpy as np

from gnn_training.settings import TrainSettings
from gnn_training.training.batches import BatchPlan, cost
from gnn_training.training.cost import Formula
from gnn_training.training.estimate import epoch_seconds

LAUNCH_SECONDS = 10e-6  # of a collective, assumed


@dataclass(frozen=True)
class Link:
    """Between two GPUs of a machine: published bytes per second in one direction, assumed seconds of a hop."""

    name: str
    bytes_per_second: float
    hop_seconds: float


LINKS = (Link("NVLink 5", 900e9, 1e-6), Link("NVLink 4", 450e9, 1e-6), Link("PCIe 5.0 x16", 63e9, 3e-6))


@dataclass(frozen=True)
class Balance:
    """A plan's epoch for so many ranks.

    imbalance: work of the busiest rank over that of the mean one, the worst of all steps. Padding and empty places
    count, for they take time; a part without any graph does not. useful_share: of all that work, what is done on nodes
    and colors that exist.
    """

    ranks: int
    steps: int
    imbalance: float
    useful_share: float


def balance(plan: BatchPlan, nodes: np.ndarray, colors: np.ndarray, ranks: int) -> Balance:
    """Go through an epoch of the plan."""
    costs, worst, done, useful = cost(nodes, colors), 1.0, 0.0, 0.0
    for step in plan.epoch(0):
        busy = np.array([len(part) > 0 for part in step.parts]).reshape(-1, ranks)  # (micro-batches, ranks)
        work = step.shape.cost * busy.sum(0)  # (ranks,)
        worst = max(worst, work.max() / work.mean())
        done += work.sum()
        useful += sum(costs[part].sum() for part in step.parts)
    return Balance(ranks, plan.steps_per_epoch, float(worst), float(useful / done))


@dataclass(frozen=True)
class Epoch:
    """An epoch on so many ranks over a link, and how many times as fast as one rank it is."""

    ranks: int
    link: str
    all_reduce_seconds: float
    seconds: float
    speedup: float


def epochs(
    alone: BatchPlan, together: BatchPlan, ranks: int, settings: TrainSettings, formula: Formula, num_bytes: int
) -> list[Epoch]:
    """Epochs of the plan `together`, on every link: steps by the formula, each with one all-reduce of num_bytes."""
    one, many = (epoch_seconds(plan, settings, formula) for plan in (alone, together))
    result = []
    for link in LINKS:
        exchange = all_reduce_seconds(num_bytes, ranks, link)
        whole = many + together.steps_per_epoch * exchange  # nothing hides it
        result.append(Epoch(ranks, link.name, exchange, whole, one / whole))
    return result


def all_reduce_seconds(num_bytes: int, ranks: int, link: Link) -> float:
    """A ring: 2 (ranks - 1) hops, each with a share 1 / ranks of the bytes (Patarasuk and Yuan 2009)."""
    return LAUNCH_SECONDS + 2 * (ranks - 1) * (link.hop_seconds + num_bytes / ranks / link.bytes_per_second)
