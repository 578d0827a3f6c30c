"""The tensors that FSDP keeps for each unit, by owner, read off FSDP's own records.

While a unit is gathered its modules show whole parameters and not the rank's shards, so that a walk through
named_parameters would take the one for the other. Give these before what owned_tensors gives: what comes
first keeps a storage.
Source: torch/distributed/fsdp/_fully_shard/_fsdp_param.py and torch/distributed/fsdp/_flat_param.py (2.13).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dpcourse.layout import unit_of
from dpcourse.strategies.base import clean_name
from dpcourse.units import ROOT

if TYPE_CHECKING:
    from torch import Tensor

Owned = tuple[str, str, "Tensor"]


def fsdp2_tensors(module: Any) -> Iterator[Owned]:
    """List what fully_shard keeps: gathered parameters under their unit, shards and gradients under theirs.

    A gathered parameter's storage stays when it is freed, with no bytes: so it is known at all times.
    """
    for unit, group in _fsdp2_groups(module):
        yield "other", "mesh", group.mesh_info.mesh.mesh  # its table of ranks
        for parameter in group.fsdp_params:
            yield from _of_parameter(parameter, unit)


def fsdp2_parameters(module: Any) -> Iterator[tuple[str, str, Any]]:
    """List the sharded parameters that are trained, gathered or not, each with its unit and its name."""
    for unit, group in _fsdp2_groups(module):
        for parameter in group.fsdp_params:
            yield unit, parameter._param_fqn or unit, parameter.sharded_param


def _fsdp2_groups(module: Any) -> Iterator[tuple[str, Any]]:
    from torch.distributed.fsdp import FSDPModule

    for name, part in module.named_modules():
        if isinstance(part, FSDPModule):
            for group in _groups_of(part._get_fsdp_state()):
                yield clean_name(name) or ROOT, group


def _groups_of(state: Any) -> list[Any]:
    """Give a unit's groups of parameters: torch 2.11 has one at most, 2.13 a list."""
    if hasattr(state, "_fsdp_param_groups"):
        return state._fsdp_param_groups
    return [state._fsdp_param_group] if state._fsdp_param_group else []


def _of_parameter(parameter: Any, unit: str) -> Iterator[Owned]:
    part = unit_of(parameter._param_fqn or unit)
    for tensor in parameter.all_gather_outputs:
        yield "gathered", unit, tensor
    yield "parameters", part, parameter._sharded_param_data
    for tensor in (
        parameter.unsharded_accumulated_grad,
        _gradient(getattr(parameter, "_unsharded_param", None)),
    ):
        if tensor is not None:  # kept whole until gradients are synchronised again
            yield "gradients", part, tensor


def fsdp1_tensors(module: Any) -> Iterator[Owned]:
    """List what FullyShardedDataParallel keeps of each unit: flat parameter, whole and cut, and gradients.

    With use_orig_params the cut gradient outlives zero_grad, until the next forward pass.
    """
    for unit, flat in _flat_parameters(module):
        yield from _of_flat_parameter(flat, unit)


def fsdp1_parameters(module: Any) -> Iterator[tuple[str, Any]]:
    """List the parameters as the optimizer knows them, shards or gathered, each with its unit."""
    for unit, flat in _flat_parameters(module):
        for parameter in flat._params:
            yield unit, parameter


_OF_FLAT_PARAMETER = (
    ("gathered", "_full_param_padded"),
    ("gathered", "_full_prec_full_param_padded"),
    ("buckets", "_mp_shard"),
    ("parameters", "_local_shard"),
    ("gradients", "_saved_grad_shard"),
    ("gradients", "_cpu_grad"),
    ("gradients", "grad"),
)


def _flat_parameters(module: Any) -> Iterator[tuple[str, Any]]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    for name, part in module.named_modules():
        handle = getattr(part, "_handle", None)
        if isinstance(part, FullyShardedDataParallel) and handle is not None:
            yield clean_name(name) or ROOT, handle.flat_param


def _of_flat_parameter(flat: Any, unit: str) -> Iterator[Owned]:
    for owner, attribute in _OF_FLAT_PARAMETER:
        tensor = getattr(flat, attribute, None)
        if tensor is not None:
            yield owner, unit, tensor


def _gradient(tensor: Any) -> Any:
    return None if tensor is None else tensor.grad
