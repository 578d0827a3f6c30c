"""Fully sharded data parallelism (ZeRO-3): parameters too are kept as slices, and gathered unit by unit.

`shard(model, units=list(model.blocks))` changes a model in place. From then on its parameters are slices: an
optimizer built over model.parameters() moves them. Before a unit computes, in forward and again in backward,
its parameters are gathered; after it they are freed; its gradients are reduce-scattered to slices.
Source: Zhao et al., PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel, 2023.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from dpcourse.scratch import flat
from dpcourse.scratch.buckets import EndOfBackward, is_in_backward
from dpcourse.scratch.flat_parameter import FlatParameter, Place
from dpcourse.scratch.messages import place_in
from dpcourse.scratch.work import Work, start_reduce_scatter

ROOT = "root"
Places = dict[nn.Parameter, list[Place]]


class Unit:
    """A module whose parameters are gathered and freed together: those that are trained, and frozen ones."""

    def __init__(self, name: str, module: nn.Module, places: Places) -> None:
        self.name, self.module = name, module
        self.flats = []
        for is_trained, attribute in ((True, "flat_trained"), (False, "flat_frozen")):
            chosen = {p: where for p, where in places.items() if p.requires_grad == is_trained}
            if chosen:
                self.flats.append(FlatParameter(chosen, name))
                module.register_parameter(attribute, self.flats[-1].slice)

    def start_gather(self) -> None:
        for parameter in self.flats:
            parameter.start_gather()

    def gather(self) -> None:
        for parameter in self.flats:
            parameter.gather()

    def show(self) -> None:
        for parameter in self.flats:
            parameter.show()

    def free(self) -> None:
        for parameter in self.flats:
            parameter.free()


class Sharding:
    """What happens when, for all units of one model: units[0] is the root, the model itself."""

    def __init__(self, units: list[Unit], reshard_after_forward: bool, prefetch: bool) -> None:
        self.units, self.root = units, units[0]
        self.reshard_after_forward, self.prefetch = reshard_after_forward, prefetch
        self.order: list[Unit] = []  # as the first forward pass came to them
        self._end = EndOfBackward(self._finish_backward)
        self._reduction: tuple[FlatParameter, Work] | None = None  # the one under way
        for unit in units:
            unit.module.register_forward_pre_hook(partial(self._before_forward, unit))
            unit.module.register_forward_hook(partial(self._after_forward, unit))
            for parameter in unit.flats:
                parameter.on_gradient = partial(self._after_backward, unit)

    def _before_forward(self, unit: Unit, module: nn.Module, inputs: Any) -> None:
        if unit not in self.order:
            self.order.append(unit)
        unit.gather()
        if not is_in_backward():  # there a checkpointed forward pass runs again: the next unit is done
            self._prefetch(self.order.index(unit) + 1)
        unit.show()

    def _after_forward(self, unit: Unit, module: nn.Module, inputs: Any, output: Any) -> None:
        """Free the unit, unless its backward is next: the root's is, and that of a checkpointed one."""
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                tensor.register_hook(partial(self._before_backward, unit))
        keeps = unit is self.root or not self.reshard_after_forward
        if not torch.is_grad_enabled() or not (keeps or is_in_backward()):
            unit.free()

    def _before_backward(self, unit: Unit, gradient: Tensor) -> None:
        """Called when the gradient of a unit's output is there."""
        if self._end.ask():
            self._reduction = None
        unit.gather()
        self._prefetch(self.order.index(unit) - 1)
        with torch.enable_grad():
            unit.show()  # a checkpointed unit computes its forward pass again

    def _prefetch(self, place: int) -> None:
        """Start to gather the unit that comes next, to be there when this one is done."""
        if self.prefetch and 0 <= place < len(self.order):
            self.order[place].start_gather()

    def _after_backward(self, unit: Unit, parameter: FlatParameter, gradient: Tensor) -> None:
        """Called when a unit's gradient is whole; its reduction goes on while the next unit computes."""
        unit.free()
        self._collect()
        self._reduction = parameter, start_reduce_scatter(gradient, unit=unit.name)

    @torch.no_grad()
    def _collect(self) -> None:
        """Wait for the reduction under way, and add its mean to the slice's gradient."""
        if self._reduction is None:
            return
        parameter, work = self._reduction
        self._reduction = None
        mean, own = work.wait() / place_in()[1], parameter.slice
        own.grad = mean if own.grad is None else own.grad + mean

    def _finish_backward(self) -> None:
        """Free what is left: the root, and units that are frozen as a whole, which have no gradient."""
        self._collect()
        for unit in self.units:
            unit.free()


def shard(
    module: nn.Module,
    units: Sequence[nn.Module] = (),
    reshard_after_forward: bool = True,
    prefetch: bool = True,
) -> nn.Module:
    """Shard a module in place, and give it back. All ranks start from rank 0's parameters and buffers.

    A gradient that is missing on some ranks counts as zeros there; so does that of a parameter that no rank
    used. A unit that runs on one rank has to run on all.

    Args:
        units: modules inside it; the root keeps the parameters that are in none of them.
        reshard_after_forward: free a unit after its forward pass and gather it again in backward. The
            root, whose backward comes first, is never freed between them.
        prefetch: gather the next unit while one computes, from the second forward pass on: in forward the
            one after it, in backward the one before it. Costs the memory of one unit more.

    Raises ValueError for a unit that is not in the module or is never called, for a table shared between two
    units, and for several dtypes in one unit.
    """
    _check_units(module, units)
    flat.broadcast([*module.parameters(), *module.buffers()])
    by_unit = _places(module, units)
    names = {inner: name for name, inner in module.named_modules()} | {module: ROOT}
    made = [Unit(names[inner], inner, places) for inner, places in by_unit.items()]
    module.sharding = Sharding(made, reshard_after_forward, prefetch)  # type: ignore[assignment]
    return module


@contextmanager
def full_parameters(module: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Gather all parameters of a sharded module, to be read by their names while this is open.

    Every rank has to open it. What is written into them is lost.
    """
    sharding = getattr(module, "sharding", None)
    if not isinstance(sharding, Sharding):
        raise ValueError(f"{type(module).__name__} is not sharded; give the module that shard() was given")
    try:
        with torch.no_grad():
            for unit in sharding.units:
                unit.gather()
                unit.show()
        yield dict(_named(sharding.units))
    finally:
        for unit in sharding.units:
            unit.free()


def _named(units: Iterable[Unit]) -> Iterator[tuple[str, Tensor]]:
    for unit in units:
        for parameter in unit.flats:
            for first, *_ in parameter.places:
                yield first.name, getattr(first.module, first.attribute)


def _check_units(module: nn.Module, units: Sequence[nn.Module]) -> None:
    inside = set(module.modules()) - {module}
    for index, unit in enumerate(units):
        kind = type(unit).__name__
        if unit not in inside:
            raise ValueError(
                f"units[{index}], a {kind}, is not inside the {type(module).__name__} that is sharded; "
                "give modules that are"
            )
        if isinstance(unit, nn.ModuleList | nn.ModuleDict):
            raise ValueError(
                f"units[{index}] is a {kind}, which is never called, so that it would never be gathered; "
                "give the modules in it"
            )


def _places(module: nn.Module, units: Sequence[nn.Module]) -> dict[nn.Module, Places]:
    """Give each parameter to the innermost unit around it: units in order of definition, the root first."""
    names = {inner: f"{name}." if name else "" for name, inner in module.named_modules()}
    found: dict[nn.Module, Places] = {}
    unit_of: dict[nn.Module, nn.Module] = {}
    for unit in reversed([inner for inner in module.modules() if inner is module or inner in units]):
        own = [inner for inner in unit.modules() if inner not in unit_of]
        unit_of |= dict.fromkeys(own, unit)
        found[unit] = {}
        for inner in own:
            for attribute, parameter in inner._parameters.items():
                if parameter is not None:
                    place = Place(inner, attribute, names[inner] + attribute)
                    found[unit].setdefault(parameter, []).append(place)
    _check_places(found)
    return dict(reversed(found.items()))


def _check_places(found: dict[nn.Module, Places]) -> None:
    first_places: dict[nn.Parameter, Place] = {}
    for places in found.values():
        for parameter, (place, *_) in places.items():
            first = first_places.setdefault(parameter, place)
            if first is not place:
                raise ValueError(
                    f"{first.name} and {place.name} are one tensor in two units, and would become two; "
                    "leave both modules to one unit, or to the root"
                )
        dtypes = sorted({str(parameter.dtype) for parameter in places})
        if len(dtypes) > 1:
            raise ValueError(
                f"a unit has parameters of {' and '.join(dtypes)}, and a row of numbers has one dtype; "
                "convert them, or make them units of their own"
            )
