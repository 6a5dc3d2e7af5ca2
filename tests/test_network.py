"""The network: names of colors and nodes do not matter, nor padding, nor the form of the graph; noise is noise."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gnn_training.graph import Graph
from gnn_training.model.graphs import SPARSE_FROM, DenseGraphs, Graphs, SparseGraph, batch_of
from gnn_training.model.loss import GraphHead
from gnn_training.model.network import PRIME, RefinementNetwork, invariants, noise

ROUNDS = 5


def random_graph(num_nodes: int, density: float, seed: int = 0) -> Graph:
    rng = np.random.default_rng(seed)
    return Graph.from_adjacency(rng.random((num_nodes, num_nodes)) < density)


def dense(graph: Graph) -> DenseGraphs:
    return DenseGraphs(torch.from_numpy(graph.adjacency()).float()[None], torch.ones(1, graph.num_nodes))


def sparse(graph: Graph) -> SparseGraph:
    return SparseGraph(torch.from_numpy(graph.edge_index()), graph.num_nodes)


def refined(refiner: RefinementNetwork, graphs: Graphs, color_mask: Tensor, seeds: Tensor) -> Tensor:
    """Soft colors (G, N, K) after a few rounds."""
    h = refiner.run(refiner.start(graphs, color_mask, seeds), graphs, color_mask, seeds, ROUNDS)
    return refiner.soft_colors(h, graphs, color_mask)


def assert_same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


@pytest.fixture(scope="module")
def refiner() -> RefinementNetwork:
    """Random weights, larger than the first ones of a training so that rounds change the state a lot."""
    torch.manual_seed(0)
    refiner = RefinementNetwork().requires_grad_(False)
    refiner.update.bias[: refiner.width] = 0.0
    return refiner


@pytest.fixture(scope="module")
def reader() -> GraphHead:
    torch.manual_seed(0)
    return GraphHead().requires_grad_(False)


GRAPHS = [random_graph(12, 0.5, 1), random_graph(30, 0.2, 2), Graph.from_edges(4, []), Graph.from_edges(1, [])]
KS = torch.tensor([4, 7, 1, 2])
SEEDS = torch.tensor([5, 6, 7, 8])


def test_rounds_change_the_coloring(refiner: RefinementNetwork):
    graphs = batch_of(GRAPHS)
    h, color_mask, seeds = refiner.begin(graphs, KS, SEEDS, 7)
    moved = refined(refiner, graphs, color_mask, seeds) - refiner.soft_colors(h, graphs, color_mask)
    assert moved.abs().max() > 0.2


def test_renaming_the_colors_renames_the_result(refiner: RefinementNetwork, monkeypatch: pytest.MonkeyPatch):
    graphs = batch_of(GRAPHS)
    _, color_mask, seeds = refiner.begin(graphs, KS, SEEDS, 7)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(3))
    before = refined(refiner, graphs, color_mask, seeds)
    monkeypatch.setattr("gnn_training.model.network.noise", lambda *args: noise(*args)[:, :, order])
    assert_same(refined(refiner, graphs, color_mask[:, order], seeds), before[:, :, order])


def test_renaming_the_nodes_renames_the_result(
    refiner: RefinementNetwork, reader: GraphHead, monkeypatch: pytest.MonkeyPatch
):
    graph, k = GRAPHS[1], torch.tensor([5])
    order = np.random.default_rng(4).permutation(graph.num_nodes)
    graphs, renamed = dense(graph), dense(Graph.from_adjacency(graph.adjacency()[order][:, order]))
    _, color_mask, seeds = refiner.begin(graphs, k, SEEDS[:1], 5)
    before = refined(refiner, graphs, color_mask, seeds)
    monkeypatch.setattr("gnn_training.model.network.noise", lambda *args: noise(*args)[:, order])
    assert_same(refined(refiner, renamed, color_mask, seeds), before[:, order])
    bounds = torch.tensor([2.0]), torch.tensor([9.0])
    for a, b in zip(reader(renamed, *bounds), reader(graphs, *bounds), strict=True):
        assert_same(a, b)


def test_a_padded_graph_gives_the_numbers_it_gives_alone(refiner: RefinementNetwork, reader: GraphHead):
    together = batch_of(GRAPHS)
    _, color_mask, seeds = refiner.begin(together, KS, SEEDS, 7)
    p = refined(refiner, together, color_mask, seeds)
    lower, upper = torch.full((4,), 1.0), KS.float() + 1
    readings = reader(together, lower, upper)
    for i, graph in enumerate(GRAPHS):
        alone, n, k = batch_of([graph]), graph.num_nodes, int(KS[i])
        _, own_palette, own_seeds = refiner.begin(alone, KS[i : i + 1], SEEDS[i : i + 1], k)
        assert_same(p[i, :n, :k], refined(refiner, alone, own_palette, own_seeds)[0])
        assert (p[i, n:] == 0).all() and (p[i, :, k:] == 0).all()
        for joint, single in zip(readings, reader(alone, lower[i : i + 1], upper[i : i + 1]), strict=True):
            assert_same(joint[i], single[0])


def test_colors_beyond_those_of_the_largest_palette_change_nothing(refiner: RefinementNetwork):
    graphs, states = batch_of(GRAPHS), []
    for num_colors in (7, 11):
        _, color_mask, seeds = refiner.begin(graphs, KS, SEEDS, num_colors)
        states.append(refined(refiner, graphs, color_mask, seeds))
    assert states[1].shape == (4, 30, 11) and (states[1][:, :, 7:] == 0).all()
    assert_same(states[1][:, :, :7], states[0])


def test_a_round_passes_on_soft_colors_of_its_state_and_counts_conflicts_of_those_it_was_given(
    refiner: RefinementNetwork,
):
    graphs = batch_of(GRAPHS)
    h, color_mask, seeds = refiner.begin(graphs, KS, SEEDS, 7)
    p = refiner.soft_colors(h, graphs, color_mask)
    for _ in range(3):
        h, following, conflicts = refiner(h, p, graphs, color_mask, seeds)
        expected = torch.einsum("gvk,gvw,gwk->g", p, graphs.adjacency, p) / 2
        assert_same(conflicts, expected)
        assert conflicts[0] > 0 and (conflicts[2:] == 0).all()
        p = refiner.soft_colors(h, graphs, color_mask)
        assert_same(following, p)


def test_a_price_counts_like_conflicts(refiner: RefinementNetwork):
    graphs = batch_of(GRAPHS)
    h, color_mask, seeds = refiner.begin(graphs, KS, SEEDS, 7)
    p = refiner.soft_colors(h, graphs, color_mask)
    price = torch.rand(p.shape, generator=torch.Generator().manual_seed(0))
    plain, dear = (refiner(h, p, graphs, color_mask, seeds, price=x) for x in (0.0, price))
    assert_same(dear[2] - plain[2], (p * price).sum((1, 2)) / 2)
    moved = (dear[1] - plain[1]).abs().amax((1, 2))
    assert torch.equal(moved > 1e-3, KS > 1)  # with one color there is nothing to choose


def test_damping_weakens_the_gradient_of_the_state_and_changes_no_number():
    torch.manual_seed(0)
    refiner, graphs = RefinementNetwork(), batch_of(GRAPHS)
    start, color_mask, seeds = refiner.begin(graphs, KS, SEEDS, 7)
    start = start.detach().requires_grad_()
    gradients, states = [], []
    for damping in (1.0, 0.25):
        h, p, _ = refiner(start, refiner.soft_colors(start, graphs, color_mask), graphs, color_mask, seeds, damping)
        states.append(h)
        gradients.append([torch.autograd.grad(out.pow(3).sum(), start, retain_graph=True)[0] for out in (h, p)])
    assert_same(*states)
    assert_same(gradients[1][0], 0.25 * gradients[0][0])
    assert_same(gradients[1][1], gradients[0][1])


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 40), k=st.integers(1, 60), density=st.floats(0, 1), seed=st.integers(0, 2**40))
def test_any_number_of_nodes_and_colors_gives_probabilities(refiner: RefinementNetwork, n, k, density, seed):
    graphs = batch_of([random_graph(n, density, seed)])
    _, color_mask, seeds = refiner.begin(graphs, torch.tensor([k]), torch.tensor([seed]), k)
    p = refined(refiner, graphs, color_mask, seeds)
    assert p.shape == (1, n, k) and (p >= 0).all()
    assert_same(p.sum(2), torch.ones(1, n))


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 40), k=st.integers(1, 9), density=st.floats(0, 1), seed=st.integers(0, 1000))
def test_dense_and_sparse_aggregation_give_the_same_coloring_and_readings(refiner, reader, n, k, density, seed):
    graph = random_graph(n, density, seed)
    forms = dense(graph), sparse(graph)
    _, color_mask, seeds = refiner.begin(forms[0], torch.tensor([k]), torch.tensor([seed]), k)
    assert_same(*(refined(refiner, form, color_mask, seeds) for form in forms))
    assert_same(*(invariants(form, color_mask.sum(1)) for form in forms))
    assert_same(*(form.summary(color_mask.sum(1)) for form in forms))
    for a, b in zip(*(reader(form, torch.ones(1), torch.tensor([9.0])) for form in forms), strict=True):
        assert_same(a, b)


def test_dense_and_sparse_aggregation_give_the_same_gradients():
    graph, gradients = random_graph(20, 0.3), []
    for form in (dense(graph), sparse(graph)):
        torch.manual_seed(1)
        refiner = RefinementNetwork()
        h, color_mask, seeds = refiner.begin(form, torch.tensor([4]), torch.tensor([0]), 4)
        _, p, _ = refiner(h, refiner.soft_colors(h, form, color_mask), form, color_mask, seeds)
        (p * form.aggregate(p)).sum().backward()
        gradients.append([weight.grad for weight in refiner.parameters()])
    for a, b in zip(*gradients, strict=True):
        assert_same(a, b)


def test_degrees_and_triangles_are_those_of_the_graph():
    triangle_with_tail = Graph.from_edges(5, [(0, 1), (1, 2), (0, 2), (2, 3)])
    for form in (dense(triangle_with_tail), sparse(triangle_with_tail)):
        assert form.degrees.tolist() == [[2, 2, 3, 1, 0]]
        assert form.neighbour_degrees.tolist() == [[2.5, 2.5, torch.tensor(5 / 3).item(), 3, 0]]
        assert form.triangles().tolist() == [[1, 1, 1, 0, 0]]
        assert form.num_nodes.tolist() == [5] and form.density.item() == pytest.approx(8 / 20, abs=1e-5)


def test_only_one_large_graph_of_low_density_is_aggregated_sparsely():
    path = [(i, i + 1) for i in range(SPARSE_FROM - 1)]
    large = Graph.from_edges(SPARSE_FROM, path)
    assert isinstance(batch_of([large]), SparseGraph)
    assert isinstance(batch_of([large, Graph.from_edges(1, [])]), DenseGraphs)
    assert isinstance(batch_of([Graph.from_edges(SPARSE_FROM - 1, path[:-1])]), DenseGraphs)
    assert isinstance(batch_of([random_graph(SPARSE_FROM, 0.03)]), DenseGraphs)


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


def test_noise_does_not_depend_on_how_much_of_it_is_asked_for():
    assert torch.equal(noise(torch.tensor([3, 4]), 60, 20)[:1, :5, :7], noise(torch.tensor([3]), 5, 7))
