"""What FSDP2 holds and moves for some units of a model: lists in integers, no torch."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dpcourse.layout import Parameter
from dpcourse.ledger import GATHERED_PEAK, Holding, Transfer
from dpcourse.strategies.base import Setting
from dpcourse.strategies.common import PHASES
from dpcourse.strategies.sharding import (
    Mesh,
    UnitBytes,
    mesh_of,
    padded_shard_bytes,
    shard_of,
    step_transfers,
)
from dpcourse.theory.states import optimizer_bytes
from dpcourse.units import Unit

_RANK_BYTES = 4


def sharded_states(setting: Setting, units: Sequence[Unit], rank: int) -> Iterator[Holding]:
    """List the model states of a rank's shards, and the units that are whole at the end of forward."""
    mesh = mesh_of(setting.options.mesh, setting.world_size)
    parameters = [parameter for unit in units for parameter in unit.parameters]
    for phase in PHASES:
        for parameter in parameters:
            num_bytes = padded_shard_bytes(parameter, mesh.num_shards)
            yield Holding("parameters", parameter.unit, num_bytes, phase, rank)
            states = _optimizer_bytes(setting, shard_of(parameter, mesh.num_shards, mesh.place(rank)))
            if states:
                yield Holding("optimizer", parameter.unit, states, phase, rank)
    for unit in units:
        # A reduce-scatter's output, of which the gradients are parts: padded like the parameters.
        shard_bytes = sum(padded_shard_bytes(parameter, mesh.num_shards) for parameter in unit.reached)
        yield Holding("gradients", unit.name, shard_bytes, "backward", rank)
        if not _is_resharded(setting, unit):
            yield Holding("gathered", unit.name, _gathered_bytes(setting, unit, mesh), "forward", rank)
    yield Holding("gathered", "most at once", _most_gathered_bytes(setting, units, mesh), GATHERED_PEAK, rank)


def mesh_table(setting: Setting, rank: int) -> Iterator[Holding]:
    """The mesh is a small table of all ranks."""
    for phase in PHASES:
        yield Holding("other", "mesh", _RANK_BYTES * setting.world_size, phase, rank)


def _optimizer_bytes(setting: Setting, shard: Parameter) -> int:
    return optimizer_bytes([shard], setting.optimizer, setting.recipe.has_masters)


def _most_gathered_bytes(setting: Setting, units: Sequence[Unit], mesh: Mesh) -> int:
    """The root is whole for all of forward and backward, and with it one unit, or all that are kept.

    A block that is computed once more in backward gathers all units inside it.
    """
    kept, passing = 0, dict[str, int]()
    for unit in units:
        size = _gathered_bytes(setting, unit, mesh)
        if unit.is_root or not _is_resharded(setting, unit):
            kept += size
        else:
            together = _block_of(unit) if setting.is_checkpointed else unit.name
            passing[together] = passing.get(together, 0) + size
    return kept + max(passing.values(), default=0)


def _block_of(unit: Unit) -> str:
    """Name the repeated block that a unit is in; itself where it is in none."""
    around = unit.parameters[0].unit
    return around if around.rpartition(".")[2].isdigit() else unit.name


def sharded_traffic(setting: Setting, units: Sequence[Unit], rank: int) -> Iterator[Transfer]:
    """List a step's collectives of some units."""
    mesh = mesh_of(setting.options.mesh, setting.world_size)
    unreached = _unreached(setting, units)
    moved = [
        UnitBytes(
            unit.name,
            _gathered_bytes(setting, unit, mesh),
            _whole_bytes(unit.reached, mesh, setting.options.reduce_dtype or setting.recipe.gather_dtype),
            _is_resharded(setting, unit) and unit not in unreached,
        )
        for unit in units
    ]
    on_ring = replace(setting, backend="ring") if setting.options.comms == "ring" else setting
    yield from step_transfers(on_ring, mesh, moved, rank)


def _unreached(setting: Setting, units: Sequence[Unit]) -> list[Unit]:
    """List the frozen units with nothing trained before them: backward ends behind them.

    The last of them is gathered all the same, for nothing: the unit after it asks for it beforehand.
    """
    names = [parameter.name for parameter in setting.layout.parameters]
    first = names.index(setting.layout.trainable[0].name)
    early = [unit for unit in units if max(names.index(p.name) for p in unit.parameters) < first]
    return early if len(early) == len(units) else early[:-1]


def _is_resharded(setting: Setting, unit: Unit) -> bool:
    asked = setting.options.reshard_after_forward
    return not unit.is_root if asked is None else asked


def _gathered_bytes(setting: Setting, unit: Unit, mesh: Mesh) -> int:
    return _whole_bytes(unit.parameters, mesh, setting.recipe.gather_dtype)


def _whole_bytes(parameters: Sequence[Parameter], mesh: Mesh, dtype: str | None) -> int:
    """Count parameters with their padding, in a format of their own or another."""
    formats = [parameter.cast(dtype) if dtype else parameter for parameter in parameters]
    return sum(mesh.num_shards * padded_shard_bytes(parameter, mesh.num_shards) for parameter in formats)
