"""DDP from scratch, three times: a collective a parameter, one for all, and buckets during backward."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpcourse.layout import MIB, MOST_BUCKET_MB, Bucket, assign_buckets
from dpcourse.ledger import Holding, Transfer
from dpcourse.strategies.base import Setting, Strategy
from dpcourse.strategies.common import (
    broadcasts,
    gradients_by_unit,
    replicated_states,
    start_broadcasts,
    transfer,
    with_zeros,
)

if TYPE_CHECKING:
    from torch import nn

FLOAT_BYTES = 4
USED_MAP = "map of used parameters"


class ScratchReplica(Strategy):
    """A whole copy of the model states on each rank, gradients averaged by the time backward is over.

    The lists hold for a model whose trained parameters are used on all ranks or on none.
    """

    recipes = ("fp32", "autocast", "mixed-adam", "bf16")

    def makes_zeros(self, setting: Setting) -> bool:
        """Tell whether a parameter that nobody used gets a gradient of zeros."""
        return True

    def rank_memory(self, setting: Setting, rank: int) -> list[Holding]:
        """What one rank alone holds: what is sent together is a copy that is gone when backward is over."""
        if self.makes_zeros(setting):
            setting = with_zeros(setting)
        return replicated_states(setting, rank) + gradients_by_unit(setting, rank)

    def rank_traffic(self, setting: Setting, rank: int, step: int) -> Iterator[Transfer]:
        """Rank 0's weights and buffers at the start, its buffers before each step, gradients in backward."""
        yield from start_broadcasts(setting, rank)
        yield from broadcasts(setting, "buffers", setting.layout.buffers, "forward", rank)
        yield from self.reductions(setting, rank)

    def reductions(self, setting: Setting, rank: int) -> Iterable[Transfer]:
        """The collectives that average the gradients."""
        raise NotImplementedError


class ScratchNaiveDdp(ScratchReplica):
    """One all-reduce a parameter, after one that asks which parameters were used."""

    def makes_zeros(self, setting: Setting) -> bool:
        return False

    def reductions(self, setting: Setting, rank: int) -> Iterator[Transfer]:
        num_bytes = FLOAT_BYTES * len(setting.layout.parameters)
        yield transfer(setting, "all_reduce", USED_MAP, num_bytes, "backward", rank)
        for parameter in setting.layout.reached:
            yield transfer(setting, "all_reduce", parameter.name, parameter.num_bytes, "backward", rank)

    def wrap(self, module: "nn.Module", setting: Setting) -> "nn.Module":
        from dpcourse.scratch.replicated import NaiveDDP

        return NaiveDDP(module)


class ScratchFlatDdp(ScratchReplica):
    """One all-reduce for all gradients of a format, after backward."""

    def reductions(self, setting: Setting, rank: int) -> Iterator[Transfer]:
        for row in assign_buckets(setting.layout.trainable, [sys.maxsize]):
            yield transfer(setting, "all_reduce", "all gradients", row.num_bytes, "backward", rank)

    def wrap(self, module: "nn.Module", setting: Setting) -> "nn.Module":
        from dpcourse.scratch.replicated import FlatDDP

        return FlatDDP(module)


@dataclass(frozen=True)
class BucketOptions:
    """bucket_cap_mb: a bucket of gradients closes once it has so many MiB.

    find_unused_parameters: ask all ranks which parameters were used, so that one that nobody used is left
    as it is.
    """

    bucket_cap_mb: float = 25
    find_unused_parameters: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.bucket_cap_mb < MOST_BUCKET_MB:
            raise ValueError(
                f"bucket_cap_mb={self.bucket_cap_mb!r}: give a number of MiB above 0 and below 2**43"
            )


class ScratchDdp(ScratchReplica):
    """A reduce-scatter and an all-gather (an all-reduce in its halves) a bucket, while backward goes on."""

    Options = BucketOptions
    direct_collectives = ("reduce_scatter", "all_gather")

    def is_blocking(self, options: Any, backend: str) -> bool:
        """Buckets travel while backward goes on."""
        return False

    def makes_zeros(self, setting: Setting) -> bool:
        return not setting.options.find_unused_parameters

    def reductions(self, setting: Setting, rank: int) -> Iterator[Transfer]:
        on_ring = replace(setting, backend="ring")
        for index, bucket in enumerate(reversed_buckets(setting)):
            for half in ("reduce_scatter", "all_gather"):
                yield transfer(on_ring, half, f"bucket {index}", bucket.num_bytes, "backward", rank)
        if setting.options.find_unused_parameters:
            yield used_map(setting, "backward", rank)

    def wrap(self, module: "nn.Module", setting: Setting) -> "nn.Module":
        from dpcourse.scratch.bucketed import BucketedDDP

        options = setting.options
        return BucketedDDP(module, options.bucket_cap_mb, options.find_unused_parameters)


def reversed_buckets(setting: Setting) -> list[Bucket]:
    """Fill buckets from the last parameter to the first, which is about the order of backward."""
    return assign_buckets(reversed(setting.layout.trainable), [int(setting.options.bucket_cap_mb * MIB)])


def used_map(setting: Setting, phase: str, rank: int) -> Transfer:
    """All ranks ask which trained parameters were used, with one number for each."""
    num_bytes = FLOAT_BYTES * len(setting.layout.trainable)
    return transfer(setting, "all_reduce", USED_MAP, num_bytes, phase, rank)
