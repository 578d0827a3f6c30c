"""ZeRO stage 2: as stage 1, with gradients reduced to slices while backward goes on, and freed at once.

Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, 2020,
section 5.2.
"""

from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

from dpcourse.scratch import flat
from dpcourse.scratch.buckets import EndOfBackward, InOrder, in_buckets
from dpcourse.scratch.work import Work, start_reduce_scatter
from dpcourse.scratch.zero import Zero1Optimizer

Room = dict[torch.Tensor, torch.Tensor]  # for each parameter of a row, where its gradient goes


class Zero2Optimizer(Zero1Optimizer):
    """ZeRO-1 whose gradients never exist in full: one slice a row is kept, the rest is freed in backward.

    As soon as a gradient is complete it moves into its row and .grad is None again; as soon as a row is
    complete it is reduce-scattered, while backward goes on to the next. So two rows of bucket_cap_mb MiB (and
    what has arrived for it from the other ranks) are there at a time. Slices add up over backward passes
    until step(), which uses them up.
    """

    def __init__(
        self,
        params: Any,
        optimizer_class: type[Optimizer],
        find_unused_parameters: bool = False,
        bucket_cap_mb: float = 25,
        **defaults: Any,
    ) -> None:
        self.bucket_cap_mb = bucket_cap_mb
        self._end = EndOfBackward(self._finish_backward)
        self.slices: dict[int, torch.Tensor] = {}  # this rank's slice of each row's mean gradient
        self._have_arrived: set[torch.Tensor] = set()  # since the last step
        super().__init__(params, optimizer_class, find_unused_parameters, **defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        num_rows = len(self.rows)
        super().add_param_group(param_group)
        for index in range(num_rows, len(self.rows)):
            for parameter in self.rows[index].parameters:
                parameter.register_post_accumulate_grad_hook(partial(self._on_gradient, index))
        self._order = InOrder([row.parameters for row in self.rows], self._start)

    def _cut(self, parameters: list[torch.Tensor]) -> list[list[torch.Tensor]]:
        """Fill rows in reverse order of definition: backward finds the last layers' gradients first."""
        return in_buckets(reversed(parameters), self.bucket_cap_mb)

    # -- in backward

    @torch.no_grad()
    def _on_gradient(self, index: int, parameter: torch.Tensor) -> None:
        if self._end.ask():
            self._begin_backward()
        assert parameter.grad is not None
        self._room_in(index)[parameter].copy_(parameter.grad)
        parameter.grad = None
        self._have_arrived.add(parameter)
        self._order.arrived(parameter)

    def _begin_backward(self) -> None:
        self._open: dict[int, tuple[torch.Tensor, Room]] = {}  # rows that are being filled
        self._under_way: tuple[int, Work] | None = None
        self._order.reset()

    def _room_in(self, index: int) -> Room:
        """Find the room for a row's gradients, made of zeros at the first of them."""
        if index not in self._open:
            row = self.rows[index]
            numbers = torch.zeros_like(row.numbers)
            room = dict(zip(row.parameters, flat.views(numbers, row.parameters), strict=True))
            self._open[index] = numbers, room
        return self._open[index][1]

    def _start(self, index: int) -> None:
        """Start to reduce a row; the one before it has had the time of this row's backward for that."""
        self._collect()
        self._room_in(index)  # zeros, where this rank used none of its parameters
        numbers, _ = self._open.pop(index)
        self._under_way = index, start_reduce_scatter(numbers, unit=f"row {index}")

    def _collect(self) -> None:
        """Wait for the row that is under way, and add its slice to what earlier passes left."""
        if self._under_way is None:
            return
        index, work = self._under_way
        self._under_way = None
        mean = work.wait() / self.rows[index].num_ranks
        self.slices[index] = self.slices[index] + mean if index in self.slices else mean

    @torch.no_grad()
    def _finish_backward(self) -> None:
        self._order.finish()
        self._collect()

    # -- in step

    def _mean_slice(self, index: int) -> torch.Tensor:
        return self.slices[index] if index in self.slices else torch.zeros_like(self.rows[index].slice)

    def _has_gradient(self, parameter: torch.Tensor) -> bool:
        return parameter in self._have_arrived

    def _update_slices(self) -> None:
        super()._update_slices()
        self.zero_grad()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        super().zero_grad(set_to_none)
        self.slices, self._have_arrived = {}, set()
