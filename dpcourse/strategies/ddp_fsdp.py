"""Part of a model under DDP and part under FSDP2: what is large is sharded, what is small stays whole."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpcourse.checks import check_choice
from dpcourse.layout import Parameter
from dpcourse.ledger import Holding, Transfer
from dpcourse.strategies import ddp, fsdp2, fsdp2_lists
from dpcourse.strategies.base import Setting, Strategy, clean_name, owned_tensors
from dpcourse.strategies.common import broadcast_from_rank_0, broadcasts
from dpcourse.units import Unit, units_of

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Options:
    """Which units are sharded, and how.

    wrapping: what is a unit: each repeated "block" or each "layer".
    replicated: units that DDP keeps whole, by name; what is in no unit stays with DDP in any case.
    reshard_after_forward: free each sharded unit after forward, and gather it again in backward.
    """

    wrapping: str = "block"
    replicated: tuple[str, ...] = ()
    reshard_after_forward: bool = True

    def __post_init__(self) -> None:
        check_choice("wrapping", self.wrapping, ("block", "layer"))


class DdpFsdp(Strategy):
    """DDP over the whole model, told to ignore the units that fully_shard has taken."""

    Options = Options
    recipes = ("fp32", "autocast", "mixed-adam", "bf16")

    def is_blocking(self, options: Any, backend: str) -> bool:
        """NCCL runs beside computation; gloo's gathers and reductions keep the thread that computes."""
        return backend != "nccl"

    def check(self, setting: Setting) -> None:
        """Refuse a unit that is not there, and a model of which one of the two would get nothing."""
        names = [unit.name for unit in _units(setting) if not unit.is_root]
        if not names:
            raise ValueError(
                f"wrapping={setting.options.wrapping!r} finds no unit in this model, so that all would be "
                'DDP\'s; ask for wrapping="layer", or take "ddp"'
            )
        for name in setting.options.replicated:
            if name not in names:
                raise ValueError(f"replicated={name!r} is no unit of this model; there is {', '.join(names)}")
        if not _sharded_units(setting):
            raise ValueError(
                "no unit is left to shard, so that all would be DDP's; leave a unit out of replicated, "
                'or take "ddp"'
            )
        if not any(parameter.is_trainable for parameter in _whole_parameters(setting)):
            raise ValueError(
                "every trained parameter is in a unit that is sharded, so that DDP would have none; name "
                f'units to keep whole, such as replicated=("{names[0]}",), or take "fsdp2"'
            )
        ddp.Ddp().check(_for_ddp(setting))
        fsdp2.check_shardable([p for unit in _sharded_units(setting) for p in unit.parameters])

    def rank_memory(self, setting: Setting, rank: int) -> Iterator[Holding]:
        """DDP's states and buckets for what stays whole, and shards of the rest."""
        yield from ddp.Ddp().rank_memory(_for_ddp(setting), rank)
        yield from fsdp2_lists.sharded_states(_for_fsdp(setting), _sharded_units(setting), rank)
        yield from fsdp2_lists.mesh_table(setting, rank)

    def rank_traffic(self, setting: Setting, rank: int, step: int) -> Iterator[Transfer]:
        """Gathers and reductions of the sharded units, then DDP's collectives."""
        yield from broadcasts(setting, "weights and buffers", _sharded_tensors(setting), "init", rank)
        yield from fsdp2_lists.sharded_traffic(_for_fsdp(setting), _sharded_units(setting), rank)
        yield from ddp.Ddp().rank_traffic(_for_ddp(setting), rank, step)

    def wrap(self, module: "nn.Module", setting: Setting) -> "nn.Module":
        """Shard units from rank 0's weights, then wrap the module with DDP, which ignores them.

        fully_shard on the module itself takes no parameter: it makes one system of the units, so that
        backward gathers each before it is needed.
        """
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel

        names = [unit.name for unit in _sharded_units(setting)]
        broadcast_from_rank_0(nn.ModuleList(module.get_submodule(name) for name in names))
        ignored = {p.name for unit in _sharded_units(setting) for p in unit.parameters}
        kept = {parameter for name, parameter in module.named_parameters() if name not in ignored}
        fsdp2.shard_units(module, names, _for_fsdp(setting), ignored_params=kept)
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ignored)
        return DistributedDataParallel(module)

    def owned(self, wrapped: "nn.Module", optimizer: Any) -> Iterator[tuple[str, str, "Tensor"]]:
        """Shards first: a unit that is gathered shows whole parameters, which are none of DDP's."""
        yield from fsdp2.sharded_tensors(wrapped, optimizer)
        yield from owned_tensors(wrapped, optimizer)

    def whole_parameters(self, wrapped: "nn.Module") -> dict[str, "Tensor"]:
        return {
            clean_name(name): fsdp2.whole(parameter).clone() for name, parameter in wrapped.named_parameters()
        }


def _units(setting: Setting) -> list[Unit]:
    return units_of(setting.layout, setting.options.wrapping)


def _sharded_units(setting: Setting) -> list[Unit]:
    kept = setting.options.replicated
    return [unit for unit in _units(setting) if not unit.is_root and unit.name not in kept]


def _whole_parameters(setting: Setting) -> tuple[Parameter, ...]:
    sharded = {parameter.name for unit in _sharded_units(setting) for parameter in unit.parameters}
    return tuple(parameter for parameter in setting.layout.parameters if parameter.name not in sharded)


def _sharded_tensors(setting: Setting) -> tuple[Parameter, ...]:
    """The parameters of the sharded units, then the buffers inside them, which DDP sends too."""
    units = _sharded_units(setting)
    inside = tuple(
        buffer
        for unit in units
        for buffer in setting.layout.buffers
        if buffer.name.startswith(f"{unit.name}.")
    )
    return tuple(parameter for unit in units for parameter in unit.parameters) + inside


def _for_ddp(setting: Setting) -> Setting:
    layout = replace(setting.layout, parameters=_whole_parameters(setting))
    return replace(setting, layout=layout, options=ddp.Options())


def _for_fsdp(setting: Setting) -> Setting:
    return replace(
        setting, options=fsdp2.Options(reshard_after_forward=setting.options.reshard_after_forward)
    )
