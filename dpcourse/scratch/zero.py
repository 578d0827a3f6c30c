"""ZeRO stage 1: every rank has all parameters and gradients, and optimizer states for its slice alone.

The optimizer's step is cut up: a rank gets the mean gradient of its slice (reduce-scatter), moves its slice
of the parameters, and gives it to all (all-gather). Together that is 2(n - 1)/n of the parameters, as much as
DDP's all-reduce, and Adam's states take 8/n bytes a parameter in place of 8.
Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, 2020,
sections 5.1, 5.2 and 7. (PyTorch's ZeroRedundancyOptimizer, over DDP, moves half as much again.)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from dpcourse.scratch import flat, naive, ring
from dpcourse.scratch.buckets import in_buckets
from dpcourse.scratch.messages import place_in
from dpcourse.theory.slices import Cut, cuts_of


@dataclass(frozen=True)
class Piece:
    """What of one parameter lies in this rank's slice: a view of it, for the rank's own optimizer."""

    whole: torch.Tensor
    own: nn.Parameter
    cut: Cut


class Row:
    """Parameters laid into one row, which is cut into one equal slice a rank; each rank updates its own."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        rank, self.num_ranks = place_in()
        self.parameters = parameters
        self.numbers = flat.flatten([parameter.detach() for parameter in parameters], self.num_ranks)
        for parameter, view in zip(parameters, flat.views(self.numbers, parameters), strict=True):
            parameter.data = view  # the module computes with the row, and nothing is held twice
        self.slice = self.numbers.tensor_split(self.num_ranks)[rank]
        cuts = cuts_of([parameter.numel() for parameter in parameters], self.num_ranks, rank)
        self.pieces = [
            Piece(parameters[cut.tensor], nn.Parameter(self.slice[cut.start : cut.stop]), cut) for cut in cuts
        ]

    def take(self, gradient: torch.Tensor, used: set[torch.Tensor]) -> None:
        """Give each piece its part of the slice's gradient; an unused one None, so that it is skipped."""
        for piece in self.pieces:
            own_part = gradient[piece.cut.start : piece.cut.stop]
            piece.own.grad = own_part if piece.whole in used else None

    def forget_gradients(self) -> None:
        for piece in self.pieces:
            piece.own.grad = None


class Zero1Optimizer(Optimizer):
    """Any optimizer of torch that treats each number by itself (Adam, SGD, ...), cut into a slice a rank.

    `Zero1Optimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)`, on a module that has the same
    parameters on every rank and is in no wrapper: the mean over the ranks is taken here, in step(), and
    .grad stays this rank's own. Frozen parameters are left out, a tied one counts once.

    find_unused_parameters: ask all ranks which parameters were used, with one more all-reduce, and skip
    one that nobody used. Without it that one counts as having a gradient of zeros. Where some ranks used it,
    zeros count for the others, either way.

    Raises ValueError for a parameter that is in two groups.
    """

    def __init__(
        self,
        params: Any,
        optimizer_class: type[Optimizer],
        find_unused_parameters: bool = False,
        **defaults: Any,
    ) -> None:
        self.find_unused_parameters = find_unused_parameters
        self.rows: list[Row] = []
        self.inner: Optimizer | None = None  # this rank's own, over its pieces
        self._make_inner = lambda groups: optimizer_class(groups, **defaults)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Lay a group's trainable parameters into rows; every rank has to add the same groups."""
        given = param_group["params"]
        unique = dict.fromkeys([given] if isinstance(given, torch.Tensor) else given)
        trainable = [parameter for parameter in unique if parameter.requires_grad]
        super().add_param_group({**param_group, "params": trainable})
        rows = [Row(parameters) for parameters in self._cut(trainable)]
        self.rows += rows
        pieces = [piece.own for row in rows for piece in row.pieces]
        self._add_to_inner({**self.param_groups[-1], "params": pieces})

    def _add_to_inner(self, group: dict[str, Any]) -> None:
        if self.inner is None:
            self.inner = self._make_inner([group])
        else:
            self.inner.add_param_group(group)
        # What was left to the optimizer's defaults is filled in, for who reads or schedules lr here.
        for key, value in self.inner.param_groups[-1].items():
            self.param_groups[-1].setdefault(key, value)

    def _cut(self, parameters: list[torch.Tensor]) -> list[list[torch.Tensor]]:
        """Decide which parameters share a row: all of one dtype."""
        return in_buckets(parameters, cap_mb=None)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Average the gradients, update this rank's slices, gather everyone's."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._update_slices()
        for index, row in enumerate(self.rows):
            ring.all_gather_into(row.numbers, row.slice, unit=f"row {index}")
        return loss

    def _update_slices(self) -> None:
        assert self.inner is not None
        for outer, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            inner.update({key: value for key, value in outer.items() if key != "params"})
        used = self._used()
        for index, row in enumerate(self.rows):
            row.take(self._mean_slice(index), used)
        self.inner.step()
        for row in self.rows:
            row.forget_gradients()

    def _mean_slice(self, index: int) -> torch.Tensor:
        """This rank's slice of the mean gradient of a row. The row of gradients is a copy, while it lasts."""
        row = self.rows[index]
        gradients = flat.flatten(flat.gradients_of(row.parameters), row.num_ranks)
        return ring.reduce_scatter(gradients, unit=f"row {index}") / row.num_ranks

    def _used(self) -> set[torch.Tensor]:
        """Find the parameters that are to be updated: all, or those that a rank used."""
        parameters = [parameter for row in self.rows for parameter in row.parameters]
        if not self.find_unused_parameters:
            return set(parameters)
        is_used = naive.used_by_any_rank([self._has_gradient(p) for p in parameters], parameters)
        return {parameter for parameter, used in zip(parameters, is_used, strict=True) if used}

    def _has_gradient(self, parameter: torch.Tensor) -> bool:
        return parameter.grad is not None

    def state_dict(self) -> dict[str, Any]:
        """This rank's own states, for its slices alone; every rank saves its own."""
        assert self.inner is not None
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what the same rank of as many ranks saved."""
        assert self.inner is not None
        self.inner.load_state_dict(state_dict)
