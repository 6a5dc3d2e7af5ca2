"""The networks do not depend on the order of colors and nodes, on padding or on the form of the graph."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_graphs import dense, random_graph
from torch import Tensor

from gnn_training.graph import Graph
from gnn_training.model.graphs import SPARSE_BELOW, SPARSE_FROM, Graphs, SparseGraph, is_sparse
from gnn_training.model.network import PRIME, GraphHead, RefinementNetwork, first_colors, invariants, noise

ROUNDS = 5


def sparse(graph: Graph) -> SparseGraph:
    return SparseGraph(torch.from_numpy(graph.edge_index()), graph.num_nodes)


def refined(network: RefinementNetwork, graphs: Graphs, color_mask: Tensor, seeds: Tensor) -> Tensor:
    """Soft colors (G, N, K) after a few rounds."""
    return network.run(network.begin(graphs, color_mask, seeds), graphs, ROUNDS).p


def assert_same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


@pytest.fixture(scope="module")
def network() -> RefinementNetwork:
    """Random weights, larger than the first ones of a training so that rounds change the state a lot."""
    torch.manual_seed(0)
    network = RefinementNetwork().requires_grad_(False)
    network.update.bias[: network.width] = 0.0
    return network


@pytest.fixture(scope="module")
def graph_head() -> GraphHead:
    torch.manual_seed(0)
    return GraphHead().requires_grad_(False)


GRAPHS = [random_graph(12, 0.5, 1), random_graph(30, 0.2, 2), Graph.from_edges(4, []), Graph.from_edges(1, [])]
KS = torch.tensor([4, 7, 1, 2])
SEEDS = torch.tensor([5, 6, 7, 8])
MASK = first_colors(KS, 7)


def test_rounds_change_the_coloring(network: RefinementNetwork):
    graphs = dense(GRAPHS)
    moved = refined(network, graphs, MASK, SEEDS) - network.begin(graphs, MASK, SEEDS).p
    assert moved.abs().max() > 0.2


def test_permuting_the_colors_permutes_the_result(network: RefinementNetwork, monkeypatch: pytest.MonkeyPatch):
    graphs = dense(GRAPHS)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(3))
    before = refined(network, graphs, MASK, SEEDS)
    monkeypatch.setattr("gnn_training.model.network.noise", lambda *args: noise(*args)[:, :, order])
    assert_same(refined(network, graphs, MASK[:, order], SEEDS), before[:, :, order])


def test_permuting_the_nodes_permutes_the_result(network: RefinementNetwork, graph_head: GraphHead, monkeypatch):
    graph, color_mask = GRAPHS[1], first_colors(torch.tensor([5]), 5)
    order = np.random.default_rng(4).permutation(graph.num_nodes)
    graphs, permuted = dense([graph]), dense([Graph.from_adjacency(graph.adjacency()[order][:, order])])
    before = refined(network, graphs, color_mask, SEEDS[:1])
    monkeypatch.setattr("gnn_training.model.network.noise", lambda *args: noise(*args)[:, order])
    assert_same(refined(network, permuted, color_mask, SEEDS[:1]), before[:, order])
    bounds = torch.tensor([2.0]), torch.tensor([9.0])
    for a, b in zip(graph_head(permuted, *bounds), graph_head(graphs, *bounds), strict=True):
        assert_same(a, b)


def test_a_padded_graph_gives_the_numbers_it_gives_as_a_singleton(network: RefinementNetwork, graph_head: GraphHead):
    together = dense(GRAPHS)
    p = refined(network, together, MASK, SEEDS)
    lower, upper = torch.full((4,), 1.0), KS.float() + 1
    predictions = graph_head(together, lower, upper)
    for i, graph in enumerate(GRAPHS):
        singleton, n, k = dense([graph]), graph.num_nodes, int(KS[i])
        assert_same(p[i, :n, :k], refined(network, singleton, first_colors(KS[i : i + 1], k), SEEDS[i : i + 1])[0])
        assert (p[i, n:] == 0).all() and (p[i, :, k:] == 0).all()
        own = graph_head(singleton, lower[i : i + 1], upper[i : i + 1])
        for joint, single in zip(predictions, own, strict=True):
            assert_same(joint[i], single[0])


def test_colors_that_no_graph_may_use_change_nothing(network: RefinementNetwork):
    graphs = dense(GRAPHS)
    narrow, wide = (refined(network, graphs, first_colors(KS, num_colors), SEEDS) for num_colors in (7, 11))
    assert wide.shape == (4, 30, 11) and (wide[:, :, 7:] == 0).all()
    assert_same(wide[:, :, :7], narrow)


def test_a_round_returns_soft_colors_of_its_state_and_conflicts_of_the_given_ones(network: RefinementNetwork):
    graphs = dense(GRAPHS)
    state = network.begin(graphs, MASK, SEEDS)
    for _ in range(3):
        following, conflicts = network(state, graphs)
        assert_same(conflicts, torch.einsum("gvk,gvw,gwk->g", state.p, graphs.adjacency, state.p) / 2)
        assert conflicts[0] > 0 and (conflicts[2:] == 0).all()
        assert_same(following.p, network.soft_colors(following.h, graphs, MASK))
        state = following


def test_every_round_has_noise_of_its_own(network: RefinementNetwork):
    graphs = dense(GRAPHS)
    state = network.begin(graphs, MASK, SEEDS)
    following, _ = network(state, graphs)
    assert not (following.seeds == SEEDS).any()
    again, _ = network(state._replace(seeds=following.seeds), graphs)
    assert (again.p[0] - following.p[0]).abs().max() > 1e-2


def test_a_conflict_weight_counts_like_conflicts(network: RefinementNetwork):
    graphs = dense(GRAPHS)
    state = network.begin(graphs, MASK, SEEDS)
    weight = torch.rand(state.p.shape, generator=torch.Generator().manual_seed(0))
    (without, few), (weighted, many) = (network(state, graphs, conflict_weight=x) for x in (0.0, weight))
    assert_same(many - few, (state.p * weight).sum((1, 2)) / 2)
    moved = (weighted.p - without.p).abs().amax((1, 2))
    assert torch.equal(moved > 1e-3, KS > 1)  # with one color there is nothing to choose


def test_damping_weakens_the_gradient_of_the_state_and_changes_no_number():
    torch.manual_seed(0)
    network, graphs = RefinementNetwork(), dense(GRAPHS)
    state = network.begin(graphs, MASK, SEEDS)
    h = state.h.detach().requires_grad_()
    gradients, states = [], []
    for damping in (1.0, 0.25):
        following, _ = network(state._replace(h=h, p=network.soft_colors(h, graphs, MASK)), graphs, damping)
        states.append(following.h)
        outputs = following.h, following.p
        gradients.append([torch.autograd.grad(out.pow(3).sum(), h, retain_graph=True)[0] for out in outputs])
    assert_same(*states)
    assert_same(gradients[1][0], 0.25 * gradients[0][0])
    assert_same(gradients[1][1], gradients[0][1])


@settings(max_examples=25)
@given(n=st.integers(1, 40), k=st.integers(1, 60), density=st.floats(0, 1), seed=st.integers(0, 2**40))
def test_any_number_of_nodes_and_colors_gives_probabilities(network: RefinementNetwork, n, k, density, seed):
    graphs = dense([random_graph(n, density, seed)])
    p = refined(network, graphs, torch.ones(1, k), torch.tensor([seed]))
    assert p.shape == (1, n, k) and (p >= 0).all()
    assert_same(p.sum(2), torch.ones(1, n))


@settings(max_examples=25)
@given(n=st.integers(1, 40), k=st.integers(1, 9), density=st.floats(0, 1), seed=st.integers(0, 1000))
def test_dense_and_sparse_graphs_give_the_same_coloring_and_predictions(network, graph_head, n, k, density, seed):
    graph = random_graph(n, density, seed)
    forms, color_mask = (dense([graph]), sparse(graph)), torch.ones(1, k)
    assert_same(*(refined(network, form, color_mask, torch.tensor([seed])) for form in forms))
    assert_same(*(invariants(form, color_mask.sum(1)) for form in forms))
    assert_same(*(form.summary(color_mask.sum(1)) for form in forms))
    for a, b in zip(*(graph_head(form, torch.ones(1), torch.tensor([9.0])) for form in forms), strict=True):
        assert_same(a, b)


def test_dense_and_sparse_graphs_give_the_same_gradients():
    graph, gradients = random_graph(20, 0.3), []
    for form in (dense([graph]), sparse(graph)):
        torch.manual_seed(1)
        network = RefinementNetwork()
        state, _ = network(network.begin(form, torch.ones(1, 4), torch.tensor([0])), form)
        (state.p * form.aggregate(state.p)).sum().backward()
        gradients.append([weight.grad for weight in network.parameters()])
    for a, b in zip(*gradients, strict=True):
        assert_same(a, b)


def test_degrees_and_triangles_are_those_of_the_graph():
    triangle_with_tail = Graph.from_edges(5, [(0, 1), (1, 2), (0, 2), (2, 3)])
    for form in (dense([triangle_with_tail]), sparse(triangle_with_tail)):
        assert form.degrees.tolist() == [[2, 2, 3, 1, 0]]
        assert form.neighbour_degrees.tolist() == [[2.5, 2.5, torch.tensor(5 / 3).item(), 3, 0]]
        assert form.triangles().tolist() == [[1, 1, 1, 0, 0]]
        assert form.num_nodes.tolist() == [5] and form.density.item() == pytest.approx(8 / 20, abs=1e-5)


def test_only_large_graphs_of_low_density_are_sparse():
    few, pairs = SPARSE_FROM - 1, SPARSE_FROM * (SPARSE_FROM - 1) / 2
    assert is_sparse(SPARSE_FROM, few) and not is_sparse(SPARSE_FROM - 1, few)
    assert not is_sparse(SPARSE_FROM, int(pairs * SPARSE_BELOW) + 1)
    assert is_sparse(np.array([1, SPARSE_FROM]), np.array([0, 0])).tolist() == [False, True]


def test_noise_is_the_hash_in_integers_without_limits():
    seeds = [0, 1, 2**31 - 1, 2**31, 2**31 + 1, 2**40 + 3, 2**63 - 1, -1]
    x = noise(torch.tensor(seeds), 50, 7)
    for g, seed in enumerate(seeds):
        for v, c in [(0, 0), (1, 0), (0, 1), (49, 6)]:
            y = (seed % PRIME * 48_271 + v * 69_621 + 1) % PRIME
            y = (y * y + c * 40_014 + 12_345) % PRIME
            for _ in range(3):
                y = (y * (y + 1_000_003) + 7) % PRIME
            assert x[g, v, c].item() == pytest.approx((y / PRIME - 0.5) * 12**0.5, abs=1e-6)


def test_noise_is_uniform_with_mean_0_and_variance_1():
    x = noise(torch.tensor([0, 1, 2**31]), 1000, 100)
    assert x.mean((1, 2)).abs().max() < 0.02
    assert (x.var((1, 2)) - 1).abs().max() < 0.02
    assert x.abs().max() <= 3**0.5 + 1e-6
    shares = torch.histc(x[0], 10, -(3**0.5), 3**0.5) / x[0].numel()
    assert (shares - 0.1).abs().max() < 0.01


def test_noise_of_other_seeds_nodes_and_colors_is_unrelated():
    x = noise(torch.tensor([7, 8, 7 + 2**31, 7 + 7919]), 400, 100)
    for a, b in [(0, 1), (0, 2), (0, 3)]:
        assert (x[a] * x[b]).mean().abs() < 0.02
    assert (x[0, 1:] * x[0, :-1]).mean().abs() < 0.02
    assert (x[0, :, 1:] * x[0, :, :-1]).mean().abs() < 0.02


def test_noise_does_not_depend_on_the_size_asked_for():
    assert torch.equal(noise(torch.tensor([3, 4]), 60, 20)[:1, :5, :7], noise(torch.tensor([3]), 5, 7))
