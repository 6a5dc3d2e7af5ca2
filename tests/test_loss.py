"""Loss terms are sums over graphs; the gradient of the rule of moving points away from what searches worse."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_graphs import random_graph, search_in_tensors, terms_of
from torch import Tensor
from torch.nn.functional import cosine_similarity

from gnn_training.contract import GRAPH_TYPES, UNKNOWN_TYPE
from gnn_training.graph import Graph
from gnn_training.network.network import ColoringNetwork
from gnn_training.network.rule import NONE_FOUND, NUM_WEIGHTS
from gnn_training.network.states import STATE_FEATURES
from gnn_training.search.batches import Searcher, search_on_cpu
from gnn_training.search.first_colorings import first_coloring
from gnn_training.training.learner import LOSS_WEIGHTS, SIGMA
from gnn_training.training.loader import GraphBatch, StateBatch

SINGLE = Graph.from_edges(1, [])
HARD = random_graph(70, 0.5, seed=2)
GRAPHS = [HARD, random_graph(70, 0.4, seed=1), SINGLE, random_graph(60, 0.6)]
ROUNDS = 400


def batch(graphs: list[Graph]) -> GraphBatch:
    """Labels that need not be true, different for every graph; a graph has its own wherever it stands."""
    rng = [np.random.default_rng(graph.num_nodes) for graph in graphs]
    lists = [graph.csr() for graph in graphs]
    first = [first_coloring(each) for each in lists]
    used = torch.tensor([int(colors.max()) + 1 for colors in first])
    return GraphBatch(
        ids=np.arange(len(graphs)),
        lists=lists.__getitem__,
        first=first,
        num_colors=(used - 2).clamp(min=1),
        lower=(used - 3).clamp(min=1),
        seeds=torch.tensor([graph.num_nodes for graph in graphs]),
        epsilon=torch.tensor(np.stack([each.standard_normal(NUM_WEIGHTS) for each in rng]), dtype=torch.float32),
        num_graphs=1,  # so that terms are sums
    )


def states(graphs: list[Graph]) -> StateBatch:
    """Of searches in these graphs, as if much came later."""
    sizes = torch.tensor([float(graph.num_nodes) for graph in graphs])
    inputs = torch.stack([torch.randn(STATE_FEATURES + 2, generator=torch.manual_seed(g.num_edges)) for g in graphs])
    return StateBatch(
        inputs, sizes, sizes / 2, saved=sizes % 4, log_rounds=sizes.log10(),
        graph_type=sizes.long() % len(GRAPH_TYPES), num_states=1,
    )  # fmt: skip


def terms(network: ColoringNetwork, graphs: list[Graph]) -> dict[str, Tensor]:
    """Loss terms of a step with these graphs and their states."""
    return terms_of(network, batch(graphs), search_on_cpu, ROUNDS, states(graphs))


def singles(count: int) -> GraphBatch:
    """So many graphs of one node, with random changes: what their searches find, a test decides."""
    return replace(batch([SINGLE] * count), epsilon=torch.randn(count, NUM_WEIGHTS))


def finds(fewest: Callable, conflicts: Callable = lambda weights: 0.0) -> Searcher:
    """A search whose results are these functions of the weights (S, G, NUM_WEIGHTS)."""

    def search(weights: Tensor, b: GraphBatch, rounds: int) -> tuple[Tensor, Tensor]:
        return tuple(torch.zeros(weights.shape[:2]) + function(weights) for function in (fewest, conflicts))

    return search


def gradient(network: ColoringNetwork, b: GraphBatch, search: Searcher = search_on_cpu) -> Tensor:
    """Of the rule, by the gap."""
    return torch.autograd.grad(terms_of(network, b, search, ROUNDS)["gap"], network.rule)[0]


def test_the_terms_of_a_batch_are_the_sums_of_its_graphs_and_so_is_the_gradient(network: ColoringNetwork):
    together, *alone = (terms(network, each) for each in (GRAPHS, *([graph] for graph in GRAPHS)))
    assert together.keys() == LOSS_WEIGHTS.keys()
    for name in LOSS_WEIGHTS:
        torch.testing.assert_close(together[name], sum(terms[name] for terms in alone), rtol=1e-4, atol=1e-5)
    gradients = [gradient(network, batch([graph])) for graph in GRAPHS]
    assert sum(each.norm() > 0 for each in gradients) >= 2
    torch.testing.assert_close(gradient(network, batch(GRAPHS)), sum(gradients), rtol=1e-4, atol=1e-5)


def test_the_gap_is_the_mean_of_both_searches_above_the_best_known(network: ColoringNetwork):
    plus = network.rule[0] + SIGMA * 2
    b = replace(batch([HARD]), epsilon=torch.full((1, NUM_WEIGHTS), 2.0))
    search = finds(lambda weights: torch.where(weights[..., 0].isclose(plus), 12.0, 9.0))
    assert terms_of(network, b, search, ROUNDS)["gap"].item() == pytest.approx(10.5 - b.num_colors.item())


@pytest.mark.parametrize("by", ["colors", "conflicts"])
def test_the_gradient_points_where_searches_get_worse(network: ColoringNetwork, by: str):
    best = torch.randn(NUM_WEIGHTS)

    def worse(weights: Tensor) -> Tensor:
        return 0.05 * (weights - best).square().sum(2)

    search = finds(worse) if by == "colors" else finds(lambda weights: 9.0, worse)
    estimate = gradient(network, singles(4000), search)
    assert cosine_similarity(estimate, network.rule.detach() - best, dim=0) > 0.9


def test_graphs_without_a_difference_say_nothing_and_none_can_outweigh_the_others(network: ColoringNetwork):
    assert (gradient(network, singles(20), finds(lambda weights: 9.0, lambda weights: 5.0)) == 0).all()
    b = singles(1)
    assert gradient(network, b, finds(lambda weights: 1000 * weights[..., 0])).norm() <= b.epsilon.norm()


def test_a_color_that_is_saved_in_the_last_round_counts(network: ColoringNetwork):
    """After it, the search has met no coloring with conflicts."""
    b = singles(20)
    saved, others = (finds(lambda weights: 9.0, lambda weights, left=left: left) for left in (NONE_FOUND, 0.0))
    assert terms_of(network, b, saved, ROUNDS)["gap"] == terms_of(network, b, others, ROUNDS)["gap"]
    lucky = finds(lambda weights: 9.0, lambda weights: torch.where(weights[..., 0] > network.rule[0], NONE_FOUND, 5.0))
    unlucky = finds(lambda weights: 9.0, lambda weights: torch.where(weights[..., 0] > network.rule[0], 0.0, 5.0))
    torch.testing.assert_close(gradient(network, b, lucky), gradient(network, b, unlucky))


def test_a_change_and_its_opposite_give_the_same_gradient(network: ColoringNetwork):
    b = batch(GRAPHS)
    one, other = gradient(network, b), gradient(network, replace(b, epsilon=-b.epsilon))
    assert one.norm() > 0
    torch.testing.assert_close(one, other)


def test_training_moves_weights_to_better_searches(network: ColoringNetwork):
    best = 0.5 * torch.randn(NUM_WEIGHTS)
    search = finds(lambda weights: 4 + 0.05 * (weights - best).square().sum(2))
    optimizer = torch.optim.AdamW(network.parameters(), 2e-2, weight_decay=0)
    b, history = batch(GRAPHS), []
    for _ in range(60):
        b = replace(b, epsilon=torch.randn(len(GRAPHS), NUM_WEIGHTS))
        found = terms_of(network, b, search, ROUNDS, states(GRAPHS))
        history.append({name: term.item() for name, term in found.items()})
        optimizer.zero_grad()
        sum(found.values()).backward()
        optimizer.step()
    for name in LOSS_WEIGHTS.keys() - {"crossover"}:  # there are no pairs
        assert np.mean([terms[name] for terms in history[-5:]]) < 0.8 * history[0][name], name


def test_a_graph_of_unknown_family_adds_no_family_loss(network: ColoringNetwork):
    def loss(of: list[Graph], graph_type: Tensor) -> Tensor:
        return terms_of(network, batch(of), search_on_cpu, 1, replace(states(of), graph_type=graph_type))["graph_type"]

    types = states(GRAPHS).graph_type
    some = loss(GRAPHS, torch.where(torch.arange(4) == 0, types, UNKNOWN_TYPE))
    torch.testing.assert_close(some, loss([HARD], types[:1]), rtol=1e-5, atol=1e-6)
    none = loss(GRAPHS, torch.full((4,), UNKNOWN_TYPE))
    assert none.item() == 0
    none.backward()
    assert all(w.grad is None or (w.grad == 0).all() for w in network.parameters())


@pytest.mark.parametrize("graphs", [GRAPHS, [SINGLE], [Graph.from_edges(5, [])]], ids=["several", "one", "edgeless"])
def test_rule_and_predictions_get_finite_gradients(network: ColoringNetwork, graphs: list[Graph]):
    sum(terms(network, graphs).values()).backward()
    weights = network.rule, *network.predictions.parameters()  # there are no pairs for the crossover network
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in weights)


def found(b: GraphBatch, rounds: int = ROUNDS, search: Searcher = search_on_cpu) -> tuple[Tensor, Tensor]:
    """What two searches of every graph find, with weights that differ from graph to graph."""
    torch.manual_seed(1)
    first = ColoringNetwork().rule.detach()
    return search(first + SIGMA * torch.stack([b.epsilon, -b.epsilon]), b, rounds)


def test_more_rounds_find_fewer_colors_and_conflicts_count_only_above_the_bound():
    b = batch(GRAPHS)
    few, many = found(b, 1)[0], found(b, 2000)[0]
    assert torch.equal(few, torch.tensor([float(first.max()) + 1 for first in b.first]).expand(2, -1))
    assert (many <= few).all() and (many[:, 0] < few[:, 0]).all()
    fewest, conflicts = found(b)
    assert (conflicts[fewest > b.lower] > 0).all()
    for search in range(2):
        again = found(replace(b, lower=fewest[search].long()))
        assert torch.equal(again[0][search], fewest[search]) and (again[1][search] == 0).all()


def test_the_number_of_threads_changes_no_result():
    b, before = batch(GRAPHS * 5), torch.get_num_threads()
    try:
        results = []
        for threads in (1, 4):
            torch.set_num_threads(threads)
            results.append(torch.stack(found(b)))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


def test_searches_find_what_tensors_find():
    epsilon = torch.randn(12, NUM_WEIGHTS, generator=torch.manual_seed(0))
    b = replace(batch(GRAPHS[:2] * 6), seeds=torch.arange(12), epsilon=epsilon)
    expected, compiled = found(b, 400, search_in_tensors), found(b, 400)
    for mine, other in zip(compiled, expected, strict=True):
        assert torch.equal(mine, other)
    for copies in (*compiled[1][:, ::2], *compiled[1][:, 1::2]):
        assert len(copies.unique()) > 1  # weights and seeds make a difference


def test_only_some_graphs_of_a_batch_can_be_searched():
    b = batch(GRAPHS)
    weights = ColoringNetwork().rule.detach() + SIGMA * torch.stack([b.epsilon, -b.epsilon])
    every, some = search_on_cpu(weights, b, ROUNDS), search_on_cpu(weights, b, ROUNDS, [3, 0])
    assert all(torch.equal(mine[:, [3, 0]], other) for mine, other in zip(every, some, strict=True))
