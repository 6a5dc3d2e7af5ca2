"""Islands: pairs of parents and their children, generation after generation. A thread of a CPU has one island; an
NVIDIA GPU makes the children of hundreds of islands in one launch, see `search/gpu_islands.py`.
"""

from collections.abc import Sequence
from operator import itemgetter

import numpy as np

from gnn_training.graph import NeighbourLists
from gnn_training.search.crossover import Individual

ELITE = 10  # generations of a period; after each period, the best child of the period before it returns as a parent
ALIKE = 0.99  # if two parents agree on a larger share of the nodes, one of them is replaced
ODDS_AGAINST, FIRST_ODDS, MAX_ODDS = 16, 64, 256  # odds that the network chooses classes better than HEAD does
SPACING = 0.1  # least share of the nodes in which a parent from another island must differ


class Island:
    """HEAD (Moalic and Gondran 2018) with k colors: two parents have two children, the crossover of the first with the
    second and of the second with the first, and a local search improves both. After a better coloring is found, the
    parents lose some of their classes and remain the parents.

    Two rules can choose the classes of a child: the network, and HEAD's rule, which takes the largest class. The odds
    that the network is better are believed to be `odds` to ODDS_AGAINST, and every child draws its rule with these odds
    (Thompson 1933). If two children have different rules, the child with fewer conflicts doubles the odds of its rule.
    """

    def __init__(self, lists: NeighbourLists):
        self.lists, self.odds, self.k = lists, FIRST_ODDS, 0
        self.first = self.second = uncolored(lists)  # the parents

    def begin(self, first: np.ndarray, k: int) -> None:
        """Look for k colors from a coloring (N,) and the present second parent. The search may change `starts`."""
        self.k, self.generation = k, 0
        self.starts = [each.copy() if each.max() < k else largest_classes(each, k) for each in (first, self.second)]
        self.by_network = [False, False]  # for each start; equal if the starts are no children
        self.elite: list[
            Individual
        ] = []  # best child of the present period of ELITE generations, and of the one before

    def take(self, parents: list[Individual]) -> None:
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

    def choose_starts(self, parents: Sequence[Individual], chance: int, other: np.ndarray | None = None) -> bool:
        """Choose the next starts. Return True if the caller must make them: children of these parents, by the rules
        that `by_network` names. If the parents are too similar, return False: the starts are the first parent and
        `other` (N,), or an uncolored graph if `other` is not far from the first parent. chance: random bits.
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
    """The number of nodes that the k classes of `first` (N,) share with their most similar classes of `second`."""
    return int(np.bincount(first * k + second, minlength=k * k).reshape(k, k).max(1).sum())


def largest_classes(colors: np.ndarray, k: int) -> np.ndarray:
    """The k largest classes of colors (N,) as 0..k-1, and -1 for all other nodes: (N,) int32."""
    color_ids = np.argsort(-np.bincount(colors), kind="stable")[:k]
    rank = np.full(int(colors.max()) + 1, -1, dtype=np.int32)
    rank[color_ids] = np.arange(len(color_ids))
    return rank[colors]
