"""The parameters of a network as one vector: a step is one all-reduce, one optimizer kernel, one average."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def flatten(module: nn.Module, gradient: Tensor) -> nn.Parameter:
    """Move the parameters of a module, in their order, into one vector (P,) that they become views of.

    gradient (P,): becomes the gradient of the vector; a backward pass of the module adds to it.
    """
    parameters = list(module.parameters())
    vector = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in parameters]))
    vector.grad = gradient
    for parameter, value, slope in zip(
        parameters, views(vector.detach(), parameters), views(gradient, parameters), strict=True
    ):
        parameter.data, parameter.grad = value, slope.data  # as no view: torch.compile would look at its base
    return vector


def views(vector: Tensor, parameters: Iterable[Tensor]) -> list[Tensor]:
    """A vector (P,) cut into pieces of the sizes and shapes of `parameters`."""
    parameters = list(parameters)
    pieces = vector.split([parameter.numel() for parameter in parameters])
    return [piece.view_as(parameter) for piece, parameter in zip(pieces, parameters, strict=True)]


def named(vector: Tensor, module: nn.Module) -> dict[str, Tensor]:
    """What the module's state_dict() would be if `vector` (P,) were its parameters; copies."""
    parameters = dict(module.named_parameters())
    values = views(vector.detach(), parameters.values())
    return {name: value.clone() for name, value in zip(parameters, values, strict=True)}
