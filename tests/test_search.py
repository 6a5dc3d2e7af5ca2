"""The search and the classical steps in tensors: they keep their rules, and compiled loops make the same moves."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import numba
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_graphs import GRAPH, MANY_MOVERS, padded, planted, random_graph, random_weights, with_control
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gnn_training.graph import Graph, concatenated, is_proper, num_colors
from gnn_training.graph_objects import as_graph
from gnn_training.network import rule
from gnn_training.network.network import initial_rule
from gnn_training.network.rule import NUM_WEIGHTS
from gnn_training.onnx_program import greedy
from gnn_training.onnx_program import tensor_search as search
from gnn_training.onnx_program.greedy import at_once, clique_bound, dsatur, independent_sets
from gnn_training.onnx_program.padded_graphs import Graphs, pad
from gnn_training.onnx_program.program import limits
from gnn_training.onnx_program.tensor_search import Limits, Result, State, Task
from gnn_training.search import kernels
from gnn_training.search.search_kernel import SearchTask, keyed_by_rule, noise_table, search_graph


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


def table_of(state: State, values: Tensor, i: int, n: int) -> np.ndarray:
    """Values of the nodes and colors of graph i: (N, K)."""
    return values.view(*state.colors.shape, -1)[i, :n].numpy()


def own_conflicts(state: State, graph: Graph, i: int) -> np.ndarray:
    """Neighbours in the color of a node, one more if it is closed: (N,)."""
    colors = state.colors[i, : graph.num_nodes].numpy()
    same = (graph.adjacency() & (colors[:, None] == colors)).sum(1)
    return same + (state.is_open[i].numpy()[colors] == 0)


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
    old, new = (state.colors[i, :n].numpy() for state in (before, after))
    is_open, own = before.is_open[i].numpy() > 0, own_conflicts(before, graph, i)
    movers = np.flatnonzero(old != new)
    assert (own[movers] > 0).all() and is_open[new[movers]].all()
    assert (table_of(before, before.until, i, n)[movers, new[movers]] < t).all()
    assert (table_of(after, after.until, i, n)[movers, old[movers]] >= t).all()
    assert (after.age[i, :n].numpy()[movers] == 1).all()
    assert not graph.adjacency()[np.ix_(movers, movers)].any()  # neighbours do not move together
    one_hot = np.eye(len(is_open))[new]
    assert np.array_equal(table_of(after, after.counts, i, n), graph.adjacency() @ one_hot)
    closed = np.flatnonzero(is_open != (after.is_open[i].numpy() > 0))
    if own.any():
        assert after.best_conflicts[i] == min(before.best_conflicts[i], own.sum() / 2) and not len(closed)
        return
    k, sizes = is_open.sum(), np.bincount(old, minlength=len(is_open))
    assert not len(movers) and after.best_num_colors[i] == k and after.best_conflicts[i] == 1e6
    assert k < before.best_num_colors[i] or torch.equal(after.best[i], before.best[i])
    assert k == 1 if not len(closed) else is_open[closed[0]] and sizes[closed[0]] == sizes[is_open].min()


def test_an_untrained_network_makes_the_best_moves_that_are_not_tabu():
    graph, num_moves = random_graph(40, 0.4), 0
    for before, after in played([graph], initial_rule(), 150):
        own, colors = own_conflicts(before, graph, 0), before.colors[0, :40].numpy()
        allowed = table_of(before, before.until, 0, 40) < int(before.round)
        allowed &= before.is_open[0].numpy() > 0
        allowed[np.arange(40), colors] = False
        change = own[:, None] - table_of(before, before.counts, 0, 40)
        gain = np.where(allowed & (own > 0)[:, None], change, -np.inf)
        new = after.colors[0, :40].numpy()
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
        counts, until = (x.view(-1, 20)[:, inverse].flatten() for x in (state.counts, state.until))
        colors, is_open = order[state.colors], state.is_open[:, inverse]
        return state._replace(colors=colors, counts=counts, is_open=is_open, until=until)

    one, fixed = search.begin(search.split(weights[None]), batch, task, sizes)
    other = renamed(one)
    for _ in range(40):
        one = search.one_round(one, search.ask(one, fixed), fixed)
        other = search.one_round(other, search.ask(other, fixed), fixed._replace(table=fixed.table[:, inverse]))
        assert torch.equal(renamed(one).colors[:, :-1], other.colors[:, :-1])
    assert (one.moves > 0).sum() > 5


def kernel(graph: Graph, found: Result, i: int, weights: Tensor, rounds: int, seed: int, asked: int = 0) -> None:
    """Assert that the compiled loops find the same for graph i."""
    task = SearchTask(kernels.dsatur(*graph.csr()), rounds, seed, num_colors=asked, times=[rounds])
    end, n = search_graph(graph.csr(), task, weights.numpy()), graph.num_nodes
    assert (end.num_colors, end.conflicts) == (found.num_colors[i], found.conflicts[i])
    assert found.colors[i, :n].tolist() == end.best.tolist()
    assert end.reached[end.num_colors] == found.reached[i] and found.rounds <= rounds
    if end.num_colors > 1:  # else other graphs of the batch went on
        assert found.last[i, :n].tolist() == end.states[0, 0].tolist()
        assert found.nodes[i, :, :n].tolist() == end.states[0, 1:].tolist()


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("rounds", [5, 150])
@pytest.mark.parametrize("asked", [0, 5])
def test_compiled_loops_make_the_same_moves_as_a_batch_in_tensors(scale: float, rounds: int, asked: int):
    graphs = [random_graph(n, density, n) for n, density in [(1, 0), (9, 0.3), (60, 0.5), (90, 0.9), (130, 0.1)]]
    weights = torch.stack([random_weights(i, scale) for i in range(len(graphs))])
    found = run(graphs, weights, rounds, seed=7, asked=asked)
    for i, graph in enumerate(graphs):
        kernel(graph, found, i, weights[i], rounds, 7 + i, asked)


def test_compiled_loops_are_compiled_again_after_a_change_of_the_rule(tmp_path: Path, monkeypatch):
    def keyed() -> Any:
        def search() -> int:
            return 1

        return numba.njit(cache=True)(keyed_by_rule(search))

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    changed = tmp_path / "rule.py"
    changed.write_text(Path(rule.__file__).read_text() + "PERIOD = 5\n")
    first, again = keyed(), keyed()
    monkeypatch.setattr(rule, "__file__", str(changed))
    hits = []
    for compiled in (first, again, keyed()):
        compiled()
        hits.append(sum(compiled.stats.cache_hits.values()))
    assert hits == [0, 1, 0]


def test_compiled_loops_end_when_another_thread_says_so():
    graph = random_graph(60, 0.5)
    task, stop = SearchTask(kernels.dsatur(*graph.csr()), rounds=10**9), np.zeros(1, np.uint8)
    threading.Timer(0.3, lambda: stop.fill(1)).start()
    assert is_proper(graph, search_graph(graph.csr(), task, initial_rule().numpy(), stop).best)


def test_compiled_loops_make_the_same_moves_in_a_large_graph():
    graph, weights = random_graph(1500, 0.01), with_control(random_weights(4, 0.1), "margin", 1.0)
    assert [len(ids) for ids in prepare([graph])[2][1:]] == [23, 5]  # more than in a small one
    kernel(graph, run([graph], weights, 30), 0, weights, 30, 0)


def test_the_search_finds_colorings_with_far_fewer_colors_than_dsatur_and_ends_at_the_lower_bound():
    graphs = [planted(80, 8, 0.5, seed)[0] for seed in range(5)]
    first = prepare(graphs)[1].colors.max(1).values + 1
    found = run(graphs, initial_rule(), 10**9, lower=8)
    assert found.num_colors.tolist() == [8] * 5 and (first >= 10).all()
    assert all(is_proper(graph, colors.numpy()) for graph, colors in zip(graphs, found.colors, strict=True))


def test_the_number_asked_for_says_how_many_of_the_largest_classes_are_open():
    colors = np.repeat([0, 1, 2, 3], [1, 4, 2, 5])
    for asked, expected in {0: [1] * 4, 1: [0, 0, 0, 1], 3: [0, 1, 1, 1], 4: [1] * 4, 9: [1] * 4}.items():
        batch = prepare([Graph.from_edges(12, [])], asked=asked, colors=colors)
        assert search.first_state(*batch)[2].tolist() == [expected]


def test_a_search_for_the_number_asked_finds_it_or_nothing():
    graph, weights = planted(80, 6, 0.5)[0], with_control(initial_rule(), "per_conflicted", -1.0)
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
    assert largest.elements < 40 * (n + 2 * graph.num_edges)


GRAPHS = st.lists(GRAPH, min_size=1, max_size=4)


def sets(batch: Graphs, chains: int, colors: Tensor | None = None, seed: int = 0, patience: float = 6.0) -> Tensor:
    adjacency = batch.adjacency(torch.arange(batch.exists.shape[1] + 1))[:, :-1, :-1]
    waiting = torch.full_like(batch.degrees, -1) if colors is None else colors
    seeds = torch.full_like(waiting[:, 0], seed)
    return independent_sets(adjacency, batch.exists, waiting, seeds, torch.arange(chains), torch.tensor(patience))


@given(graphs=GRAPHS)
def test_edge_lists_become_neighbour_lists_and_a_dense_matrix(graphs: list[Graph]):
    made, position = pad(*map(torch.from_numpy, concatenated(graphs)))
    size = made.exists.shape[1]
    dense = made.adjacency(torch.arange(size + 1))
    lists = made.lists(torch.arange(size + 1).expand(len(graphs), -1))
    for i, graph in enumerate(graphs):
        expected = np.zeros((size, size), dtype=bool)
        expected[: graph.num_nodes, : graph.num_nodes] = graph.adjacency()
        assert [[u for u in row if u < size] for row in lists[i].tolist()] == [
            *(np.flatnonzero(row).tolist() for row in expected), []
        ]  # fmt: skip
        assert np.array_equal(dense[i].numpy(), np.pad(expected, (0, 1)))
        assert made.exists[i].tolist() == [v < graph.num_nodes for v in range(size)]
    assert position.tolist() == [v for graph in graphs for v in range(graph.num_nodes)]
    assert not made.adjacency(torch.arange(1)).any()  # not wanted


# Two stars, centers 0 and 3, on a path: one saturation counts more than all degrees.
STARS = Graph.from_edges(16, [(0, 1), (1, 2), (2, 3), *((3 * (v % 2), v) for v in range(4, 16))])
HUBS = [as_graph(nx.barabasi_albert_graph(150, 2, seed)) for seed in range(8)]
LARGER = [random_graph(n, density, n) for n in (50, 150) for density in (0.02, 0.1, 0.5, 0.95)]


@given(graphs=GRAPHS)
@example([STARS])
@example(HUBS)
@example(LARGER)
def test_dsatur_in_tensors_is_that_of_the_kernels(graphs: list[Graph]):
    batch = padded(graphs)
    colors = dsatur(batch, torch.arange(150), torch.arange(min(4, batch.exists.shape[1])))
    for row, graph in zip(colors, graphs, strict=True):
        assert row[: graph.num_nodes].tolist() == kernels.dsatur(*graph.csr()).tolist()
        assert (row[graph.num_nodes :] == 0).all()


@given(graphs=GRAPHS)
def test_several_nodes_at_once_are_colored_properly_whatever_the_batch_mates(graphs: list[Graph]):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"ONE_BY_ONE": 4, "NODES_PER_RANK": 2, "COLORED_PER_RANK": 1, "SPEED": 8}.items():
            patch.setattr(greedy, name, value)
        together = several_at_once(graphs)
        for row, graph in zip(together, graphs, strict=True):
            assert is_proper(graph, row[: graph.num_nodes].numpy()) and (row[graph.num_nodes :] == 0).all()
            assert row[: graph.num_nodes].tolist() == several_at_once([graph])[0].tolist()


def several_at_once(graphs: list[Graph]) -> Tensor:
    nodes = torch.tensor(max(graph.num_nodes for graph in graphs))
    return dsatur(padded(graphs), torch.arange(32), torch.arange(int(at_once(nodes))))


U, V = np.random.default_rng(0).integers(0, 10_000, (2, 50_000))
LARGE = {  # and the colors that they may need above DSATUR's
    "random": (lambda: Graph.from_edges(10_000, np.stack([U, V], 1)), 1),
    "hubs": (lambda: nx.barabasi_albert_graph(5_000, 5, 0), 1),
    "star": (lambda: nx.star_graph(9_999), 0),
    "triangles": (lambda: nx.triangular_lattice_graph(80, 80), 0),
    "path": (lambda: nx.path_graph(20_000), 1),
    "no edge": (lambda: nx.empty_graph(10_000), 0),
    "parts": (lambda: Graph.from_edges(10_000, np.stack([U, U // 4 * 4 + V % 4], 1)), 0),
}


@pytest.mark.parametrize("name", LARGE)
def test_several_nodes_at_once_need_about_the_colors_of_dsatur_and_few_rounds(name: str, monkeypatch):
    (make, more), rounds = LARGE[name], []
    graph = as_graph(make())

    def counting(condition, body, state):
        while condition(state):
            state = body(state)
            rounds.append(0)
        return state

    monkeypatch.setattr(greedy, "loop", counting)
    colors = several_at_once([graph])[0].numpy()
    assert is_proper(graph, colors)
    assert num_colors(colors) <= num_colors(kernels.dsatur(*graph.csr())) + more
    assert len(rounds) < 3_000


@given(graphs=GRAPHS, starts=st.integers(1, 16))
def test_the_clique_bound_is_the_size_of_a_clique_that_nothing_extends(graphs: list[Graph], starts: int):
    batch = padded(graphs)
    few, all_starts = (clique_bound(batch, torch.arange(min(s, batch.exists.shape[1]))) for s in (starts, 16))
    assert (few <= all_starts).all()
    for graph, size in zip(graphs, few.tolist(), strict=True):
        assert size in map(len, nx.find_cliques(nx.from_numpy_array(graph.adjacency())))


@settings(max_examples=20)
@given(GRAPHS, st.integers(-(2**40), 2**40), st.integers(1, 8), st.sampled_from([0, 0.3, 6]))
def test_independent_sets_color_properly_and_without_gaps(graphs: list[Graph], seed: int, chains: int, patience: float):
    colors = sets(padded(graphs), chains, seed=seed, patience=patience)
    for row, graph in zip(colors, graphs, strict=True):
        mine = row[: graph.num_nodes].numpy()
        assert is_proper(graph, mine) and num_colors(mine) == mine.max() + 1


def test_independent_sets_color_only_nodes_that_wait():
    graph = random_graph(40, 0.3)
    given_colors = torch.from_numpy(kernels.dsatur(*graph.csr())).long()[None]
    kept = given_colors < 4
    colors = sets(padded([graph]), 8, torch.where(kept, given_colors, -1))
    assert torch.equal(colors[kept], given_colors[kept]) and (colors[~kept] >= 4).all()
    assert is_proper(graph, colors[0].numpy())


def test_more_chains_and_more_patience_save_colors_and_all_are_better_than_dsatur():
    batch = padded([random_graph(100, 0.5, seed) for seed in range(6)])
    poor, patient, both = (sets(batch, c, patience=p).amax(1).sum() for c, p in [(1, 0.5), (1, 6.0), (32, 6.0)])
    assert poor > patient > both and dsatur(batch, torch.arange(40), torch.arange(1)).amax(1).sum() >= both + 10


def test_noise_is_the_hash_in_integers_without_limits_and_below_1():
    table = greedy.noise_table(torch.arange(256))
    for row, column in [(0, 0), (1, 0), (0, 1), (rule.NOISE_ROWS - 1, 255)]:
        y = (row * 69_621 + 1) % rule.PRIME
        y = (y * y + column * 40_014 + 12_345) % rule.PRIME
        for _ in range(3):
            y = (y * (y + 1_000_003) + 7) % rule.PRIME
        assert table[row, column].item() == pytest.approx(y / rule.PRIME, abs=1e-6)
    assert torch.equal(greedy.noise_table(torch.arange(7)), table[:, :7])
    assert table.min() >= 0 and table.max() < 1


def test_noise_tables_are_shared_and_equal_those_of_the_file():
    tables = {num_colors: noise_table(num_colors) for num_colors in range(1, 301)}
    assert all(table.shape[1] >= num_colors for num_colors, table in tables.items())
    different = {id(table): table for table in tables.values()}.values()
    assert sum(table.nbytes for table in different) < 20e6
    for table in different:
        assert torch.equal(torch.from_numpy(table), greedy.noise_table(torch.arange(table.shape[1])))
