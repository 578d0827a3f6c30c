"""A small FSDP from scratch: rows of parameters in slices, gathered unit by unit over sends and receives."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from dpcourse.layout import DTYPE_BYTES, Parameter
from dpcourse.ledger import GATHERED_PEAK, Holding, Transfer
from dpcourse.strategies.base import Setting, Strategy, buffer_tensors, state_tensors
from dpcourse.strategies.common import (
    PHASES,
    activations,
    others,
    start_broadcasts,
    transfer,
)
from dpcourse.strategies.naming import name_start_broadcasts
from dpcourse.theory.slices import padded_size
from dpcourse.theory.states import state_bytes
from dpcourse.units import ROOT, WRAPPINGS, units_of

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Options:
    """wrapping: a unit for each repeated "block" or for each "layer", or one for the whole "model".

    reshard_after_forward: free each unit but the root after its forward pass and gather it again in
    backward. prefetch: gather the next unit while one computes.
    """

    wrapping: str = "block"
    reshard_after_forward: bool = True
    prefetch: bool = True

    def __post_init__(self) -> None:
        if self.wrapping not in WRAPPINGS:
            raise ValueError(f"wrapping={self.wrapping!r}: give {', '.join(WRAPPINGS)}")


@dataclass(frozen=True)
class Row:
    """One unit's trained or frozen parameters, with zeros at the end so that they divide over the ranks."""

    unit: str
    is_trained: bool
    num_bytes: int


class ScratchFsdp(Strategy):
    """All model states in equal slices of rows: 16/N bytes a parameter for Adam in fp32, on every rank.

    The lists hold for a model whose units compute in the order of their definition, each once, and each with
    a parameter that is trained.
    """

    Options = Options
    recipes = ("fp32", "mixed-adam", "bf16")
    direct_collectives = ("reduce_scatter", "all_gather")

    def is_blocking(self, options: Any, backend: str) -> bool:
        """With prefetch the next unit travels while one computes."""
        return not options.prefetch

    def check(self, setting: Setting) -> None:
        """Refuse a unit of several formats: a row of numbers has one."""
        for unit in units_of(setting.layout, setting.options.wrapping):
            dtypes = sorted({parameter.dtype for parameter in unit.parameters})
            if len(dtypes) > 1:
                raise ValueError(
                    f"{unit.name} has parameters of {' and '.join(dtypes)}, and scratch-fsdp puts a unit's "
                    "parameters into one row of numbers; convert the model to one format"
                )

    def rank_memory(self, setting: Setting, rank: int) -> Iterator[Holding]:
        """Slices; at the end of forward the root whole, and every unit where none is freed after it."""
        for part in (_memory, others, activations):
            yield from part(setting, rank)

    def rank_traffic(self, setting: Setting, rank: int, step: int) -> Iterator[Transfer]:
        """Rank 0's weights and buffers at the start; gathers in forward and backward, reductions."""
        yield from start_broadcasts(setting, rank)
        yield from _step(replace(setting, backend="ring"), rank)

    def wrap(self, module: "nn.Module", setting: Setting) -> "nn.Module":
        """Shard in place, from rank 0's weights and buffers."""
        from dpcourse.scratch.fsdp import shard

        options, parts = setting.options, dict(module.named_modules())
        units = [unit for unit in units_of(setting.layout, options.wrapping) if not unit.is_root]
        return shard(
            module, [parts[unit.name] for unit in units], options.reshard_after_forward, options.prefetch
        )

    def owned(self, wrapped: Any, optimizer: Any) -> Iterator[tuple[str, str, "Tensor"]]:
        """Name slices, rows that are whole now, gradients and states."""
        for unit in wrapped.sharding.units:
            for row in unit.flats:
                yield "parameters", unit.name, row.slice
                yield "gathered", unit.name, row.whole
                if row.slice.grad is not None:
                    yield "gradients", unit.name, row.slice.grad
                yield from state_tensors(optimizer, row.slice, unit.name)
        yield from buffer_tensors(wrapped)

    def whole_parameters(self, wrapped: "nn.Module") -> dict[str, "Tensor"]:
        from dpcourse.scratch.fsdp import full_parameters

        with full_parameters(wrapped) as parameters:
            return {name: parameter.clone() for name, parameter in parameters.items()}

    def name_transfers(self, transfers: list[Transfer], setting: Setting) -> list[Transfer]:
        """Gathers and reductions announce their units."""
        return name_start_broadcasts(transfers)


def rows_of(setting: Setting) -> list[Row]:
    """List the rows that the model is cut into: the root's first, then units in order of definition."""
    rows = []
    for unit in units_of(setting.layout, setting.options.wrapping):
        for is_trained in (True, False):
            chosen = [p for p in unit.parameters if p.is_trainable == is_trained]
            if chosen:
                rows.append(Row(unit.name, is_trained, _padded_bytes(chosen, setting.world_size)))
    return rows


def _padded_bytes(parameters: Sequence[Parameter], num_ranks: int) -> int:
    num_elements = sum(parameter.num_elements for parameter in parameters)
    return padded_size(num_elements, num_ranks) * DTYPE_BYTES[parameters[0].dtype]


def _memory(setting: Setting, rank: int) -> Iterator[Holding]:
    for row in rows_of(setting):
        slice_bytes = row.num_bytes // setting.world_size
        for phase in PHASES:
            yield Holding("parameters", row.unit, slice_bytes, phase, rank)
            if row.is_trained and (states := _optimizer_bytes(slice_bytes, setting)):
                yield Holding("optimizer", row.unit, states, phase, rank)
        if row.is_trained:
            yield Holding("gradients", row.unit, slice_bytes, "backward", rank)
        if _is_kept(row, setting):
            yield Holding("gathered", row.unit, row.num_bytes, "forward", rank)
    yield Holding("gathered", "most at once", most_gathered_bytes(setting), GATHERED_PEAK, rank)


def _optimizer_bytes(slice_bytes: int, setting: Setting) -> int:
    """What the optimizer keeps for a slice, with its master copy where the recipe has one."""
    if not setting.recipe.has_masters:
        return state_bytes(slice_bytes, setting.optimizer)
    master_bytes = slice_bytes // DTYPE_BYTES[setting.recipe.parameter_dtype] * DTYPE_BYTES["float32"]
    return master_bytes + state_bytes(master_bytes, setting.optimizer)


def _is_kept(row: Row, setting: Setting) -> bool:
    """Tell whether a row stays whole from forward to backward."""
    return row.unit == ROOT or not setting.options.reshard_after_forward


def most_gathered_bytes(setting: Setting) -> int:
    """What is kept, and the largest unit that passes by, with the next one where that is prefetched."""
    kept, passing = 0, dict[str, int]()
    for row in rows_of(setting):
        if _is_kept(row, setting):
            kept += row.num_bytes
        else:
            passing[row.unit] = passing.get(row.unit, 0) + row.num_bytes
    sizes = list(passing.values())
    if setting.options.prefetch:
        sizes = [size + following for size, following in pairwise(sizes)] or sizes
    return kept + max(sizes, default=0)


def _step(setting: Setting, rank: int) -> Iterator[Transfer]:
    rows = rows_of(setting)

    def move(collective: str, row: Row, phase: str) -> Transfer:
        return transfer(setting, collective, row.unit, row.num_bytes, phase, rank)

    for row in rows:
        yield move("all_gather", row, "forward")
    units = [list(unit) for _, unit in groupby(reversed(rows), lambda row: row.unit)]
    gathered = [[row for row in unit if not _is_kept(row, setting)] for unit in units]
    reduced = [[row for row in unit if row.is_trained] for unit in units]
    if setting.options.prefetch:  # a unit is asked for before the one that computes is reduced
        gathered, reduced = [*gathered, []], [[], *reduced]
    for before, after in zip(gathered, reduced, strict=True):
        yield from (move("all_gather", row, "backward") for row in before)
        yield from (move("reduce_scatter", row, "backward") for row in after)
