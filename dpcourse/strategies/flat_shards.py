"""What FSDP1 holds and moves, in integers: units as flat rows, and the shards of rows that ranks keep."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from dpcourse.layout import DTYPE_BYTES, Parameter
from dpcourse.ledger import GATHERED_PEAK, Holding, Transfer
from dpcourse.strategies.base import Setting
from dpcourse.strategies.common import PHASES, transfer
from dpcourse.strategies.sharding import Mesh, UnitBytes, mesh_of, step_transfers
from dpcourse.theory.flat import FlatRow, flat_row
from dpcourse.theory.states import optimizer_bytes
from dpcourse.units import Unit, units_of

HYBRID, WHOLE = "HYBRID_SHARD", "NO_SHARD"
SHARDINGS = ("FULL_SHARD", "SHARD_GRAD_OP", HYBRID, WHOLE)
_RANK_BYTES = 4


def units_in(setting: Setting) -> list[Unit]:
    """List the units in order of definition; where units compute in a lower format, batch norms stand apart.

    FSDP wraps each on its own and leaves it in fp32 (MixedPrecision._module_classes_to_ignore).
    """
    units, norms = units_of(setting.layout, setting.options.wrapping), _norms(setting)
    return [part for unit in units for part in _apart(unit, norms)]


def _norms(setting: Setting) -> list[str]:
    """Name the batch norms that are left in fp32: modules with a running mean."""
    if setting.recipe.gather_dtype is None:
        return []
    modules = [buffer.name.rpartition(".") for buffer in setting.layout.buffers]
    return [module for module, _, buffer in modules if buffer == "running_mean"]


def _apart(unit: Unit, norms: Sequence[str]) -> Iterator[Unit]:
    """Take the named modules out of a unit, as units of their own after it."""
    left: list[Parameter] = []
    taken: dict[str, list[Parameter]] = {}
    for parameter in unit.parameters:
        module = parameter.name.rpartition(".")[0]
        (taken.setdefault(module, []) if module in norms else left).append(parameter)
    if left:
        yield Unit(unit.name, tuple(left))
    for name, parameters in taken.items():
        yield Unit(name, tuple(parameters))


def mesh_in(setting: Setting) -> Mesh:
    """Full copies on all ranks are a mesh of that many replicas, each sharded over one rank."""
    if setting.options.sharding == WHOLE:
        return Mesh(setting.world_size, 1)
    return mesh_of(setting.options.mesh, setting.world_size)


def row_of(setting: Setting, unit: Unit) -> FlatRow:
    """Lay out a unit's flat parameter; one that is not sharded is padded all the same."""
    mesh = mesh_in(setting)
    num_ranks = setting.world_size if setting.options.sharding == WHOLE else mesh.num_shards
    sizes = [parameter.num_elements for parameter in unit.parameters]
    return flat_row(sizes, DTYPE_BYTES[_gather_dtype(setting, unit)], num_ranks)


def _gather_dtype(setting: Setting, unit: Unit) -> str:
    """The format of a unit that is whole."""
    own = unit.parameters[0].dtype
    return own if unit.name in _norms(setting) else setting.recipe.gather_dtype or own


def _reduce_dtype(setting: Setting, unit: Unit) -> str:
    asked = None if unit.name in _norms(setting) else setting.options.reduce_dtype
    return asked or _gather_dtype(setting, unit)


def _moved(setting: Setting, units: Sequence[Unit]) -> list[UnitBytes]:
    """Say what moves for each unit: whole rows, in the formats of gathers and of reductions."""
    reached = _reached_by_backward(setting, units)
    return [
        UnitBytes(
            unit.name,
            _gathered_bytes(setting, unit),
            _row_bytes(setting, unit, _reduce_dtype(setting, unit)) if unit.trainable else 0,
            _is_resharded(setting, unit) and unit.name in reached,
        )
        for unit in units
    ]


def _gathered_bytes(setting: Setting, unit: Unit) -> int:
    return _row_bytes(setting, unit, _gather_dtype(setting, unit))


def _row_bytes(setting: Setting, unit: Unit, dtype: str) -> int:
    return row_of(setting, unit).num_elements * DTYPE_BYTES[dtype]


def _is_resharded(setting: Setting, unit: Unit) -> bool:
    return setting.options.sharding in ("FULL_SHARD", HYBRID) and not unit.is_root


def _reached_by_backward(setting: Setting, units: Sequence[Unit]) -> set[str]:
    """Backward ends at the first unit that is trained: frozen units before it are not gathered again.

    A frozen parameter in a row with a trained one is a cut of the same row, so that backward goes on to it.
    """
    places = {parameter.name: place for place, parameter in enumerate(setting.layout.parameters)}
    first = min(places[unit.parameters[0].name] for unit in units if unit.trainable)
    return {unit.name for unit in units if places[unit.parameters[-1].name] >= first}


def transfers_of(setting: Setting, rank: int) -> Iterator[Transfer]:
    """List a step's collectives."""
    yield from step_transfers(setting, mesh_in(setting), _moved(setting, units_in(setting)), rank)
    yield from _gathered_once_more(setting, rank)


def _gathered_once_more(setting: Setting, rank: int) -> Iterator[Transfer]:
    """List the gathers of units inside a block that is computed once more: of all but the last.

    Backward has gathered the last when the checkpoint begins, and knows nothing of the others. That holds
    where the last unit's result is the block's, or a term of it.
    """
    shards = mesh_in(setting).shard_group(rank)
    if not _has_units_in_checkpoints(setting) or len(shards) == 1:
        return
    blocks: dict[str, list[Unit]] = {}
    for unit in units_in(setting):
        if (block := unit.parameters[0].unit).rpartition(".")[2].isdigit() and _is_resharded(setting, unit):
            blocks.setdefault(block, []).append(unit)
    for unit in (unit for inside in blocks.values() for unit in inside[:-1]):
        num_bytes = _gathered_bytes(setting, unit)
        yield transfer(setting, "all_gather", unit.name, num_bytes, "backward", rank, shards)


def _has_units_in_checkpoints(setting: Setting) -> bool:
    return setting.is_checkpointed and setting.options.wrapping == "layer"


def states(setting: Setting, rank: int) -> Iterator[Holding]:
    """List a rank's shards of rows, of their gradients, and the states of the parts of parameters in them."""
    mesh = mesh_in(setting)
    for unit in units_in(setting):
        row = row_of(setting, unit)
        shard_bytes = row.num_elements // mesh.num_shards * DTYPE_BYTES[unit.parameters[0].dtype]
        state_bytes = _optimizer_bytes(setting, unit, row.in_shard(mesh.num_shards, mesh.place(rank)))
        for phase in PHASES:
            yield Holding("parameters", unit.name, shard_bytes, phase, rank)
            if state_bytes:
                yield Holding("optimizer", unit.name, state_bytes, phase, rank)
            if unit.trainable and (phase != "forward" or setting.options.cpu_offload):
                yield Holding("gradients", unit.name, shard_bytes, phase, rank)


def _optimizer_bytes(setting: Setting, unit: Unit, nums_elements: Sequence[int]) -> int:
    """Count the states of the parts in a shard; a parameter that has no part there has no step counter."""
    parts = [
        replace(parameter, shape=(num_elements,), is_used=True)  # a row's gradient has zeros there
        for parameter, num_elements in zip(unit.parameters, nums_elements, strict=True)
        if num_elements
    ]
    return optimizer_bytes(parts, setting.optimizer, setting.recipe.has_masters)


def gathered(setting: Setting, rank: int) -> Iterator[Holding]:
    """List the units that are whole at the end of forward, and how much is whole at the most.

    In backward the next unit is gathered before the one that computes is freed: two are whole, and the root.
    """
    if setting.options.mesh is not None:
        for phase in PHASES:
            yield Holding("other", "mesh", _RANK_BYTES * setting.world_size, phase, rank)
    if setting.options.sharding == WHOLE or setting.world_size == 1:
        return
    kept, passing = 0, []
    for unit in units_in(setting):
        gathered_bytes = _gathered_bytes(setting, unit)
        if _is_resharded(setting, unit):
            passing.append(gathered_bytes)
        else:
            kept += gathered_bytes
            yield Holding("gathered", unit.name, gathered_bytes, "forward", rank)
    if not _norms(setting) and not _has_units_in_checkpoints(setting):  # else units are whole inside others
        most = kept + max((first + second for first, second in pairwise(passing)), default=sum(passing))
        yield Holding("gathered", "most at once", most, GATHERED_PEAK, rank)
