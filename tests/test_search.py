"""The search: every round keeps its rules, compiled loops make the same moves, and no coloring gets worse."""

import hashlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_graphs import GRAPH, padded, planted, random_graph
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gnn_training import coloring
from gnn_training.graph import Graph
from gnn_training.model import rule, search
from gnn_training.model.graphs import Graphs
from gnn_training.model.greedy import clique_bound
from gnn_training.model.network import structure
from gnn_training.model.program import limits
from gnn_training.model.rule import NUM_WEIGHTS
from gnn_training.model.search import Limits, Result, State, Task, first_weights
from gnn_training.solve import kernels
from gnn_training.solve.search_kernel import noise_table, search_graph

MANY_MOVERS = 3.0  # control bias of the margin: exp(3) lets nearly every active node move


def random_weights(seed: int, scale: float = 0.5) -> Tensor:
    """Weights (NUM_WEIGHTS,) of a network that is far from the first one, or not, with scale 0."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return first_weights() + scale * torch.randn(NUM_WEIGHTS)


def with_control(weights: Tensor, name: str, value: float) -> Tensor:
    """Weights with another bias of the tenure, tenure per conflicted node, spread, margin or jitter."""
    changed = weights.clone()
    changed[rule.OUTPUTS * len(rule.GRAPH_FEATURES) + rule.CONTROLS.index(name)] = value
    return changed


def prepare(
    graphs: Sequence[Graph], asked: int = 0, lower: int = 1, seed: int = 0, colors: np.ndarray | None = None
) -> tuple[Graphs, Task, Limits]:
    """A search that starts with the colors of DSATUR, or with these (N,)."""
    batch = padded(graphs)
    first = torch.zeros_like(batch.degrees)
    for i, graph in enumerate(graphs):
        first[i, : graph.num_nodes] = torch.from_numpy(kernels.dsatur(*graph.csr()) if colors is None else colors)
    each = torch.ones(len(graphs), dtype=torch.int64)
    task = Task(first, lower * each, asked * each, torch.arange(len(graphs)), seed + torch.arange(len(graphs)))
    return batch, task, limits(torch.tensor(first.shape[1]), first.max() + 1)


def run(graphs: Sequence[Graph], weights: Tensor, rounds: int, **options) -> Result:
    batch, task, sizes = prepare(graphs, **options)
    return search.search(search.split(weights.view(-1, NUM_WEIGHTS)), batch, task, sizes, torch.tensor(rounds))


def played(graphs: Sequence[Graph], weights: Tensor, rounds: int, **options) -> Iterator[tuple[State, State]]:
    """States before and after every round."""
    batch, task, sizes = prepare(graphs, **options)
    state, fixed = search.begin(search.split(weights[None]), batch, task, sizes)
    for t in range(rounds):
        if t % rule.PERIOD == 0:
            answers = search.ask(state, fixed)
        after = search.one_round(state, answers, fixed)
        yield state, after
        state = after


def by_color(state: State, values: Tensor, i: int, n: int) -> np.ndarray:
    """Values (N, K) of a graph out of those of all nodes and colors."""
    return values.view(*state.coloring.colors.shape, -1)[i, :n].numpy()


def own_conflicts(state: State, graph: Graph, i: int) -> np.ndarray:
    """Neighbours in the color of a node, one more if it is closed: (N,)."""
    colors = state.coloring.colors[i, : graph.num_nodes].numpy()
    same = (graph.adjacency() & (colors[:, None] == colors)).sum(1)
    return same + (state.coloring.is_open[i].numpy()[colors] == 0)


RULES = {
    "first": random_weights(0, 0),
    "random": random_weights(1),
    "many movers": with_control(random_weights(2), "margin", MANY_MOVERS),
}


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=15)
@given(graphs=st.lists(GRAPH, min_size=1, max_size=3), seed=st.integers(0, 2**40), asked=st.integers(0, 6))
def test_every_round_keeps_the_rules(rule: str, graphs: list[Graph], seed: int, asked: int):
    for before, after in played(graphs, RULES[rule], 25, seed=seed, asked=asked):
        for i, graph in enumerate(graphs):
            check_round(before, after, graph, i)


def check_round(before: State, after: State, graph: Graph, i: int) -> None:
    n, t = graph.num_nodes, int(before.round)
    old, new = (state.coloring.colors[i, :n].numpy() for state in (before, after))
    is_open, own = before.coloring.is_open[i].numpy() > 0, own_conflicts(before, graph, i)
    movers = np.flatnonzero(old != new)
    assert (own[movers] > 0).all() and is_open[new[movers]].all()
    assert (by_color(before, before.memory.until, i, n)[movers, new[movers]] < t).all()
    assert (by_color(after, after.memory.until, i, n)[movers, old[movers]] >= t).all()
    assert (after.memory.age[i, :n].numpy()[movers] == 1).all()
    assert not graph.adjacency()[np.ix_(movers, movers)].any()  # neighbours do not move together
    one_hot = np.eye(len(is_open))[new]
    assert np.array_equal(by_color(after, after.coloring.counts, i, n), graph.adjacency() @ one_hot)
    closed = np.flatnonzero(is_open != (after.coloring.is_open[i].numpy() > 0))
    if own.any():
        assert after.best.conflicts[i] == min(before.best.conflicts[i], own.sum() / 2) and not len(closed)
        return
    k, sizes = is_open.sum(), np.bincount(old, minlength=len(is_open))
    assert not len(movers) and after.best.num_colors[i] == k and after.best.conflicts[i] == 1e6
    assert k < before.best.num_colors[i] or torch.equal(after.best.colors[i], before.best.colors[i])
    assert k == 1 if not len(closed) else is_open[closed[0]] and sizes[closed[0]] == sizes[is_open].min()


def test_an_untrained_network_makes_the_best_moves_that_are_not_tabu():
    graph, num_moves = random_graph(40, 0.4), 0
    for before, after in played([graph], first_weights(), 150):
        own, colors = own_conflicts(before, graph, 0), before.coloring.colors[0, :40].numpy()
        allowed = by_color(before, before.memory.until, 0, 40) < int(before.round)
        allowed &= before.coloring.is_open[0].numpy() > 0
        allowed[np.arange(40), colors] = False
        change = own[:, None] - by_color(before, before.coloring.counts, 0, 40)
        gain = np.where(allowed & (own > 0)[:, None], change, -np.inf)
        new = after.coloring.colors[0, :40].numpy()
        movers = np.flatnonzero(colors != new)
        if 0 < (own > 0).sum() <= rule.ACTIVE:
            assert (gain[movers, new[movers]] == gain.max()).all()
            assert len(movers) or gain.max() == -np.inf
            num_moves += len(movers)
    assert num_moves > 100


def test_the_names_of_the_colors_do_not_matter():
    graph, weights = random_graph(50, 0.5), random_weights(3)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    order = torch.cat([torch.arange(1), order[order > 0]])  # one column of the table also draws tenures
    batch, task, sizes = prepare([graph], asked=7)
    sizes = sizes._replace(color_ids=torch.arange(20))
    inverse = order.argsort()

    def renamed(state: State) -> State:
        counts, until = (x.view(-1, 20)[:, inverse].flatten() for x in (state.coloring.counts, state.memory.until))
        colors, is_open = order[state.coloring.colors], state.coloring.is_open[:, inverse]
        return state._replace(
            coloring=search.Coloring(colors, counts, is_open), memory=state.memory._replace(until=until)
        )

    one, fixed = search.begin(search.split(weights[None]), batch, task, sizes)
    other = renamed(one)
    for _ in range(40):
        one = search.one_round(one, search.ask(one, fixed), fixed)
        other = search.one_round(other, search.ask(other, fixed), fixed._replace(table=fixed.table[:, inverse]))
        assert torch.equal(renamed(one).coloring.colors[:, :-1], other.coloring.colors[:, :-1])
    assert (one.memory.moves > 0).sum() > 5


def kernel(graph: Graph, found: Result, i: int, weights: Tensor, rounds: int, seed: int, asked: int = 0) -> None:
    """Assert that the compiled loops find the same for graph i."""
    first, go_on = kernels.dsatur(*graph.csr()), np.zeros(1, np.uint8)
    arguments = (first, asked, 1, weights.numpy(), noise_table(256), seed, rounds, go_on)
    end, n = search_graph(*graph.csr(), *arguments), graph.num_nodes
    assert (end.num_colors, end.conflicts) == (found.num_colors[i], found.conflicts[i])
    assert found.colors[i, :n].tolist() == end.best.tolist()
    assert end.reached[end.num_colors] == found.reached[i] and found.rounds <= rounds
    if end.num_colors > 1:  # else other graphs of the batch went on
        assert found.last[i, :n].tolist() == end.last.tolist()
        assert found.nodes[i, :, :n].tolist() == end.counts.tolist()


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("rounds", [5, 150])
@pytest.mark.parametrize("asked", [0, 5])
def test_compiled_loops_make_the_same_moves_as_a_batch_in_tensors(scale: float, rounds: int, asked: int):
    graphs = [random_graph(n, density, n) for n, density in [(1, 0), (9, 0.3), (60, 0.5), (90, 0.9), (130, 0.1)]]
    weights = torch.stack([random_weights(i, scale) for i in range(len(graphs))])
    found = run(graphs, weights, rounds, seed=7, asked=asked)
    for i, graph in enumerate(graphs):
        kernel(graph, found, i, weights[i], rounds, 7 + i, asked)


def test_compiled_loops_are_compiled_again_after_a_change_of_the_rule():
    digest = hashlib.sha256(Path(rule.__file__).read_bytes()).hexdigest()[:16]
    for name in ("search_kernel.py", "search_cuda.py"):
        text = Path(kernels.__file__).with_name(name).read_text()
        assert digest in text, f"{name}: put the new hash of rule.py there, {digest}"


def test_compiled_loops_end_when_another_thread_says_so():
    graph = random_graph(60, 0.5)
    first, stop = kernels.dsatur(*graph.csr()), np.zeros(1, np.uint8)
    threading.Timer(0.3, lambda: stop.fill(1)).start()
    best, *_ = search_graph(*graph.csr(), first, 0, 1, first_weights().numpy(), noise_table(60), 0, 10**9, stop)
    assert coloring.is_proper(graph, best)


def test_compiled_loops_make_the_same_moves_in_a_large_graph():
    graph, weights = random_graph(1500, 0.01), with_control(random_weights(4, 0.1), "margin", 1.0)
    assert [len(ids) for ids in prepare([graph])[2][1:]] == [23, 5]  # more than in a small one
    kernel(graph, run([graph], weights, 30), 0, weights, 30, 0)


def test_the_search_finds_colorings_with_far_fewer_colors_than_dsatur_and_ends_at_the_lower_bound():
    graphs = [planted(80, 8, 0.5, seed)[0] for seed in range(5)]
    first = prepare(graphs)[1].colors.max(1).values + 1
    found = run(graphs, first_weights(), 10**9, lower=8)
    assert found.num_colors.tolist() == [8] * 5 and (first >= 10).all()
    assert all(coloring.is_proper(graph, colors.numpy()) for graph, colors in zip(graphs, found.colors, strict=True))


def test_the_number_asked_for_says_how_many_of_the_largest_classes_are_open():
    colors = np.repeat([0, 1, 2, 3], [1, 4, 2, 5])
    for asked, expected in {0: [1] * 4, 1: [0, 0, 0, 1], 3: [0, 1, 1, 1], 4: [1] * 4, 9: [1] * 4}.items():
        batch = prepare([Graph.from_edges(12, [])], asked=asked, colors=colors)
        assert search.first_coloring(*batch).is_open.tolist() == [expected]


def test_a_search_for_the_number_asked_finds_it_or_nothing():
    graph, weights = planted(80, 6, 0.5)[0], with_control(first_weights(), "per_conflicted", -1.0)
    clique = Graph.from_edges(80, [*graph.edges, *((u, v) for v in range(6) for u in range(v))])
    assert run([clique], weights, 400, asked=6).num_colors.item() == 6
    nothing = run([clique], weights, 400, asked=5)
    assert nothing.colors[0].tolist() == kernels.dsatur(*clique.csr()).tolist()
    assert nothing.num_colors.item() == 10


class LargestTensor(TorchDispatchMode):
    """Number of elements of the largest tensor that is made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.elements = max([self.elements, *(x.numel() for x in tree_leaves(out) if isinstance(x, Tensor))])
        return out


def test_memory_grows_with_the_edges():
    n = 30_000
    graph = Graph.from_edges(n, np.random.default_rng(0).integers(0, n, (2 * n, 2)))
    with LargestTensor() as largest, torch.no_grad():
        run([graph], random_weights(5), 5)
        batch = padded([graph])
        clique_bound(batch, torch.arange(16))
        structure(batch)
    assert largest.elements < 40 * (n + 2 * graph.num_edges)
