"""Lists that strategies share: the states of a rank with a whole copy of the model, transfers, broadcasts."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from dpcourse.layout import MIB, Bucket, Parameter, assign_buckets
from dpcourse.ledger import Holding, Transfer
from dpcourse.strategies.base import Setting
from dpcourse.theory import wire
from dpcourse.theory.states import optimizer_bytes

if TYPE_CHECKING:
    from torch import nn

PHASES = ("forward", "backward", "step")
_BROADCAST_BYTES = 250 * MIB  # parameters and buffers are broadcast in pieces up to this


# -- memory


def replicated_states(setting: Setting, rank: int) -> list[Holding]:
    """List what a rank with a whole copy of the model holds in a steady step, gradients aside."""
    holdings = []
    for phase in PHASES:
        holdings += by_unit("parameters", phase, rank, setting.layout.parameters)
        holdings += [
            Holding("optimizer", unit, num_bytes, phase, rank)
            for unit, parameters in _units(setting.layout.parameters).items()
            if (num_bytes := optimizer_bytes(parameters, setting.optimizer, setting.recipe.has_masters))
        ]
    return holdings + others(setting, rank) + activations(setting, rank)


def others(setting: Setting, rank: int) -> list[Holding]:
    """Buffers, the rank's share of the batch and the loss: small, but nothing that is held goes unnamed."""
    sizes = {"buffers": setting.layout.buffer_bytes}
    if setting.batch_bytes is not None:
        sizes |= {"batch": setting.batch_bytes, "loss": setting.loss_bytes}
    return [
        Holding("other", unit, size, phase, rank) for phase in PHASES for unit, size in sizes.items() if size
    ]


def gradients_by_unit(setting: Setting, rank: int) -> list[Holding]:
    """Gradients at the end of backward: as many bytes as each unit's parameters that are trained and used.

    They exist at the end of backward alone: made by it, and set to None after the optimizer's step.
    """
    return by_unit("gradients", "backward", rank, setting.layout.reached)


def with_zeros(setting: Setting) -> Setting:
    """Give the setting of a system that makes zeros where no gradient arrives: then nothing is unused."""
    return replace(setting, layout=setting.layout.with_all_used())


def activations(setting: Setting, rank: int) -> list[Holding]:
    """What autograd keeps at the end of forward; nothing is listed where nobody knows."""
    kept = (setting.activation_bytes or {}).items()
    return [Holding("activations", unit, num_bytes, "forward", rank) for unit, num_bytes in kept]


def by_unit(owner: str, phase: str, rank: int, parameters: Iterable[Parameter]) -> list[Holding]:
    """Sum up whole tensors under the part of the model that each belongs to."""
    return [
        Holding(owner, unit, sum(parameter.num_bytes for parameter in members), phase, rank)
        for unit, members in _units(parameters).items()
    ]


def _units(parameters: Iterable[Parameter]) -> dict[str, list[Parameter]]:
    units: dict[str, list[Parameter]] = {}
    for parameter in parameters:
        units.setdefault(parameter.unit, []).append(parameter)
    return units


# -- traffic


def transfer(
    setting: Setting,
    collective: str,
    unit: str,
    payload_bytes: int,
    phase: str,
    rank: int,
    group: tuple[int, ...] | None = None,
    root: int = 0,
) -> Transfer:
    """One collective as a rank sees it, with what it sends on the setting's backend.

    group: the ranks that take part; None for all. root: the place in the group that a broadcast starts from.
    """
    group = setting.ranks if group is None else group
    position = (group.index(rank) - root) % len(group)
    sent = wire.sent_bytes(setting.backend, collective, payload_bytes, len(group), position)
    return Transfer(collective, unit, group, payload_bytes, sent, phase, rank)


def broadcasts(
    setting: Setting, what: str, tensors: tuple[Parameter, ...], phase: str, rank: int
) -> Iterator[Transfer]:
    """Rank 0's tensors sent to all, those of one dtype together: what broadcast_from_rank_0 and DDP do."""
    for bucket in _broadcast_buckets(tensors):
        unit = f"{what}, {bucket.parameters[0].dtype}"
        yield transfer(setting, "broadcast", unit, bucket.num_bytes, phase, rank)


def start_broadcasts(setting: Setting, rank: int) -> Iterator[Transfer]:
    """Rank 0's weights and buffers, sent to all before training starts."""
    if setting.world_size > 1:
        tensors = (*setting.layout.parameters, *setting.layout.buffers)
        yield from broadcasts(setting, "weights and buffers", tensors, "init", rank)


def broadcast_from_rank_0(module: "nn.Module") -> None:
    """Give all ranks rank 0's parameters and buffers, as DDP's constructor does, in few large messages."""
    import torch.distributed as dist
    from torch.distributed.utils import _sync_params_and_buffers

    tensors = [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
    if tensors and dist.get_world_size() > 1:
        _sync_params_and_buffers(dist.group.WORLD, tensors, _BROADCAST_BYTES, src=0)  # type: ignore[arg-type]


def _broadcast_buckets(tensors: tuple[Parameter, ...]) -> list[Bucket]:
    places = {id(tensor): place for place, tensor in enumerate(tensors)}  # of large models there are many
    buckets = assign_buckets(tensors, [_BROADCAST_BYTES])
    return sorted(buckets, key=lambda bucket: places[id(bucket.parameters[0])])
