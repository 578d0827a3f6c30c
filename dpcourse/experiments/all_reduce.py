"""One all-reduce against its size, and the link that its times are those of: a latency and a bandwidth."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

from dpcourse.checks import check_count
from dpcourse.experiments.base import (
    Experiment,
    check_fp32_bytes,
    emulated,
    off_text,
    slowest,
    spread_text,
    stable_table,
)
from dpcourse.quantities import rate_text
from dpcourse.ranks.cluster import Cluster
from dpcourse.ranks.launch import launch
from dpcourse.ranks.links import Links
from dpcourse.tables import Table, bytes_text, seconds_text
from dpcourse.theory.bus import bus_bandwidth
from dpcourse.theory.links import Link, num_rounds, ring_seconds
from dpcourse.theory.states import FP32_BYTES
from dpcourse.theory.wire import ideal_sent_bytes

SIZES = tuple(1024 * 4**exponent for exponent in range(8))  # 1 KiB to 16 MiB
# Small ones follow one another without a pause: of what is sent after a pause, a card lets the first few
# packets pass at once.
_TRAIN_BYTES, _LONGEST_TRAIN = 512 * 1024, 32


@dataclass(frozen=True)
class Timed:
    """How long an all-reduce of so many bytes took, each time: of several in a row, the mean."""

    payload_bytes: int
    seconds: tuple[float, ...]

    @property
    def median_seconds(self) -> float:
        return median(self.seconds)


@dataclass(frozen=True, repr=False)
class AllReduceSweep(Experiment):
    """All-reduces of ever more bytes on one link, and the link that fits them."""

    links: Links
    num_ranks: int
    times: tuple[Timed, ...]
    fit: Link
    is_queued: bool = False

    def predicted(self, payload_bytes: int) -> float:
        """Give the time of an all-reduce on the link that was fitted."""
        return ring_seconds(payload_bytes, self.num_ranks, self.fit)

    def errors(self) -> list[float]:
        """For each size, how far the fit is from the median: 0.1 is ten percent too long."""
        return [self.predicted(t.payload_bytes) / t.median_seconds - 1 for t in self.times]

    @property
    def bandwidth_error(self) -> float:
        """How far the fitted bandwidth is from the one that was asked for."""
        return self.fit.bytes_per_second / self.links.inter.bytes_per_second - 1

    @property
    def title(self) -> str:
        return f"all-reduce{' in a queue' if self.is_queued else ''}: {self.links}"

    def table(self) -> Table:
        columns = [
            "payload",
            "a rank sends",
            "asked for",
            "measured",
            "repeats",
            "bus bandwidth",
            "fitted",
            "off",
        ]
        return stable_table(columns, map(self._row, self.times), 3, self.title)

    def _row(self, timed: Timed) -> list[Any]:
        size, middle = timed.payload_bytes, timed.median_seconds
        fitted = self.predicted(size)
        return [
            bytes_text(size),
            bytes_text(ideal_sent_bytes("all_reduce", size, self.num_ranks)),
            seconds_text(ring_seconds(size, self.num_ranks, self.links.inter)),
            seconds_text(middle),
            spread_text(timed.seconds),
            rate_text(bus_bandwidth("all_reduce", size, middle, self.num_ranks)),
            seconds_text(fitted),
            off_text(middle, fitted),
        ]

    def words(self) -> str:
        asked, fit = self.links.inter, self.fit
        latency = f" after {seconds_text(asked.latency_seconds)}" if asked.latency_seconds else ""
        return (
            f"Fitted: {rate_text(fit.bytes_per_second)} and {seconds_text(fit.latency_seconds)} for each of "
            f"{num_rounds('all_reduce', self.num_ranks)} rounds; asked for: "
            f"{rate_text(asked.bytes_per_second)}{latency} ({self.bandwidth_error:+.1%} in bandwidth). The "
            "latency has the ranks' own work in it. The fit is off by "
            f"{max(map(abs, self.errors())):.0%} at most."
        )

    def plot(self) -> Any:
        """Draw time against size: the medians solid, the fit dashed, what was asked for dotted."""
        from dpcourse.figures import all_reduce_curve

        return all_reduce_curve(self)


def all_reduce_sweep(
    cluster: Cluster | None = None,
    sizes: Sequence[int] = SIZES,
    repeats: int = 5,
    is_queued: bool = False,
) -> AllReduceSweep:
    """Time all-reduces of several sizes on a link, and find the latency and the bandwidth that fit them.

    Args:
        cluster: emulated hosts; None for two of one rank each with 200 Mbit/s between them.
        sizes: bytes, each a multiple of 4; three of them at least.
        repeats: how often each is timed. All sizes take turns, so that a busy moment does not fall on one.
        is_queued: several small ones are started before the first is waited for, as DDP starts its buckets;
            else each waits for the one before it, and the latency has the waking of both ranks in it.

    Raises ValueError for sizes that are none, and for times that fit no link.
    """
    cluster, links = emulated(cluster, hosts=2, ranks_per_host=1, inter="200mbit")
    check_count("repeats", repeats)
    _check_sizes(sizes)
    by_rank = launch(time_all_reduces, list(sizes), repeats, is_queued, cluster=cluster)
    times = tuple(
        Timed(size, slowest(own)) for size, own in zip(sizes, zip(*by_rank, strict=True), strict=True)
    )
    fit = fit_link({timed.payload_bytes: timed.median_seconds for timed in times}, cluster.num_ranks)
    return AllReduceSweep(links, cluster.num_ranks, times, fit, is_queued)


def _check_sizes(sizes: Sequence[int]) -> None:
    for size in sizes:
        check_fp32_bytes("sizes", size)
    if len(set(sizes)) < 3:
        raise ValueError(
            f"sizes={list(sizes)!r}: a latency and a bandwidth are fitted, and two sizes would fit any two "
            "times; give three at least"
        )


def fit_link(seconds: Mapping[int, float], num_ranks: int) -> Link:
    """Fit latency and bandwidth to the times of all-reduces: seconds by payload bytes.

    Of all links that two of the times are exactly those of, it is the one with the smallest sum of relative
    errors: a time of a millisecond counts as much as one of a second, and one that a busy moment has spoiled
    moves nothing, as it would in least squares. A latency is 0 at least.
    Raises ValueError for times that do not grow with size.
    """
    rounds = num_rounds("all_reduce", num_ranks)
    rows = sorted((ideal_sent_bytes("all_reduce", size, num_ranks), time) for size, time in seconds.items())
    if rows[-1][1] <= rows[0][1]:
        raise ValueError(
            f"an all-reduce of {bytes_text(max(seconds))} took no longer than one of "
            f"{bytes_text(min(seconds))}, so that no bandwidth fits; give larger sizes, or a slower link"
        )
    through = [_through(first, second, rounds) for first, second in combinations(rows, 2)]
    through += [Link(0.0, sent / time) for sent, time in rows]
    links = [link for link in through if link is not None]

    def error(link: Link) -> float:
        fitted = [rounds * link.latency_seconds + sent / link.bytes_per_second for sent, _ in rows]
        return sum(abs(own / time - 1) for own, (_, time) in zip(fitted, rows, strict=True))

    return min(links, key=error)


def _through(first: tuple[float, float], second: tuple[float, float], rounds: int) -> Link | None:
    """Give the link that has two times (bytes sent, seconds), fewer bytes first; None where none has."""
    (sent, seconds), (more_sent, more_seconds) = first, second
    if more_seconds <= seconds:
        return None
    rate = (more_sent - sent) / (more_seconds - seconds)
    latency = (seconds - sent / rate) / rounds
    return Link(latency, rate) if latency >= 0 else None


def num_in_a_row(payload_bytes: int) -> int:
    """Say how many all-reduces of a size are timed together."""
    return min(max(1, _TRAIN_BYTES // payload_bytes), _LONGEST_TRAIN)


# -- in each rank


def time_all_reduces(sizes: list[int], repeats: int, is_queued: bool) -> list[list[float]]:
    """Time each size as often as asked, after a first time that opens connections."""
    import torch
    import torch.distributed as dist

    reduce_all = _queued if is_queued else _one_after_the_other
    seconds: list[list[float]] = [[] for _ in sizes]
    for _ in range(repeats + 1):
        for size, own in zip(sizes, seconds, strict=True):
            train = [torch.zeros(size // FP32_BYTES) for _ in range(num_in_a_row(size))]
            dist.barrier()
            start = time.perf_counter()
            reduce_all(train)
            own.append((time.perf_counter() - start) / len(train))
    return [own[1:] for own in seconds]


def _one_after_the_other(tensors: list[Any]) -> None:
    import torch.distributed as dist

    for tensor in tensors:
        dist.all_reduce(tensor)


def _queued(tensors: list[Any]) -> None:
    import torch.distributed as dist

    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()  # type: ignore[union-attr]
