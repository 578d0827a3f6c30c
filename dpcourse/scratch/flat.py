"""Many tensors as one row of numbers: what is sent in one message, and what is cut into a slice a rank."""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist

from dpcourse.theory.slices import padded_size


def flatten(tensors: Sequence[torch.Tensor], num_slices: int = 1) -> torch.Tensor:
    """Copy tensors of one dtype into one row, with zeros at the end until it divides into `num_slices`."""
    flat = tensors[0].new_zeros(padded_size(sum(tensor.numel() for tensor in tensors), num_slices))
    for view, tensor in zip(views(flat, tensors), tensors, strict=True):
        view.copy_(tensor)
    return flat


def views(flat: torch.Tensor, shapes_of: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Look at a row as tensors of these shapes, one after the other; no number is copied."""
    sizes = [tensor.numel() for tensor in shapes_of]
    parts = flat.split([*sizes, flat.numel() - sum(sizes)])
    return [part.view(tensor.shape) for part, tensor in zip(parts, shapes_of, strict=False)]


def gradients_of(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Give the parameters' gradients, zeros for one that has none: it adds nothing to the others' sum."""
    return [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in parameters
    ]


@torch.no_grad()
def set_gradients(parameters: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
    """Give each parameter its part of a row as its gradient, copied into the one it has."""
    for parameter, view in zip(parameters, views(flat, parameters), strict=True):
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        parameter.grad.copy_(view)


@torch.no_grad()
def broadcast(tensors: Iterable[torch.Tensor]) -> None:
    """Give every rank rank 0's tensors, with one message for all that have the same dtype."""
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor.detach())
    for same in by_dtype.values():
        flat = flatten(same)
        dist.broadcast(flat, src=0)
        for tensor, view in zip(same, views(flat, same), strict=True):
            tensor.copy_(view)
