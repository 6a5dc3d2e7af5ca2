"""The program of the ONNX file, run by torch: proper colorings for whatever callers send, never worse than DSATUR."""

from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gnn_training import coloring
from gnn_training.coloring import count_conflicts_and_colors
from gnn_training.contract import MAX_COLORS, OUTPUTS
from gnn_training.graph import Graph
from gnn_training.model import golden, greedy
from gnn_training.model.graphs import DenseGraphs, batch_of
from gnn_training.model.greedy import clique_bound
from gnn_training.model.loss import ColoringNetwork
from gnn_training.model.network import RefinementNetwork, noise
from gnn_training.model.program import COPIES, CORE, SURRENDER, Densify, Program, copied, order_by_conflicts
from gnn_training.solve import kernels
from gnn_training.training import checkpoint

STEPS = 6


class Master(RefinementNetwork):
    """A network that has learned one graph by heart: its coloring (N,), named by the noise, as far as k colors go."""

    def __init__(self, colors: np.ndarray):
        super().__init__()
        self.colors = torch.from_numpy(colors)

    def start(self, graphs, color_mask, seeds):
        return noise(seeds, graphs.mask.shape[1], color_mask.shape[1])[..., None].expand(-1, -1, -1, self.width)

    def forward(self, h, p, graphs, color_mask, seeds, price):
        return h, self.soft_colors(h, graphs, color_mask), torch.zeros(len(h))

    def soft_colors(self, h, graphs, color_mask):
        usable_first = (h[:, 0, :, 0] - 1e6 * (1 - color_mask)).argsort(1, descending=True)
        names = usable_first.gather(1, self.colors.expand(len(h), -1).clamp(max=color_mask.sum(1).long()[:, None] - 1))
        return (names[:, :, None] == torch.arange(color_mask.shape[1])).float()


class Reluctant(Master):
    """One that gives all nodes one color until that costs as much as 20 conflicts."""

    def forward(self, h, p, graphs, color_mask, seeds, price):
        h, p, cost = super().forward(h, p, graphs, color_mask, seeds, price)
        return h, torch.where(price.amax((1, 2), keepdim=True) > 20, p, p[:, :1]), cost


def around(refiner: RefinementNetwork) -> Program:
    network = ColoringNetwork()
    network.refiner = refiner
    return Program(network).eval()


def planted(num_nodes: int, num_colors: int, density: float) -> tuple[Graph, np.ndarray]:
    rng = np.random.default_rng(0)
    colors = np.arange(num_nodes) % num_colors
    edges = np.triu(rng.random((num_nodes, num_nodes)) < density) & (colors[:, None] != colors[None])
    return Graph.from_adjacency(edges), colors


@pytest.fixture(scope="module")
def program(trained: Path) -> Program:
    network = ColoringNetwork()
    network.load_state_dict(checkpoint.load(trained / "best.pt")["network"])
    return Program(network).eval()


def random_graph(num_nodes: int, density: float, seed: int = 0) -> Graph:
    rng = np.random.default_rng(seed)
    return Graph.from_adjacency(rng.random((num_nodes, num_nodes)) < density)


def flat(graphs: list[Graph]) -> tuple[np.ndarray, np.ndarray]:
    """edge_index (2, E) and batch (N,)."""
    sizes = [graph.num_nodes for graph in graphs]
    starts = np.cumsum([0, *sizes[:-1]])
    edges = [graph.edge_index() + start for graph, start in zip(graphs, starts, strict=True)]
    return np.concatenate(edges, axis=1), np.repeat(np.arange(len(graphs)), sizes)


def call(program: Program, edge_index, batch, num_colors=(0,), seed: int = 0, steps: int = STEPS) -> dict[str, Tensor]:
    feeds = golden.feeds(edge_index, batch, num_colors=num_colors, seed=seed, steps=steps)
    return program(**{name: torch.from_numpy(np.asarray(value)) for name, value in feeds.items()})


def classes(outputs: dict[str, Tensor], batch: np.ndarray) -> list[list[int]]:
    """Argmax of every node, graph by graph."""
    rows = outputs["color_logits"].argmax(1).numpy()
    return [rows[batch == g].tolist() for g in range(batch.max() + 1)]


def used(program: Program, graph: Graph, **options) -> int:
    """Colors of one graph; its coloring is proven."""
    edge_index, batch = flat([graph])
    ((mine),) = classes(call(program, edge_index, batch, **options), batch)
    wrong, count = count_conflicts_and_colors(graph.edges.tolist(), mine)
    assert wrong == 0
    return count


def dsatur_colors(graph: Graph) -> int:
    return int(kernels.dsatur(*graph.csr()).max()) + 1


def greedy_colors(program: Program, graph: Graph) -> int:
    """Colors before the network comes in: those of DSATUR or XRLF."""
    return int(call(program, *flat([graph]), steps=0)["greedy"].max()) + 1


GRAPH = st.builds(random_graph, st.integers(1, 16), st.floats(0, 1), st.integers(0, 10**6))


@settings(max_examples=30, deadline=None)
@given(
    graphs=st.lists(GRAPH, min_size=1, max_size=3),
    seed=st.integers(-(2**40), 2**63 - 10**6),
    steps=st.integers(0, 8),
    asked=st.integers(0, 20),
)
def test_any_batch_is_colored_properly_with_no_more_colors_than_dsatur(program: Program, graphs, seed, steps, asked):
    edge_index, batch = flat(graphs)
    outputs = call(program, edge_index, batch, [asked], seed, steps)
    logits = outputs["color_logits"]
    assert [tuple(outputs[name].shape) for name in OUTPUTS] == [
        (len(batch), MAX_COLORS), (len(graphs),), (len(graphs), 8), (len(graphs),)
    ]  # fmt: skip
    assert all(outputs[name].isfinite().all() for name in OUTPUTS)
    for graph, mine in zip(graphs, classes(outputs, batch), strict=True):
        wrong, count = count_conflicts_and_colors(graph.edges.tolist(), mine)
        assert wrong == 0 and count <= dsatur_colors(graph)
        assert coloring.num_colors(coloring.greedy_along(graph, np.argsort(mine, kind="stable"))) <= count
    # Unused columns are 0 and used ones above: softmax and cosine of the rows keep their meaning.
    assert (logits >= 0).all() and (logits.max(1).values > 0).all()
    assert (logits[:, max(map(dsatur_colors, graphs)) :] == 0).all()


@settings(max_examples=40, deadline=None)
@given(graph=GRAPH)
def test_the_coloring_it_starts_from_is_no_worse_than_dsaturs(program: Program, graph: Graph):
    edge_index, batch = flat([graph])
    outputs = call(program, edge_index, batch, steps=0)
    assert outputs["dsatur"][0].tolist() == kernels.dsatur(*graph.csr()).tolist()
    assert coloring.is_proper(graph, outputs["greedy"][0].numpy())
    assert greedy_colors(program, graph) <= dsatur_colors(graph)


def test_without_steps_no_more_than_dsatur_is_needed(program: Program):
    for seed in range(5):
        graph = random_graph(40, 0.5, seed)
        assert used(program, graph, steps=0) <= dsatur_colors(graph)


@pytest.mark.parametrize(
    "edge_index",
    [np.zeros((2, 0), dtype=np.int64), np.zeros((2, 1), dtype=np.int64)],
    ids=["no edge", "the pair (0, 0)"],
)
@pytest.mark.parametrize("num_nodes", [1, 2, 7])
def test_without_edges_one_color_is_enough(program: Program, edge_index: np.ndarray, num_nodes: int):
    outputs = call(program, edge_index, np.zeros(num_nodes, dtype=np.int64))
    assert outputs["color_logits"].argmax(1).tolist() == [0] * num_nodes
    assert outputs["chromatic"].item() == pytest.approx(1)
    assert all(outputs[name].isfinite().all() for name in OUTPUTS)


def test_how_careless_callers_write_the_edges_does_not_matter(program: Program):
    graph = random_graph(15, 0.4)
    edge_index, batch = flat([graph])
    once = graph.edges.T.astype(np.int64)
    loops = np.array([[0, 3, 14], [0, 3, 14]])
    expected = call(program, edge_index, batch)
    for careless in (once, once[::-1], np.concatenate([edge_index, once, loops], axis=1), edge_index[:, ::-1]):
        outputs = call(program, np.ascontiguousarray(careless), batch)
        for name in OUTPUTS:
            torch.testing.assert_close(outputs[name], expected[name])


def test_an_edge_between_two_graphs_is_dropped(program: Program):
    graphs = [random_graph(8, 0.4, 1), random_graph(9, 0.5, 2)]
    edge_index, batch = flat(graphs)
    crossing = np.concatenate([edge_index, [[2], [11]]], axis=1)
    a, b = call(program, edge_index, batch), call(program, crossing, batch)
    assert torch.equal(a["color_logits"], b["color_logits"])


def test_readings_of_a_graph_do_not_depend_on_its_company(program: Program):
    graphs = [random_graph(8, 0.4, 1), random_graph(19, 0.5, 2), Graph.from_edges(3, [])]
    together = call(program, *flat(graphs))
    for i, graph in enumerate(graphs):
        alone = call(program, *flat([graph]))
        for name in OUTPUTS[1:]:
            torch.testing.assert_close(together[name][i], alone[name][0], rtol=1e-4, atol=1e-4)


def test_node_features_are_not_looked_at(program: Program):
    edge_index, batch = flat([random_graph(12, 0.4)])
    inputs = {name: torch.from_numpy(np.asarray(x)) for name, x in golden.feeds(edge_index, batch).items()}
    rest = {"num_colors": torch.tensor([0]), "seed": torch.tensor(0), "steps": torch.tensor(STEPS)}
    inputs["node_features"] = torch.full((12, 16), torch.nan)
    assert torch.equal(program(**inputs, **rest)["color_logits"], call(program, edge_index, batch)["color_logits"])


def test_the_same_call_gives_the_same_answer_and_another_seed_another_refinement(program: Program):
    edge_index, batch = flat([random_graph(60, 0.5)])
    outputs = [call(program, edge_index, batch, seed=seed) for seed in (0, 0, 1, 2**31, 2**62)]
    assert torch.equal(outputs[0]["color_logits"], outputs[1]["color_logits"])
    for other in outputs[2:]:
        assert not torch.equal(other["last"], outputs[0]["last"])
        assert all(torch.equal(other[name], outputs[0][name]) for name in OUTPUTS[2:])


def test_asking_for_fewer_colors_never_hurts_and_for_more_changes_nothing_below_dsatur(program: Program):
    graph = random_graph(40, 0.5)
    bound = dsatur_colors(graph)
    assert all(used(program, graph, num_colors=[k]) <= bound for k in (1, bound - 1, bound, bound + 5, 10**6))


@pytest.fixture(scope="module")
def master() -> tuple[Program, Graph]:
    """A program around the network that knows how to color this graph with 5 colors; the greedy ones take more."""
    graph, colors = planted(60, 5, 0.3)
    program = around(Master(colors))
    assert greedy_colors(program, graph) >= 6
    return program, graph


def test_the_descent_finds_what_the_network_knows(master):
    program, graph = master
    assert used(program, graph, steps=12) == 5
    bound = greedy_colors(program, graph)
    assert used(program, graph, num_colors=[bound], steps=12) == 5
    assert used(program, graph, num_colors=[5], steps=1) == 5


def test_a_conflict_costs_more_with_every_round_until_the_network_gives_it_up(master):
    _, graph = master
    program = around(Reluctant(planted(60, 5, 0.3)[1]))
    assert used(program, graph, num_colors=[5], steps=3) == greedy_colors(program, graph)
    assert used(program, graph, num_colors=[5], steps=8) == 5


def test_a_number_of_colors_that_is_too_small_gives_the_greedy_coloring(master):
    program, graph = master
    assert used(program, graph, num_colors=[4], steps=12) == greedy_colors(program, graph)


def test_after_too_many_failures_one_more_color_is_allowed(master):
    program, graph = master
    assert used(program, graph, num_colors=[4], steps=SURRENDER - 1) == greedy_colors(program, graph)
    assert used(program, graph, num_colors=[4], steps=SURRENDER + 1) == 5


def test_the_more_conflicts_are_left_the_more_colors_are_allowed_at_once():
    graph, colors = planted(96, 12, 0.5)
    program = around(Master(colors))
    assert used(program, graph, num_colors=[8], steps=SURRENDER - 1) > 13
    assert used(program, graph, num_colors=[8], steps=SURRENDER + 1) == 12


def test_descent_never_goes_below_the_clique(master):
    program, graph = master
    assert clique_bound(batch_of([graph])).item() == 4
    assert used(program, graph, num_colors=[1], steps=SURRENDER + 1) == 5


def test_call_ends_early_when_every_graph_is_down_to_its_clique(program: Program):
    edge_index, batch = flat([Graph.from_edges(4, [])])
    one, many = (call(program, edge_index, batch, steps=steps) for steps in (1, 10**9))
    assert torch.equal(one["last"], many["last"])


def test_other_seeds_give_other_colorings_of_the_same_quality(master):
    program, graph = master
    edge_index, batch = flat([graph])
    outputs = [call(program, edge_index, batch, seed=seed, steps=12) for seed in (0, 1, 2**31, 2**62)]
    (colorings,) = zip(*(classes(each, batch) for each in outputs), strict=True)
    assert len(set(map(tuple, colorings))) == 4
    assert [count_conflicts_and_colors(graph.edges.tolist(), colors) for colors in colorings] == [(0, 5)] * 4


def test_one_number_of_colors_serves_all_graphs(program: Program):
    edge_index, batch = flat([random_graph(30, 0.5, 1), random_graph(40, 0.5, 2)])
    one, each = (call(program, edge_index, batch, asked) for asked in ([7], [7, 7]))
    assert torch.equal(one["color_logits"], each["color_logits"])
    other = call(program, edge_index, batch, [7, 9])
    assert not torch.equal(other["last"], one["last"])


def test_more_steps_refine_further(program: Program):
    graph = random_graph(50, 0.5)
    edge_index, batch = flat([graph])
    few, many = (call(program, edge_index, batch, steps=steps) for steps in (1, 10))
    assert not torch.equal(few["last"], many["last"])
    assert used(program, graph, steps=60) <= dsatur_colors(graph)


def test_a_graph_that_needs_more_colors_than_columns_still_gets_scores(program: Program):
    complete = Graph.from_edges(MAX_COLORS + 4, list(nx.complete_graph(MAX_COLORS + 4).edges))
    edge_index, batch = flat([complete])
    logits = call(program, edge_index, batch, steps=1)["color_logits"]
    assert logits.shape == (MAX_COLORS + 4, MAX_COLORS) and logits.isfinite().all()
    colors = coloring.from_logits(complete, logits.numpy())
    assert coloring.is_proper(complete, colors)


def test_small_graphs_are_refined_in_copies_and_the_best_is_returned(program: Program):
    edge_index, batch = flat([random_graph(10, 0.5, 1), random_graph(12, 0.5, 2)])
    outputs = call(program, edge_index, batch)
    assert len(outputs["copies"]) == COPIES and len(outputs["last"]) == 2 * COPIES
    assert len(call(program, *flat([random_graph(99, 0.9)]), steps=0)["copies"]) < COPIES


def test_of_large_graphs_the_network_colors_some_classes_anew(program: Program):
    graphs = [random_graph(150, 0.3, 1), random_graph(30, 0.5, 2), random_graph(120, 0.8, 3)]
    outputs = call(program, *flat(graphs), steps=0)
    greedy, seats, core = (outputs[name] for name in ("greedy", "seats", "core_mask"))
    copies, cores = len(outputs["copies"]), set()
    for row in range(len(seats)):
        i, mine = row // copies, seats[row][core[row] > 0]
        inside = torch.isin(torch.arange(150), mine)[: graphs[i].num_nodes]
        assert len(set(mine.tolist())) == len(mine) <= CORE
        # Whole classes, named before all others, without gaps.
        assert not set(greedy[i, : len(inside)][inside].tolist()) & set(greedy[i, : len(inside)][~inside].tolist())
        names = outputs["ranked"][row, : len(inside)]
        assert sorted(set(names[inside].tolist())) == list(range(len(set(names[inside].tolist()))))
        adjacency = outputs["adjacency"][i][mine][:, mine]
        assert torch.equal(outputs["core_adjacency"][row][core[row] > 0][:, core[row] > 0], adjacency)
        cores.add((i, tuple(mine.tolist())))
        assert inside.all() or i != 1
    assert len(cores) > len(graphs)  # copies differ in what they choose


def test_two_classes_make_a_core_however_large_they_are(program: Program):
    ring = Graph.from_edges(250, [(i, (i + 1) % 250) for i in range(250)])
    outputs = call(program, *flat([ring]))
    assert outputs["core_mask"].sum(1).tolist() == [250] * len(outputs["core_mask"])
    assert used(program, ring) == 2


def test_copies_of_a_graph_stand_in_a_row():
    assert copied(torch.tensor([5, 6]), torch.arange(3)).tolist() == [5, 5, 5, 6, 6, 6]


def test_classes_are_renumbered_by_their_conflicts():
    path = batch_of([Graph.from_edges(4, [(0, 1), (1, 2), (2, 3)])])
    assert order_by_conflicts(path, torch.tensor([[0, 0, 1, 2]]), torch.arange(3)).tolist() == [[2, 2, 0, 1]]


@settings(max_examples=40, deadline=None)
@given(graph=GRAPH, seed=st.integers(0, 1000))
def test_greedy_in_tensors_is_the_greedy_of_callers(graph: Graph, seed: int):
    mine = np.random.default_rng(seed).integers(0, 5, graph.num_nodes)
    expected = coloring.greedy_along(graph, np.argsort(mine, kind="stable"))
    graphs = batch_of([graph, Graph.from_edges(18, [])])  # padded, and the other one needs more rounds
    padded = torch.zeros(2, 18, dtype=torch.int64)
    padded[0, : graph.num_nodes] = torch.from_numpy(mine)
    colors = greedy.greedy_along(graphs, padded, torch.arange(18))
    assert colors[0, : graph.num_nodes].tolist() == expected.tolist()


@settings(max_examples=40, deadline=None)
@given(graphs=st.lists(GRAPH, min_size=1, max_size=3), seed=st.integers(0, 1000))
def test_greedy_class_by_class_is_the_greedy_of_callers_where_classes_are_proper(graphs: list[Graph], seed: int):
    rng, padded = np.random.default_rng(seed), batch_of(graphs)
    probabilities, expected = torch.zeros(len(graphs), padded.mask.shape[1], 40), []
    for row, graph in enumerate(graphs):
        names = rng.permutation(40)  # with gaps, and none of them in order
        mine = names[coloring.greedy_along(graph, rng.permutation(graph.num_nodes))]
        probabilities[row, torch.arange(graph.num_nodes), torch.from_numpy(mine)] = 1
        expected.append(coloring.greedy_along(graph, np.argsort(mine, kind="stable")).tolist())
    colors = greedy.greedy_by_class(padded, probabilities)
    for row, graph in enumerate(graphs):
        assert colors[row, : graph.num_nodes].tolist() == expected[row]
        assert (colors[row, graph.num_nodes :] == 0).all()


@settings(max_examples=40, deadline=None)
@given(graphs=st.lists(GRAPH, min_size=1, max_size=3))
def test_the_clique_bound_is_the_size_of_a_clique(graphs: list[Graph]):
    sizes = greedy.clique_bound(batch_of(graphs)).tolist()
    for graph, size in zip(graphs, sizes, strict=True):
        network = nx.empty_graph(graph.num_nodes)
        network.add_edges_from(graph.edges.tolist())
        cliques = {len(clique) for clique in nx.find_cliques(network)}
        assert size in cliques and size >= (2 if graph.num_edges else 1)


@settings(max_examples=40, deadline=None)
@given(graphs=st.lists(GRAPH, min_size=1, max_size=4))
def test_flat_edges_become_the_adjacency_of_every_graph(graphs: list[Graph]):
    edge_index, batch = map(torch.from_numpy, flat(graphs))
    made, place = greedy.dense(edge_index, batch)
    expected = batch_of(graphs)
    assert isinstance(expected, DenseGraphs)
    assert torch.equal(made.adjacency, expected.adjacency) and torch.equal(made.mask, expected.mask)
    assert place.tolist() == [v for graph in graphs for v in range(graph.num_nodes)]


def test_no_more_color_names_are_made_than_the_contract_has_columns():
    star = Graph.from_edges(400, [(0, v) for v in range(1, 400)])
    edge_index, batch = map(torch.from_numpy, flat([star]))
    *_, names, _ = Densify()(edge_index, batch)
    assert len(names) == MAX_COLORS


@settings(max_examples=40, deadline=None)
@given(graphs=st.lists(GRAPH, min_size=1, max_size=3), seed=st.integers(0, 1000), samples=st.integers(1, 8))
def test_xrlf_colors_properly_without_gaps_and_every_class_is_maximal(graphs: list[Graph], seed: int, samples: int):
    padded = batch_of(graphs)
    nothing = torch.full_like(padded.mask, -1, dtype=torch.int64)
    colors = greedy.xrlf(padded, torch.arange(samples), torch.full((len(graphs),), seed), nothing)
    for row, graph in enumerate(graphs):
        mine = colors[row, : graph.num_nodes].numpy()
        assert coloring.is_proper(graph, mine) and set(mine) == set(range(mine.max() + 1))
        assert (colors[row, graph.num_nodes :] == -1).all()
        along = coloring.greedy_along(graph, np.argsort(mine, kind="stable"))
        assert np.array_equal(along, mine)  # nobody finds an earlier class free


def test_xrlf_of_many_samples_is_better_than_of_one():
    graphs = batch_of([random_graph(120, 0.5, seed) for seed in range(8)])
    nothing, seeds = torch.full((8, 120), -1), torch.zeros(8, dtype=torch.int64)
    one, many = (greedy.xrlf(graphs, torch.arange(n), seeds, nothing).amax(1) for n in (1, 32))
    assert many.sum() <= one.sum() - 4
