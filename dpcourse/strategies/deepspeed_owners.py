"""Who owns the tensors that a DeepSpeed engine holds: named from the attributes of its optimizers.

Source: DeepSpeed 0.19.8, runtime/{bf16_optimizer,fp16/unfused_optimizer}.py, zero/{stage_1_and_2,stage3}.py.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

from dpcourse.layout import unit_of
from dpcourse.scratch import announce
from dpcourse.strategies.base import buffer_tensors, clean_name, local
from dpcourse.strategies.deepspeed_lists import NORM, ON_THEIR_WAY, ROW, SLICE

Named = Iterator[tuple[str, str, Any]]


def owned_by(engine: Any) -> Named:
    """Name owner and unit of what the engine and its optimizer hold; a bucket before what lies in it."""
    optimizer, names = engine.optimizer, _names(engine)
    yield from _buckets(optimizer)
    yield from _rows(optimizer)
    yield from _masters(optimizer, names)
    yield from _states(optimizer, names)
    for parameter, name in names.items():
        yield from _of_parameter(parameter, unit_of(name))
    for attribute in ("_global_grad_norm", "inf_or_nan_tracker"):
        for norm in _tensors(getattr(optimizer, attribute, None)):
            yield "other", NORM, norm
    yield from buffer_tensors(engine)


def tell_passing(engine: Any) -> None:
    """Let the engine say what its tensors are for that no phase ends with, at the moment it has them."""
    optimizer, names = engine.optimizer, _names(engine)
    _tell(
        optimizer, "process_gradients", lambda parameter, *_: _gradient(parameter, unit_of(names[parameter]))
    )
    _tell(optimizer, "reduce_ipg_grads", lambda *_, **__: _buckets(optimizer))
    _tell(optimizer, "unscale_and_clip_grads", lambda *_, **__: _masters(optimizer, names))


def _tell(optimizer: Any, method: str, named: Callable[..., Named]) -> None:
    """Announce what `named` gives for the arguments of a method, each time before it runs."""
    original = getattr(optimizer, method, None)
    if original is None:
        return

    @wraps(original)
    def telling(*args: Any, **kwargs: Any) -> Any:
        for owner, unit, tensor in named(*args, **kwargs):
            announce.name(tensor, owner, unit)
        return original(*args, **kwargs)

    setattr(optimizer, method, telling)


def _names(engine: Any) -> dict[Any, str]:
    return {parameter: clean_name(name) for name, parameter in engine.named_parameters()}


def _buckets(optimizer: Any) -> Named:
    """Buffers for gradients on their way: stage 3 keeps one, stages 1 and 2 make theirs in each backward."""
    for bucket in getattr(optimizer, "ipg_buckets", {}).values():
        for buffer in _tensors(bucket.buffer):
            yield "buckets", ON_THEIR_WAY, buffer


def _rows(optimizer: Any) -> Named:
    """What lies flat: whole parameters (stages 1 and 2) or slices (stage 3), and averaged gradients."""
    for name in ("bit16_groups_flat", "bf16_groups_flat"):
        for row in getattr(optimizer, name, ()):
            yield "parameters", ROW, row
    for row in _tensors(getattr(optimizer, "lp_param_buffer", None)):
        yield "parameters", SLICE, row
    for row in getattr(optimizer, "fp32_groups_gradients_flat", ()):
        yield "gradients", ROW, row
    for row in _tensors(getattr(optimizer, "grad_partitions_flat_buffer", None)):
        yield "gradients", SLICE, row
    for rows in getattr(optimizer, "averaged_gradients", {}).values():
        for row in _tensors(rows):
            yield "gradients", SLICE, row


def _masters(optimizer: Any, names: dict[Any, str]) -> Named:
    """The fp32 numbers that are stepped; at stage 0 they are whole tensors, each with its name."""
    for whole, masters in zip(
        getattr(optimizer, "fp16_groups", ()), getattr(optimizer, "fp32_groups", ()), strict=False
    ):
        for parameter, master in zip(whole, masters, strict=True):
            yield "optimizer", unit_of(names[parameter]), master
            yield from _gradient(master, unit_of(names[parameter]))
    for attribute in (
        "single_partition_of_fp32_groups",
        "fp32_groups_flat_partition",
        "fp32_partitioned_groups_flat",
    ):
        for master in getattr(optimizer, attribute, ()):
            yield "optimizer", SLICE, master
            yield from _gradient(master, SLICE)


def _states(optimizer: Any, names: dict[Any, str]) -> Named:
    units = {parameter: unit_of(name) for parameter, name in names.items()}
    for whole, masters in zip(
        getattr(optimizer, "fp16_groups", ()), getattr(optimizer, "fp32_groups", ()), strict=False
    ):
        units |= {master: units[parameter] for parameter, master in zip(whole, masters, strict=True)}
    for parameter, states in optimizer.state.items():
        for state in _tensors(states.values()):
            yield "optimizer", units.get(parameter, SLICE), state


def _of_parameter(parameter: Any, unit: str) -> Named:
    """A parameter of its own, or, at stage 3, what is gathered of it now."""
    shard = getattr(parameter, "ds_tensor", None)
    if shard is not None:
        yield "parameters", unit, shard
    yield "parameters" if shard is None else "gathered", unit, local(parameter)
    yield from _gradient(parameter, unit)
    for gradient in _tensors(getattr(parameter, "grad_accum", None)):
        yield "gradients", unit, gradient


def _gradient(parameter: Any, unit: str) -> Named:
    for gradient in _tensors(parameter.grad):
        yield "gradients", unit, gradient


def _tensors(found: Any) -> Iterator[Any]:
    """Give the tensors in one tensor, a collection of some, or None."""
    if hasattr(found, "untyped_storage"):
        yield found
    elif isinstance(found, Iterable):
        for item in found:
            yield from _tensors(item)
