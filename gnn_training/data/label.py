"""The label of one graph, which has a good coloring and the states of a long search; and its fingerprint, which finds
copies. Only workers load the compiled search.
"""

import hashlib
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gnn_training.contract import CALL_ROUNDS, HORIZON, rounds_by_size
from gnn_training.data.packed import Label
from gnn_training.graph import Graph, Instance, NeighbourLists

if TYPE_CHECKING:
    from gnn_training.search import engine

MOVE_WORK = 50  # work of a move besides visiting neighbours, in visits of one neighbour
PATIENCE_NODES = 36  # a graph of up to so many gets `LabelPlan.moves`, a larger one more in proportion
STATES, FIRST_STATE, LATEST_STATE = 5, 16, 5  # states kept of a long search, from round 16 to a fifth of all rounds


def label(
    instance: Instance, moves: int, seconds: float, seed: int, trained: "engine.SearchWeights | None" = None
) -> Label:
    """The label of a graph: its best coloring by TabuCol with crossover, TabuCol with far fewer colors and, if there is
    one, the trained rule. The search ends after `moves` without a gain (more on large graphs), at the lower bound, or
    after `seconds`; unless the clock ends it, equal arguments give equal labels.
    """
    from gnn_training.search import engine, first_colorings, kernels, methods, portfolio

    portfolio.compile_all()
    trained = trained or engine.UNTRAINED
    deadline, graph = time.monotonic() + seconds, instance.graph
    lists = graph.csr()
    greedy = kernels.dsatur(*lists)
    dsatur_colors, given = int(greedy.max()) + 1, instance.coloring
    lower = first_colorings.clique_size(lists)
    first = first_colorings.first_coloring(lists, greedy) if dsatur_colors > lower else greedy.astype(np.int16)
    best = greedy if given is None or given.max() >= greedy.max() else given
    if instance.optimal:
        assert given is not None
        lower = int(given.max()) + 1
    work = len(lists.neighbours) / graph.num_nodes + MOVE_WORK  # the work of a move
    patience = int(moves * work * moves_factor(graph.num_nodes))
    shares: dict[engine.Method, float] = {methods.crossover_search: 2, methods.fewer_colors: 0.5}
    if trained.rule is not None:
        shares[methods.trained_rule] = 1
    budget = engine.Budget(deadline, lower, seed=seed)
    for better in engine.improvements(lists, best, budget, shares, trained, patience):
        best = better.colors
    num_colors = int(best.max()) + 1
    return Label(best.astype(np.int16), first, num_colors, lower, dsatur_colors, lower == num_colors)


def moves_factor(num_nodes: int) -> float:
    """The factor by which a graph of `num_nodes` nodes gets more moves than a small one."""
    return max(1.0, num_nodes / PATIENCE_NODES)


def long_search(label_so_far: Label, graph: Graph, rule: np.ndarray, seed: int) -> Label:
    """Add a search of HORIZON times the rounds of a call to a label: the rounds at which it reached fewer colors, and
    its states after the rounds of a call and at STATES other times, which are drawn by `seed`.
    """
    from gnn_training.search.first_colorings import clique_size
    from gnn_training.search.search_kernel import SearchTask, search_graph

    lists = graph.csr()
    n, num_colors, clique = graph.num_nodes, int(label_so_far.first.max()) + 1, clique_size(lists)
    if num_colors <= clique:
        return label_so_far
    call_rounds = min(CALL_ROUNDS, rounds_by_size(n))
    rng = np.random.default_rng([seed, n, len(lists.neighbours)])
    bounds = math.log(FIRST_STATE), math.log(HORIZON * call_rounds / LATEST_STATE)
    times = np.array(sorted({call_rounds, *np.exp(rng.uniform(*bounds, STATES)).astype(int).tolist()}))
    end = search_graph(lists, SearchTask(label_so_far.first, HORIZON * call_rounds, seed, clique, times=times), rule)
    reached, rounds = end.reached[end.num_colors :][::-1], times[: len(end.states)]
    return replace(
        label_so_far,
        search_rounds=HORIZON * call_rounds,
        clique=clique,
        search_colors=end.num_colors,
        reached=reached,
        state_rounds=rounds,
        states=_features(end, lists, num_colors, clique, reached, rounds),
    )


def _features(
    end: Any, lists: NeighbourLists, num_colors: int, clique: int, reached: np.ndarray, rounds: np.ndarray
) -> np.ndarray:
    """The features (S, STATE_FEATURES) that the network gets for the states of a search after `rounds` (S,). reached:
    the rounds at which the search reached fewer colors.
    """
    import torch  # which only workers with long searches need

    from gnn_training.network.states import SearchState, features

    saved = np.searchsorted(reached, rounds, "right") - 1
    colors, *counts = end.states.swapaxes(0, 1)
    degrees = np.broadcast_to(np.diff(lists.offsets), colors.shape)
    of_graph = num_colors - saved, np.full(len(rounds), clique), rounds, reached[saved], end.state_conflicts
    of_node = degrees, *counts
    degree, *other_values = (torch.tensor(values, dtype=torch.float32) for values in (*of_node, *of_graph))
    state = SearchState(torch.tensor(colors, dtype=torch.int64), *other_values)
    return features(torch.ones(colors.shape, dtype=torch.bool), degree, state, torch.arange(num_colors)).numpy()


def fingerprint(graph: Graph) -> int:
    """A 64-bit hash that does not depend on the order of the nodes; above 2,000 nodes, only equal edge lists agree. It
    is color refinement (Weisfeiler and Leman 1968) over all pairs of nodes; a pair is marked by adjacency and the
    number of common neighbours. Unlike plain refinement, this tells regular graphs apart, except strongly regular ones.
    """
    if graph.num_nodes > 2_000:  # N x N costs too much
        content = np.int64(graph.num_nodes).tobytes() + graph.edges.tobytes()
    else:
        adjacency = graph.adjacency().astype(np.float32)
        marks = (adjacency @ adjacency * 2 + adjacency).astype(np.int32)
        pairs = _mix(np.arange(marks.max() + 1, dtype=np.uint64))[marks]
        colors = _mix(graph.degrees().astype(np.uint64))
        for _ in range(3):
            colors = _mix(colors + pairs @ colors)  # a sum does not depend on the order
        content = np.array([graph.num_nodes, graph.num_edges]).tobytes() + np.sort(colors).tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _mix(x: np.ndarray) -> np.ndarray:
    """Scatter 64-bit words: the finalizer of splitmix64 (Steele and others 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
