"""An all-reduce through one main rank and one round a ring, on ever more hosts: whose card is the limit."""

from collections.abc import Sequence
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
from dpcourse.experiments.timing import seconds_of
from dpcourse.parts.traffic import wire_verdict
from dpcourse.ranks.cluster import Cluster
from dpcourse.ranks.launch import launch
from dpcourse.ranks.links import Links
from dpcourse.ranks.progress import with_progress
from dpcourse.tables import Table, bytes_text, seconds_text
from dpcourse.theory import ring, star
from dpcourse.theory.links import ring_seconds, star_seconds
from dpcourse.theory.states import FP32_BYTES

HOSTS = (2, 4, 8)
PAYLOAD_BYTES = 512 * 1024
ALGORITHMS = ("star", "ring")


@dataclass(frozen=True)
class Crowd:
    """One algorithm on so many hosts: what the main rank sent, how long it took, and the formulas of both."""

    algorithm: str
    num_ranks: int
    sent_bytes: int | None
    expected_bytes: int
    seconds: tuple[float, ...]
    expected_seconds: float

    @property
    def median_seconds(self) -> float:
        return median(self.seconds)


@dataclass(frozen=True, repr=False)
class StarOrRing(Experiment):
    """All-reduces of one payload by star and by ring, as hosts of one rank each are added."""

    links: Links
    payload_bytes: int
    rows: tuple[Crowd, ...]

    def of(self, algorithm: str) -> list[Crowd]:
        return [row for row in self.rows if row.algorithm == algorithm]

    @property
    def growth(self) -> dict[str, float]:
        """How many times as long each takes on the most hosts as on the fewest."""
        ends = {name: self.of(name) for name in ALGORITHMS}
        return {name: rows[-1].median_seconds / rows[0].median_seconds for name, rows in ends.items()}

    @property
    def title(self) -> str:
        return (
            f"Star or ring: {bytes_text(self.payload_bytes)} on hosts of one rank ({self.links.kind} links)"
        )

    def table(self) -> Table:
        columns = ["algorithm", "hosts", "expected from rank 0", "sent by rank 0", "off", "measured"]
        return stable_table([*columns, "formula", "off "], map(_row, self.rows), 3, self.title)

    def words(self) -> str:
        first, last = self.of("star")[0].num_ranks, self.of("star")[-1].num_ranks
        grown = " and ".join(f"the {name} {times:.1f} times" for name, times in self.growth.items())
        if self.growth["ring"] < self.growth["star"]:
            reason = "the star's main card carries all, each of the ring's its share"
        else:
            reason = "the links do not explain that; the ranks wait for cores of this machine"
        return f"From {first} hosts to {last} {grown} as long: {reason}."

    def plot(self) -> Any:
        """Draw time and bytes against the number of hosts: measured solid, the formulas dashed."""
        from dpcourse.figures import star_or_ring_curves

        return star_or_ring_curves(self)


def _row(row: Crowd) -> list[Any]:
    sent, middle = row.sent_bytes, row.median_seconds
    return [
        row.algorithm,
        row.num_ranks,
        bytes_text(row.expected_bytes),
        None if sent is None else bytes_text(sent),
        wire_verdict(sent, row.expected_bytes),
        seconds_text(middle),
        seconds_text(row.expected_seconds),
        off_text(middle, row.expected_seconds),
    ]


def star_or_ring(
    hosts: Sequence[int] = HOSTS,
    payload_bytes: int = PAYLOAD_BYTES,
    inter: str = "100mbit",
    links: str | None = None,
    repeats: int = 3,
) -> StarOrRing:
    """All-reduce one payload by star and by ring on ever more hosts of one rank each.

    Args:
        hosts: how many, each time; two at least.
        payload_bytes: a multiple of 4.
        inter: the rate of each host's card; links: "kernel", "paced", or None for what works.
        repeats: how often each is timed, star and ring in turn.
    """
    check_count("repeats", repeats)
    check_list("hosts", hosts)
    check_fp32_bytes("payload_bytes", payload_bytes)
    clusters = [
        emulated(Cluster(hosts=count, ranks_per_host=1, inter=inter, links=links)) for count in sorted(hosts)
    ]
    rows = [
        row
        for cluster, network in with_progress(clusters)
        for row in _crowds(cluster, network, payload_bytes, repeats)
    ]
    by_algorithm = sorted(rows, key=lambda row: (ALGORITHMS.index(row.algorithm), row.num_ranks))
    return StarOrRing(clusters[0][1], payload_bytes, tuple(by_algorithm))


def _crowds(cluster: Cluster, network: Links, payload_bytes: int, repeats: int) -> list[Crowd]:
    results = launch(_time_both, payload_bytes // FP32_BYTES, repeats, cluster=cluster)
    return [
        Crowd(
            algorithm,
            cluster.num_ranks,
            results[0][algorithm][1],
            expected_bytes(algorithm, payload_bytes, cluster.num_ranks),
            slowest([own[algorithm][0] for own in results]),
            expected_seconds(algorithm, payload_bytes, network),
        )
        for algorithm in ALGORITHMS
    ]


def expected_bytes(algorithm: str, payload_bytes: int, num_ranks: int) -> int:
    """Count what rank 0, the star's main rank, sends."""
    if algorithm == "star":
        return star.all_reduce_sent_bytes(payload_bytes, num_ranks, rank=0)
    return ring.all_reduce_sent_exactly(payload_bytes // FP32_BYTES, FP32_BYTES, num_ranks, rank=0)


def expected_seconds(algorithm: str, payload_bytes: int, network: Links) -> float:
    """Give the time on hosts of one rank: n - 1 payloads into the main rank's card, then n - 1 out of it."""
    formula = ring_seconds if algorithm == "ring" else star_seconds
    return formula(payload_bytes, network.hosts, network.inter)


# -- in each rank


def _time_both(num_elements: int, repeats: int) -> dict[str, tuple[list[float], int | None]]:
    """Time star and ring in turn, after a first of each that opens connections; count the last one's bytes.

    Raises RuntimeError for a wrong sum.
    """
    import torch

    from dpcourse.measure.wire import WireCounter
    from dpcourse.scratch import ring, star

    seconds: dict[str, list[float]] = {name: [] for name in ALGORITHMS}
    sent = {}
    tensor = torch.zeros(num_elements)
    for repeat in range(repeats + 1):
        for name, algorithm in (("star", star.all_reduce), ("ring", ring.all_reduce)):
            counter = WireCounter() if repeat == repeats else None
            seconds[name].append(seconds_of(algorithm, tensor))
            if counter:
                sent[name] = counter.sent_since_last()
    return {name: (own[1:], sent[name]) for name, own in seconds.items()}
