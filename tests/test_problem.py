"""The Python interface: graphs of all kinds, constraints and what is proven, compared with all colorings."""

import itertools
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_graphs import GRAPH, random_graph
from tiny_runs import interrupted
from torch_geometric.data import Data, HeteroData

import gnn_training
from gnn_training import Model, NoColoringError, Solution
from gnn_training.errors import UserError
from gnn_training.graph import Graph, is_proper, num_colors
from gnn_training.graph_objects import as_graph
from gnn_training.search import kernels, problem
from gnn_training.search.first_colorings import clique_size, seeded
from gnn_training.search.kernels import NEVER_STOP
from gnn_training.search.problem import Problem

pytestmark = pytest.mark.usefixtures("compiled")
RING = [[1, 3], [0, 2], [1, 3], [0, 2]]  # neighbours of four nodes, or two edges
PETERSEN, RANDOM = nx.petersen_graph(), random_graph(150, 0.5)
SMALL = st.builds(random_graph, st.integers(1, 6), st.floats(0, 1), st.integers(0, 10**6))
NODES, COLORS, ASKED = st.integers(0, 5), st.integers(0, 3), st.none() | st.integers(1, 5)
LISTS, STARTS = st.sets(COLORS, max_size=3), st.lists(COLORS, min_size=6, max_size=6)


def find(graph: Graph, seconds: float = 5, **constraints) -> Solution:
    """The solution, after a look at what must hold of any."""
    found = gnn_training.color(graph.edges, seconds, num_nodes=graph.num_nodes, threads=1, details=True, **constraints)
    assert is_proper(graph, found.colors) and found.num_colors == num_colors(found.colors) >= found.lower_bound
    assert found.is_optimal == (found.num_colors == found.lower_bound)
    assert found.imbalance == np.ptp(np.unique(found.colors, return_counts=True)[1])
    return found


def every_coloring(graph: Graph, lists: dict[int, set[int]], colors: range) -> list[tuple[int, ...]]:
    choices = [lists.get(node, set(colors)) & set(colors) for node in range(graph.num_nodes)]
    return [each for each in itertools.product(*choices) if is_proper(graph, np.array(each))]


@given(graph=GRAPH)
def test_small_graphs_are_proven_optimal_by_branch_and_bound(graph: Graph):
    start, lists = kernels.dsatur(*graph.csr()), graph.csr()
    best, is_proven, left = kernels.branch_and_bound(*lists, start, np.empty(0, dtype=np.int64), 0, 10**6, NEVER_STOP)
    assert is_proven and left > 0 and is_proper(graph, best)
    assert find(graph).num_colors == best.max() + 1 == num_colors(best)
    if graph.num_nodes <= 6:
        assert not every_coloring(graph, {}, range(best.max()))


def with_clique(graph: nx.Graph, size: int) -> nx.Graph:
    graph.add_edges_from(itertools.combinations(range(size), 2))
    return graph


PROVEN = {  # graphs, and the colors that they need
    "Petersen": (lambda: PETERSEN, 3),
    "Mycielski": (lambda: nx.mycielski_graph(6), 6),
    "ring": (lambda: nx.cycle_graph(9), 3),
    "large ring": (lambda: nx.cycle_graph(151), 3),
    "wheel with an odd rim": (lambda: nx.wheel_graph(302), 4),
    "wheel with an even rim": (lambda: nx.wheel_graph(301), 3),
    "two parts": (lambda: nx.disjoint_union(nx.mycielski_graph(5), nx.cycle_graph(301)), 5),
    "forty parts": (lambda: nx.disjoint_union_all([nx.mycielski_graph(5)] * 40), 5),
    "tree with a clique": (lambda: with_clique(nx.random_labeled_tree(2_000, seed=1), 5), 5),
    "sparse": (lambda: nx.gnm_random_graph(20_000, 24_000, seed=1), 3),
    "scale-free": (lambda: nx.barabasi_albert_graph(5_000, 3, seed=1), 4),  # its 4-core is empty
    "with a clique": (lambda: with_clique(nx.gnp_random_graph(400, 0.05, seed=1), 14), 14),
}


@pytest.mark.parametrize(("make", "chromatic"), PROVEN.values(), ids=PROVEN)
def test_graphs_whose_cliques_or_cores_are_small_are_proven_optimal_at_once(make: Callable[[], nx.Graph], chromatic):
    graph, started = make(), time.process_time()
    found = gnn_training.color(graph, seconds=60, threads=1, details=True)
    assert time.process_time() - started < 5  # measured: 1.7 for Mycielski's, else below 0.3
    assert (found.num_colors, found.lower_bound, found.is_optimal) == (chromatic, chromatic, True)
    assert all(found.colors[u] != found.colors[v] for u, v in graph.edges)


def test_constraints_hold_for_nodes_outside_the_part_that_is_searched():
    graph = nx.compose(nx.mycielski_graph(5), nx.random_labeled_tree(400, seed=2))
    precolored, allowed = {399: 5, 398: 0, 3: 1}, {node: [node % 3, 3, 4] for node in range(100, 300)}
    found = gnn_training.color(graph, 60, precolored=precolored, threads=1, details=True)
    assert found.num_colors == found.lower_bound == 5 and all(found.colors[v] == c for v, c in precolored.items())
    colors = gnn_training.color(graph, 60, k=6, precolored=precolored, allowed=allowed, threads=1)
    assert all(colors[v] == c for v, c in precolored.items()) and all(colors[v] in own for v, own in allowed.items())
    assert all(each[u] != each[v] for each in (colors, found.colors) for u, v in graph.edges)
    with pytest.raises(NoColoringError, match="with at most 4 colors does not exist: at least 5 are needed"):
        gnn_training.color(graph, 60, k=4, threads=1)


def test_k_colors_are_taken_as_soon_as_they_are_found():
    start = time.monotonic()
    found = find(RANDOM, 60, k=25)
    assert found.num_colors <= 25 and time.monotonic() - start < 20 and not found.is_optimal


def test_k_colors_that_are_not_found_or_impossible_are_an_error_that_says_how_many_were():
    with pytest.raises(
        NoColoringError, match=r"at most 12 colors was not found in \d\.\d s; the fewest found are \d\d"
    ):
        find(RANDOM, 0.3, k=12)
    start = time.monotonic()
    with pytest.raises(NoColoringError, match="with at most 2 colors does not exist: at least 3 are needed"):
        gnn_training.color(PETERSEN, 60, k=2)  # no clique proves this
    with pytest.raises(NoColoringError, match="with at most 2 colors does not exist: at least 3 are needed"):
        gnn_training.color(nx.cycle_graph(151), 60, k=2)
    with pytest.raises(NoColoringError, match="with the colors 0 to 1, as far as they are allowed, does not exist"):
        gnn_training.color(PETERSEN, 60, allowed={0: [0, 1]})
    with pytest.raises(NoColoringError, match="with at most 4 colors does not exist: at least 9 are needed"):
        gnn_training.color(nx.complete_graph(9), 60, k=4)
    assert time.monotonic() - start < 10


def test_lists_of_colors_that_take_too_much_memory_are_refused(monkeypatch):
    monkeypatch.setattr(problem, "MAX_PAIRS", 19)
    with pytest.raises(ValueError, match="allowed has 10 nodes times 2 colors, at most 19 are possible: name fewer"):
        gnn_training.color(PETERSEN, 60, allowed={node: [0, 1] for node in range(10)})


@settings(max_examples=150)
@given(SMALL, ASKED, st.dictionaries(NODES, COLORS, max_size=3), st.dictionaries(NODES, LISTS, max_size=5))
def test_constraints_hold_wherever_a_coloring_exists_and_precolored_graphs_get_the_fewest_colors(
    graph: Graph, k: int | None, precolored: dict[int, int], allowed: dict[int, set[int]]
):
    precolored, allowed = ({v: c for v, c in each.items() if v < graph.num_nodes} for each in (precolored, allowed))
    lists = {v: {c} for v, c in precolored.items()}
    lists |= {v: own & lists.get(v, own) for v, own in allowed.items()}
    highest = max(itertools.chain([0], *allowed.values(), precolored.values()))
    most = (k or highest + 1) if allowed else 6
    colorings = [c for c in every_coloring(graph, lists, range(most)) if allowed or k is None or len(set(c)) <= k]
    if not colorings:
        with pytest.raises(NoColoringError):
            find(graph, k=k, precolored=precolored, allowed=allowed)
        return
    found = find(graph, k=k, precolored=precolored, allowed=allowed)
    assert all(found.colors[v] in own for v, own in lists.items()) and found.colors.max() < most
    assert found.num_colors <= (k or most)
    if not allowed and k is None:
        assert found.is_optimal and found.num_colors == min(len(set(each)) for each in colorings)


@settings(max_examples=150)
@given(SMALL, ASKED, st.dictionaries(NODES, COLORS, max_size=2), st.dictionaries(NODES, LISTS, max_size=3), STARTS)
def test_a_start_is_taken_if_it_is_a_coloring_that_obeys_the_constraints(
    graph: Graph, k: int | None, precolored: dict[int, int], allowed: dict[int, set[int]], start: list[int]
):
    precolored, allowed = ({v: c for v, c in each.items() if v < graph.num_nodes} for each in (precolored, allowed))
    colors, names = np.array(start[: graph.num_nodes]), range(graph.num_nodes)
    most = (k or max(itertools.chain([0], *allowed.values(), precolored.values())) + 1) if allowed else 6
    obeys = all(colors[v] == c for v, c in precolored.items()) and all(colors[v] in own for v, own in allowed.items())
    try:
        created = Problem.create(graph, names, k, precolored, allowed)
    except NoColoringError:
        return
    if is_proper(graph, colors) and obeys and colors.max() < most:
        begun = created.with_start(graph, names, dict(enumerate(start[: graph.num_nodes])))
        assert begun.start is not None and is_proper(begun.graph, begun.start)
        named = begun.named(begun.start)  # the same classes and, of nodes with constraints, the same colors
        assert len({*zip(named.tolist(), colors.tolist(), strict=True)}) == num_colors(named) == num_colors(colors)
        assert all(named[v] == colors[v] for v in ({*precolored} | {*(names if allowed else ())}))
    else:
        with pytest.raises(ValueError, match="start has color"):
            created.with_start(graph, names, dict(enumerate(start[: graph.num_nodes])))


def test_a_search_begins_with_the_start_unless_it_finds_fewer_colors_at_once():
    good = find(RANDOM, 1)
    again = find(RANDOM, 0, start=good.colors)
    assert (again.num_colors, again.method) == (good.num_colors, "start")
    assert find(RANDOM, 0).num_colors > good.num_colors
    assert find(RANDOM, 1, start=good.colors).num_colors <= good.num_colors
    assert find(RANDOM, 0, start=np.arange(150)).method == "DSATUR"
    assert find(RANDOM, 60, start=good.colors, k=good.num_colors).method == "start"  # which ends the search
    assert find(RANDOM, 0.1, start=torch.arange(150), k=149, precolored={3: 3}).colors[3] == 3
    names = dict(enumerate(good.colors.tolist()))
    assert find(RANDOM, 0, start=names, equitable=True).num_colors == good.num_colors
    graphs = [nx.Graph(RANDOM.edges.tolist()), RANDOM]
    found = gnn_training.color_many(graphs, 0, starts=[names, None], details=True)
    assert [each.method for each in found] == ["start", "DSATUR"]


def test_constraints_hold_in_a_graph_that_no_proof_ends_and_names_are_those_of_the_caller():
    graph = nx.relabel_nodes(nx.Graph(RANDOM.edges.tolist()), lambda v: f"exam {v}")
    precolored, allowed = {"exam 3": 29, "exam 4": 7}, {f"exam {v}": range(v % 7, v % 7 + 20) for v in range(5, 150, 3)}
    colors = gnn_training.color(graph, 5, k=30, precolored=precolored, allowed=allowed)
    assert all(colors[node] == color for node, color in precolored.items())
    assert all(colors[node] in own for node, own in allowed.items())
    assert all(colors[u] != colors[v] for u, v in graph.edges) and max(colors.values()) < 30


@given(graph=GRAPH, fixed=st.integers(0, 3), seed=st.integers(0, 99))
def test_balancing_keeps_a_coloring_proper_its_number_of_colors_and_the_nodes_that_stand_for_colors(graph, fixed, seed):
    colors, counts = kernels.dsatur(*graph.csr()), np.ones(graph.num_nodes, dtype=np.int64)
    before, free = colors.copy(), max(0, graph.num_nodes - fixed)
    counts[free:] = 3
    kernels.balance(*graph.csr(), colors, counts, free, 1000 * free, seeded(seed), NEVER_STOP)
    sizes, old = (np.bincount(each, counts) for each in (colors, before))
    assert is_proper(graph, colors) and (colors[free:] == before[free:]).all() and sizes.min() > 0
    assert np.ptp(sizes) <= np.ptp(old)


def test_all_nodes_may_be_precolored_and_a_large_graph_may_have_lists_everywhere():
    cycle = {node: node % 2 * 7 for node in range(6)}
    found = gnn_training.color(nx.cycle_graph(6), 60, precolored=cycle, equitable=True, details=True)
    assert found.colors == cycle and found.is_optimal and found.imbalance == 0
    graph = Graph.from_edges(20_000, np.random.default_rng(0).integers(0, 20_000, (60_000, 2)))
    allowed = {node: range(node % 20, node % 20 + 80) for node in range(20_000)}
    start, found = time.monotonic(), find(graph, 20, allowed=allowed)
    assert all(found.colors[node] in own for node, own in allowed.items()) and time.monotonic() - start < 15


def test_equitable_classes_differ_by_one_node_where_that_is_easy_and_constraints_still_hold():
    graph = random_graph(100, 0.05)
    any_classes, even = find(graph, 0.3), find(graph, 0.3, equitable=True)
    assert even.imbalance <= 1 < any_classes.imbalance and even.num_colors == any_classes.num_colors
    allowed = {node: [0, 3] for node in range(10)}
    found = find(graph, 0.3, equitable=True, allowed=allowed, precolored={20: 2})
    assert found.imbalance <= 1 and found.colors[20] == 2 and set(found.colors[:10]) <= {0, 3}


def test_a_thousand_small_graphs_are_colored_at_once_and_keep_their_order():
    graphs = [nx.gnp_random_graph(n % 30 + 1, 0.5, seed=n) for n in range(1000)]
    start = time.monotonic()
    found = gnn_training.color_many(graphs, seconds=60, details=True)
    assert time.monotonic() - start < 60 and all(each.is_optimal for each in found)
    for graph, each in zip(graphs, found, strict=True):
        assert list(each.colors) == list(graph) and all(each.colors[u] != each.colors[v] for u, v in graph.edges)
    with pytest.raises(TypeError, match="a graph is a networkx graph"):
        gnn_training.color_many([PETERSEN, "petersen"])


class Sparse:
    """What as_graph uses of a scipy sparse matrix; scipy is not installed here."""

    def __init__(self, shape: tuple[int, int], row: list[int], col: list[int], data: list[float]):
        self.shape, self.row, self.col, self.data = shape, np.array(row), np.array(col), np.array(data)

    def tocoo(self):
        return self


class Frame:
    """What as_graph uses of a pandas DataFrame; pandas is not installed here."""

    def __init__(self, index: Sequence, columns: Sequence, values: list[list]):
        self.index, self.columns, self.values = index, columns, values

    def to_numpy(self) -> np.ndarray:
        return np.array(self.values)


class DokArray(dict):
    """The dict that a dok_array of scipy is."""

    def tocoo(self) -> Sparse:
        row, col = zip(*self, strict=True)
        return Sparse((2, 2), row, col, list(self.values()))


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"seconds": -1}, ValueError, r"seconds \(-1\) must be"),
        ({"seconds": float("nan")}, ValueError, r"seconds \(nan\) must be"),
        ({"num_nodes": 10}, TypeError, "num_nodes is for an edge array only"),
        ({"model": "none.onnx"}, UserError, "none.onnx: cannot be read"),
        ({"seconds": "5"}, TypeError, r"seconds \('5'\) must be a number, not str"),
        ({"seed": 1.5}, TypeError, r"seed \(1.5\) must be an integer, not float"),
        ({"k": "3"}, TypeError, r"k \('3'\) must be an integer, not str"),
        ({"k": 0}, ValueError, r"k \(0\) must be a number of 1 or above"),
        ({"threads": True}, TypeError, r"threads \(True\) must be an integer, not bool"),
        ({"start": [0] * 10}, TypeError, "start must be a dict from node to color, as color returns it, not list"),
        ({"graph": [(0, 1)], "start": [[0], [1]]}, TypeError, "start must be a color per node, or a dict from node"),
        ({"precolored": [1]}, TypeError, "precolored must be a dict with a node as the key, not list"),
        ({"precolored": {0: -1}}, ValueError, r"precolored of node 0 \(-1\) must name colors from 0 to 999"),
        ({"precolored": {"x": 1}}, ValueError, "precolored names node 'x', which is not in the graph"),
        ({"allowed": {0: 3}}, ValueError, r"allowed of node 0 \(3\) must name colors from 0 to 999"),
        ({"allowed": {0: "3"}}, ValueError, r"allowed of node 0 \('3'\) must name colors from 0 to 999"),
        ({"allowed": {0: []}}, NoColoringError, "no color is left for node 0: change"),
        ({"precolored": {0: 5}, "allowed": {1: [0]}, "k": 3}, NoColoringError, "no color is left for node 0: change"),
        ({"precolored": {0: 5, 2: 6}, "k": 1}, NoColoringError, "with at most 1 colors does not exist: at least 3"),
        ({"graph": "petersen"}, TypeError, "a graph is a networkx graph, an edge array .* not str"),
        ({"graph": [(0, 1), (1,)]}, TypeError, "an edge array .* of integers .* not list"),
        ({"graph": np.zeros((3, 2))}, TypeError, "an edge array .* of integers .* not ndarray of float64"),
        ({"graph": np.zeros((2, 5), int)}, ValueError, r"shape \(E, 2\), not \(2, 5\): give one row per edge"),
        ({"graph": [(0, -1)]}, ValueError, "edge 0--1 leaves the nodes 0..0"),
        ({"graph": Data(num_nodes=3)}, ValueError, "this Data has no edge_index: set it"),
        ({"graph": Data(edge_index=torch.zeros(3, 2, dtype=int))}, ValueError,
         r"has shape \(3, 2\); .* \(2, E\): transpose"),
        ({"graph": Data(edge_index=torch.zeros(3, dtype=int))}, ValueError,
         r"shape \(3,\); .*: give two nodes per edge"),
        ({"graph": Data(edge_index=torch.zeros(2, 3))}, TypeError,
         "has numbers of type float32; they must be integers"),
        ({"graph": Data(edge_index=torch.tensor([[0], [7]]), num_nodes=4)}, ValueError,
         "edge 0-7 leaves the nodes 0..3"),
        ({"graph": HeteroData()}, TypeError, r"several kinds of nodes: give data.to_homogeneous\(\)"),
        ({"graph": np.triu(np.ones((3, 3)))}, ValueError, r"is not symmetric: give matrix \+ matrix.T != 0"),
        ({"graph": [(0, 1, 5), (1, 2, 3), (2, 0, 4)]}, ValueError,
         r"array \(3, 3\) is an adjacency matrix, whose numbers"),
        ({"graph": {"a": "bc"}}, TypeError, "the neighbours of node 'a' are 'bc': give a list"),
        ({"graph": Sparse((2, 3), [0], [1], [1])}, ValueError, r"square, not \(2, 3\): A.T @ A with A = matrix != 0"),
        ({"graph": Sparse((3, 3), [0, 2], [1, 1], [1, 1])}, ValueError, "is not symmetric: .* A.T @ A .* colors the"),
        ({"graph": Sparse((2, 2), [0, 1], [1, 0], [1, 2])}, ValueError, "is not symmetric: .* A.T @ A .* colors the"),
        ({"graph": PETERSEN.nodes}, TypeError, "NodeView of networkx is no graph: give the graph itself, its edges"),
        ({"graph": PETERSEN[0]}, TypeError, "AtlasView of networkx is no graph: give the graph itself, its edges"),
        ({"graph": [PETERSEN] * 2, "seconds": 1}, TypeError, "a list of graphs is not one graph: call color_many"),
        ({"graph": {"nodes": [0, 1], "edges": [(0, 1)]}}, TypeError, "no neighbour is a key: give edges as networkx"),
        ({"graph": {"nodes": [0, 1], "edges": [[0, 1]]}}, TypeError, "an unhashable type: 'list': give edges as netw"),
        ({"graph": {0: [0, 1, 0], 1: [1, 0, 1], 2: [0, 1, 0]}}, TypeError, "here are rows of 0 and 1: give the matrix"),
        ({"graph": {"a": {"a": 0, "b": 1}, "b": {"a": 1}}}, TypeError, "node 'a' has the neighbour 'a' with 0: leave"),
        ({"graph": Frame("aa", "aa", [[0, 1], [1, 0]])}, ValueError, "a Frame is an adjacency matrix with the same la"),
        ({"graph": Frame([0, 1], "uv", [[0, 1], [1, 2]])}, ValueError, "or the edges as networkx.from_pandas_edgelist"),
        ({"graph": Frame("ab", "ba", [[0, 1], [0, 1]])}, ValueError, "is not symmetric: give"),
        ({"graph": Frame("ab", "ab", [[0, "x"], ["x", 0]])}, TypeError, "a graph is a networkx .* not Frame of <U"),
        ({"graph": RING}, ValueError, r"4 lists of two numbers may be .* give np.array\(edges\) or dict\(enumerate"),
        ({"graph": [[1], [0]]}, ValueError, r"or dict\(enumerate\(lists\)\) for lists of neighbours"),
        ({"graph": [[], []], "seconds": 1}, TypeError, r"not list of float64: .*dict\(enumerate\(lists\)\) for lists"),
        ({"graph": 5}, TypeError, "a graph is a networkx graph, an edge array .* not int"),
        ({"graph": iter([(0, 1)])}, TypeError, "a graph is a networkx graph, an edge array .* not list_iterator"),
        ({"graph": [(0, 1)], "num_nodes": 3.7}, TypeError, r"num_nodes \(3.7\) must be an integer, not float"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_used_are_refused_in_one_sentence(options: dict, error: type, sentence: str):
    with pytest.raises(error, match=sentence) as caught:
        gnn_training.color(**{"graph": PETERSEN} | options)
    assert "\n" not in str(caught.value)
    if options.keys() == {"graph"}:
        with pytest.raises(error, match=sentence):
            Model(threads=1).predict(options["graph"])


@pytest.mark.parametrize(
    "graph",
    [PETERSEN, [(0, 1), (1, 2)], [[], [0, 1]], np.zeros((3, 3), int), {0: [1]}, PETERSEN.degree, Data(), "graph.col"],
)
def test_a_single_graph_for_color_many_is_refused(graph: object):
    with pytest.raises(TypeError, match=r"color_many takes a list of graphs: give \[graph\], or call color"):
        gnn_training.color_many(graph)
    with pytest.raises(TypeError, match="color_many takes a list of graphs, not int"):
        gnn_training.color_many(5)


def test_numbers_may_be_those_of_numpy_and_precolored_nodes_any_colors_with_gaps():
    numbers = {"seconds": np.float32(5), "seed": np.uint8(3), "k": np.int64(3), "threads": np.int32(1)}
    assert len(set(gnn_training.color(PETERSEN, **numbers).values())) == 3
    assert gnn_training.color(nx.complete_graph(3), k=3, precolored={0: 1, 1: 2, 2: 3}) == {0: 1, 1: 2, 2: 3}


def test_ctrl_c_ends_the_searches_of_color_many():
    graphs, started = [random_graph(300, 0.5)] * 3, time.monotonic()
    with interrupted(1):
        gnn_training.color_many(graphs, seconds=30)
    assert time.monotonic() - started < 10
    assert gnn_training.color(PETERSEN, 5, k=3, details=True).num_colors == 3  # and later searches begin


def test_the_lower_bound_of_a_list_coloring_is_that_of_the_graph():
    found = gnn_training.color(PETERSEN, allowed={0: [9]}, details=True)
    assert found.colors[0] == 9 and found.lower_bound == clique_size(as_graph(PETERSEN).csr()) == 2


def test_the_model_may_be_a_path(tiny_model: Path):
    for model in (tiny_model, str(tiny_model)):
        assert gnn_training.color([(0, 1)], 0.1, model=model, num_nodes=5).shape == (5,)


IGRAPH = SimpleNamespace(vcount=lambda: 4, get_edgelist=lambda: [(0, 1), (1, 2)])  # neither is installed here
RUSTWORKX = SimpleNamespace(node_indices=lambda: [0, 2, 5], edge_list=lambda: [(0, 2), (2, 5)])
MATRIX = nx.to_numpy_array(nx.path_graph(3))


@pytest.mark.parametrize(
    ("graph", "nodes", "edges"),
    [
        (nx.Graph([("a", (1, 2)), (3.5, frozenset())]), ["a", (1, 2), 3.5, frozenset()],
         [("a", (1, 2)), (3.5, frozenset())]),
        (nx.MultiDiGraph([(0, 1), (1, 0), (0, 1), (1, 2), (2, 2)]), [0, 1, 2], [(0, 1), (1, 2)]),
        ({"a": ["b", "c"], "b": set()}, ["a", "b", "c"], [("a", "b"), ("a", "c")]),
        (nx.to_dict_of_dicts(nx.path_graph(3)), [0, 1, 2], [(0, 1), (1, 2)]),
        (RUSTWORKX, [0, 2, 5], [(0, 2), (2, 5)]),
        (IGRAPH, 4, [(0, 1), (1, 2)]),
        ({"a": iter(["b"]), "b": iter(["a"])}, ["a", "b"], [("a", "b")]),
        (nx.path_graph("abc").edges, ["a", "b", "c"], [("a", "b"), ("b", "c")]),
        (nx.MultiGraph([(0, 1), (0, 1)]).edges(keys=True, data=True), [0, 1], [(0, 1)]),
        (nx.path_graph(3).adj, [0, 1, 2], [(0, 1), (1, 2)]),
        (Sparse((4, 4), [0, 1, 2, 1, 3, 1], [1, 0, 1, 2, 3, 3], [2, 2, 1.5, 1.5, 1, 0]), 4, [(0, 1), (1, 2)]),
        (Sparse((3, 3), [0, 0, 1, 2], [1, 1, 2, 1], [1, -1, 1, 1]), 3, [(1, 2)]),  # entries of one place are added
        (DokArray({(0, 1): 1.0, (1, 0): 1.0}), 2, [(0, 1)]),
        (Frame("abc", "cab", [[1, 0, 0], [0, 0, 0], [0, 1, 0]]), ["a", "b", "c"], [("a", "c")]),
        (dict(enumerate(RING)), [0, 1, 2, 3], [(0, 1), (1, 2), (2, 3), (3, 0)]),
        (np.array(RING), 4, [(1, 3), (0, 2)]),
        ([(1, 2), (2, 0), (0, 1)], 3, [(0, 1), (1, 2), (2, 0)]),  # edges and neighbours of one graph
        *((matrix, 3, [(0, 1), (1, 2)]) for matrix in (MATRIX, MATRIX.astype(int), MATRIX > 0, MATRIX.tolist())),
        (np.array([[False, True], [True, False]]), 2, [(0, 1)]),
        (np.array([[0, 1], [1, 2]]), 3, [(0, 1), (1, 2)]),
        (np.array([[0, 1], [1, 2], [2, 0], [3, 3]], np.uint8), 4, [(0, 1), (1, 2), (2, 0)]),
        (Data(edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=4), 4, [(0, 1), (1, 2)]),
    ],
    ids=count(),
)  # fmt: skip
def test_graphs_of_many_kinds_are_colored_and_keep_the_names_of_their_nodes(graph, nodes, edges, model: Model):
    colors = gnn_training.color(graph, 0.1, model=model)
    assert list(colors) == nodes if isinstance(nodes, list) else colors.shape == (nodes,)
    assert all(colors[u] != colors[v] for u, v in edges)
    kind = dict if isinstance(nodes, list) else torch.Tensor if isinstance(graph, Data) else np.ndarray
    assert isinstance(colors, kind)
    assert {type(color) for color in colors.values()} == {int} if kind is dict else str(colors.dtype).endswith("int64")
    assert len(model.predict(graph).logits[0]) == len(colors)


def test_without_nodes_the_result_is_empty_and_without_edges_there_is_one_color(model: Model):
    assert gnn_training.color(nx.Graph()) == {}
    assert gnn_training.color([]).shape == gnn_training.color(np.empty((0, 2), dtype=int)).shape == (0,)
    assert gnn_training.color(Data(edge_index=torch.empty(2, 0, dtype=torch.long), num_nodes=0)).shape == (0,)
    assert gnn_training.color(nx.empty_graph(3), model=model) == {0: 0, 1: 0, 2: 0}
    assert gnn_training.color([], model=model, num_nodes=2).tolist() == [0, 0]
    assert [colors.shape for colors in gnn_training.color_many([[], [(0, 1)], []])] == [(0,), (2,), (0,)]


def test_a_model_predicts_for_a_list_of_graphs_of_any_kind_and_a_list_of_edges_is_one_graph(model: Model):
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
    prediction = model.predict([PETERSEN, np.array([[0, 1], [1, 2]]), [(0, 1)], data])
    assert [len(logits) for logits in prediction.logits] == [10, 3, 2, 2]
    assert prediction.graph_type_logits.shape == (4, 8) and len(prediction.graph_types) == 4
    assert [len(logits) for logits in model.predict([(0, 1), (1, 2)]).logits] == [3]


def test_a_prediction_needs_graphs_with_nodes_and_steps_that_end(model: Model):
    for graphs in ([], nx.Graph(), [PETERSEN, nx.Graph()]):
        with pytest.raises(ValueError, match="predict needs a graph, and every graph needs at least one node"):
            model.predict(graphs)
    for steps in (2**40, 2**63, -(2**63)):
        with pytest.raises(ValueError, match=rf"steps \({steps}\) must be at most 1000000000: call again with another"):
            model.predict(PETERSEN, steps=steps)


def test_the_package_has_no_other_names():
    with pytest.raises(AttributeError, match="gnn_training.*colour"):
        gnn_training.colour  # noqa: B018
