"""DDP with ZeroRedundancyOptimizer: the optimizer's states are shared out, parameters and gradients are not.

torch gives whole parameters away, so that shares are as unequal as tensors are. And it is DDP's all-reduce
with broadcasts of the updated parameters on top, 1.5 times DDP's traffic, where the paper on ZeRO
reduce-scatters and gathers for the price of DDP.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpcourse.layout import Parameter, bytes_of
from dpcourse.ledger import Holding, Transfer, select
from dpcourse.strategies import ddp
from dpcourse.strategies.base import Setting
from dpcourse.strategies.common import PHASES, transfer
from dpcourse.theory.partition import largest_first
from dpcourse.theory.states import optimizer_bytes

if TYPE_CHECKING:
    from torch import Tensor, nn

_EMPTY_BUCKET_BYTES = 4  # the bucket of a rank without parameters: one fp32 number


@dataclass(frozen=True)
class Options(ddp.Options):
    """DDP's options, and one of the optimizer's own, under its own name.

    parameters_as_bucket_view: the parameters that a rank updates lie in one row, and are sent in one
    broadcast in place of one for each tensor.
    """

    parameters_as_bucket_view: bool = False


class Zero1(ddp.Ddp):
    """A whole copy of parameters and gradients on each rank, and the states of the optimizer for some."""

    Options = Options
    recipes = ("fp32", "autocast", "bf16")

    def rank_memory(self, setting: Setting, rank: int) -> Iterator[Holding]:
        """What DDP holds, with the states of a rank's own parameters in place of all."""
        yield from (held for held in super().rank_memory(setting, rank) if held.owner != "optimizer")
        yield from _own_memory(setting, rank)

    def rank_traffic(self, setting: Setting, rank: int, step: int) -> Iterator[Transfer]:
        """DDP's collectives, then in the step each rank's updated parameters, broadcast by that rank."""
        yield from super().rank_traffic(setting, rank, step)
        for root, unit, num_bytes in _updates(setting):
            yield transfer(setting, "broadcast", unit, num_bytes, "step", rank, root=root)

    def build_optimizer(self, wrapped: "nn.Module", setting: Setting) -> Any:
        """Build the optimizer that steps this rank's parameters, and then hands out all ranks' results."""
        from torch.distributed.optim import ZeroRedundancyOptimizer

        from dpcourse.optimizers import OPTIMIZER_CLASSES, arguments_of

        return ZeroRedundancyOptimizer(
            [parameter for parameter in wrapped.parameters() if parameter.requires_grad],
            optimizer_class=OPTIMIZER_CLASSES[setting.optimizer],
            parameters_as_bucket_view=setting.options.parameters_as_bucket_view,
            **arguments_of(setting.optimizer),
        )

    def owned(self, wrapped: "nn.Module", optimizer: Any) -> Iterator[tuple[str, str, "Tensor"]]:
        """Name what this rank holds; the states are those of the optimizer inside, for its own parameters."""
        yield from super().owned(wrapped, optimizer.optim)
        for buckets in optimizer._buckets:
            for rank, bucket in enumerate(buckets):
                yield "parameters", _of_rank(rank), bucket

    def name_transfers(self, transfers: list[Transfer], setting: Setting) -> list[Transfer]:
        """DDP's names; the step's broadcasts come in the order of the ranks that own what they update."""
        before = super().name_transfers([item for item in transfers if item.phase != "step"], setting)
        updates = [unit for _, unit, _ in _updates(setting)]
        after = select(transfers, phase="step")
        named = [replace(item, unit=unit) for item, unit in zip(after, updates, strict=False)]
        return before + named + after[len(named) :]


def shares(setting: Setting) -> list[list[Parameter]]:
    """List for each rank the parameters whose states it keeps, and which it updates."""
    trainable = setting.layout.trainable
    places = largest_first([parameter.num_elements for parameter in trainable], setting.world_size)
    return [[trainable[place] for place in given] for given in places]


def _own_memory(setting: Setting, rank: int) -> Iterator[Holding]:
    all_shares = shares(setting)
    is_view = setting.options.parameters_as_bucket_view
    for phase in PHASES:
        for parameter in all_shares[rank]:
            if num_bytes := optimizer_bytes([parameter], setting.optimizer):
                yield Holding("optimizer", parameter.unit, num_bytes, phase, rank)
        for owner, share in enumerate(all_shares if is_view else []):
            if not share:
                yield Holding("parameters", _of_rank(owner), _EMPTY_BUCKET_BYTES, phase, rank)


def _updates(setting: Setting) -> Iterator[tuple[int, str, int]]:
    """What is broadcast after the update, in order: by which rank, its name, its bytes."""
    for rank, share in enumerate(shares(setting)):
        if setting.options.parameters_as_bucket_view:
            yield rank, _of_rank(rank), bytes_of(share) or _EMPTY_BUCKET_BYTES
            continue
        for parameter in share:
            yield rank, parameter.name, parameter.num_bytes


def _of_rank(rank: int) -> str:
    return f"parameters of rank {rank}"
