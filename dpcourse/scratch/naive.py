"""Naive data parallelism: every rank starts from rank 0's weights, and every step averages gradients.

Naive in two ways that DDP mends: it starts to talk only when the backward pass is over, so that nothing is
hidden, and it pays for one collective a parameter, however small the parameter is.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn


def broadcast_state(module: nn.Module) -> None:
    """Give every rank rank 0's parameters and buffers. Call it once, before the optimizer is built."""
    for tensor in [*module.parameters(), *module.buffers()]:
        dist.broadcast(tensor.detach(), src=0)


def average_gradients(module: nn.Module) -> None:
    """Replace each gradient by its mean over the ranks. Call it after backward, before optimizer.step().

    (1/N) sum_k g_k is the gradient of the global batch when each g_k is a mean over equally many samples: the
    chapter on data parallelism, section 2; torch's DistributedDataParallel computes the same.
    """
    sum_gradients(module)
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad /= dist.get_world_size()


def sum_gradients(module: nn.Module) -> None:
    """Replace each gradient by its sum over the ranks: one all-reduce for each parameter that a rank used."""
    for parameter in _used_parameters(module):
        if parameter.grad is None:  # another rank used it: adding zeros keeps the ranks' collectives in step
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)


def _used_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Those that have a gradient on any rank, in the same order on all.

    A frozen parameter, or one that no rank used, keeps its gradient of None, since an optimizer decays and
    moves what has a gradient of zeros. The question costs one small all-reduce. A tied parameter comes once.
    """
    parameters = list(module.parameters())
    is_used = torch.tensor([float(parameter.grad is not None) for parameter in parameters])
    if parameters:
        dist.all_reduce(is_used := is_used.to(parameters[0].device))
    return (parameter for parameter, used in zip(parameters, is_used.tolist(), strict=True) if used)
