"""What DeepSpeed's stages hold and move, for any layout: exact at the ends of phases.

Stages 1 and 2 lay the trained parameters in one row, padded to a multiple of twice the number of ranks, and
give each rank an equal slice of it. Stage 3 slices each parameter by itself, rounded up. Its lists hold up to
1e9 elements: of a larger model, parts are freed after forward and gathered again (max_live_parameters), and
what is stepped lies in several tensors (sub_group_size), each with its count of steps.
Source: DeepSpeed 0.19.8, runtime/engine.py, bf16_optimizer.py, zero/stage_1_and_2.py, zero/stage3.py.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from math import ceil

from dpcourse.layout import DTYPE_BYTES, Parameter
from dpcourse.ledger import Holding, Transfer
from dpcourse.strategies.base import Setting
from dpcourse.strategies.common import (
    PHASES,
    activations,
    by_unit,
    gradients_by_unit,
    others,
    replicated_states,
    transfer,
)
from dpcourse.theory.states import FP32_BYTES, state_bytes

ROW, SLICE = "all parameters in a row", "a rank's slice"
ON_THEIR_WAY = "gradients on their way"
NORM, OVERFLOW = "gradient norm", "overflow"
_ALIGNMENT = 2  # nccl_start_alignment_factor: elements that each rank's slice is a multiple of
_NORM_BYTES = {1: 4, 2: 4, 3: 8 + 1}  # stage 3: in fp64, and a flag for overflow


def padded_row(setting: Setting) -> int:
    """Count the elements of the row of trained parameters, with the zeros at its end."""
    step = _ALIGNMENT * setting.world_size
    return ceil(sum(_sizes(setting.layout.trainable)) / step) * step


def sliced(parameters: Iterable[Parameter], num_ranks: int) -> int:
    """Count the elements that a rank keeps of parameters sliced one by one."""
    return sum(ceil(size / num_ranks) for size in _sizes(parameters))


def touched(sizes: Sequence[int], slice_size: int, rank: int) -> tuple[int, int]:
    """Count the elements of the tensors that touch a rank's slice of a row, and what the slice lacks.

    What it lacks are the zeros at the row's end.
    """
    start, stop = rank * slice_size, (rank + 1) * slice_size
    ends = list(accumulate(sizes))
    inside = [size for size, end in zip(sizes, ends, strict=True) if end > start and end - size < stop]
    return sum(inside), min(slice_size, max(0, stop - ends[-1]))


def has_row_of_gradients(setting: Setting) -> bool:
    """Tell whether stage 1 accumulates all gradients in an fp32 row, as it does for bf16 parameters."""
    options = setting.options
    return options.stage == 1 and setting.recipe.has_masters and options.grad_accum_dtype == "fp32"


# -- memory


def memory(setting: Setting, rank: int) -> Iterator[Holding]:
    """List what a rank holds in a steady step; a stage's buffers within backward alone are not listed."""
    if setting.options.stage == 0:
        yield from replicated_states(setting, rank)
        yield from gradients_by_unit(setting, rank)
        return
    yield from _flat_memory(setting, rank) if setting.options.stage < 3 else _sliced_memory(setting, rank)
    yield from others(setting, rank)
    yield from activations(setting, rank)


def _flat_memory(setting: Setting, rank: int) -> Iterator[Holding]:
    row, frozen = padded_row(setting), [p for p in setting.layout.parameters if not p.is_trainable]
    for phase in PHASES:
        yield from by_unit("parameters", phase, rank, frozen)
        yield Holding("parameters", ROW, row * _parameter_bytes(setting), phase, rank)
        yield _stepped(setting, row // setting.world_size, phase, rank)
        if has_row_of_gradients(setting):
            yield Holding("gradients", ROW, row * FP32_BYTES, phase, rank)
        yield Holding("other", NORM, _NORM_BYTES[setting.options.stage], phase, rank)
    if has_row_of_gradients(setting):
        yield from gradients_by_unit(setting, rank)
    else:
        yield Holding("gradients", SLICE, _averaged_bytes(setting, rank), "backward", rank)


def _averaged_bytes(setting: Setting, rank: int) -> int:
    """Count averaged gradients after backward: of whole tensors, also where the slice has a part alone."""
    size = padded_row(setting) // setting.world_size
    if _accumulated_bytes(setting) != _parameter_bytes(setting):
        return size * FP32_BYTES
    whole, lacking = touched(_sizes(setting.layout.trainable), size, rank)
    return (whole + lacking) * _parameter_bytes(setting)


def _sliced_memory(setting: Setting, rank: int) -> Iterator[Holding]:
    layout, num_bytes = setting.layout, _parameter_bytes(setting)
    mine = sliced(layout.trainable, setting.world_size)
    for phase in PHASES:
        for parameter in layout.parameters:
            if not parameter.is_trainable:
                kept = sliced([parameter], setting.world_size) * num_bytes
                yield Holding("parameters", parameter.unit, kept, phase, rank)
        yield Holding("parameters", SLICE, mine * num_bytes, phase, rank)
        yield _stepped(setting, mine, phase, rank)
        yield Holding("gradients", SLICE, mine * _accumulated_bytes(setting), phase, rank)
        bucket = setting.options.reduce_bucket_size * num_bytes
        yield Holding("buckets", ON_THEIR_WAY, bucket, phase, rank)
        yield Holding("other", NORM, _NORM_BYTES[3], phase, rank)
    for alone, parameter in _gathered_alone(layout.parameters) if setting.world_size > 1 else ():
        kept = (
            sliced([parameter], setting.world_size) * setting.world_size if alone else parameter.num_elements
        )
        yield Holding("gathered", parameter.unit, kept * num_bytes, "forward", rank)


def _gathered_alone(parameters: Iterable[Parameter]) -> Iterator[tuple[bool, Parameter]]:
    """Tell of each parameter whether it is gathered alone: then it stays in its buffer, with the padding.

    The model's own parameters are gathered first, then those of all modules inside it together.
    """
    for _, members in groupby(sorted(parameters, key=_is_own), key=_is_own):
        group = list(members)
        yield from ((len(group) == 1, parameter) for parameter in group)


def _is_own(parameter: Parameter) -> bool:
    return "." not in parameter.name


def _stepped(setting: Setting, num_elements: int, phase: str, rank: int) -> Holding:
    """What is stepped lies in one fp32 tensor with its states, also where the parameters are fp32."""
    masters = num_elements * FP32_BYTES
    return Holding("optimizer", SLICE, masters + state_bytes(masters, setting.optimizer), phase, rank)


# -- traffic


def traffic(setting: Setting, rank: int) -> Iterator[Transfer]:
    """List a rank's collectives at the start and in a steady step, those of one kind in a phase as one."""
    yield from _start(setting, rank)
    yield from _sliced_step(setting, rank) if setting.options.stage == 3 else _row_step(setting, rank)


def _start(setting: Setting, rank: int) -> Iterator[Transfer]:
    """Rank 0's parameters, one by one; stage 3 sends them twice, and gathers each that is trained."""
    is_sliced = setting.options.stage == 3
    for parameter in setting.layout.parameters * (2 if is_sliced else 1):
        yield transfer(setting, "broadcast", "each parameter", parameter.num_bytes, "init", rank)
    for parameter in setting.layout.trainable if is_sliced else ():
        yield transfer(setting, "all_gather", "each parameter", _gathered([parameter], setting), "init", rank)


def _row_step(setting: Setting, rank: int) -> Iterator[Transfer]:
    has_row, whole = has_row_of_gradients(setting), padded_row(setting) * _parameter_bytes(setting)
    reduced = whole if has_row else setting.layout.gradient_bytes
    yield transfer(setting, "all_reduce", "gradients", reduced, "backward", rank)
    if setting.options.stage == 0:
        return
    if not has_row:
        if setting.recipe.has_masters:
            yield transfer(setting, "all_reduce", OVERFLOW, 1, "step", rank)
        yield transfer(setting, "all_reduce", NORM, 4, "step", rank)
    yield transfer(setting, "all_gather", ROW, whole, "step", rank)


def _sliced_step(setting: Setting, rank: int) -> Iterator[Transfer]:
    """Gathered once, in forward: up to 1e9 elements stay whole until backward has used them."""
    layout = setting.layout
    yield transfer(
        setting, "all_gather", "parameters", _gathered(layout.parameters, setting), "forward", rank
    )
    reduced = _gathered(layout.trainable, setting)
    yield transfer(setting, "reduce_scatter", "gradients", reduced, "backward", rank)
    yield transfer(setting, "all_reduce", NORM, 8, "step", rank)


def _gathered(parameters: Iterable[Parameter], setting: Setting) -> int:
    return sliced(parameters, setting.world_size) * setting.world_size * _parameter_bytes(setting)


def _sizes(parameters: Iterable[Parameter]) -> list[int]:
    return [parameter.num_elements for parameter in parameters]


def _parameter_bytes(setting: Setting) -> int:
    return DTYPE_BYTES[setting.recipe.parameter_dtype]


def _accumulated_bytes(setting: Setting) -> int:
    return FP32_BYTES if setting.options.grad_accum_dtype == "fp32" else _parameter_bytes(setting)
