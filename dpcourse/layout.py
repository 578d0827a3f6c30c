"""A model as integers: its parameters and buffers, and the buckets that DDP makes of their gradients."""

import sys
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

DTYPE_BYTES = {
    "float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "int16": 2,
    "uint8": 1, "int8": 1, "bool": 1,
}  # fmt: skip
MIB = 1024 * 1024
DDP_DEFAULT_CAP_MB = 25
DDP_FIRST_BUCKET_BYTES = MIB
MOST_BUCKET_MB = 2**43  # torch counts a bucket's bytes in 63 bits


@dataclass(frozen=True)
class Parameter:
    """One tensor of a model: a parameter, or a buffer that is never trained.

    is_used: a gradient arrives for it; False for a trained parameter that the loss does not depend on.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    is_trainable: bool = True
    is_used: bool = True

    @property
    def unit(self) -> str:
        return unit_of(self.name)

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.num_elements * DTYPE_BYTES[self.dtype]

    def cast(self, dtype: str) -> "Parameter":
        return replace(self, dtype=dtype) if "float" in self.dtype else self


@dataclass(frozen=True)
class Layout:
    """All tensors of a model, each table once: `shared` maps a second name of a table to its first.

    arrival: the names of the trained parameters in the order in which backward finishes their gradients; left
    empty where it is the reverse of the definition.
    """

    parameters: tuple[Parameter, ...]
    buffers: tuple[Parameter, ...] = ()
    shared: tuple[tuple[str, str], ...] = ()
    arrival: tuple[str, ...] = ()

    def cast(self, dtype: str) -> "Layout":
        """Give the same model with its floating-point tensors in another format, as module.to(dtype) does."""
        return replace(
            self,
            parameters=tuple(parameter.cast(dtype) for parameter in self.parameters),
            buffers=tuple(buffer.cast(dtype) for buffer in self.buffers),
        )

    def under_autocast(self) -> "Layout":
        """Give the same model with gradients arriving as under autocast: a matrix before its bias.

        Both are cast in forward, the bias first, and backward undoes the casts in reverse. A norm's weight
        and bias are not cast. A tensor of two axes or more is taken for a matrix.
        """
        arriving = list(self.arriving)
        for index, (first, second) in enumerate(pairwise(arriving)):
            matrix = first.name.removesuffix("bias") + "weight"
            if first.name.endswith("bias") and second.name == matrix and len(second.shape) > 1:
                arriving[index : index + 2] = second, first
        return replace(self, arrival=tuple(parameter.name for parameter in arriving))

    @property
    def trainable(self) -> tuple[Parameter, ...]:
        return tuple(parameter for parameter in self.parameters if parameter.is_trainable)

    @property
    def reached(self) -> tuple[Parameter, ...]:
        """The trained parameters that a gradient arrives for."""
        return tuple(parameter for parameter in self.trainable if parameter.is_used)

    @property
    def unused(self) -> tuple[Parameter, ...]:
        """The trained parameters that no gradient arrives for: optimizers skip them."""
        return tuple(parameter for parameter in self.trainable if not parameter.is_used)

    def with_used(self, names: Container[str]) -> "Layout":
        """Give the same model with gradients for the named parameters, and for no others."""
        parameters = (replace(item, is_used=item.name in names) for item in self.parameters)
        return replace(self, parameters=tuple(parameters))

    def with_all_used(self) -> "Layout":
        """Give the model as a system sees it that makes zeros where no gradient arrives."""
        return self.with_used({item.name for item in self.parameters})

    @property
    def arriving(self) -> tuple[Parameter, ...]:
        """The trained parameters in the order in which their gradients arrive."""
        places = {name: place for place, name in enumerate(self.arrival)}
        order = list(reversed(self.trainable))  # sorting keeps this order where a name has no place
        order.sort(key=lambda parameter: places.get(parameter.name, len(places)))
        return tuple(order)

    @property
    def num_params(self) -> int:
        return sum(parameter.num_elements for parameter in self.parameters)

    @property
    def parameter_bytes(self) -> int:
        return bytes_of(self.parameters)

    @property
    def gradient_bytes(self) -> int:
        return bytes_of(self.trainable)

    @property
    def buffer_bytes(self) -> int:
        return bytes_of(self.buffers)


def bytes_of(parameters: Iterable[Parameter]) -> int:
    """Add up the bytes of some tensors."""
    return sum(parameter.num_bytes for parameter in parameters)


def unit_of(name: str) -> str:
    """Name the part of the model a tensor belongs to: its repeated block, or else its top-level module.

    "blocks.3.attention.weight" is in "blocks.3", "head.weight" is in "head".
    """
    parts = name.split(".")
    for position, part in enumerate(parts[:-1]):
        if part.isdigit():
            return ".".join(parts[: position + 1])
    return parts[0]


def layout_of(module: Any) -> Layout:
    """Read a layout off a module: anything with torch's named_parameters and named_buffers."""
    first_names: dict[int, str] = {}
    parameters, shared = [], []
    for name, tensor in module.named_parameters(remove_duplicate=False):
        if id(tensor) in first_names:
            shared.append((name, first_names[id(tensor)]))
            continue
        first_names[id(tensor)] = name
        parameters.append(_parameter_from(name, tensor, bool(tensor.requires_grad)))
    buffers = [_parameter_from(name, tensor, False) for name, tensor in module.named_buffers()]
    return Layout(tuple(parameters), tuple(buffers), tuple(shared))


def _parameter_from(name: str, tensor: Any, is_trainable: bool) -> Parameter:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"{name} is of {dtype}, and the course counts {', '.join(DTYPE_BYTES)}; convert it")
    return Parameter(name, tuple(tensor.shape), dtype, is_trainable)


@dataclass(frozen=True)
class Bucket:
    """Gradients that DDP reduces together, in the order in which they lie in the bucket."""

    parameters: tuple[Parameter, ...]

    @property
    def num_bytes(self) -> int:
        return bytes_of(self.parameters)


def assign_buckets(parameters: Iterable[Parameter], limits: Sequence[int]) -> list[Bucket]:
    """Fill buckets in the given order; a bucket closes once it reaches its limit, so it may be far over it.

    limits: bytes for the first bucket, the second, ...; the last limit holds for all that follow.
    Each dtype fills buckets of its own.
    Source: compute_bucket_assignment_by_size in torch/csrc/distributed/c10d/reducer.cpp.
    """
    closed: list[Bucket] = []
    is_open: dict[str, list[Parameter]] = {}
    num_closed: dict[str, int] = {}
    for parameter in parameters:
        dtype = parameter.dtype
        bucket = is_open.setdefault(dtype, [])
        bucket.append(parameter)
        limit = limits[min(num_closed.get(dtype, 0), len(limits) - 1)]
        if bytes_of(bucket) >= limit:
            closed.append(Bucket(tuple(is_open.pop(dtype))))
            num_closed[dtype] = num_closed.get(dtype, 0) + 1
    return closed + [Bucket(tuple(bucket)) for bucket in is_open.values()]


def ddp_buckets(
    layout: Layout,
    step: int,
    bucket_cap_mb: float | None = None,
    find_unused_parameters: bool = False,
    static_graph: bool = False,
) -> list[Bucket]:
    """List the buckets that DDP reduces in a step (the first is 1), in the order in which they are reduced.

    Until its buckets are rebuilt DDP has one single bucket; from then on buckets are filled in the order
    in which gradients arrive. The small first bucket exists only while bucket_cap_mb is left at its default,
    25 MiB.
    Source: torch/nn/parallel/distributed.py and reducer.cpp of torch 2.13.
    """
    rebuilt_from = ddp_rebuild_step(find_unused_parameters, static_graph)
    limits = _ddp_limits(bucket_cap_mb)
    if rebuilt_from is not None and step >= rebuilt_from:
        return assign_buckets(layout.arriving, limits)
    first_limits = limits if rebuilt_from is None else [sys.maxsize]
    buckets = assign_buckets(layout.trainable, first_limits)
    return sorted(buckets, key=lambda bucket: layout.trainable.index(bucket.parameters[0]), reverse=True)


def ddp_rebuild_step(find_unused_parameters: bool = False, static_graph: bool = False) -> int | None:
    """Tell at which step DDP rebuilds its buckets: the second, the third with a static graph, else never."""
    if static_graph:
        return 3
    return None if find_unused_parameters else 2


def _ddp_limits(bucket_cap_mb: float | None) -> list[int]:
    if bucket_cap_mb is None:
        return [DDP_FIRST_BUCKET_BYTES, DDP_DEFAULT_CAP_MB * MIB]
    return [int(bucket_cap_mb * MIB)]
