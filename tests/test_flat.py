"""Parameters in one vector: the module computes what it did, and its gradients arrive in one vector as well."""

import pytest
import torch
from torch import nn

from gnn_training.training.flat import flatten, named, views


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.SiLU(), nn.Linear(7, 3, bias=False), nn.LayerNorm(3))


@pytest.fixture
def flat() -> tuple[nn.Module, nn.Parameter]:
    network = module()
    return network, flatten(network, torch.zeros(sum(parameter.numel() for parameter in network.parameters())))


def test_outputs_and_gradients_are_those_of_the_plain_module(flat: tuple[nn.Module, nn.Parameter]):
    plain, (network, vector) = module(), flat
    x = torch.randn(4, 5)
    assert torch.equal(network(x), plain(x))
    for each in (plain, network):
        each(x).square().sum().backward()
    assert torch.equal(vector.grad, nn.utils.parameters_to_vector(parameter.grad for parameter in plain.parameters()))


def test_a_second_backward_pass_adds_to_the_gradient(flat: tuple[nn.Module, nn.Parameter]):
    network, vector = flat
    network(torch.ones(1, 5)).square().sum().backward()
    once = vector.grad.clone()
    network(torch.ones(1, 5)).square().sum().backward()
    assert once.norm() > 0 and torch.equal(vector.grad, 2 * once)


def test_the_gradient_is_the_tensor_that_was_given():
    network, gradient = module(), torch.zeros(5 * 7 + 7 + 3 * 7 + 3 + 3)
    assert flatten(network, gradient).grad is gradient
    network(torch.ones(1, 5)).square().sum().backward()
    assert gradient.norm() > 0


def test_what_moves_the_vector_moves_the_module(flat: tuple[nn.Module, nn.Parameter]):
    network, vector = flat
    with torch.no_grad():
        vector.fill_(0.25)
    assert all((parameter == 0.25).all() for parameter in network.parameters())
    network.load_state_dict(module().state_dict())
    assert torch.equal(vector, nn.utils.parameters_to_vector(module().parameters()))


def test_named_is_the_state_dict_of_the_plain_module_in_copies(flat: tuple[nn.Module, nn.Parameter]):
    network, vector = flat
    state, plain = named(vector, network), module().state_dict()
    assert list(state) == list(plain) and all(torch.equal(state[name], plain[name]) for name in plain)
    with torch.no_grad():
        vector.zero_()
    assert torch.equal(state["0.weight"], plain["0.weight"])
    assert all(not value.requires_grad and value.storage_offset() == 0 for value in state.values())


def test_pieces_of_a_vector_are_views_in_the_shapes_of_the_parameters():
    vector, parameters = torch.arange(10.0), [torch.empty(2, 3), torch.empty(4)]
    pieces = views(vector, parameters)
    assert pieces[0].tolist() == [[0, 1, 2], [3, 4, 5]] and pieces[1].tolist() == [6, 7, 8, 9]
    pieces[1].zero_()
    assert vector.sum() == 15
    with pytest.raises(RuntimeError, match="split_with_sizes"):
        views(torch.zeros(11), parameters)
