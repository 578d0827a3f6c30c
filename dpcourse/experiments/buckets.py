"""DDP's backward against the size of its buckets on a slow link: too small wastes latency, too large hides
nothing. The model's curve beside it knows the link from all-reduces alone.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from dpcourse.checks import check_count
from dpcourse.experiments.all_reduce import AllReduceSweep, all_reduce_sweep
from dpcourse.experiments.base import Experiment, emulated, off_text, paced_text, slowest, stable_table
from dpcourse.ledger import select
from dpcourse.models import Mlp
from dpcourse.ranks.backends import place
from dpcourse.ranks.cluster import Cluster
from dpcourse.ranks.launch import launch
from dpcourse.request import Request, make_request
from dpcourse.tables import Table, bytes_text, seconds_text
from dpcourse.theory.links import Link
from dpcourse.theory.schedule import schedule, step_seconds

CAPS_MB = (1 / 4096, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)  # the first: each parameter alone
MODEL = Mlp(features=64, width=64, depth=64)  # 1.1 MB of gradients in many layers
PACE = "500us"
SLOW = "50mbit"  # on which the bytes take longer than the computation
PACED_LATENCY = "1ms"  # far above what the ranks' own work adds, which two busy cores make uneven
SWEEP_SIZES = tuple(4096 * 4**exponent for exponent in range(5))  # to 1 MiB
WARM_UP_STEPS = 2  # the first has one bucket, the second rebuilds them
_POINTS_BETWEEN = 4  # of the model's curve, between two sizes that are measured


@dataclass(frozen=True)
class Backward:
    """Backward with buckets of one size: each repeat's time, and what the model says."""

    bucket_cap_mb: float
    num_buckets: int
    seconds: tuple[float, ...]
    predicted_seconds: float

    @property
    def median_seconds(self) -> float:
        return median(self.seconds)


@dataclass(frozen=True, repr=False)
class BucketSweep(Experiment):
    """Backward at several bucket sizes beside the model's curve.

    all_reduces: where the model has the link from. compute_seconds: of backward when nothing is sent.
    curve: size in MiB and predicted seconds, also between the sizes that were measured.
    """

    all_reduces: AllReduceSweep
    gradient_bytes: int
    pace_compute: str | None
    compute_seconds: float
    times: tuple[Backward, ...]
    curve: tuple[tuple[float, float], ...]

    @property
    def measured_best(self) -> Backward:
        return min(self.times, key=lambda row: row.median_seconds)

    @property
    def predicted_best(self) -> Backward:
        """Of the sizes that were measured the one that the model would have taken."""
        return min(self.times, key=lambda row: row.predicted_seconds)

    @property
    def lost_by_prediction(self) -> float:
        """How much longer backward takes with the model's choice than with the best: 0.02 is two percent."""
        return self.predicted_best.median_seconds / self.measured_best.median_seconds - 1

    @property
    def has_minimum_inside(self) -> bool:
        """Whether the smallest and the largest buckets both took longer than some between them."""
        return self.measured_best not in (self.times[0], self.times[-1])

    def errors(self) -> list[float]:
        """For each size, how far the model is from the median: 0.1 is ten percent too long."""
        return [row.predicted_seconds / row.median_seconds - 1 for row in self.times]

    @property
    def title(self) -> str:
        of = f"{bytes_text(self.gradient_bytes)} of gradients, {self.all_reduces.links}"
        return f"DDP's backward: {of}{paced_text(self.pace_compute)}"

    def table(self) -> Table:
        columns = ["bucket_cap_mb", "buckets", "measured", "model", "off"]
        rows = [
            [
                f"{row.bucket_cap_mb:.3g}",
                row.num_buckets,
                seconds_text(row.median_seconds),
                seconds_text(row.predicted_seconds),
                off_text(row.median_seconds, row.predicted_seconds),
            ]
            for row in self.times
        ]
        return stable_table(columns, rows, 2, self.title)

    def words(self) -> str:
        best, predicted = self.measured_best, self.predicted_best
        return (
            f"Best: {best.bucket_cap_mb:.3g} MiB; by the model {predicted.bucket_cap_mb:.3g} MiB, with which "
            f"backward takes {self.lost_by_prediction:+.0%}. Computation alone takes "
            f"{seconds_text(self.compute_seconds)}; the model is off by {max(map(abs, self.errors())):.0%} "
            "at most."
        )

    def plot(self) -> Any:
        """Draw time against size: medians solid, the model's curve dashed, both minima marked."""
        from dpcourse.figures import bucket_curve

        return bucket_curve(self)


def bucket_sweep(
    cluster: Cluster | None = None,
    caps_mb: Sequence[float] = CAPS_MB,
    model: Any = MODEL,
    pace_compute: str | None = PACE,
    repeats: int = 3,
) -> BucketSweep:
    """Time DDP's backward at several bucket sizes, and predict it from all-reduces and computation alone.

    Args:
        cluster: emulated hosts; None for `slow_hosts()`.
        caps_mb: bucket sizes in MiB, as DDP's bucket_cap_mb; three at least.
        model: a name or a configuration.
        pace_compute: how long each layer computes in forward (twice that in backward), so that busy cores
            do not hide the curve; None to let it compute as fast as it goes.
        repeats: steps at each size. All sizes take turns.
    """
    cluster, _ = emulated(cluster or slow_hosts())
    check_count("repeats", repeats)
    if len(set(caps_mb)) < 3:
        raise ValueError(
            f"caps_mb={list(caps_mb)!r}: a minimum lies between others; give three sizes at least"
        )
    caps = sorted(set(caps_mb))
    requests = [request_of(cluster, model, pace_compute, cap) for cap in caps]
    sweep = all_reduce_sweep(cluster, SWEEP_SIZES, is_queued=True)
    results = launch(_time_backwards, requests, repeats, cluster=cluster, everything=True)
    *by_cap, alone = [slowest(own) for own in zip(*results, strict=True)]
    compute = median(alone)
    times = [
        Backward(cap, num_buckets_of(request), seconds, predicted_seconds(request, compute, sweep.fit))
        for cap, request, seconds in zip(caps, requests, by_cap, strict=True)
    ]
    between = [request_of(cluster, model, pace_compute, cap) for cap in _finer(caps)]
    curve = [(r.options.bucket_cap_mb, predicted_seconds(r, compute, sweep.fit)) for r in between]
    size = requests[0].setting.layout.gradient_bytes
    return BucketSweep(sweep, size, pace_compute, compute, tuple(times), tuple(curve))


def slow_hosts(links: str | None = None) -> Cluster:
    """Give two hosts of one rank each with 50 Mbit/s between them, on paced links after a millisecond.

    links: "kernel", "paced", or None for what works here.
    """
    hosts = Cluster(hosts=2, ranks_per_host=1, inter=SLOW, links=links)
    assert hosts.network is not None
    is_paced = hosts.network.kind == "paced"
    return replace(hosts, latency=PACED_LATENCY) if is_paced else hosts


def predicted_seconds(request: Request, compute_seconds: float, link: Link) -> float:
    """Give backward's time by the model: its expected all-reduces laid out beside its computation."""
    transfers = select(request.expected_traffic(), rank=0, phase="backward")
    spans = schedule(transfers, {"backward": compute_seconds}, link, backend=request.backend)
    return step_seconds(spans)


def request_of(cluster: Cluster, model: Any, pace_compute: str | None, cap_mb: float) -> Request:
    asked = make_request(
        "ddp",
        {"bucket_cap_mb": cap_mb},
        model,
        ranks=cluster.num_ranks,
        optimizer="sgd",
        pace_compute=pace_compute,
    )
    _, carrier = place(cluster, cluster.num_ranks, None, None)
    return asked.placed_on(cluster.chosen_device, carrier.name, cluster.network)


def num_buckets_of(request: Request) -> int:
    return len(select(request.expected_traffic(), rank=0, phase="backward"))


def _finer(caps: Sequence[float]) -> list[float]:
    """Put sizes between sizes, evenly on a logarithmic axis."""
    found = [
        low * (high / low) ** (step / _POINTS_BETWEEN)
        for low, high in pairwise(caps)
        for step in range(_POINTS_BETWEEN)
    ]
    return [*found, caps[-1]]


# -- in each rank


def _time_backwards(requests: list[Request], repeats: int) -> list[list[float]]:
    """Time backward at each size in turn, and last of all without any all-reduce."""
    from dpcourse.trainer import Trainer  # imports torch: in the rank, not here

    trainers = [Trainer(request) for request in requests]
    ddp: Any = trainers[0].wrapped
    for trainer in trainers:
        for _ in range(WARM_UP_STEPS):
            trainer.step()
    seconds: list[list[float]] = [[] for _ in (*trainers, "alone")]
    for _ in range(repeats):
        for trainer, own in zip(trainers, seconds, strict=False):
            own.append(backward_seconds(trainer))
        with ddp.no_sync():
            seconds[-1].append(backward_seconds(trainers[0]))
    return seconds


def backward_seconds(trainer: Any) -> float:
    """Train one step; time its backward, which all ranks begin together."""
    import torch.distributed as dist

    ends: dict[str, float] = {}

    def mark(phase: str) -> None:
        if phase == "forward":
            dist.barrier()
        ends[phase] = time.perf_counter()

    trainer.step(mark)
    return ends["backward"] - ends["forward"]
