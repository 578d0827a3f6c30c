"""Data parallelism through one main rank, as nn.DataParallel has it: the others compute, and keep nothing.

Each step the main rank hands out samples and a copy of the whole model, collects the outputs for the loss,
hands their gradients back, and adds up the gradients of the parameters. Its link carries all of it, 2(N - 1)
times the model, and its memory holds the batch, the outputs and all model states, while the others' is
empty between steps.
Source: torch/nn/parallel/data_parallel.py, which does this with threads of one process and a GPU each. Its
copies are also made anew in each forward pass; there the copy of a batch norm's running statistics is lost,
as here, and the main one's survive.
"""

from typing import Any

import torch
from torch import Tensor, nn

from dpcourse.scratch import star
from dpcourse.scratch.messages import place_in

MAIN = 0


class StarParallel(nn.Module):
    """Wraps a module: every rank calls forward, then backward on what it got, then `sum_gradients`.

    On the main rank forward takes the global batch and gives its outputs; the mean loss of them is the
    global one. Another rank gives an empty batch of the same format, and gets a number that stands for its
    outputs: its backward waits for their gradients. Only the main rank's parameters are trained.
    """

    def __init__(self, module: nn.Module, num_samples: int) -> None:
        """num_samples: of each rank's share of the global batch."""
        super().__init__()
        self.module, self.num_samples = module, num_samples
        self.is_main = place_in()[0] == MAIN
        self.tensors = dict([*module.named_parameters(), *module.named_buffers()])
        self.shapes = {name: tensor.shape for name, tensor in self.tensors.items()}
        if not self.is_main:
            self._forget()

    def forward(self, inputs: Tensor) -> Tensor:
        share = self._scatter(inputs)
        self._replicate()
        return _Gather.apply(self.module(share))  # type: ignore[no-any-return]

    def sum_gradients(self) -> None:
        """Add up all ranks' gradients in the main rank's parameters; the others forget theirs, and the model.

        A sum, not a mean: the loss was the mean over all samples.
        """
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:  # others may have used it
                    parameter.grad = torch.zeros_like(parameter)
                star.reduce(parameter.grad, MAIN)
        if not self.is_main:
            self._forget()

    def _scatter(self, inputs: Tensor) -> Tensor:
        if self.is_main:
            pieces = inputs.split(self.num_samples)
            star.scatter(pieces[MAIN], pieces, MAIN)
            return pieces[MAIN]
        share = inputs.new_empty(self.num_samples, *inputs.shape[1:])
        star.scatter(share, main=MAIN)
        return share

    def _replicate(self) -> None:
        for name, tensor in self.tensors.items():
            if not self.is_main:
                tensor.data = tensor.new_empty(self.shapes[name])
            star.broadcast(tensor.detach(), MAIN)

    def _forget(self) -> None:
        for tensor in self.tensors.values():
            tensor.grad, tensor.data = None, tensor.new_empty(0)


class _Gather(torch.autograd.Function):
    """Outputs to the main rank in forward, their gradients back in backward."""

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        rank, num_ranks = place_in()
        ctx.like = output.new_empty(0), output.shape
        if rank != MAIN:
            star.gather(output, main=MAIN)
            return torch.zeros((), device=output.device)
        whole = output.new_empty(num_ranks * len(output), *output.shape[1:])
        star.gather(output, whole.split(len(output)), MAIN)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        like, shape = ctx.like
        if place_in()[0] == MAIN:
            pieces = gradient.split(shape[0])
            star.scatter(pieces[MAIN], pieces, MAIN)
            return pieces[MAIN]
        share = like.new_empty(shape)
        star.scatter(share, main=MAIN)
        return share
