"""What a rank sends in an all-reduce by star, ring and gloo, counted by the kernel as ranks are added."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dpcourse.checks import check_count
from dpcourse.experiments.base import Experiment, stable_table
from dpcourse.parts.traffic import wire_verdict
from dpcourse.ranks.launch import launch
from dpcourse.tables import Table, bytes_text
from dpcourse.theory import ring, star

ALGORITHMS = ("star", "ring", "gloo")
PAYLOAD_BYTES = 1_680_000  # of which each rank gets an equal piece, on 2 to 8 ranks
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Counted:
    """One algorithm on so many ranks: what each sent (None where no kernel counts), and should send."""

    algorithm: str
    sent_bytes: tuple[int, ...] | None
    expected_bytes: tuple[int, ...]

    @property
    def num_ranks(self) -> int:
        return len(self.expected_bytes)

    @property
    def most(self) -> float | None:
        """What the rank sent that sends most."""
        return None if self.sent_bytes is None else max(self.sent_bytes)

    @property
    def whole(self) -> float | None:
        """What all ranks sent together."""
        return None if self.sent_bytes is None else sum(self.sent_bytes)


@dataclass(frozen=True, repr=False)
class WireCounts(Experiment):
    """All-reduces of one payload on 2 ranks and more, counted on every rank's sockets."""

    payload_bytes: int
    rows: tuple[Counted, ...]

    def of(self, algorithm: str) -> list[Counted]:
        return [row for row in self.rows if row.algorithm == algorithm]

    def one(self, algorithm: str, num_ranks: int) -> Counted:
        """Give the row of an algorithm on so many ranks; ValueError where there is none."""
        for row in self.of(algorithm):
            if row.num_ranks == num_ranks:
                return row
        counts = sorted({row.num_ranks for row in self.rows})
        raise ValueError(
            f"{algorithm!r} on {num_ranks} ranks was not counted; there is {', '.join(ALGORITHMS)} on "
            f"{counts[0]} to {counts[-1]} ranks"
        )

    @property
    def title(self) -> str:
        return f"Sent in one all-reduce, in payloads of {bytes_text(self.payload_bytes)}"

    def table(self) -> Table:
        names = [
            "star's main rank",
            "a ring's rank",
            "a rank of gloo's",
            "star, all ranks",
            "ring, all ranks",
        ]
        columns = ["ranks", "2(N - 1)/N", "N - 1", "2(N - 1)", "kernel's count", *names]
        return stable_table(
            columns, map(self._row, sorted({row.num_ranks for row in self.rows})), 5, self.title
        )

    def _row(self, num_ranks: int) -> list[Any]:
        found = {name: self.one(name, num_ranks) for name in ALGORITHMS}
        formulas = [2 * (num_ranks - 1) / num_ranks, num_ranks - 1, 2 * (num_ranks - 1)]
        counts = [row.most for row in found.values()] + [found[name].whole for name in ("star", "ring")]
        return [num_ranks, *formulas, _worst(found.values()), *map(self._payloads, counts)]

    def _payloads(self, num_bytes: float | None) -> str | None:
        return None if num_bytes is None else f"{num_bytes / self.payload_bytes:.3f}"

    def words(self) -> str:
        """Say what the main rank and a ring's rank sent on the most ranks."""
        last = max(row.num_ranks for row in self.rows)
        star_main, ring_rank = (max(self.one(name, last).expected_bytes) for name in ("star", "ring"))
        return (
            f"On {last} ranks the star's main rank sends {star_main / self.payload_bytes:g} payloads and "
            f"each of a ring's {ring_rank / self.payload_bytes:g}; together all send as much either way."
        )

    def plot(self) -> Any:
        """Draw what the fullest rank sent against the number of ranks: counts solid, formulas dashed."""
        from dpcourse.figures import wire_count_curves

        return wire_count_curves(self)


def _worst(rows: Iterable[Counted]) -> str:
    """Judge all ranks of all rows: the verdict of the rank that is farthest from its formula."""
    pairs = [
        pair
        for row in rows
        if row.sent_bytes
        for pair in zip(row.sent_bytes, row.expected_bytes, strict=True)
    ]
    if not pairs:
        return wire_verdict(None, 0)
    return wire_verdict(*max(pairs, key=lambda pair: abs(pair[0] / pair[1] - 1)))


def wire_counts(most: int = 8, payload_bytes: int = PAYLOAD_BYTES) -> WireCounts:
    """All-reduce one payload on 2 ranks, on 3, and so on, and count what each rank's sockets sent.

    Args:
        most: ranks in the largest group; the smaller groups are made of the first of them.
        payload_bytes: a multiple of 4 and of each number of ranks, so that all pieces are equal.
    """
    check_count("most", most)
    _check_pieces(most, payload_bytes)
    by_rank = launch(_count_all, most, payload_bytes // _FLOAT_BYTES, ranks=most, device="cpu")
    rows = [
        Counted(
            name,
            _of_all([own.get((name, count)) for own in by_rank[:count]]),
            tuple(expected_bytes(name, payload_bytes, count, rank) for rank in range(count)),
        )
        for name in ALGORITHMS
        for count in range(2, most + 1)
    ]
    return WireCounts(payload_bytes, tuple(rows))


def _check_pieces(most: int, payload_bytes: int) -> None:
    check_count("payload_bytes", payload_bytes)
    if most < 2:
        raise ValueError(f"most={most}: one rank sends nothing; give 2 at least")
    uneven = [count for count in range(2, most + 1) if payload_bytes % (count * _FLOAT_BYTES)]
    if uneven:
        raise ValueError(
            f"payload_bytes={payload_bytes} does not cut into {uneven[0]} equal pieces of fp32 numbers; give "
            f"a multiple of 4 x each number of ranks up to {most}, such as {PAYLOAD_BYTES} for 8"
        )


def _of_all(counts: list[int | None]) -> tuple[int, ...] | None:
    known = tuple(count for count in counts if count is not None)
    return known if len(known) == len(counts) else None


def expected_bytes(algorithm: str, payload_bytes: int, num_ranks: int, rank: int) -> int:
    """Count what a rank sends; gloo's all-reduce is a ring's."""
    if algorithm == "star":
        return star.all_reduce_sent_bytes(payload_bytes, num_ranks, rank)
    return ring.all_reduce_sent_exactly(payload_bytes // _FLOAT_BYTES, _FLOAT_BYTES, num_ranks, rank)


# -- in each rank


def _count_all(most: int, num_elements: int) -> dict[tuple[str, int], int | None]:
    """Count what this rank sends in each algorithm and group that it is in."""
    import torch
    import torch.distributed as dist

    from dpcourse.scratch import ring, star

    ways: dict[str, Callable] = {"star": star.all_reduce, "ring": ring.all_reduce, "gloo": dist.all_reduce}
    tensor, found = torch.zeros(num_elements), {}
    for count in range(2, most + 1):
        group = dist.new_group(list(range(count)))
        if dist.get_rank() < count:
            for name in ALGORITHMS:
                found[name, count] = _count(ways[name], tensor, group)
    return found


def _count(all_reduce: Callable, tensor: Any, group: Any) -> int | None:
    """Count one all-reduce, after a first that opens connections."""
    import torch.distributed as dist

    from dpcourse.experiments.timing import seconds_of
    from dpcourse.measure.wire import WireCounter

    seconds_of(all_reduce, tensor, group)
    dist.barrier(group)
    counter = WireCounter()
    all_reduce(tensor, group=group)
    sent = counter.sent_since_last()
    dist.barrier(group)
    return sent
