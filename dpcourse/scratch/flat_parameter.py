"""One unit's parameters as one row, of which a rank keeps a slice and gathers the whole for a while."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpcourse.scratch import flat
from dpcourse.scratch.messages import place_in
from dpcourse.scratch.work import Work, start_all_gather


@dataclass(frozen=True)
class Place:
    """Where a module keeps a parameter: a tied parameter has several places."""

    module: nn.Module
    attribute: str
    name: str  # seen from the root


class FlatParameter:
    """Parameters of one dtype, all trained or all frozen, in one row of equal slices with zeros at its end.

    `slice` is what this rank keeps and its optimizer moves. `whole` is there between gather() and free(): its
    storage is emptied and filled again, so that with it all comes back that autograd saved for backward.
    """

    def __init__(self, places: dict[nn.Parameter, list[Place]], unit: str) -> None:
        rank, num_ranks = place_in()
        self.unit, self.places = unit, list(places.values())
        self.shapes = [parameter.detach().to("meta") for parameter in places]
        self.whole = flat.flatten([parameter.detach() for parameter in places], num_ranks)
        self.num_bytes = self.whole.nbytes
        own = self.whole.tensor_split(num_ranks)[rank].clone()
        self.slice = nn.Parameter(own, requires_grad=next(iter(places)).requires_grad)
        self.on_gradient: Callable[[FlatParameter, Tensor], None]  # called with the whole's
        self._work: Work | None = None
        self._version: int | None = None  # of the slice that was gathered; None while the whole is empty
        self.free()

    def start_gather(self) -> None:
        """Start to gather the whole, unless it is there, or on its way, with the slice as it now is."""
        if self._version == self.slice._version:
            return
        self.free()  # what was gathered before the optimizer's last step is stale
        self._version = self.slice._version
        self.whole.untyped_storage().resize_(self.num_bytes)
        self._work = start_all_gather(self.slice, into=self.whole, unit=self.unit)

    def gather(self) -> None:
        """Have the whole there."""
        self.start_gather()
        if self._work is not None:
            self._work.wait()
            self._work = None

    def show(self) -> None:
        """Put the whole parameters where their modules look for them."""
        row = _Whole.apply(self.slice, self) if self.slice.requires_grad else self.whole.data
        for places, view in zip(self.places, flat.views(row, self.shapes), strict=True):
            for place in places:
                setattr(place.module, place.attribute, view)

    def free(self) -> None:
        """Empty the whole, and take it from the modules: reading an empty storage would be a crash."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        for place in (place for places in self.places for place in places):
            if hasattr(place.module, place.attribute):
                delattr(place.module, place.attribute)
        self.whole.untyped_storage().resize_(0)
        self._version = None


class _Whole(torch.autograd.Function):
    """The whole row as autograd knows it: made of this rank's slice, to which its gradient goes back."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, owner: FlatParameter) -> Tensor:
        ctx.owner = owner
        # .data counts its versions apart, so that filling the storage again is no change to what was saved.
        return owner.whole.data

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:  # type: ignore[override]
        # What was computed with the row came after it, so that in backward all of that is done by now.
        ctx.owner.on_gradient(ctx.owner, gradient)
        return None, None
