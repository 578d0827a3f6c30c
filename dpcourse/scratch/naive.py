"""Naive data parallelism: every rank starts from rank 0's weights, and every step averages gradients.

Naive in two ways that DDP mends: it starts to talk only when the backward pass is over, so that nothing is
hidden, and it pays for one collective a parameter, however small the parameter is.
"""

from collections.abc import Iterator, Sequence

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
    is_used = used_by_any_rank([parameter.grad is not None for parameter in parameters], parameters)
    return (parameter for parameter, used in zip(parameters, is_used, strict=True) if used)


def used_by_any_rank(is_used_here: Sequence[bool], parameters: Sequence[torch.Tensor]) -> list[bool]:
    """Tell of each parameter whether any rank used it. Costs an all-reduce of 4 bytes a parameter tensor."""
    if not parameters:
        return []
    num_ranks_using = torch.tensor(is_used_here, dtype=torch.float32, device=parameters[0].device)
    dist.all_reduce(num_ranks_using)
    return [number > 0 for number in num_ranks_using.tolist()]
