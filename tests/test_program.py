"""The program of the ONNX file, run by torch: it colors properly whatever callers send, never worse than DSATUR."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_graphs import GRAPH, planted, random_graph
from torch import Tensor

from gnn_training import contract
from gnn_training.contract import MAX_COLORS, OUTPUTS
from gnn_training.graph import Graph, concatenated, is_proper, num_colors
from gnn_training.network import rule
from gnn_training.network.network import ColoringNetwork, initial_rule
from gnn_training.onnx_program import golden
from gnn_training.onnx_program.program import Program
from gnn_training.onnx_program.session import from_logits
from gnn_training.search import kernels

ROUNDS = 20


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(0)
    return around(initial_rule() + 0.3 * torch.randn(rule.NUM_WEIGHTS))


def around(weights: Tensor) -> Program:
    """The program around a rule and random weights of the predictions."""
    network = ColoringNetwork()
    network.rule.data = weights
    return Program(network).eval()


def call(program: Program, edge_index, batch, num_colors=(0,), seed=0, rounds: int = ROUNDS) -> dict[str, Tensor]:
    feeds = golden.feeds(edge_index, batch, num_colors=num_colors, seed=seed, steps=rounds)
    return program(**{name: torch.from_numpy(value) for name, value in feeds.items()})


def used(program: Program, graph: Graph, **options) -> int:
    """Colors of one graph; its coloring is proven."""
    colors = call(program, *concatenated([graph]), **options)["color_logits"].argmax(1).numpy()
    assert is_proper(graph, colors)
    return num_colors(colors)


def dsatur_colors(graph: Graph) -> int:
    return int(kernels.dsatur(*graph.csr()).max()) + 1


@settings(max_examples=25)
@given(
    graphs=st.lists(GRAPH, min_size=1, max_size=3),
    seed=st.integers(-(2**40), 2**63 - 10**6),
    rounds=st.integers(-1, 20),
    asked=st.integers(0, 20),
)
def test_any_batch_is_colored_properly_with_no_more_colors_than_dsatur(program: Program, graphs, seed, rounds, asked):
    edge_index, batch = concatenated(graphs)
    outputs = call(program, edge_index, batch, [asked], seed, rounds)
    logits = outputs["color_logits"]
    assert [tuple(outputs[name].shape) for name in OUTPUTS] == [
        (len(batch), MAX_COLORS), (len(graphs),), (len(graphs), 8), (len(graphs),)
    ]  # fmt: skip
    assert all(outputs[name].isfinite().all() for name in OUTPUTS)
    for i, graph in enumerate(graphs):
        mine = logits[torch.from_numpy(batch == i)].argmax(1).numpy()
        count = num_colors(mine)
        assert is_proper(graph, mine) and outputs["clique"][i] <= count <= dsatur_colors(graph)
        assert mine.max() == count - 1
        assert outputs["clique"][i] <= outputs["chromatic"][i] <= count
    # Unused columns are 0 and used ones above: softmax and cosine of the rows keep their meaning.
    assert (logits >= 0).all() and ((logits > 0).sum(1) == 1).all()


def test_how_careless_callers_write_the_edges_does_not_matter(program: Program):
    graphs = [random_graph(8, 0.4, 1), random_graph(15, 0.5, 2)]
    edge_index, batch = concatenated(graphs)
    once = edge_index[:, edge_index[0] < edge_index[1]]
    loops_and_an_edge_between_graphs = np.array([[0, 3, 14, 2], [0, 3, 14, 11]])
    expected = call(program, edge_index, batch)
    for careless in (once, once[::-1], np.concatenate([edge_index, once, loops_and_an_edge_between_graphs], axis=1)):
        outputs = call(program, np.ascontiguousarray(careless), batch)
        assert all(torch.equal(outputs[name], expected[name]) for name in OUTPUTS)


def test_the_answer_for_a_graph_does_not_depend_on_its_batch_mates(program: Program):
    graphs = [random_graph(12, 0.4, 1), random_graph(60, 0.5, 2), Graph.from_edges(3, []), random_graph(40, 0.1, 3)]
    edge_index, batch = concatenated(graphs)
    together = call(program, edge_index, batch)
    for i, graph in enumerate(graphs):
        alone = call(program, *concatenated([graph]))
        assert torch.equal(together["color_logits"][torch.from_numpy(batch == i)], alone["color_logits"])
        for name in OUTPUTS[1:]:
            torch.testing.assert_close(together[name][i], alone[name][0], rtol=1e-4, atol=1e-4)


def test_a_large_graph_in_the_batch_does_not_spoil_the_small_ones(program: Program, monkeypatch):
    monkeypatch.setattr(contract, "SETS_MAX_NODES", 30)
    graphs = [Graph.from_edges(5, list(nx.complete_graph(5).edges)), random_graph(31, 0.3)]
    edge_index, batch = concatenated(graphs)
    colors = call(program, edge_index, batch, rounds=0)["color_logits"].argmax(1).numpy()
    assert all(is_proper(graph, colors[batch == i]) for i, graph in enumerate(graphs))


def first_colors(program: Program, graphs: list[Graph]) -> Tensor:
    """Numbers of colors (G,) with which the searches start."""
    padded, _, ranges, _ = program.pad(*(torch.from_numpy(x) for x in concatenated(graphs)))
    return program.bound(padded, ranges, torch.tensor(0), torch.tensor(2500))[0].greedy.max(1).values + 1


def test_of_dsatur_and_independent_sets_the_better_coloring_is_the_start(program: Program):
    graphs = [random_graph(60, 0.5, seed) for seed in range(12)]
    first, dsatur = first_colors(program, graphs), torch.tensor([dsatur_colors(graph) for graph in graphs])
    assert (first <= dsatur).all() and (first < dsatur).any()


def test_only_dense_graphs_that_are_not_large_are_also_colored_with_independent_sets(program: Program, monkeypatch):
    dense, sparse = random_graph(100, 0.5), random_graph(100, 0.14)
    first = first_colors(program, [dense, sparse])
    assert first[0] < dsatur_colors(dense) and first[1] == dsatur_colors(sparse)
    monkeypatch.setattr(contract, "SETS_MAX_NODES", 99)
    assert first_colors(program, [dense]) == dsatur_colors(dense)


def test_the_same_call_gives_the_same_answer_and_another_seed_another_search(program: Program):
    edge_index, batch = concatenated([random_graph(100, 0.14), random_graph(60, 0.5)])
    outputs = [call(program, edge_index, batch, seed=seed, rounds=60) for seed in (0, 0, 1, 2**31, 2**62)]
    assert all(torch.equal(outputs[0][name], outputs[1][name]) for name in outputs[0])
    for i in range(2):
        assert len({tuple(other["last"][i].flatten().tolist()) for other in outputs}) == 4


def test_the_search_saves_colors_and_the_network_decides_how():
    graph, answers = planted(60, 5, 0.3)[0], []
    tenure = torch.tensor([rule.OUTPUTS * len(rule.GRAPH_FEATURES)])
    for weights in (initial_rule(), initial_rule().index_fill(0, tenure, 9.0)):  # a tenure of exp(9) rounds
        program = around(weights)
        assert used(program, graph, rounds=0) >= 7
        answers.append(used(program, graph, rounds=300))
    assert answers[0] == 5 < answers[1]


def test_one_number_of_colors_serves_all_graphs(program: Program):
    edge_index, batch = concatenated([random_graph(30, 0.14, 1), random_graph(40, 0.5, 2)])
    one, each, other = (call(program, edge_index, batch, asked) for asked in ([4], [4, 4], [4, 9]))
    assert torch.equal(one["last"], each["last"]) and torch.equal(one["last"][0], other["last"][0])
    assert not torch.equal(one["last"][1], other["last"][1])


def test_a_call_ends_early_when_every_graph_is_down_to_its_clique(program: Program):
    graph, colors = planted(30, 3, 0.2)
    triangle = Graph.from_edges(30, [*graph.edges, (0, 1), (0, 2), (1, 2)])
    assert used(program, triangle, rounds=10**12) == 3


def test_small_graphs_take_fewer_rounds_if_the_call_leaves_the_number_to_the_program(program: Program):
    graph = concatenated([random_graph(24, 0.5)])
    for asked, rounds in [(-2500, 20 + 24**3 // 1000), (-30, 30)]:
        mine, other = (call(program, *graph, rounds=number)["last"] for number in (asked, rounds))
        assert torch.equal(mine, other)
    assert not torch.equal(mine, call(program, *graph, rounds=29)["last"])


def test_a_graph_that_needs_more_colors_than_columns_still_gets_scores(program: Program):
    complete = Graph.from_edges(MAX_COLORS + 4, list(nx.complete_graph(MAX_COLORS + 4).edges))
    logits = call(program, *concatenated([complete]), rounds=1)["color_logits"]
    assert logits.shape == (MAX_COLORS + 4, MAX_COLORS) and logits.isfinite().all()
    assert is_proper(complete, from_logits(complete, logits.numpy()))
