"""DistributedDataParallel: every rank has the whole model, and gradients are averaged bucket by bucket."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from dpcourse.layout import MIB, Bucket, Parameter, assign_buckets, ddp_buckets, ddp_rebuild_step
from dpcourse.ledger import Holding, Transfer
from dpcourse.strategies import STEADY_STEP, Setting
from dpcourse.strategies.common import gradients_by_unit, replicated_states
from dpcourse.theory import ring, tree

if TYPE_CHECKING:
    from torch import nn

_BROADCAST_BYTES = 250 * MIB  # DDP broadcasts parameters and buffers in pieces up to this
_LONG_BYTES, _INT_BYTES = 8, 4


@dataclass(frozen=True)
class Options:
    """DDP's own options, under DDP's own names; bucket_cap_mb counts MiB, None is DDP's default of 25."""

    bucket_cap_mb: float | None = None
    gradient_as_bucket_view: bool = False
    find_unused_parameters: bool = False
    static_graph: bool = False

    def __post_init__(self) -> None:
        if self.bucket_cap_mb is not None and not 0 < self.bucket_cap_mb < inf:
            raise ValueError(
                f"bucket_cap_mb={self.bucket_cap_mb!r}: give a number of MiB above 0, or None for DDP's 25"
            )


def check(setting: Setting) -> None:
    """DDP runs on any number of ranks."""


def expected_memory(setting: Setting) -> list[Holding]:
    """A whole copy of the model states, and buckets: a second copy of the gradients, always there.

    With gradient_as_bucket_view the gradients lie in the buckets, so that while they exist nothing is held
    twice.
    """
    return [holding for rank in setting.ranks for holding in _rank_memory(setting, rank)]


def _rank_memory(setting: Setting, rank: int) -> Iterator[Holding]:
    yield from replicated_states(setting, rank)
    is_view = setting.options.gradient_as_bucket_view
    if not is_view:
        yield from gradients_by_unit(setting, rank)
    for phase in ("forward", "backward", "step"):
        owner = "gradients" if is_view and phase == "backward" else "buckets"
        for index, bucket in enumerate(_buckets(setting, STEADY_STEP)):
            yield Holding(owner, f"bucket {index}", bucket.num_bytes, phase, rank)


def expected_traffic(setting: Setting, step: int = STEADY_STEP) -> list[Transfer]:
    """The collectives of DDP's constructor and of one step (the first is 1), as each rank sees them."""
    if setting.world_size == 1:
        return []
    return [
        transfer
        for rank in setting.ranks
        for make in (_init, _forward, _backward)
        for transfer in make(setting, step, rank)
    ]


def _init(setting: Setting, step: int, rank: int) -> Iterator[Transfer]:
    """Ranks compare the number of parameters and their shapes, then take rank 0's weights and buffers."""
    count_bytes = _LONG_BYTES * setting.world_size
    sent = ring.all_gather_sent_bytes(count_bytes, setting.world_size)
    yield Transfer("all_gather", "number of parameters", setting.ranks, count_bytes, sent, "init", rank)
    num_axes = sum(len(parameter.shape) for parameter in setting.layout.trainable)
    yield _broadcast(setting, "parameter shapes", 2 * num_axes * _LONG_BYTES, "init", rank)  # and strides
    for bucket in _broadcast_buckets((*setting.layout.parameters, *setting.layout.buffers)):
        unit = f"weights and buffers, {bucket.parameters[0].dtype}"
        yield _broadcast(setting, unit, bucket.num_bytes, "init", rank)


def _forward(setting: Setting, step: int, rank: int) -> Iterator[Transfer]:
    """Rank 0's bucket order when buckets are rebuilt; its buffers (a batch norm's statistics) every time."""
    options = setting.options
    if step == ddp_rebuild_step(options.find_unused_parameters, options.static_graph):
        num_indices = len(setting.layout.trainable) + 1
        yield _broadcast(setting, "bucket order", num_indices * _INT_BYTES, "forward", rank)
        yield _broadcast(
            setting, "bucket lengths", len(_buckets(setting, step)) * _INT_BYTES, "forward", rank
        )
    for bucket in _broadcast_buckets(setting.layout.buffers):
        unit = f"buffers, {bucket.parameters[0].dtype}"
        yield _broadcast(setting, unit, bucket.num_bytes, "forward", rank)


def _backward(setting: Setting, step: int, rank: int) -> Iterator[Transfer]:
    """One all-reduce a bucket, and a map of the used parameters where DDP has to look for unused ones."""
    options = setting.options
    used_map = _all_reduce(
        setting, "map of used parameters", len(setting.layout.trainable) * _INT_BYTES, rank
    )
    if options.static_graph and step == 1:
        yield used_map
    for index, bucket in enumerate(_buckets(setting, step)):
        yield _all_reduce(setting, f"bucket {index}", bucket.num_bytes, rank)
    if options.find_unused_parameters and not options.static_graph:
        yield used_map


def _buckets(setting: Setting, step: int) -> list[Bucket]:
    options = setting.options
    return ddp_buckets(
        setting.layout, step, options.bucket_cap_mb, options.find_unused_parameters, options.static_graph
    )


def _broadcast_buckets(tensors: tuple[Parameter, ...]) -> list[Bucket]:
    buckets = assign_buckets(tensors, [_BROADCAST_BYTES])
    return sorted(buckets, key=lambda bucket: tensors.index(bucket.parameters[0]))


def _broadcast(setting: Setting, unit: str, num_bytes: int, phase: str, rank: int) -> Transfer:
    sent = tree.broadcast_sent_bytes(num_bytes, setting.world_size, rank)
    return Transfer("broadcast", unit, setting.ranks, num_bytes, sent, phase, rank)


def _all_reduce(setting: Setting, unit: str, num_bytes: int, rank: int) -> Transfer:
    sent = ring.all_reduce_sent_bytes(num_bytes, setting.world_size)
    return Transfer("all_reduce", unit, setting.ranks, num_bytes, sent, "backward", rank)


def wrap(module: "nn.Module", options: Options) -> "nn.Module":
    """Wrap a module; rank 0's weights and buffers are broadcast to all while this runs."""
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(module, **asdict(options))


def name_transfers(transfers: list[Transfer]) -> list[Transfer]:
    """Give the recorded collectives of one rank the names that the expected list uses.

    A recorder knows operation, dtype (as the unit) and order. Integers that are reduced are the map of used
    parameters and numbers are buckets, in order; the constructor's first broadcast tells the shapes.
    """
    return [
        replace(transfer, unit=_name(transfer, transfers[:index])) for index, transfer in enumerate(transfers)
    ]


def _name(transfer: Transfer, before: list[Transfer]) -> str:
    dtype = transfer.unit
    earlier = [t for t in before if (t.phase, t.collective) == (transfer.phase, transfer.collective)]
    if transfer.phase == "backward":
        num_buckets = sum(not t.unit.startswith("int") for t in earlier)
        return "map of used parameters" if dtype.startswith("int") else f"bucket {num_buckets}"
    if transfer.phase == "init":
        first = {"all_gather": "number of parameters", "broadcast": "parameter shapes"}[transfer.collective]
        return f"weights and buffers, {dtype}" if earlier else first
    if dtype == "int32":
        return "bucket lengths" if earlier else "bucket order"
    return f"buffers, {dtype}"
