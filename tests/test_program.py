"""The program of the ONNX file, run by torch: it colors properly whatever callers send, never worse than DSATUR."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_graphs import dense, edge_list, random_graph
from torch import Tensor

from gnn_training import coloring
from gnn_training.coloring import count_conflicts_and_colors
from gnn_training.contract import MAX_COLORS, OUTPUTS
from gnn_training.graph import Graph
from gnn_training.model import golden, greedy
from gnn_training.model.greedy import clique_bound
from gnn_training.model.loss import ColoringNetwork
from gnn_training.model.network import RefinementNetwork, RefinementState, noise
from gnn_training.model.program import (
    MAX_REPLICAS,
    PATIENCE,
    SUBGRAPH_NODES,
    Program,
    order_by_conflicts,
    prepare,
    ranges,
    refine,
    replicated,
)
from gnn_training.solve import kernels

STEPS = 6


class Oracle(RefinementNetwork):
    """A network that knows one coloring (N,) of one graph. The noise decides which color is which."""

    def __init__(self, colors: np.ndarray):
        super().__init__()
        self.colors = torch.from_numpy(colors)

    def begin(self, graphs, color_mask, seeds):
        h = noise(seeds, graphs.mask.shape[1], color_mask.shape[1])[..., None].expand(-1, -1, -1, self.width)
        return RefinementState(h, self.soft_colors(h, graphs, color_mask), color_mask, seeds)

    def forward(self, state, graphs, conflict_weight):
        p = self.soft_colors(state.h, graphs, state.color_mask)
        return state._replace(p=p), torch.zeros(len(p))

    def soft_colors(self, h, graphs, color_mask):
        usable_first = (h[:, 0, :, 0] - 1e6 * (1 - color_mask)).argsort(1, descending=True)
        ids = usable_first.gather(1, self.colors.expand(len(h), -1).clamp(max=color_mask.sum(1).long()[:, None] - 1))
        return (ids[:, :, None] == torch.arange(color_mask.shape[1])).float()


class Reluctant(Oracle):
    """One that gives all nodes one color until that costs as much as 20 conflicts."""

    def forward(self, state, graphs, conflict_weight):
        state, cost = super().forward(state, graphs, conflict_weight)
        is_costly = conflict_weight.amax((1, 2), keepdim=True) > 20
        return state._replace(p=torch.where(is_costly, state.p, state.p[:, :1])), cost


def around(refinement: RefinementNetwork) -> Program:
    network = ColoringNetwork()
    network.refinement = refinement
    return Program(network).eval()


def planted(num_nodes: int, num_colors: int, density: float) -> tuple[Graph, np.ndarray]:
    rng = np.random.default_rng(0)
    colors = np.arange(num_nodes) % num_colors
    edges = np.triu(rng.random((num_nodes, num_nodes)) < density) & (colors[:, None] != colors[None])
    return Graph.from_adjacency(edges), colors


@pytest.fixture(scope="module")
def program() -> Program:
    """Random weights that change the colors a lot from round to round."""
    torch.manual_seed(0)
    network = ColoringNetwork()
    torch.nn.init.constant_(network.refinement.update.bias, 1.0)
    return Program(network).eval()


def call(program: Program, edge_index, batch, num_colors=(0,), seed: int = 0, steps: int = STEPS) -> dict[str, Tensor]:
    feeds = golden.feeds(edge_index, batch, num_colors=num_colors, seed=seed, steps=steps)
    return program(**{name: torch.from_numpy(np.asarray(value)) for name, value in feeds.items()})


def classes(outputs: dict[str, Tensor], batch: np.ndarray) -> list[list[int]]:
    """Argmax of every node, graph by graph."""
    rows = outputs["color_logits"].argmax(1).numpy()
    return [rows[batch == g].tolist() for g in range(batch.max() + 1)]


def used(program: Program, graph: Graph, **options) -> int:
    """Colors of one graph; its coloring is proven."""
    edge_index, batch = edge_list([graph])
    ((mine),) = classes(call(program, edge_index, batch, **options), batch)
    wrong, count = count_conflicts_and_colors(graph.edges.tolist(), mine)
    assert wrong == 0
    return count


def dsatur_colors(graph: Graph) -> int:
    return int(kernels.dsatur(*graph.csr()).max()) + 1


def greedy_colors(program: Program, graph: Graph) -> int:
    """Colors before the network comes in: those of DSATUR or XRLF."""
    return int(call(program, *edge_list([graph]), steps=0)["greedy"].max()) + 1


GRAPH = st.builds(random_graph, st.integers(1, 16), st.floats(0, 1), st.integers(0, 10**6))


@settings(max_examples=30)
@given(
    graphs=st.lists(GRAPH, min_size=1, max_size=3),
    seed=st.integers(-(2**40), 2**63 - 10**6),
    steps=st.integers(0, 8),
    asked=st.integers(0, 20),
)
def test_any_batch_is_colored_properly_with_no_more_colors_than_dsatur(program: Program, graphs, seed, steps, asked):
    edge_index, batch = edge_list(graphs)
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


@settings(max_examples=40)
@given(graph=GRAPH)
def test_the_coloring_it_starts_from_is_no_worse_than_dsaturs(program: Program, graph: Graph):
    edge_index, batch = edge_list([graph])
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
    edge_index, batch = edge_list([graph])
    once = graph.edges.T.astype(np.int64)
    loops = np.array([[0, 3, 14], [0, 3, 14]])
    expected = call(program, edge_index, batch)
    for careless in (once, once[::-1], np.concatenate([edge_index, once, loops], axis=1), edge_index[:, ::-1]):
        outputs = call(program, np.ascontiguousarray(careless), batch)
        for name in OUTPUTS:
            torch.testing.assert_close(outputs[name], expected[name])


def test_an_edge_between_two_graphs_is_dropped(program: Program):
    graphs = [random_graph(8, 0.4, 1), random_graph(9, 0.5, 2)]
    edge_index, batch = edge_list(graphs)
    crossing = np.concatenate([edge_index, [[2], [11]]], axis=1)
    a, b = call(program, edge_index, batch), call(program, crossing, batch)
    assert torch.equal(a["color_logits"], b["color_logits"])


def test_predictions_of_a_graph_do_not_depend_on_its_batch_mates(program: Program):
    graphs = [random_graph(8, 0.4, 1), random_graph(19, 0.5, 2), Graph.from_edges(3, [])]
    together = call(program, *edge_list(graphs))
    for i, graph in enumerate(graphs):
        singleton = call(program, *edge_list([graph]))
        for name in OUTPUTS[1:]:
            torch.testing.assert_close(together[name][i], singleton[name][0], rtol=1e-4, atol=1e-4)


def test_node_features_are_ignored(program: Program):
    edge_index, batch = edge_list([random_graph(12, 0.4)])
    inputs = {name: torch.from_numpy(np.asarray(x)) for name, x in golden.feeds(edge_index, batch).items()}
    rest = {"num_colors": torch.tensor([0]), "seed": torch.tensor(0), "steps": torch.tensor(STEPS)}
    inputs["node_features"] = torch.full((12, 16), torch.nan)
    assert torch.equal(program(**inputs, **rest)["color_logits"], call(program, edge_index, batch)["color_logits"])


def test_the_same_call_gives_the_same_answer_and_another_seed_another_refinement(program: Program):
    edge_index, batch = edge_list([random_graph(60, 0.5)])
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
def oracle() -> tuple[Program, Graph]:
    """A program around the network that knows how to color this graph with 5 colors; the greedy ones take more."""
    graph, colors = planted(60, 5, 0.3)
    program = around(Oracle(colors))
    assert greedy_colors(program, graph) >= 6
    return program, graph


def test_the_descent_finds_what_the_network_knows(oracle):
    program, graph = oracle
    assert used(program, graph, steps=12) == 5
    bound = greedy_colors(program, graph)
    assert used(program, graph, num_colors=[bound], steps=12) == 5
    assert used(program, graph, num_colors=[5], steps=1) == 5


def test_conflict_weights_grow_with_every_round_until_the_network_gives_way(oracle):
    _, graph = oracle
    program = around(Reluctant(planted(60, 5, 0.3)[1]))
    assert used(program, graph, num_colors=[5], steps=3) == greedy_colors(program, graph)
    assert used(program, graph, num_colors=[5], steps=8) == 5


def test_a_number_of_colors_that_is_too_small_gives_the_greedy_coloring(oracle):
    program, graph = oracle
    assert used(program, graph, num_colors=[4], steps=12) == greedy_colors(program, graph)


def test_after_too_many_failures_one_more_color_is_allowed(oracle):
    program, graph = oracle
    assert used(program, graph, num_colors=[4], steps=PATIENCE - 1) == greedy_colors(program, graph)
    assert used(program, graph, num_colors=[4], steps=PATIENCE + 1) == 5


def test_the_more_conflicts_are_left_the_more_colors_are_allowed_at_once():
    graph, colors = planted(96, 12, 0.5)
    program = around(Oracle(colors))
    assert used(program, graph, num_colors=[8], steps=PATIENCE - 1) > 13
    assert used(program, graph, num_colors=[8], steps=PATIENCE + 1) == 12


def test_the_descent_never_goes_below_the_clique(oracle):
    program, graph = oracle
    assert clique_bound(dense([graph])).item() == 4
    assert used(program, graph, num_colors=[1], steps=PATIENCE + 1) == 5


def test_a_call_ends_early_when_every_graph_is_down_to_its_clique(program: Program):
    edge_index, batch = edge_list([Graph.from_edges(4, [])])
    one, many = (call(program, edge_index, batch, steps=steps) for steps in (1, 10**9))
    assert torch.equal(one["last"], many["last"])


def test_other_seeds_give_other_colorings_of_the_same_quality(oracle):
    program, graph = oracle
    edge_index, batch = edge_list([graph])
    outputs = [call(program, edge_index, batch, seed=seed, steps=12) for seed in (0, 1, 2**31, 2**62)]
    (colorings,) = zip(*(classes(each, batch) for each in outputs), strict=True)
    assert len(set(map(tuple, colorings))) == 4
    assert [count_conflicts_and_colors(graph.edges.tolist(), colors) for colors in colorings] == [(0, 5)] * 4


def test_one_number_of_colors_serves_all_graphs(program: Program):
    edge_index, batch = edge_list([random_graph(30, 0.5, 1), random_graph(40, 0.5, 2)])
    one, each = (call(program, edge_index, batch, asked) for asked in ([7], [7, 7]))
    assert torch.equal(one["color_logits"], each["color_logits"])
    other = call(program, edge_index, batch, [7, 9])
    assert not torch.equal(other["last"], one["last"])


def test_more_steps_refine_further(program: Program):
    graph = random_graph(50, 0.5)
    edge_index, batch = edge_list([graph])
    few, many = (call(program, edge_index, batch, steps=steps) for steps in (1, 10))
    assert not torch.equal(few["last"], many["last"])
    assert used(program, graph, steps=60) <= dsatur_colors(graph)


def test_a_graph_that_needs_more_colors_than_columns_still_gets_scores(program: Program):
    complete = Graph.from_edges(MAX_COLORS + 4, list(nx.complete_graph(MAX_COLORS + 4).edges))
    edge_index, batch = edge_list([complete])
    logits = call(program, edge_index, batch, steps=1)["color_logits"]
    assert logits.shape == (MAX_COLORS + 4, MAX_COLORS) and logits.isfinite().all()
    colors = coloring.from_logits(complete, logits.numpy())
    assert coloring.is_proper(complete, colors)


def test_small_graphs_are_refined_in_replicas_and_the_best_is_returned(program: Program):
    edge_index, batch = edge_list([random_graph(10, 0.5, 1), random_graph(12, 0.5, 2)])
    outputs = call(program, edge_index, batch)
    assert len(outputs["replicas"]) == MAX_REPLICAS and len(outputs["last"]) == 2 * MAX_REPLICAS
    assert len(call(program, *edge_list([random_graph(99, 0.9)]), steps=0)["replicas"]) < MAX_REPLICAS


def test_of_large_graphs_the_network_recolors_some_classes(program: Program):
    graphs = [random_graph(150, 0.3, 1), random_graph(30, 0.5, 2), random_graph(120, 0.8, 3)]
    outputs = call(program, *edge_list(graphs), steps=0)
    num_replicas, chosen = len(outputs["replicas"]), set()
    for row, (node_ids, mask) in enumerate(zip(outputs["node_ids"], outputs["sub_mask"] > 0, strict=True)):
        i, nodes = row // num_replicas, node_ids[mask]
        greedy = outputs["greedy"][i, : graphs[i].num_nodes]
        inside = torch.isin(torch.arange(len(greedy)), nodes)
        assert len(set(nodes.tolist())) == len(nodes) <= SUBGRAPH_NODES
        # Whole classes, numbered before all others, without gaps.
        assert not set(greedy[inside].tolist()) & set(greedy[~inside].tolist())
        ranks = set(outputs["class_rank"][row, : len(greedy)][inside].tolist())
        assert ranks == set(range(len(ranks)))
        adjacency = outputs["adjacency"][i][nodes][:, nodes]
        assert torch.equal(outputs["sub_adjacency"][row][mask][:, mask], adjacency)
        chosen.add((i, tuple(nodes.tolist())))
        assert inside.all() or i != 1
    assert len(chosen) > len(graphs)  # replicas choose differently


def test_two_classes_make_a_subgraph_however_large_they_are(program: Program):
    ring = Graph.from_edges(250, [(i, (i + 1) % 250) for i in range(250)])
    outputs = call(program, *edge_list([ring]))
    assert outputs["sub_mask"].sum(1).tolist() == [250] * len(outputs["sub_mask"])
    assert used(program, ring) == 2


def test_replicas_of_a_graph_stand_side_by_side():
    assert replicated(torch.tensor([5, 6]), torch.arange(3)).tolist() == [5, 5, 5, 6, 6, 6]


def test_prepared_graphs_are_refined_to_what_a_call_gives(program: Program):
    graphs = [random_graph(30, 0.5, 1), random_graph(110, 0.2, 2)]
    network = ColoringNetwork()
    network.refinement, network.graph_head = program.refine.refinement, program.refine.graph_head
    refined = refine(network, dense(graphs), prepare(dense(graphs), seed=3), STEPS, seed=3)
    outputs = call(program, *edge_list(graphs), seed=3)
    assert all(torch.equal(value, outputs[name]) for name, value in refined._asdict().items())


def test_classes_are_renumbered_by_their_conflicts():
    path = dense([Graph.from_edges(4, [(0, 1), (1, 2), (2, 3)])])
    assert order_by_conflicts(path, torch.tensor([[0, 0, 1, 2]]), torch.arange(3)).tolist() == [[2, 2, 0, 1]]


@settings(max_examples=40)
@given(graph=GRAPH, seed=st.integers(0, 1000))
def test_greedy_in_tensors_is_the_greedy_of_callers(graph: Graph, seed: int):
    mine = np.random.default_rng(seed).integers(0, 5, graph.num_nodes)
    expected = coloring.greedy_along(graph, np.argsort(mine, kind="stable"))
    graphs = dense([graph, Graph.from_edges(18, [])])  # padded, and the other one needs more rounds
    padded = torch.zeros(2, 18, dtype=torch.int64)
    padded[0, : graph.num_nodes] = torch.from_numpy(mine)
    colors = greedy.greedy_along(graphs, padded, torch.arange(18))
    assert colors[0, : graph.num_nodes].tolist() == expected.tolist()


@settings(max_examples=40)
@given(graphs=st.lists(GRAPH, min_size=1, max_size=3), seed=st.integers(0, 1000))
def test_greedy_class_by_class_is_the_greedy_of_callers_where_classes_are_proper(graphs: list[Graph], seed: int):
    rng, padded = np.random.default_rng(seed), dense(graphs)
    probabilities, expected = torch.zeros(len(graphs), padded.mask.shape[1], 40), []
    for row, graph in enumerate(graphs):
        color_ids = rng.permutation(40)  # with gaps, and none of them in order
        mine = color_ids[coloring.greedy_along(graph, rng.permutation(graph.num_nodes))]
        probabilities[row, torch.arange(graph.num_nodes), torch.from_numpy(mine)] = 1
        expected.append(coloring.greedy_along(graph, np.argsort(mine, kind="stable")).tolist())
    colors = greedy.greedy_by_class(padded, probabilities)
    for row, graph in enumerate(graphs):
        assert colors[row, : graph.num_nodes].tolist() == expected[row]
        assert (colors[row, graph.num_nodes :] == 0).all()


@settings(max_examples=40)
@given(graphs=st.lists(GRAPH, min_size=1, max_size=3))
def test_the_clique_bound_is_the_size_of_a_clique(graphs: list[Graph]):
    sizes = greedy.clique_bound(dense(graphs)).tolist()
    for graph, size in zip(graphs, sizes, strict=True):
        network = nx.empty_graph(graph.num_nodes)
        network.add_edges_from(graph.edges.tolist())
        cliques = {len(clique) for clique in nx.find_cliques(network)}
        assert size in cliques and size >= (2 if graph.num_edges else 1)


@settings(max_examples=40)
@given(graphs=st.lists(GRAPH, min_size=1, max_size=4))
def test_edge_lists_become_the_adjacency_of_every_graph(graphs: list[Graph]):
    made, position = greedy.pad(*map(torch.from_numpy, edge_list(graphs)))
    assert made.adjacency.sum() == 2 * sum(graph.num_edges for graph in graphs)
    for i, graph in enumerate(graphs):
        n = graph.num_nodes
        assert made.adjacency[i, :n, :n].tolist() == graph.adjacency().tolist()
        assert made.mask[i].tolist() == [v < n for v in range(made.mask.shape[1])]
    assert position.tolist() == [v for graph in graphs for v in range(graph.num_nodes)]


def test_a_greedy_coloring_has_at_most_as_many_colors_as_the_contract_has_columns():
    star = Graph.from_edges(400, [(0, v) for v in range(1, 400)])
    assert len(ranges(dense([star])).greedy_color_ids) == MAX_COLORS


@settings(max_examples=40)
@given(graphs=st.lists(GRAPH, min_size=1, max_size=3), seed=st.integers(0, 1000), samples=st.integers(1, 8))
def test_xrlf_colors_properly_without_gaps_and_every_class_is_maximal(graphs: list[Graph], seed: int, samples: int):
    padded = dense(graphs)
    nothing = torch.full_like(padded.mask, -1, dtype=torch.int64)
    colors = greedy.xrlf(padded, torch.arange(samples), torch.full((len(graphs),), seed), nothing)
    for row, graph in enumerate(graphs):
        mine = colors[row, : graph.num_nodes].numpy()
        assert coloring.is_proper(graph, mine) and set(mine) == set(range(mine.max() + 1))
        assert (colors[row, graph.num_nodes :] == -1).all()
        along = coloring.greedy_along(graph, np.argsort(mine, kind="stable"))
        assert np.array_equal(along, mine)  # nobody finds an earlier class free


def test_xrlf_of_many_samples_is_better_than_of_one():
    graphs = dense([random_graph(120, 0.5, seed) for seed in range(8)])
    nothing, seeds = torch.full((8, 120), -1), torch.zeros(8, dtype=torch.int64)
    one, many = (greedy.xrlf(graphs, torch.arange(n), seeds, nothing).amax(1) for n in (1, 32))
    assert many.sum() <= one.sum() - 4
