"""Data parallelism that communicates while it computes: buckets of gradients are averaged during backward."""

import torch
import torch.distributed as dist
from torch import nn

from dpcourse.scratch import flat, naive
from dpcourse.scratch.buckets import InOrder, in_buckets
from dpcourse.scratch.replicated import Replica
from dpcourse.scratch.work import Work, start_all_gather, start_reduce_scatter


class BucketedDDP(Replica):
    """Averages a bucket of gradients as soon as its last one is there, while backward goes on to the next.

    Backward finds the gradients of the last layers first, so that buckets are filled in reverse order of
    definition. An all-reduce is a reduce-scatter and an all-gather: a bucket's first half starts when the
    bucket is complete, its second half when the next bucket is. The buckets are a second copy of the
    gradients, until backward is over.
    Source: Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, 2020.

    Args:
        bucket_cap_mb: a bucket closes once it has so many MiB.
        find_unused_parameters: ask all ranks which parameters were used, with one more all-reduce, and leave
            None as the gradient of one that nobody used. Without it that one gets zeros, and an optimizer
            that decays weights moves it. A gradient that is missing on some ranks counts as zeros there,
            either way.
    """

    def __init__(
        self, module: nn.Module, bucket_cap_mb: float = 25, find_unused_parameters: bool = False
    ) -> None:
        super().__init__(module)
        self.find_unused_parameters = find_unused_parameters
        self.buckets = in_buckets(reversed(self.trainable), bucket_cap_mb)
        self._order = InOrder(self.buckets, self._start)
        self._works: list[Work] = []  # one a bucket: the half of its all-reduce that is under way

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        if not self._averages:
            return
        if self._end.ask():
            self._works = []
            self._order.reset()
        self._order.arrived(parameter)

    @torch.no_grad()
    def _start(self, index: int) -> None:
        """Start to sum up a bucket; the one before it has had the time of this bucket's backward for that."""
        if index:
            self._gather(index - 1)
        share = flat.flatten(flat.gradients_of(self.buckets[index])).div_(dist.get_world_size())
        self._works.append(start_reduce_scatter(share, unit=f"bucket {index}"))

    def _gather(self, index: int) -> None:
        """Start to give every rank all pieces of a bucket's mean."""
        num_elements = sum(parameter.numel() for parameter in self.buckets[index])
        piece = self._works[index].wait()
        self._works[index] = start_all_gather(piece, num_elements=num_elements, unit=f"bucket {index}")

    @torch.no_grad()
    def _average(self) -> None:
        self._order.finish()
        self._gather(len(self.buckets) - 1)
        unused = self._unused()
        for bucket, work in zip(self.buckets, self._works, strict=True):
            flat.set_gradients(bucket, work.wait())
        self._works = []
        for parameter in unused:
            parameter.grad = None

    def _unused(self) -> list[torch.Tensor]:
        """Find the parameters that no rank used, where that was asked for."""
        if not self.find_unused_parameters:
            return []
        is_used_here = [parameter.grad is not None for parameter in self.trainable]
        is_used = naive.used_by_any_rank(is_used_here, self.trainable)
        return [parameter for parameter, used in zip(self.trainable, is_used, strict=True) if not used]
