"""DistributedDataParallel: every rank has the whole model, and gradients are averaged bucket by bucket."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpcourse.layout import MOST_BUCKET_MB, Bucket, ddp_buckets, ddp_rebuild_step
from dpcourse.ledger import Holding, Transfer
from dpcourse.strategies.base import STEADY_STEP, Setting, Strategy, owned_tensors
from dpcourse.strategies.common import (
    PHASES,
    broadcasts,
    gradients_by_unit,
    replicated_states,
    transfer,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

_LONG_BYTES, _INT_BYTES = 8, 4
_HOOKED = "dpcourse_buckets"  # where a wrapped module has the buckets that its hook was given
HOOKS = ("allreduce", "bf16", "ring")


@dataclass(frozen=True)
class Options:
    """DDP's own options, under DDP's own names; bucket_cap_mb counts MiB, None is DDP's default of 25.

    hook: a communication hook in place of its own all-reduce: "allreduce" (the same), "bf16"
    (gradients travel in bf16), "ring" (the course's ring of sends and receives).
    """

    bucket_cap_mb: float | None = None
    gradient_as_bucket_view: bool = False
    find_unused_parameters: bool = False
    static_graph: bool = False
    hook: str | None = None

    def __post_init__(self) -> None:
        if self.bucket_cap_mb is not None and not 0 < self.bucket_cap_mb < MOST_BUCKET_MB:
            raise ValueError(
                f"bucket_cap_mb={self.bucket_cap_mb!r}: give a number of MiB above 0 and below 2**43, or "
                "None for DDP's 25"
            )
        if self.hook is not None and self.hook not in HOOKS:
            raise ValueError(f"hook={self.hook!r}: give {', '.join(HOOKS)}, or None for DDP's own all-reduce")


class Ddp(Strategy):
    """A whole copy of the model states on each rank, and one all-reduce a bucket in each backward."""

    Options = Options
    recipes: tuple[str, ...] = ("fp32", "autocast", "mixed-adam", "bf16")

    def check(self, setting: Setting) -> None:
        """Refuse parameters that DDP waits for: where it does not look for them, the second step fails."""
        unused, options = setting.layout.unused, setting.options
        if unused and not (options.find_unused_parameters or options.static_graph):
            raise ValueError(
                f"{unused[0].name}{_and_others(len(unused) - 1)} got no gradient in a trial pass, and DDP "
                "waits for the gradient of every trained parameter; use it in forward, freeze it with "
                "requires_grad_(False), or ask for find_unused_parameters=True"
            )

    def rank_memory(self, setting: Setting, rank: int) -> Iterator[Holding]:
        """A whole copy of the model states, and buckets: a second copy of the gradients, always there.

        With gradient_as_bucket_view the gradients lie in the buckets, so that while they exist nothing is
        held twice.
        """
        return _memory(setting, rank)

    def rank_traffic(self, setting: Setting, rank: int, step: int) -> Iterator[Transfer]:
        """The collectives of DDP's constructor and of one step."""
        for make in (_init, _forward, _backward):
            yield from make(setting, step, rank)

    def is_blocking(self, options: Any, backend: str) -> bool:
        """Buckets travel while backward goes on; the hook that is the course's ring keeps the thread."""
        return options.hook == "ring"

    def wrap(self, module: "nn.Module", setting: Setting) -> "nn.Module":
        """Wrap a module; rank 0's weights and buffers are broadcast to all while this runs."""
        from torch.nn.parallel import DistributedDataParallel

        options = setting.options
        wrapped = DistributedDataParallel(
            module,
            bucket_cap_mb=options.bucket_cap_mb,
            gradient_as_bucket_view=options.gradient_as_bucket_view,
            find_unused_parameters=options.find_unused_parameters,
            static_graph=options.static_graph,
        )
        if options.hook is not None:
            _register(wrapped, options.hook)
        return wrapped

    def owned(self, wrapped: "nn.Module", optimizer: Any) -> Iterator[tuple[str, str, "Tensor"]]:
        """Name the buckets that a hook was given, too; all others are known by their all-reduce."""
        yield from owned_tensors(wrapped, optimizer)
        for index, buffer in getattr(wrapped, _HOOKED, {}).items():
            yield "buckets", f"bucket {index}", buffer

    def name_transfers(self, transfers: list[Transfer], setting: Setting) -> list[Transfer]:
        """Integers that are reduced are the map of used parameters and numbers are buckets, in order; the
        constructor's first broadcast tells the shapes.
        """
        return [replace(item, unit=_name(item, transfers[:index])) for index, item in enumerate(transfers)]


def _and_others(count: int) -> str:
    return f" and {count} more" if count else ""


def _register(wrapped: Any, name: str) -> None:
    """Register a hook, and note the buckets that it is given."""
    hook = _hook(name)
    buckets: dict[int, Tensor] = {}
    setattr(wrapped, _HOOKED, buckets)

    def noting(state, bucket):  # type: ignore[no-untyped-def]  # DDP wants its own type, or none
        buckets[bucket.index()] = bucket.buffer()
        return hook(state, bucket)

    wrapped.register_comm_hook(None, noting)


def _hook(name: str) -> Callable[[Any, Any], Any]:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    from dpcourse.scratch.hooks import bf16_hook, ring_hook

    return {"allreduce": allreduce_hook, "bf16": bf16_hook, "ring": ring_hook}[name]


def _memory(setting: Setting, rank: int) -> Iterator[Holding]:
    yield from replicated_states(setting, rank)
    is_view = setting.options.gradient_as_bucket_view
    if not is_view:
        yield from gradients_by_unit(setting, rank)
    for phase in PHASES:
        owner = "gradients" if is_view and phase == "backward" else "buckets"
        for index, bucket in enumerate(_buckets(setting, STEADY_STEP)):
            yield Holding(owner, f"bucket {index}", bucket.num_bytes, phase, rank)


def _init(setting: Setting, step: int, rank: int) -> Iterator[Transfer]:
    """Ranks compare the number of parameters and their shapes, then take rank 0's weights and buffers."""
    count_bytes = _LONG_BYTES * setting.world_size
    yield transfer(setting, "all_gather", "number of parameters", count_bytes, "init", rank)
    num_axes = sum(len(parameter.shape) for parameter in setting.layout.trainable)
    shapes_bytes = 2 * num_axes * _LONG_BYTES  # sizes and strides
    yield transfer(setting, "broadcast", "parameter shapes", shapes_bytes, "init", rank)
    tensors = (*setting.layout.parameters, *setting.layout.buffers)
    yield from broadcasts(setting, "weights and buffers", tensors, "init", rank)


def _forward(setting: Setting, step: int, rank: int) -> Iterator[Transfer]:
    """Rank 0's bucket order when buckets are rebuilt; its buffers (a batch norm's statistics) every time."""
    options = setting.options
    if step == ddp_rebuild_step(options.find_unused_parameters, options.static_graph):
        order_bytes = (len(setting.layout.trainable) + 1) * _INT_BYTES
        yield transfer(setting, "broadcast", "bucket order", order_bytes, "forward", rank)
        lengths_bytes = len(_buckets(setting, step)) * _INT_BYTES
        yield transfer(setting, "broadcast", "bucket lengths", lengths_bytes, "forward", rank)
    yield from broadcasts(setting, "buffers", setting.layout.buffers, "forward", rank)


def _backward(setting: Setting, step: int, rank: int) -> Iterator[Transfer]:
    """One all-reduce a bucket, and a map of the used parameters where DDP has to look for unused ones."""
    options = setting.options
    map_bytes = len(setting.layout.trainable) * _INT_BYTES
    used_map = transfer(setting, "all_reduce", "map of used parameters", map_bytes, "backward", rank)
    if options.static_graph and step == 1:
        yield used_map
    for index, bucket in enumerate(_buckets(setting, step)):
        num_bytes = _sent_format_bytes(bucket) if options.hook == "bf16" else bucket.num_bytes
        yield transfer(setting, "all_reduce", f"bucket {index}", num_bytes, "backward", rank)
    if options.find_unused_parameters and not options.static_graph:
        yield used_map


def _sent_format_bytes(bucket: Bucket) -> int:
    """Count a bucket whose numbers travel in bf16."""
    return sum(parameter.cast("bfloat16").num_bytes for parameter in bucket.parameters)


def _buckets(setting: Setting, step: int) -> list[Bucket]:
    options = setting.options
    return ddp_buckets(
        setting.layout, step, options.bucket_cap_mb, options.find_unused_parameters, options.static_graph
    )


def _name(item: Transfer, before: list[Transfer]) -> str:
    dtype = item.unit
    earlier = [t for t in before if (t.phase, t.collective) == (item.phase, item.collective)]
    if item.phase == "backward":
        num_buckets = sum(not t.unit.startswith("int") for t in earlier)
        return "map of used parameters" if dtype.startswith("int") else f"bucket {num_buckets}"
    if item.phase == "init":
        first = {"all_gather": "number of parameters", "broadcast": "parameter shapes"}[item.collective]
        return first if not earlier else f"weights and buffers, {dtype}"
    if dtype == "int32":
        return "bucket lengths" if earlier else "bucket order"
    return f"buffers, {dtype}"
