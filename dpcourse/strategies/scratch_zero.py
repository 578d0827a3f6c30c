"""ZeRO stages 1 and 2 from scratch, as the paper has them: optimizer states in slices, DDP's traffic."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpcourse.layout import DTYPE_BYTES, Bucket, assign_buckets, unit_of
from dpcourse.ledger import Holding, Transfer
from dpcourse.strategies.base import Setting, Strategy, owned_tensors, state_tensors
from dpcourse.strategies.common import (
    PHASES,
    activations,
    broadcast_from_rank_0,
    by_unit,
    gradients_by_unit,
    others,
    start_broadcasts,
    transfer,
)
from dpcourse.strategies.scratch_ddp import BucketOptions, reversed_buckets, used_map
from dpcourse.theory.slices import cuts_of, padded_size
from dpcourse.theory.states import state_bytes

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Options:
    """find_unused_parameters: ask all ranks which parameters were used, and skip one that nobody used."""

    find_unused_parameters: bool = False


class ScratchZero1(Strategy):
    """All parameters, lying in rows, and all gradients on each rank; optimizer states for a slice of a row.

    In the step a rank gets its slice of the mean gradient, moves that slice, and gives it to all. Batch
    norms keep statistics of their own rank: no optimizer sees them.
    """

    Options: type = Options
    recipes = ("fp32", "autocast", "bf16")
    reduce_phase = "step"

    def rows(self, setting: Setting) -> list[Bucket]:
        """The trained parameters of each format in one row."""
        return assign_buckets(setting.layout.trainable, [sys.maxsize])

    def rank_memory(self, setting: Setting, rank: int) -> Iterator[Holding]:
        """Rows of parameters, padded so that they divide; this rank's states; gradients after backward."""
        for part in (self._states, self.gradients, others, activations):
            yield from part(setting, rank)

    def _states(self, setting: Setting, rank: int) -> Iterator[Holding]:
        frozen = [parameter for parameter in setting.layout.parameters if not parameter.is_trainable]
        for phase in PHASES:
            yield from by_unit("parameters", phase, rank, frozen)
            for index, row in enumerate(self.rows(setting)):
                yield Holding("parameters", f"row {index}", padded_bytes(row, setting), phase, rank)
                for unit, num_bytes in _state_bytes(row, setting, rank):
                    yield Holding("optimizer", unit, num_bytes, phase, rank)

    def gradients(self, setting: Setting, rank: int) -> list[Holding]:
        """This rank's own, in full, until the step."""
        return gradients_by_unit(setting, rank)

    def rank_traffic(self, setting: Setting, rank: int, step: int) -> Iterator[Transfer]:
        """Rank 0's weights and buffers at the start; then what DDP sends, as two halves around the update."""
        yield from start_broadcasts(setting, rank)
        yield from self._step(setting, rank)

    def _step(self, setting: Setting, rank: int) -> Iterator[Transfer]:
        on_ring, rows = replace(setting, backend="ring"), self.rows(setting)
        for collective, phase in (("reduce_scatter", self.reduce_phase), ("all_gather", "step")):
            for index, row in enumerate(rows):
                num_bytes = padded_bytes(row, setting)
                yield transfer(on_ring, collective, f"row {index}", num_bytes, phase, rank)
        if setting.options.find_unused_parameters:
            yield used_map(setting, "step", rank)

    def wrap(self, module: "nn.Module", setting: Setting) -> "nn.Module":
        """Give the module rank 0's weights and buffers; the rest is the optimizer's."""
        broadcast_from_rank_0(module)
        return module

    def build_optimizer(self, wrapped: "nn.Module", setting: Setting) -> Any:
        from dpcourse.scratch.zero import Zero1Optimizer

        return Zero1Optimizer(*_arguments(wrapped, setting), **_keywords(setting))

    def owned(self, wrapped: "nn.Module", optimizer: Any) -> Iterator[tuple[str, str, "Tensor"]]:
        """Name the rows, in which all trained parameters lie, and the states of this rank's pieces."""
        names = {parameter: name for name, parameter in wrapped.named_parameters()}
        for index, row in enumerate(optimizer.rows):
            yield "parameters", f"row {index}", row.numbers
            for piece in row.pieces:
                yield from state_tensors(optimizer.inner, piece.own, unit_of(names[piece.whole]))
        yield from owned_tensors(wrapped, optimizer)


class ScratchZero2(ScratchZero1):
    """ZeRO-1 with rows of bucket_cap_mb, whose gradients are reduced to slices and freed during backward."""

    direct_collectives = ("reduce_scatter",)

    Options = BucketOptions
    reduce_phase = "backward"

    def is_blocking(self, options: Any, backend: str) -> bool:
        """Rows travel while backward goes on."""
        return False

    def rows(self, setting: Setting) -> list[Bucket]:
        return reversed_buckets(setting)

    def gradients(self, setting: Setting, rank: int) -> list[Holding]:
        """This rank's slice of each row's mean."""
        sizes = (padded_bytes(row, setting) // setting.world_size for row in self.rows(setting))
        return [Holding("gradients", f"row {i}", size, "backward", rank) for i, size in enumerate(sizes)]

    def build_optimizer(self, wrapped: "nn.Module", setting: Setting) -> Any:
        from dpcourse.scratch.zero2 import Zero2Optimizer

        return Zero2Optimizer(
            *_arguments(wrapped, setting), bucket_cap_mb=setting.options.bucket_cap_mb, **_keywords(setting)
        )

    def owned(self, wrapped: "nn.Module", optimizer: Any) -> Iterator[tuple[str, str, "Tensor"]]:
        for index, own in optimizer.slices.items():
            yield "gradients", f"row {index}", own
        yield from super().owned(wrapped, optimizer)


def padded_bytes(row: Bucket, setting: Setting) -> int:
    """Count a row with the zeros that make it divide over the ranks."""
    num_elements = sum(parameter.num_elements for parameter in row.parameters)
    return padded_size(num_elements, setting.world_size) * DTYPE_BYTES[row.parameters[0].dtype]


def _state_bytes(row: Bucket, setting: Setting, rank: int) -> Iterator[tuple[str, int]]:
    """What the optimizer keeps for each piece of a rank's slice."""
    sizes = [parameter.num_elements for parameter in row.parameters]
    for cut in cuts_of(sizes, setting.world_size, rank):
        parameter = row.parameters[cut.tensor]
        if setting.options.find_unused_parameters and not parameter.is_used:
            continue
        piece_bytes = (cut.stop - cut.start) * DTYPE_BYTES[parameter.dtype]
        if num_bytes := state_bytes(piece_bytes, setting.optimizer):
            yield parameter.unit, num_bytes


def _arguments(wrapped: "nn.Module", setting: Setting) -> tuple[Any, Any]:
    from dpcourse.optimizers import OPTIMIZER_CLASSES

    return wrapped.parameters(), OPTIMIZER_CLASSES[setting.optimizer]


def _keywords(setting: Setting) -> dict[str, Any]:
    from dpcourse.optimizers import arguments_of

    return {
        "find_unused_parameters": setting.options.find_unused_parameters,
        **arguments_of(setting.optimizer),
    }
