"""Coloring problems: a graph, the number of colors, and the colors that nodes must or may have; and their solutions."""

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from gnn_training.errors import NoColoringError
from gnn_training.graph import Graph
from gnn_training.processes import as_interrupt
from gnn_training.search import kernels
from gnn_training.search.engine import Budget, Coloring, SearchWeights, renumbered
from gnn_training.search.first_colorings import FIRST_SECONDS, clique_size, run_until, seeded
from gnn_training.search.portfolio import colorings

MAX_NAMED = 1_000  # the colors of precolored and allowed are below this number
MAX_PAIRS = 10_000_000  # the most pairs of a node and a color, of 50 bytes each
BALANCE_SHARE = 0.1  # share of the time in which classes are balanced
BALANCE_SWAPS = 1_000  # tries per node


@dataclass(frozen=True)
class Solution:
    """A proper coloring that obeys all constraints."""

    colors: Any  # a dict from node to color, an array (N,) or a tensor (N,), as the graph was given
    num_colors: int  # different colors in it
    lower_bound: int  # no coloring that obeys the constraints has fewer
    is_optimal: bool  # whether num_colors equals lower_bound
    imbalance: int  # nodes in the largest class minus nodes in the smallest
    seconds: float
    method: str  # the method that found the coloring, or proved it optimal


@dataclass(frozen=True)
class Problem:
    """A graph to color with constraints, written as a graph without constraints. Every color that is named gets a node,
    and these nodes form a clique. A node that must have a color is merged with that color's node; a node that may not
    have it gets an edge to that color's node. So every method works unchanged.
    """

    graph: Graph  # nodes without a fixed color, then those that stand for colors
    place: np.ndarray  # (N,): the node of `graph` for each node of the caller's graph
    color_ids: np.ndarray  # colors of the nodes that stand for colors
    most: int | None  # number of colors that a solution may have
    is_list_coloring: bool  # there are no other colors than color_ids
    is_equitable: bool
    lower_bound: int  # from a clique of the caller's graph, or the number of colors in precolored
    start: np.ndarray | None = None  # (N of `graph`,) int32: a coloring that the search begins with

    @classmethod
    def create(
        cls, graph: Graph, names: Sequence[Any], k: int | None = None, precolored: Mapping[Any, int] | None = None,
        allowed: Mapping[Any, Collection[int]] | None = None, equitable: bool = False,
        deadline: float = math.inf,
    ) -> Self:  # fmt: skip
        """Build the problem. names (N,): the nodes as precolored and allowed name them. ValueError for an unknown node
        or a wrong color, NoColoringError if a node has no color left, or two adjacent nodes only the same.
        """
        lists, highest = _lists(names, k, precolored or {}, allowed or {})
        for node in (node for node, colors in lists.items() if not colors):
            raise NoColoringError(f"no color is left for node {names[node]!r}: change what it may have, or k")
        named = sorted(set().union(*lists.values()))
        color_ids = np.array(range(k or highest + 1) if allowed else named, dtype=np.int64)
        extended, place = _extend(graph, lists, color_ids)
        edges = place[graph.edges]
        for u, v in graph.edges[edges[:, 0] == edges[:, 1]]:
            both = f"nodes {names[u]!r} and {names[v]!r} are adjacent and both can only have color"
            raise NoColoringError(f"{both} {min(lists[u])}: change one")
        most, bound = k, len(color_ids)
        if allowed:
            most, bound = bound, clique_size(graph.csr(), deadline)
        return cls(extended, place, color_ids, most, bool(allowed), equitable, bound)

    def with_start(self, graph: Graph, names: Sequence[Any], start: Mapping[Any, int]) -> Self:
        """The problem with a coloring to begin with. graph, names: as for `create`; start: the color of every node.
        ValueError if that is not a proper coloring of the graph, or does not obey the constraints.
        """
        index, colors = {name: number for number, name in enumerate(names)}, np.full(len(names), -1, dtype=np.int64)
        hint = "give a proper coloring of this graph"
        for name, color in start.items():
            if name not in index:
                raise ValueError(f"start names node {name!r}, which is not in the graph: {hint}")
            if not isinstance(color, int | np.integer) or not 0 <= color < 2**31:
                raise ValueError(f"start has color {color!r} for node {name!r}, not an integer from 0: {hint}")
            colors[index[name]] = color
        for node in np.flatnonzero(colors < 0).tolist():
            raise ValueError(f"start has no color for node {names[node]!r}: {hint}")
        for u, v in graph.edges[colors[graph.edges[:, 0]] == colors[graph.edges[:, 1]]]:
            both = f"nodes {names[u]!r} and {names[v]!r}, which are adjacent"
            raise ValueError(f"start has color {colors[u]} for {both}: {hint}")
        extended = np.empty(self.graph.num_nodes, dtype=np.int64)
        extended[self.place] = colors
        extended[self.num_free :] = self.color_ids
        conflicting_edges = self.graph.edges[extended[self.graph.edges[:, 0]] == extended[self.graph.edges[:, 1]]]
        is_wrong = np.isin(self.place, conflicting_edges.min(axis=1)) | (extended[self.place] != colors)
        is_wrong |= self.is_list_coloring & (colors >= len(self.color_ids))
        for node in np.flatnonzero(is_wrong).tolist():
            what = f"start has color {colors[node]} for node {names[node]!r}"
            raise ValueError(f"{what}, which precolored or allowed forbids: change one")
        return replace(self, start=renumbered(extended))

    def colorings(self, trained: SearchWeights, budget: Budget) -> Iterator[Coloring]:
        """Yield the colorings of `graph` by portfolio.colorings, until one has `most` colors at most, or none can."""
        left = max(0.0, budget.deadline - time.monotonic())
        deadline = budget.deadline - BALANCE_SHARE * left if self.is_equitable else budget.deadline
        budget = budget._replace(deadline=deadline, lower=self.most or 1)
        with as_interrupt():
            for coloring in colorings(self.graph, trained, budget, start=self.start):
                yield coloring
                if self.most is not None and coloring.lower_bound > self.most:
                    return

    def solution(self, best: Coloring, start: float, budget: Budget) -> Solution:
        """The solution from a coloring of `graph`, with the colors of `named`. start: time.monotonic() when the search
        began. NoColoringError if the coloring has too many colors.
        """
        if self.most is not None and not self.is_enough(best):
            wish = f"a coloring with at most {self.most} colors"
            if self.is_list_coloring:
                wish = f"a coloring with the colors 0 to {len(self.color_ids) - 1}, as far as they are allowed,"
            if best.lower_bound > self.most:
                raise NoColoringError(f"{wish} does not exist: at least {best.lower_bound} are needed")
            result = f"{time.monotonic() - start:.1f} s; the fewest found are {best.num_colors} colors"
            raise NoColoringError(f"{wish} was not found in {result}: allow more time or colors")
        colors = best.colors.copy()
        if self.is_equitable:
            until = max(budget.deadline, time.monotonic() + FIRST_SECONDS)
            sizes = np.bincount(self.place, minlength=self.graph.num_nodes)
            arguments = colors, sizes, self.num_free, BALANCE_SWAPS * self.num_free, seeded(budget.seed)
            run_until(until, kernels.balance, *self.graph.csr(), *arguments)
        colors = self.named(colors)
        sizes = np.unique(colors, return_counts=True)[1]
        bound = self.lower_bound if self.is_list_coloring else max(self.lower_bound, best.lower_bound)
        seconds = time.monotonic() - start
        return Solution(colors, len(sizes), bound, len(sizes) == bound, int(np.ptp(sizes)), seconds, best.method)

    @property
    def num_free(self) -> int:
        """The number of nodes of `graph` that come before the nodes of color_ids."""
        return self.graph.num_nodes - len(self.color_ids)

    def is_enough(self, coloring: Coloring) -> bool:
        """Whether a coloring of `graph` has no more colors than a solution may have."""
        return self.most is None or coloring.num_colors <= self.most

    def named(self, colors: np.ndarray) -> np.ndarray:
        """Return the colors (N,) int64 of the caller's nodes, from a coloring of `graph` without gaps."""
        color_ids = np.full(int(colors.max()) + 1, -1)
        color_ids[colors[self.num_free :]] = self.color_ids
        is_new = color_ids < 0
        color_ids[is_new] = np.setdiff1d(np.arange(MAX_NAMED + len(color_ids)), self.color_ids)[: is_new.sum()]
        return color_ids[colors[self.place]]


def _lists(
    names: Sequence[Any], k: int | None, precolored: Mapping[Any, int], allowed: Mapping[Any, Collection[int]]
) -> tuple[dict[int, set[int]], int]:
    """The colors that each restricted node, by number, may have; and the highest color named, -1 if there is none."""
    index = {name: number for number, name in enumerate(names)} if precolored or allowed else {}
    lists: dict[int, set[int]] = {}
    highest = -1
    if allowed and k is not None and k > MAX_NAMED:
        raise ValueError(f"k ({k}) must be at most {MAX_NAMED} with allowed")
    for setting, given in (("precolored", precolored), ("allowed", allowed)):
        for name, value in given.items():
            colors: Any = [value] if setting == "precolored" else value
            if name not in index:
                raise ValueError(f"{setting} names node {name!r}, which is not in the graph")
            if not isinstance(colors, Collection) or not all(
                isinstance(color, int | np.integer) and 0 <= color < MAX_NAMED for color in colors
            ):
                raise ValueError(f"{setting} of node {name!r} ({value!r}) must name colors from 0 to {MAX_NAMED - 1}")
            highest = max([highest, *map(int, colors)])
            may = {int(color) for color in colors if k is None or not allowed or int(color) < k}
            lists[index[name]] = lists.get(index[name], may) & may
    return lists, highest


def _extend(graph: Graph, lists: dict[int, set[int]], color_ids: np.ndarray) -> tuple[Graph, np.ndarray]:
    """Return `graph` and `place` of Problem. Adjacent nodes of one place have no coloring and lose their edge."""
    if not lists:
        return graph, np.arange(graph.num_nodes)
    fixed = {node: int(np.searchsorted(color_ids, min(may))) for node, may in lists.items() if len(may) == 1}
    is_free = np.ones(graph.num_nodes, dtype=bool)
    is_free[list(fixed)] = False
    place, num_free = np.cumsum(is_free) - 1, int(is_free.sum())
    place[list(fixed)] = num_free + np.array(list(fixed.values()), dtype=np.int64)
    restricted = np.array([node for node in lists if node not in fixed], dtype=np.int64)
    if len(restricted) * len(color_ids) > MAX_PAIRS:
        pairs = f"{len(restricted)} nodes times {len(color_ids)} colors"
        raise ValueError(f"allowed has {pairs}, at most {MAX_PAIRS} are possible: name fewer nodes or colors")
    is_forbidden = np.ones((len(restricted), len(color_ids)), dtype=bool)
    for row, node in zip(is_forbidden, restricted.tolist(), strict=True):
        row[list(lists[node])] = False  # a color is its own position, because color_ids begin at 0 without gaps
    rows, columns = np.nonzero(is_forbidden)
    forbidden = np.column_stack([place[restricted[rows]], num_free + columns])
    between = num_free + np.argwhere(np.tri(len(color_ids), k=-1))
    edges = np.concatenate([place[graph.edges], between, forbidden])
    return Graph.from_edges(num_free + len(color_ids), edges, graph.name), place
