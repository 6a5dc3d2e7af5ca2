"""Islands: pairs of parents and the children of these, generation after generation. A thread of a CPU has one; an
NVIDIA GPU makes the children of hundreds in one launch, see `search/gpu_islands.py`.
"""

from collections.abc import Sequence
from operator import itemgetter

import numpy as np

from gnn_training.graph import NeighbourLists
from gnn_training.search.crossover import Parent

ELITE = 10  # generations after which the best child of an earlier such period returns
ALIKE = 0.99  # share of the nodes with the same color in two parents, from which on one of them begins again
ODDS_AGAINST, FIRST_ODDS, MAX_ODDS = 16, 64, 256  # that the network's choice of classes is the better one
SPACING = 0.1  # share of the nodes in which another island must differ to be met


class Island:
    """HEAD (Moalic and Gondran 2018) with k colors: two parents have two children, the crossover of the first with the
    second and of the second with the first, and a local search improves both. After a better coloring is known, both
    parents lose classes and are the next ones.

    Two rules can choose the classes of a child: the network, and HEAD's, which takes the largest class. `odds` to
    ODDS_AGAINST is the belief that the network's is better, and each rule is drawn with that probability (Thompson
    1933). Where the two children have different rules, the one with fewer conflicts doubles the odds of its rule.
    """

    def __init__(self, lists: NeighbourLists):
        self.lists, self.odds, self.k = lists, FIRST_ODDS, 0
        self.first = self.second = uncolored(lists)  # the parents

    def begin(self, first: np.ndarray, k: int) -> None:
        """Look for k colors from a coloring (N,), and from the second parent so far. The search may change `starts`."""
        self.k, self.generation = k, 0
        self.starts = [each.copy() if each.max() < k else largest_classes(each, k) for each in (first, self.second)]
        self.by_network = [False, False]  # the children; alike also if they are none
        self.elite: list[Parent] = []  # the best child of the last ELITE generations, and of those before

    def take(self, parents: list[Parent]) -> None:
        """Take in the children that the search has made of the starts. The list then holds the next parents."""
        if self.by_network[0] != self.by_network[1]:
            network, size = (parents[self.by_network.index(choice)].conflicts for choice in (True, False))
            change = 2 * self.odds if network < size else self.odds // 2 if network > size else self.odds
            self.odds = min(max(change, 1), MAX_ODDS)
        top = min(parents, key=itemgetter(0))
        self.elite = self.elite or [top, top]
        self.elite[0] = min(self.elite[0], top, key=itemgetter(0))
        self.generation += 1
        if self.generation % ELITE == 0:
            parents[0] = self.elite[1]
            self.elite = [top, self.elite[0]]

    def choose_starts(self, parents: Sequence[Parent], chance: int, other: np.ndarray | None = None) -> bool:
        """Choose the next starts. Return True if they are to be children of these parents, by the choices `by_network`.
        If the parents are alike, return False: the starts are then the first parent and `other` (N,), or nodes without
        a color if `other` is not far from it. chance: random bits.
        """
        self.first, self.second = (parent.colors for parent in parents)
        n, total = len(self.first), ODDS_AGAINST + self.odds
        self.by_network = [chance % total >= ODDS_AGAINST, chance // total % total >= ODDS_AGAINST]
        if num_alike(self.first, self.second, self.k) <= ALIKE * n:
            return True
        is_far = other is not None and num_alike(self.first, other, self.k) < (1 - SPACING) * n
        self.starts = [self.first.copy(), uncolored(self.lists) if other is None or not is_far else other]
        self.by_network = [False, False]
        return False


def uncolored(lists: NeighbourLists) -> np.ndarray:
    """-1 for every node: (N,) int32."""
    return np.full(lists.num_nodes, -1, dtype=np.int32)


def num_alike(first: np.ndarray, second: np.ndarray, k: int) -> int:
    """Nodes of two colorings (N,) with k colors that every class has in common with its most similar one."""
    return int(np.bincount(first * k + second, minlength=k * k).reshape(k, k).max(1).sum())


def largest_classes(colors: np.ndarray, k: int) -> np.ndarray:
    """The k largest classes of colors (N,) as 0..k-1, and -1 for all other nodes: (N,) int32."""
    color_ids = np.argsort(-np.bincount(colors), kind="stable")[:k]
    rank = np.full(int(colors.max()) + 1, -1, dtype=np.int32)
    rank[color_ids] = np.arange(len(color_ids))
    return rank[colors]
