"""A model cut into units: what a sharding strategy gathers, computes with and frees together."""

from collections.abc import Iterable
from dataclasses import dataclass

from dpcourse.layout import Layout, Parameter, bytes_of, unit_of

WRAPPINGS = ("block", "layer", "model")
ROOT = "root"


@dataclass(frozen=True)
class Unit:
    """Parameters that are gathered together; the root has those that no other unit has."""

    name: str
    parameters: tuple[Parameter, ...]

    @property
    def is_root(self) -> bool:
        return self.name == ROOT

    @property
    def trainable(self) -> tuple[Parameter, ...]:
        return tuple(parameter for parameter in self.parameters if parameter.is_trainable)

    @property
    def reached(self) -> tuple[Parameter, ...]:
        return tuple(parameter for parameter in self.trainable if parameter.is_used)

    @property
    def num_bytes(self) -> int:
        return bytes_of(self.parameters)


def units_of(layout: Layout, wrapping: str = "block") -> list[Unit]:
    """Cut a model into units: the root first, then modules in the order of their definition.

    wrapping: "block" makes a unit of each repeated block, "layer" of each module that has parameters and no
    module with parameters inside, "model" leaves everything to the root. Modules that share a table would
    have to be one unit; they are left to the root. A root without parameters of its own is no unit.
    """
    unit_names = {"model": _nothing, "block": _blocks, "layer": _layers}[wrapping](layout)
    for pair in layout.shared:
        found = {_unit_name(name, unit_names) for name in pair}
        if len(found) > 1:
            unit_names = {name: None for name in unit_names if name not in found}
    members: dict[str, list[Parameter]] = {name: [] for name in (ROOT, *unit_names)}
    for parameter in layout.parameters:
        members[_unit_name(parameter.name, unit_names)].append(parameter)
    return [Unit(name, tuple(parameters)) for name, parameters in members.items() if parameters]


def _nothing(layout: Layout) -> dict[str, None]:
    return {}


def _blocks(layout: Layout) -> dict[str, None]:
    """Name the repeated blocks: modules whose name ends in a number."""
    units = (unit_of(parameter.name) for parameter in layout.parameters)
    return {name: None for name in units if name.rpartition(".")[2].isdigit()}


def _layers(layout: Layout) -> dict[str, None]:
    """Name the modules that have parameters, and no module with parameters inside."""
    owners = dict.fromkeys(parameter.name.rpartition(".")[0] for parameter in layout.parameters)
    owners.pop("", None)
    outer = {owner for owner in owners for other in owners if other.startswith(owner + ".")}
    return {owner: None for owner in owners if owner not in outer}


def _unit_name(parameter_name: str, unit_names: Iterable[str]) -> str:
    """Find the unit of a parameter; the root where none has it."""
    inside = (name for name in unit_names if parameter_name.startswith(name + "."))
    return next(inside, ROOT)
