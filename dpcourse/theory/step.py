"""One step on so many ranks, in closed form: what a rank computes, what it moves, and what hides behind what.

For equal units (or buckets) the form is what schedule.py lays out, to rounding, and takes no longer for
100,000 ranks than for two. Stragglers and other jobs' traffic are left out.
"""

import math
from dataclasses import dataclass, replace

from dpcourse.checks import check_choice, check_count
from dpcourse.theory.hierarchy import ALL_REDUCES, Cost, Machine, all_reduce_cost, gather_cost, reduce_cost
from dpcourse.theory.links import Link

SHARDED = ("fsdp", "hybrid")
STRATEGIES = (*ALL_REDUCES, *SHARDED)
MEBIBYTE = 2**20


@dataclass(frozen=True)
class Work:
    """What a rank does in one step: seconds of computation, bytes to move and in how many parts.

    payload_bytes: of all gradients as they are sent, and of all parameters as FSDP gathers them. num_units:
    into how many FSDP divides the model. bucket_bytes: into what DDP fills gradients, 25 MiB unless told.
    """

    payload_bytes: float
    forward_seconds: float
    backward_seconds: float
    optimizer_seconds: float = 0.0
    num_units: int = 32
    bucket_bytes: float = 25 * MEBIBYTE

    def __post_init__(self) -> None:
        check_count("num_units", self.num_units)
        if not (self.payload_bytes > 0 and self.bucket_bytes > 0):
            raise ValueError(
                f"payload_bytes={self.payload_bytes!r} in buckets of bucket_bytes={self.bucket_bytes!r}: "
                "give sizes above 0"
            )
        if min(self.forward_seconds, self.backward_seconds, self.optimizer_seconds) < 0 or not self.seconds:
            raise ValueError(
                f"forward, backward and optimizer take {self.forward_seconds}, {self.backward_seconds} and "
                f"{self.optimizer_seconds} seconds: give times of 0 or more, one of them above 0"
            )

    @property
    def seconds(self) -> float:
        """How long a rank computes."""
        return self.forward_seconds + self.backward_seconds + self.optimizer_seconds

    @property
    def num_buckets(self) -> int:
        return math.ceil(self.payload_bytes / self.bucket_bytes)

    def shared_by(self, num_ranks: int) -> "Work":
        """The same batch divided over so many ranks: all but the optimizer takes that much less."""
        return replace(
            self,
            forward_seconds=self.forward_seconds / num_ranks,
            backward_seconds=self.backward_seconds / num_ranks,
        )


def transformer_work(
    num_params: float,
    tokens_per_rank: float,
    operations_per_second: float,
    bytes_per_param: int = 2,
    num_units: int = 32,
    bucket_bytes: float = 25 * MEBIBYTE,
) -> Work:
    """Estimate a transformer's step: 2 operations for each parameter and token forward, 4 backward.

    tokens_per_rank: in one step. operations_per_second: what a rank reaches, not what its data sheet says.
    bytes_per_param: of a gradient as it is sent, and of a parameter as FSDP gathers it. num_units,
    bucket_bytes: as for Work.
    Raises ValueError for operations_per_second that are not above 0.
    Source: Kaplan et al., Scaling laws for neural language models, 2020, section 2.1.
    """
    if not operations_per_second > 0:
        raise ValueError(
            f"operations_per_second={operations_per_second!r}: give what a rank reaches, such as 140e12"
        )
    forward = 2 * num_params * tokens_per_rank / operations_per_second
    return Work(bytes_per_param * num_params, forward, 2 * forward, 0.0, num_units, bucket_bytes)


# An example, not a measurement: hosts of 8 GPUs with 200 Gbit/s of network each; latencies as in NCCL's own
# estimate of a ring (14 us between hosts, 3.4 us inside: src/graph/tuning.cc).
EXAMPLE_MACHINE = Machine(Link(14e-6, 200e9), Link(3.4e-6, 300e9), ranks_per_host=8)
EXAMPLE_WORK = transformer_work(1.3e9, tokens_per_rank=8192, operations_per_second=140e12)


@dataclass(frozen=True)
class Point:
    """One strategy's step on so many ranks. communication: all of it, hidden or not."""

    strategy: str
    num_ranks: int
    compute_seconds: float
    communication: Cost
    step_seconds: float
    is_hidden: bool  # computation is long enough to hide all of it but the first and the last part

    @property
    def efficiency(self) -> float:
        """The share of the step in which the rank computes: 1.0 loses nothing to communication."""
        return self.compute_seconds / self.step_seconds


def point(
    strategy: str,
    num_ranks: int,
    work: Work = EXAMPLE_WORK,
    machine: Machine = EXAMPLE_MACHINE,
    is_strong: bool = False,
) -> Point:
    """Compute one step on so many ranks.

    strategy: "ring", "tree", "hierarchical" or "halving-doubling" for DDP's all-reduce, "fsdp" or "hybrid".
    is_strong: the work is that of all ranks together, and each takes its share; else each rank does it all.
    """
    work = work.shared_by(num_ranks) if is_strong else work
    gather, reduce, num_units = _costs(strategy, num_ranks, work, machine)
    forward, backward = work.forward_seconds / num_units, work.backward_seconds / num_units
    seconds = _forward_seconds(num_units, gather.seconds, forward)
    seconds += _backward_seconds(num_units, gather.seconds, backward, reduce.seconds)
    is_hidden = gather.seconds <= forward and gather.seconds + reduce.seconds <= backward
    communication = (gather * 2 + reduce) * num_units
    step = seconds + work.optimizer_seconds
    return Point(strategy, num_ranks, work.seconds, communication, step, is_hidden)


def _costs(strategy: str, num_ranks: int, work: Work, machine: Machine) -> tuple[Cost, Cost, int]:
    """The gather and the reduction of a unit or a bucket, and how many of them there are."""
    check_choice("strategy", strategy, STRATEGIES)
    if strategy not in SHARDED:
        bucket = work.payload_bytes / work.num_buckets
        return Cost(), all_reduce_cost(strategy, bucket, machine, num_ranks), work.num_buckets
    unit, is_hybrid = work.payload_bytes / work.num_units, strategy == "hybrid"
    gather = gather_cost(unit, machine, num_ranks, is_hybrid)
    return gather, reduce_cost(unit, machine, num_ranks, is_hybrid), work.num_units


def _forward_seconds(num_units: int, gather: float, compute: float) -> float:
    """One unit is gathered while the one before it computes; all are, one after the other."""
    return gather + compute + (num_units - 1) * max(gather, compute)


def _backward_seconds(num_units: int, gather: float, compute: float, reduce: float) -> float:
    """While one unit computes, the one after it is gathered and the one before it reduced."""
    if num_units == 1:
        return gather + compute + reduce
    first, last = gather + max(gather, compute), max(compute, reduce) + reduce
    return first + (num_units - 2) * max(compute, gather + reduce) + last
