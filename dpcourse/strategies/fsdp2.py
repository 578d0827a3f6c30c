"""FSDP2 (fully_shard): a rank keeps a shard of each parameter, and gathers a unit's whole ones to compute."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpcourse.checks import check_choice
from dpcourse.layout import Parameter, unit_of
from dpcourse.ledger import Holding, Transfer
from dpcourse.strategies.base import Setting, Strategy, buffer_tensors, clean_name, local, state_tensors
from dpcourse.strategies.common import (
    activations,
    broadcast_from_rank_0,
    others,
    start_broadcasts,
)
from dpcourse.strategies.fsdp2_lists import mesh_table, sharded_states, sharded_traffic
from dpcourse.strategies.sharding import check_mesh, check_reduce_dtype, device_mesh, torch_dtype
from dpcourse.strategies.tensor_parallel import (
    all_reduces,
    by_kind,
    check_tensor_parallel,
    cut_blocks,
    on_all_ranks,
    setting_of_shards,
)
from dpcourse.units import WRAPPINGS, Unit, units_of

if TYPE_CHECKING:
    from torch import Tensor, nn

REDUCE_DTYPES = ("float32", "bfloat16")
_PARTS = "dpcourse_parts"  # where a wrapped module says how many ranks share each matrix


@dataclass(frozen=True)
class Options:
    """What is a unit, and fully_shard's own options, under its own names.

    wrapping: a unit for each repeated "block" or for each "layer", or one for the whole "model".
    reshard_after_forward: True frees each unit after forward and gathers it again in backward, False keeps
    all until backward is done, None keeps the root's alone.
    mesh: (replicas, ranks that share one): hybrid sharding; None shards over all ranks.
    reduce_dtype: "float32" or "bfloat16" for the recipe fsdp-mixed; None reduces in the gathers' format.
    cpu_offload: shards, gradients and the optimizer's step live in host memory. On ranks that compute on
    CPUs host and device are one memory, so that nothing moves.
    comms: "ring" gathers and reduces over the course's ring in place of the backend.
    reduce_scatter_unused_params: a parameter that backward did not reach is reduced as zeros, which ranks
    need that do not all use the same ones.
    tensor_parallel: how many ranks share each matrix of a GPT's blocks, on a second axis of the mesh.
    """

    wrapping: str = "block"
    reshard_after_forward: bool | None = None
    mesh: tuple[int, ...] | None = None
    reduce_dtype: str | None = None
    cpu_offload: bool = False
    comms: str | None = None
    reduce_scatter_unused_params: bool = False
    tensor_parallel: int = 1

    def __post_init__(self) -> None:
        check_choice("wrapping", self.wrapping, WRAPPINGS)
        check_choice("reduce_dtype", self.reduce_dtype, (*REDUCE_DTYPES, None))
        check_choice("comms", self.comms, ("ring", None))


class Fsdp2(Strategy):
    """All model states in shards: 16/N bytes a parameter for Adam in fp32; units are whole to compute.

    The lists hold for a model whose units compute in the order of their definition, each once.
    """

    Options = Options
    recipes = ("fp32", "autocast", "mixed-adam", "bf16", "fsdp-mixed")

    def is_blocking(self, options: Any, backend: str) -> bool:
        """NCCL runs beside computation; gloo's gathers and reductions keep the thread that computes."""
        return backend != "nccl" or options.comms == "ring"

    def check(self, setting: Setting) -> None:
        """Refuse meshes that do not fit, and what fully_shard would refuse in a rank."""
        check_tensor_parallel(setting)
        check_mesh(setting.options.mesh, setting.world_size, "fsdp2")
        check_reduce_dtype(setting)
        _check_buffers(setting)
        check_shardable(setting.layout.parameters)

    def units(self, setting: Setting) -> list[Unit]:
        """List the units; with reduce_scatter_unused_params an unused parameter gets zeros."""
        layout, options = setting.layout, setting.options
        return units_of(
            layout.with_all_used() if options.reduce_scatter_unused_params else layout, options.wrapping
        )

    def rank_memory(self, setting: Setting, rank: int) -> Iterator[Holding]:
        """Shards, padded to the largest; units that are whole at the end of forward; none between steps."""
        if (num_parts := setting.options.tensor_parallel) > 1:
            held = self.rank_memory(setting_of_shards(setting), rank // num_parts)
            yield from (replace(holding, rank=rank) for holding in held if holding.unit != "mesh")
            yield from mesh_table(setting, rank)  # of both axes
            return
        yield from sharded_states(setting, self.units(setting), rank)
        for part in (mesh_table, others, activations):
            yield from part(setting, rank)

    def rank_traffic(self, setting: Setting, rank: int, step: int) -> Iterator[Transfer]:
        """Rank 0's weights at the start; gathers and reductions, alike in every step."""
        yield from start_broadcasts(setting, rank)
        if (num_parts := setting.options.tensor_parallel) > 1:
            shards = setting_of_shards(setting)
            moved = sharded_traffic(shards, self.units(shards), rank // num_parts)
            yield from on_all_ranks(setting, moved, rank)
            yield from all_reduces(setting, rank)
            return
        yield from sharded_traffic(setting, self.units(setting), rank)

    def wrap(self, module: "nn.Module", setting: Setting) -> "nn.Module":
        """Take rank 0's weights, then shard the units in place, and what is left as the root."""
        broadcast_from_rank_0(module)
        shard_units(module, [unit.name for unit in self.units(setting) if not unit.is_root], setting)
        setattr(module, _PARTS, setting.options.tensor_parallel)
        return module

    def owned(self, wrapped: "nn.Module", optimizer: Any) -> Iterator[tuple[str, str, "Tensor"]]:
        """Name what fully_shard keeps, gathered or not: a gathered module does not show its shards."""
        yield from sharded_tensors(wrapped, optimizer)
        yield from buffer_tensors(wrapped)

    def whole_parameters(self, wrapped: "nn.Module") -> dict[str, "Tensor"]:
        """Gather every parameter, one after the other."""
        num_parts = getattr(wrapped, _PARTS, 1)
        named = ((clean_name(name), whole(parameter)) for name, parameter in wrapped.named_parameters())
        return {name: by_kind(name, parameter, num_parts).clone() for name, parameter in named}


def _check_buffers(setting: Setting) -> None:
    """Refuse what a batch norm would refuse in a rank: its weights in bf16, its statistics in fp32."""
    floats = [buffer for buffer in setting.layout.buffers if "float" in buffer.dtype]
    if floats and setting.recipe.gather_dtype is not None:
        raise ValueError(
            f"recipe={setting.recipe.name!r} gathers parameters in {setting.recipe.gather_dtype}, and "
            f'buffers such as {floats[0].name} stay in {floats[0].dtype}; take recipe="bf16" or "autocast"'
        )


def check_shardable(parameters: Sequence[Parameter]) -> None:
    """Refuse a parameter without an axis to cut, or without a number: backward fails on an empty gradient."""
    for parameter in parameters:
        if parameter.is_trainable and not parameter.num_elements:
            raise ValueError(
                f"{parameter.name} has the shape {parameter.shape} and holds no number, and fully_shard "
                "cannot reduce its gradient; leave it out, or freeze it with requires_grad_(False)"
            )
        if not parameter.shape:
            raise ValueError(
                f"{parameter.name} is a single number without an axis, and fully_shard cuts along the first; "
                "give it the shape (1,)"
            )


# -- in each rank


def shard_units(module: "nn.Module", names: Sequence[str], setting: Setting, **root: Any) -> None:
    """Call fully_shard on each named part of a module, then on the module, which alone gets `root`."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.distributed.fsdp import fully_shard

    keywords = _keywords(setting)
    if (num_parts := setting.options.tensor_parallel) > 1:
        keywords["mesh"], tensor_mesh = _two_axes(setting)
        cut_blocks(module, num_parts, tensor_mesh)
    parts = dict(module.named_modules())
    with unset_fake_temporarily():  # in a dry run a mesh's numbers are real; what is made of weights is not
        for name in names:
            fully_shard(parts[name], **keywords)
        wrapped: Any = fully_shard(module, **keywords, **root)
    if setting.options.reduce_scatter_unused_params:
        _reduce_unused(wrapped)
    if setting.options.comms == "ring":
        from dpcourse.scratch.hooks import use_ring

        use_ring(module)


def _reduce_unused(wrapped: Any) -> None:
    """Have zeros reduced for parameters that backward did not reach; older versions of torch cannot."""
    if not hasattr(wrapped, "set_reduce_scatter_unused_params"):
        import torch

        raise ValueError(
            f"reduce_scatter_unused_params=True needs FSDP2 of a newer torch than {torch.__version__} "
            "(2.13 has it); leave it out, or update torch"
        )
    wrapped.set_reduce_scatter_unused_params(True)


def _keywords(setting: Setting) -> dict[str, Any]:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy

    options, gather_dtype = setting.options, setting.recipe.gather_dtype
    return {
        "mesh": _device_mesh(setting),
        "reshard_after_forward": options.reshard_after_forward,
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=torch_dtype(gather_dtype),
            # Given by name: None meant the gathers' format, and from torch 2.15 on the parameters' own.
            reduce_dtype=torch_dtype(options.reduce_dtype or gather_dtype),
        ),
        "offload_policy": CPUOffloadPolicy(pin_memory=False) if options.cpu_offload else OffloadPolicy(),
    }


def _device_mesh(setting: Setting) -> Any:
    if setting.options.mesh is None:
        return device_mesh(setting.device, (setting.world_size,))
    return device_mesh(setting.device, setting.options.mesh, ("replicas", "shards"))


def _two_axes(setting: Setting) -> tuple[Any, Any]:
    """Make a mesh of (shards, ranks that share each matrix), and give its two axes."""
    shape = (setting.num_shares, setting.options.tensor_parallel)
    mesh = device_mesh(setting.device, shape, ("shards", "tensor"))
    return mesh["shards"], mesh["tensor"]


def sharded_tensors(wrapped: "nn.Module", optimizer: Any) -> Iterator[tuple[str, str, "Tensor"]]:
    """Name gathered units and shards, their gradients (one storage a unit), and the optimizer's states."""
    from dpcourse.strategies.fsdp_tensors import fsdp2_parameters, fsdp2_tensors

    yield from fsdp2_tensors(wrapped)
    for unit, name, shard in fsdp2_parameters(wrapped):
        if shard.grad is not None:
            yield "gradients", unit, local(shard.grad)
        yield from state_tensors(optimizer, shard, unit_of(name))


def whole(parameter: Any) -> Any:
    """Gather a parameter where it is sharded, axis after axis of the mesh. Every rank has to call it."""
    detached = parameter.detach()
    if not hasattr(detached, "full_tensor"):
        return detached
    if detached.device_mesh.ndim > 1:
        from torch.distributed.tensor import Replicate

        detached = detached.redistribute(placements=(Replicate(), *detached.placements[1:]))
    return detached.full_tensor()
