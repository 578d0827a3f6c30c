"""FSDP1 (FullyShardedDataParallel): a unit's parameters lie in one flat row, of which a rank keeps a shard.

Shards are cut wherever the row's length divides, through the middle of parameters: all ranks hold equally
much, but one rank has the optimizer's states of one parameter and the next of another.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpcourse.checks import check_choice
from dpcourse.ledger import Holding, Transfer
from dpcourse.strategies.base import Setting, Strategy, buffer_tensors, clean_name, state_tensors
from dpcourse.strategies.common import (
    activations,
    broadcast_from_rank_0,
    others,
    start_broadcasts,
)
from dpcourse.strategies.flat_shards import HYBRID, SHARDINGS, gathered, states, transfers_of, units_in
from dpcourse.strategies.sanity import check_hybrid_mesh
from dpcourse.strategies.sharding import check_mesh, check_reduce_dtype, device_mesh, torch_dtype
from dpcourse.units import WRAPPINGS, Unit

if TYPE_CHECKING:
    from torch import Tensor, nn

REDUCE_DTYPES = (None, "float32", "bfloat16")


@dataclass(frozen=True)
class Options:
    """What is a unit, and FSDP's own options.

    sharding: "FULL_SHARD" frees each unit after forward and gathers it again in backward, "SHARD_GRAD_OP"
    keeps it until backward is done, "HYBRID_SHARD" shards fully within the rows of `mesh` and averages over
    its columns, "NO_SHARD" keeps everything whole, as DDP does.
    wrapping: a unit for each repeated "block" or for each "layer", or one for the whole "model".
    mesh: (replicas, ranks that share one), for HYBRID_SHARD.
    reduce_dtype: "float32" or "bfloat16" for the recipe fsdp-mixed; None reduces in the gathers' format.
    cpu_offload: shards, gradients and the optimizer's step live in host memory; for ranks on GPUs.
    """

    sharding: str = "FULL_SHARD"
    wrapping: str = "block"
    mesh: tuple[int, ...] | None = None
    reduce_dtype: str | None = None
    cpu_offload: bool = False

    def __post_init__(self) -> None:
        check_choice("sharding", self.sharding, SHARDINGS)
        check_choice("wrapping", self.wrapping, WRAPPINGS)
        check_choice("reduce_dtype", self.reduce_dtype, REDUCE_DTYPES)


class Fsdp1(Strategy):
    """All model states in shards of flat rows: 16/N bytes a parameter for Adam in fp32, on every rank.

    The lists hold for a model whose units compute in the order of their definition, each once.
    """

    Options = Options
    recipes = ("fp32", "autocast", "mixed-adam", "bf16", "fsdp-mixed")

    def is_blocking(self, options: Any, backend: str) -> bool:
        """NCCL runs beside computation; gloo's gathers and reductions keep the thread that computes."""
        return backend != "nccl"

    def check(self, setting: Setting) -> None:
        """Refuse meshes that do not fit, and what FSDP would refuse in a rank."""
        _check_sharding(setting)
        for unit in units_in(setting):
            _check_unit(unit)

    def check_place(self, setting: Setting) -> None:
        """Refuse to offload where there is nothing to offload from."""
        if setting.options.cpu_offload and setting.device == "cpu":
            raise ValueError(
                "cpu_offload=True moves shards from GPUs to pinned host memory, and these ranks are on CPUs; "
                'leave it out, or take "fsdp2", which offloads on CPUs too (and moves nothing)'
            )

    def rank_memory(self, setting: Setting, rank: int) -> Iterator[Holding]:
        """Shards with their padding, units whole at the end of forward, gradients even after the step.

        With use_orig_params the next forward pass frees the gradient's shard, and not zero_grad.
        """
        for part in (states, gathered, others, activations):
            yield from part(setting, rank)

    def rank_traffic(self, setting: Setting, rank: int, step: int) -> Iterator[Transfer]:
        """Rank 0's weights at the start; gathers and reductions of whole rows, alike in every step."""
        yield from start_broadcasts(setting, rank)
        yield from transfers_of(setting, rank)

    def wrap(self, module: "nn.Module", setting: Setting) -> "nn.Module":
        """Take rank 0's weights, then wrap the units, and what is left as the root.

        FSDP's own sync_module_states would do the first, but refuses tensors on a CPU.
        """
        from torch.distributed.fsdp import FullyShardedDataParallel

        broadcast_from_rank_0(module)
        return FullyShardedDataParallel(module, **_keywords(module, setting))

    def owned(self, wrapped: "nn.Module", optimizer: Any) -> Iterator[tuple[str, str, "Tensor"]]:
        """Name what FSDP keeps of each row, and the states of the parts of parameters in it."""
        from dpcourse.strategies.fsdp_tensors import fsdp1_parameters, fsdp1_tensors

        yield from fsdp1_tensors(wrapped)
        for unit, parameter in fsdp1_parameters(wrapped):
            yield from state_tensors(optimizer, parameter, unit)
        yield from buffer_tensors(wrapped)
        if (mesh := getattr(wrapped, "_device_mesh", None)) is not None:
            yield "other", "mesh", mesh.mesh

    def whole_parameters(self, wrapped: Any) -> dict[str, "Tensor"]:
        """Gather all units at once, and copy their parameters."""
        from torch.distributed.fsdp import FullyShardedDataParallel

        with FullyShardedDataParallel.summon_full_params(wrapped, writeback=False):
            return {
                clean_name(name): parameter.detach().clone() for name, parameter in wrapped.named_parameters()
            }


# -- refusals


def _check_sharding(setting: Setting) -> None:
    options = setting.options
    if options.sharding == HYBRID:
        check_hybrid_mesh(options.mesh or (setting.world_size,), "fsdp1")
        check_mesh(options.mesh, setting.world_size, "fsdp1")
    elif options.mesh is not None:
        raise ValueError(
            f"mesh={tuple(options.mesh)} goes with sharding={HYBRID!r}, and {options.sharding!r} shards over "
            "all ranks; leave mesh out"
        )
    check_reduce_dtype(setting)


def _check_unit(unit: Unit) -> None:
    """Refuse a parameter without an axis, and rows of several formats."""
    for parameter in unit.parameters:
        if not parameter.shape:
            raise ValueError(
                f"{parameter.name} is a single number without an axis, which FSDP does not take; give it the "
                "shape (1,)"
            )
    dtypes = sorted({parameter.dtype for parameter in unit.parameters})
    if len(dtypes) > 1:
        raise ValueError(
            f"{unit.name} has parameters of {' and '.join(dtypes)}, and FSDP lays a unit's parameters into "
            "one row of one format; convert the model to one"
        )


# -- in each rank


def _keywords(module: "nn.Module", setting: Setting) -> dict[str, Any]:
    from torch.distributed.fsdp import CPUOffload, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import CustomPolicy

    options, modules = setting.options, dict(module.named_modules())
    parts = {modules[unit.name] for unit in units_in(setting) if not unit.is_root}
    gather_dtype, reduce_dtype = torch_dtype(setting.recipe.gather_dtype), torch_dtype(options.reduce_dtype)
    return {
        "sharding_strategy": ShardingStrategy[options.sharding],
        "auto_wrap_policy": CustomPolicy(lambda part: part in parts),
        "device_mesh": options.mesh and device_mesh(setting.device, options.mesh),
        "mixed_precision": gather_dtype and MixedPrecision(gather_dtype, reduce_dtype),
        "cpu_offload": CPUOffload(options.cpu_offload),
        "use_orig_params": True,
        "device_id": next(module.parameters()).device,
    }
