"""Ring, halving and doubling, and a tree on links with a latency: few large messages or many small ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from dpcourse.checks import check_count
from dpcourse.experiments.base import (
    Experiment,
    check_fp32_bytes,
    check_list,
    emulated,
    off_text,
    slowest,
    stable_table,
)
from dpcourse.ranks.cluster import Cluster
from dpcourse.ranks.launch import launch
from dpcourse.ranks.links import Links
from dpcourse.ranks.progress import with_progress
from dpcourse.tables import Table, bytes_text, seconds_text
from dpcourse.theory import links as formulas
from dpcourse.theory.states import FP32_BYTES

HOSTS = (6, 8)
SIZES = (4 * 1024, 1024 * 1024)
RING, HALVING, TREE = "ring", "halving and doubling", "tree"
_FORMULAS: dict[str, Callable[..., float]] = {
    RING: formulas.ring_seconds,
    HALVING: formulas.halving_doubling_seconds,
    TREE: formulas.tree_seconds,
}
ALGORITHMS = tuple(_FORMULAS)


@dataclass(frozen=True)
class Race:
    """One algorithm with one payload on so many hosts: each time it took, and the formula's."""

    num_ranks: int
    payload_bytes: int
    algorithm: str
    seconds: tuple[float, ...]
    expected_seconds: float

    @property
    def median_seconds(self) -> float:
        return median(self.seconds)


@dataclass(frozen=True, repr=False)
class FewOrMany(Experiment):
    """Three algorithms for small and large payloads, on a number of hosts that is a power of two and on one
    that is none."""

    links: Links
    rows: tuple[Race, ...]

    @property
    def cases(self) -> list[tuple[int, int]]:
        """Each number of hosts with each payload, in order."""
        return list(dict.fromkeys((row.num_ranks, row.payload_bytes) for row in self.rows))

    def of(self, num_ranks: int, payload_bytes: int) -> list[Race]:
        return [row for row in self.rows if (row.num_ranks, row.payload_bytes) == (num_ranks, payload_bytes)]

    def expected_winner(self, num_ranks: int, payload_bytes: int) -> str:
        return min(self.of(num_ranks, payload_bytes), key=lambda row: row.expected_seconds).algorithm

    def winner(self, num_ranks: int, payload_bytes: int) -> str:
        """Name the algorithm with the shortest median."""
        return min(self.of(num_ranks, payload_bytes), key=lambda row: row.median_seconds).algorithm

    @property
    def title(self) -> str:
        latency = seconds_text(self.links.inter.latency_seconds)
        return f"Few messages or many: hosts of one rank, {latency} away ({self.links.kind} links)"

    def table(self) -> Table:
        columns = ["hosts", "payload", "algorithm", "formula", "measured", "off"]
        return stable_table(columns, map(_row, self.rows), 4, self.title)

    def words(self) -> str:
        """Say which was quickest in each case, and which should have been."""
        parts = [
            f"{bytes_text(size)} on {count} hosts: {self.winner(count, size)}"
            f" (by the formula {self.expected_winner(count, size)})"
            for count, size in self.cases
        ]
        return f"Quickest with {'; '.join(parts)}."

    def plot(self) -> Any:
        """Draw each algorithm's time in each case: measured solid, the formula's as an outline."""
        from dpcourse.figures import few_or_many_bars

        return few_or_many_bars(self)


def _row(row: Race) -> list[Any]:
    middle = row.median_seconds
    return [
        row.num_ranks,
        bytes_text(row.payload_bytes),
        row.algorithm,
        seconds_text(row.expected_seconds),
        seconds_text(middle),
        off_text(middle, row.expected_seconds),
    ]


def few_or_many(
    hosts: Sequence[int] = HOSTS,
    sizes: Sequence[int] = SIZES,
    inter: str = "200mbit",
    latency: str = "10ms",
    repeats: int = 2,
) -> FewOrMany:
    """All-reduce small and large payloads by ring, by halving and doubling, and in a tree.

    Args:
        hosts: how many, each of one rank, each time.
        sizes: bytes of each payload, multiples of 4.
        inter, latency: of each host's card. The links are paced where the kernel cannot delay.
        repeats: how often each is timed; all take turns.
    """
    check_count("repeats", repeats)
    check_list("hosts", hosts)
    check_list("sizes", sizes)
    for size in sizes:
        check_fp32_bytes("sizes", size)
    clusters = [
        emulated(Cluster(hosts=n, ranks_per_host=1, inter=inter, latency=latency)) for n in sorted(hosts)
    ]
    rows = [
        row
        for cluster, network in with_progress(clusters)
        for row in _races(cluster, network, list(sizes), repeats)
    ]
    return FewOrMany(clusters[0][1], tuple(rows))


def _races(cluster: Cluster, network: Links, sizes: list[int], repeats: int) -> list[Race]:
    by_rank = launch(_time_all, sizes, repeats, cluster=cluster)
    return [
        Race(
            cluster.num_ranks,
            size,
            name,
            slowest([own[name, size] for own in by_rank]),
            _FORMULAS[name](size, cluster.num_ranks, network.inter),
        )
        for size in sizes
        for name in ALGORITHMS
    ]


# -- in each rank


def _time_all(sizes: list[int], repeats: int) -> dict[tuple[str, int], list[float]]:
    """Time each algorithm with each payload in turn, after a first time that opens connections."""
    import torch

    from dpcourse.experiments.timing import seconds_of
    from dpcourse.scratch import halving_doubling, ring, tree

    ways = {RING: ring.all_reduce, HALVING: halving_doubling.all_reduce, TREE: tree.all_reduce}
    found: dict[tuple[str, int], list[float]] = {(name, size): [] for size in sizes for name in ways}
    for _ in range(repeats + 1):
        for (name, size), own in found.items():
            own.append(seconds_of(ways[name], torch.zeros(size // FP32_BYTES)))
    return {key: own[1:] for key, own in found.items()}
