"""Data parallelism as a wrapper: after loss.backward() every rank's gradients are the mean over the ranks.

Three ways, each mending what the one before wastes: NaiveDDP sends parameter by parameter when backward is
over, FlatDDP sends all at once when backward is over, BucketedDDP (bucketed.py) sends while backward goes on.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dpcourse.scratch import flat, naive, ring
from dpcourse.scratch.buckets import EndOfBackward, in_buckets


class Replica(nn.Module):
    """One rank's copy of a module. Starts from rank 0's parameters and buffers; calls pass through.

    As DistributedDataParallel does: whether a backward pass is to average gradients is decided by the forward
    pass before it (see no_sync), and each such forward pass begins with rank 0's buffers, where there are
    any (a batch norm's statistics).
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._is_synchronised = True  # outside no_sync()
        self._averages = True  # the next backward pass
        self._end = EndOfBackward(self._average)
        flat.broadcast([*module.parameters(), *module.buffers()])
        for parameter in self.trainable:
            parameter.register_post_accumulate_grad_hook(self._on_gradient)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            self._averages = self._is_synchronised
            if self._averages:
                flat.broadcast(self.module.buffers())
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave each rank its own gradients, to be averaged later together with what is added to them.

        The forward pass has to be inside: a backward pass alone in here still averages.
        """
        before, self._is_synchronised = self._is_synchronised, False
        try:
            yield
        finally:
            self._is_synchronised = before

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        """Called in backward when a parameter's gradient is complete."""
        if self._averages:
            self._end.ask()

    def _average(self) -> None:
        """Called when backward is over."""
        raise NotImplementedError


class NaiveDDP(Replica):
    """One all-reduce a parameter, when backward is over: as many latencies, and nothing is hidden."""

    def _average(self) -> None:
        naive.average_gradients(self.module)


class FlatDDP(Replica):
    """One all-reduce for all gradients, when backward is over: one latency, but nothing is hidden.

    Costs a second copy of the gradients while it lasts. A gradient that is missing counts as zeros, so that a
    parameter that no rank used ends with zeros: an optimizer that decays weights moves it.
    """

    @torch.no_grad()
    def _average(self) -> None:
        for parameters in in_buckets(self.trainable, cap_mb=None):
            sums = flat.flatten(flat.gradients_of(parameters))
            ring.all_reduce(sums, unit="all gradients")
            flat.set_gradients(parameters, sums.div_(dist.get_world_size()))
