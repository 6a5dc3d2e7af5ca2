"""Loss terms do not depend on the order of colors, are sums over graphs, and zero where nothing can improve."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_graphs import dense
from torch import Tensor
from torch.nn.functional import one_hot

from gnn_training.contract import GRAPH_TYPES, UNKNOWN_TYPE
from gnn_training.graph import Graph
from gnn_training.model.loss import WEIGHTS, Batch, ColoringNetwork
from gnn_training.model.network import RefinementNetwork, first_colors, noise

RING = Graph.from_edges(6, [(i, (i + 1) % 6) for i in range(6)])
SINGLE = Graph.from_edges(1, [])
WHEEL = Graph.from_edges(6, [(0, i) for i in range(1, 6)] + [(1, 2), (2, 3), (3, 4), (4, 5), (1, 5)])
GRAPHS = [RING, WHEEL, SINGLE]


class Decided(RefinementNetwork):
    """Always returns one coloring (N,) of one graph."""

    def __init__(self, colors: list[int]):
        super().__init__()
        self.colors = torch.tensor([colors])

    def soft_colors(self, h, graphs, color_mask) -> Tensor:
        return one_hot(self.colors, color_mask.shape[1]).float()


def batch(graphs: list[Graph]) -> Batch:
    """Labels that need not be true, different for every graph."""
    numbers = torch.tensor([next(i for i, known in enumerate(GRAPHS) if known is graph) for graph in graphs])
    known = torch.tensor([2, 4, 1])[numbers]
    return Batch(
        graphs=dense(graphs),
        num_colors=known,
        lower=known.float() - torch.tensor([0, 1, 0])[numbers],
        upper=known.float() + torch.tensor([2, 1, 0])[numbers],
        graph_type=torch.tensor([1, 7, 4])[numbers],
        difficulty=torch.tensor([10.0, 90.0, 0.0])[numbers],
        seeds=100 + numbers,
        k=torch.tensor([3, 4, 2])[numbers],
        graph_mask=torch.ones(len(graphs)),
        max_colors=4,
    )


@pytest.fixture
def network() -> ColoringNetwork:
    torch.manual_seed(0)
    return ColoringNetwork()


def permute_colors(order: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on color i of every batch is what color order[i] was."""
    monkeypatch.setattr("gnn_training.model.network.noise", lambda *args: noise(*args)[:, :, order])
    monkeypatch.setattr("gnn_training.model.loss.first_colors", lambda *args: first_colors(*args)[:, order])


def test_every_term_has_a_weight_and_is_finite(network: ColoringNetwork):
    terms = network(batch(GRAPHS), no_gradient_rounds=2, rounds=3)
    assert terms.keys() == WEIGHTS.keys()
    assert all(term.shape == () and term.isfinite() for term in terms.values())


def test_permuting_the_colors_changes_no_term(network: ColoringNetwork, monkeypatch: pytest.MonkeyPatch):
    before = network(batch(GRAPHS), no_gradient_rounds=2, rounds=4)
    permute_colors([2, 0, 3, 1], monkeypatch)
    after = network(batch(GRAPHS), no_gradient_rounds=2, rounds=4)
    for name in WEIGHTS:
        torch.testing.assert_close(after[name], before[name], rtol=1e-5, atol=1e-6)


def test_permuting_the_colors_changes_no_gradient(network: ColoringNetwork, monkeypatch: pytest.MonkeyPatch):
    gradients = []
    for order in ([0, 1, 2, 3], [3, 2, 0, 1]):
        permute_colors(order, monkeypatch)
        network.zero_grad()
        network(batch(GRAPHS), no_gradient_rounds=0, rounds=4)["conflicts"].backward()
        gradients.append([weight.grad.clone() for weight in network.refinement.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("no_gradient_rounds", [0, 5])
def test_terms_of_a_batch_are_the_sums_of_its_graphs(network: ColoringNetwork, no_gradient_rounds: int):
    together = network(batch(GRAPHS), no_gradient_rounds, rounds=4)
    alone = [network(batch([graph]), no_gradient_rounds, rounds=4) for graph in GRAPHS]
    for name in WEIGHTS:
        torch.testing.assert_close(together[name], sum(terms[name] for terms in alone), rtol=1e-4, atol=1e-6)


def test_a_proper_coloring_has_no_conflicts_and_one_color_has_all_edges(network: ColoringNetwork):
    network.refinement = Decided([0, 1, 0, 1, 0, 1])
    assert network(batch([RING]), no_gradient_rounds=0, rounds=3)["conflicts"].item() == 0
    network.refinement = Decided([1, 1, 1, 1, 1, 1])
    assert network(batch([RING]), no_gradient_rounds=0, rounds=3)["conflicts"].item() == pytest.approx(6 / 6)
    network.refinement = Decided([0, 0, 0, 1, 1, 1])
    assert network(batch([RING]), no_gradient_rounds=2, rounds=3)["conflicts"].item() == pytest.approx(4 / 6)


def test_a_graph_of_unknown_family_adds_no_family_loss(network: ColoringNetwork):
    known = batch(GRAPHS)
    half = replace(known, graph_type=torch.tensor([1, UNKNOWN_TYPE, UNKNOWN_TYPE]))
    alone = network(batch([RING]), 0, 3)["family"]
    torch.testing.assert_close(network(half, 0, 3)["family"], alone, rtol=1e-5, atol=1e-6)
    none = network(replace(known, graph_type=torch.full((3,), UNKNOWN_TYPE)), 0, 3)
    assert none["family"].item() == 0
    none["family"].backward()
    assert all(w.grad is None or (w.grad == 0).all() for w in network.parameters())


def test_the_estimate_stays_between_its_bounds_and_costs_nothing_where_they_meet(network: ColoringNetwork):
    b = batch(GRAPHS)
    for _ in range(5):
        torch.nn.init.normal_(network.graph_head.head.weight, std=20)
        predicted = network.graph_head(b.graphs, b.lower, b.upper)
        assert (b.lower <= predicted.chromatic).all() and (predicted.chromatic <= b.upper).all()
        assert predicted.graph_type_logits.shape == (3, len(GRAPH_TYPES))
        assert (predicted.difficulty >= 0).all() and (predicted.difficulty <= 100).all()
    assert network(batch([SINGLE]), 0, 3)["chromatic"].item() == 0


@pytest.mark.parametrize("graphs", [GRAPHS, [SINGLE], [Graph.from_edges(5, [])]], ids=["several", "one", "edgeless"])
def test_every_weight_gets_a_finite_gradient(network: ColoringNetwork, graphs: list[Graph]):
    b = batch(GRAPHS) if graphs is GRAPHS else replace(batch([SINGLE]), graphs=dense(graphs))
    sum(network(b, 0, rounds=2).values()).backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in network.parameters())


def test_after_no_gradient_rounds_the_first_layer_has_a_gradient_of_exactly_zero(network: ColoringNetwork):
    sum(network(batch(GRAPHS), 4, rounds=2).values()).backward()
    unmoved = {name for name, weight in network.named_parameters() if (weight.grad == 0).all()}  # none is None: for DDP
    assert unmoved == {"refinement.first.weight", "refinement.first.bias"}


@pytest.mark.parametrize("no_gradient_rounds", [0, 3])
def test_a_masked_graph_counts_nothing(network: ColoringNetwork, no_gradient_rounds: int):
    partly = replace(batch(GRAPHS), graph_mask=torch.tensor([1.0, 0.0, 1.0]))
    terms, expected = network(partly, no_gradient_rounds, 4), network(batch([RING, SINGLE]), no_gradient_rounds, 4)
    for name in WEIGHTS:
        torch.testing.assert_close(terms[name], expected[name], rtol=1e-5, atol=1e-6)
    weights = list(network.parameters())
    for found, true in zip(
        *(torch.autograd.grad(sum(x.values()), weights, materialize_grads=True) for x in (terms, expected)), strict=True
    ):
        torch.testing.assert_close(found, true, rtol=1e-4, atol=1e-6)


def test_more_masked_colors_change_no_term(network: ColoringNetwork):
    narrow, wide = (network(replace(batch(GRAPHS), max_colors=colors), 2, 4) for colors in (4, 9))
    for name in WEIGHTS:
        torch.testing.assert_close(wide[name], narrow[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("no_gradient_rounds", [0, 3])
def test_recomputed_activations_give_the_same_terms_and_gradients(network: ColoringNetwork, no_gradient_rounds: int):
    results = []
    for network.recompute in (False, True):
        terms = network(batch(GRAPHS), no_gradient_rounds, rounds=5)
        weights = list(network.parameters())
        results.append((terms, torch.autograd.grad(sum(terms.values()), weights, materialize_grads=True)))
    torch.testing.assert_close(results[1], results[0], rtol=1e-6, atol=1e-7)


def test_recomputing_keeps_a_state_per_round_instead_of_all_within(network: ColoringNetwork):
    kept = []
    for network.recompute in (False, True):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, sizes=sizes: sizes.append(x.nbytes) or x, lambda x: x):
            network(batch(GRAPHS), 0, rounds=8)
        kept.append(sum(sizes))
    assert kept[1] < kept[0] / 4


def test_the_graph_head_has_no_gradient_in_the_refinement(network: ColoringNetwork):
    terms = network(batch(GRAPHS), 0, 3)
    (terms["chromatic"] + terms["family"] + terms["difficulty"]).backward()
    assert all(weight.grad is None for weight in network.refinement.parameters())


def test_training_on_the_terms_lowers_them(network: ColoringNetwork):
    optimizer = torch.optim.AdamW(network.parameters(), 1e-2)
    history = []
    for _ in range(40):
        terms = network(batch(GRAPHS), 0, rounds=5)
        history.append({name: term.item() for name, term in terms.items()})
        optimizer.zero_grad()
        sum(WEIGHTS[name] * term for name, term in terms.items()).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        optimizer.step()
    for name in WEIGHTS:
        assert np.mean([terms[name] for terms in history[-5:]]) < 0.7 * history[0][name]
