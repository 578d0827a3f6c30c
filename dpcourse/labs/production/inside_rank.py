"""In a rank: torch's own twins of what the judge has in numpy."""

from typing import Any

from dpcourse.labs.production.linear import Batch, Linear


def as_module(linear: Linear) -> Any:
    """An nn.Linear with these parameters."""
    import torch
    from torch import nn

    outputs, inputs = linear.weight.shape
    module = nn.Linear(inputs, outputs, dtype=torch.float64)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(linear.weight))
        module.bias.copy_(torch.from_numpy(linear.bias))
    return module


def as_ddp(linear: Linear) -> Any:
    """The same under DistributedDataParallel."""
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(as_module(linear))


def as_tensors(batches: list[Batch]) -> list[tuple[Any, Any]]:
    """Batches of tensors."""
    import torch

    return [
        (torch.from_numpy(inputs.copy()), torch.from_numpy(targets.copy())) for inputs, targets in batches
    ]


def parameters_of(module: Any) -> dict[str, Any]:
    """The parameters by name, as plain tensors of their own."""
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def gradients_of(module: Any) -> dict[str, Any]:
    """The gradients by the parameter's name; None where there is none."""
    return {
        name: None if parameter.grad is None else parameter.grad.detach().clone()
        for name, parameter in module.named_parameters()
    }
