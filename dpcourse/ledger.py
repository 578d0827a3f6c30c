"""The vocabulary of the course: bytes a rank holds, collectives it takes part in, spans of its time.

A meter reports lists of these and a strategy declares lists of these, so that what was measured and what was
expected are twins by type. Everything else sums, groups and compares such lists.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

OWNERS = ("parameters", "gradients", "optimizer", "buckets", "gathered", "activations", "other")
STATES = ("parameters", "gradients", "optimizer", "buckets")  # what a rank holds between passes
UNNAMED = "without an owner"  # the unit of what is "other" and that nobody can name
GATHERED_PEAK = "peak of gathered"  # the moment with most gathered bytes; not always the fullest moment
REDUCE_BUFFER = ("buckets", "reduce buffer")  # owner and unit of what a reduce-scatter reads or fills
WHOLE_GRADIENT = ("gradients", "whole, before reduce-scatter")
MEMORY_PHASES = ("forward", "backward", "step", "peak", GATHERED_PEAK)
TRAFFIC_PHASES = ("init", "forward", "backward", "step")
COMPUTATION, COMMUNICATION = "computation", "communication"
KERNEL_COUNT = "kernel count"  # the collective of a row that holds what the kernel's socket counters say
LINK_COUNT = "link count"  # the same of a GPU's NVLink and PCIe counters
HOST_COUNT = "host count"  # what a rank sent, divided by whether it went to another host
CARD_COUNT = "card count"  # what a host's card and its loopback sent in a whole step, all of its ranks
BETWEEN_HOSTS, INSIDE_HOSTS = "between hosts", "inside hosts"  # units of the last two
COUNTS = (KERNEL_COUNT, LINK_COUNT, HOST_COUNT, CARD_COUNT)


@dataclass(frozen=True)
class Holding:
    """Bytes that one rank holds for one owner at the end of a phase ("peak": at the fullest moment)."""

    owner: str
    unit: str
    num_bytes: int
    phase: str
    rank: int = 0


@dataclass(frozen=True)
class Transfer:
    """One collective as one rank sees it.

    payload_bytes is the whole tensor's size: what is reduced or broadcast, the result of an all-gather, the
    input of a reduce-scatter. sent_bytes is what the rank puts on the wire for it, None where nobody knows.
    """

    collective: str
    unit: str
    group: tuple[int, ...]
    payload_bytes: int
    sent_bytes: float | None
    phase: str
    rank: int = 0


@dataclass(frozen=True)
class Span:
    """A stretch of one rank's time, in the "computation" or the "communication" lane."""

    lane: str
    name: str
    start_seconds: float
    end_seconds: float
    rank: int = 0

    @property
    def seconds(self) -> float:
        return self.end_seconds - self.start_seconds


@dataclass(frozen=True)
class Moment:
    """What one rank held at a moment of its step: bytes by owner, in seconds since the step began."""

    seconds: float
    phase: str
    num_bytes: Mapping[str, int]
    rank: int = 0

    @property
    def total_bytes(self) -> int:
        return sum(self.num_bytes.values())


Item = TypeVar("Item", Holding, Transfer, Span)
_DEFAULT_FIELD = {Holding: "num_bytes", Transfer: "payload_bytes", Span: "seconds"}


def select(items: Iterable[Item], **where: Any) -> list[Item]:
    """Keep the items whose fields have these values: `select(holdings, owner="gradients", rank=0)`."""
    return [item for item in items if all(getattr(item, key) == value for key, value in where.items())]


def total(items: Iterable[Item], field: str | None = None, **where: Any) -> Any:
    """Add up one field of the items that match.

    field: by default num_bytes of holdings, payload_bytes of transfers, seconds of spans. Unknown values
    (None) do not count, and a sum of nothing is 0.
    """
    values = (getattr(item, field or _DEFAULT_FIELD[type(item)]) for item in select(items, **where))
    return sum(value for value in values if value is not None)


def group_by(items: Iterable[Item], *keys: str) -> dict[Any, list[Item]]:
    """Sort items into lists by the values of fields: one key gives plain values, several give tuples."""
    groups: dict[Any, list[Item]] = {}
    for item in items:
        groups.setdefault(_key_of(item, keys), []).append(item)
    return groups


def sums_by(items: Iterable[Item], *keys: str, field: str | None = None) -> dict[Any, Any]:
    """Add up one field for each value of the keys, in the order of first appearance."""
    return {key: total(group, field) for key, group in group_by(items, *keys).items()}


def _key_of(item: Any, keys: Sequence[str]) -> Any:
    values = tuple(getattr(item, key) for key in keys)
    return values[0] if len(values) == 1 else values


@dataclass(frozen=True)
class Difference:
    """What was measured under one key beside what was expected; None where a list has no such key."""

    key: Any
    measured: float | None
    expected: float | None

    @property
    def delta(self) -> float:
        return (self.measured or 0) - (self.expected or 0)

    @property
    def is_exact(self) -> bool:
        return self.delta == 0

    @property
    def verdict(self) -> str:
        """Say "exact", how far off in percent, or which of the two is missing."""
        if self.expected is None:
            return "not predicted"
        if self.is_exact:
            return "exact"
        if self.measured is None:
            return "not seen"
        return "expected none" if self.expected == 0 else f"{self.delta / self.expected:+.2%}"


def difference(
    measured: Iterable[Item], expected: Iterable[Item], by: Sequence[str], field: str | None = None
) -> list[Difference]:
    """Compare two lists, summed under the same keys: one Difference a key, expected keys first."""
    left: dict[Any, Any] = sums_by(measured, *by, field=field)
    right: dict[Any, Any] = sums_by(expected, *by, field=field)
    keys = [*right, *(key for key in left if key not in right)]
    return [Difference(key, left.get(key), right.get(key)) for key in keys]


@dataclass(frozen=True)
class Overlap:
    """How one rank's computation and communication share its time, in seconds."""

    active_seconds: float
    computation_seconds: float
    communication_seconds: float
    overlap_seconds: float

    @property
    def hidden_share(self) -> float:
        """The part of the communication during which the rank also computed: 1.0 hides all of it."""
        return self.overlap_seconds / self.communication_seconds if self.communication_seconds else 0.0


def overlap(spans: Iterable[Span]) -> Overlap:
    """Measure how much of one rank's communication its computation hides; nothing is counted twice."""
    spans = list(spans)
    ranks = sorted({span.rank for span in spans})
    if len(ranks) > 1:
        raise ValueError(
            f"overlap was asked for the spans of ranks {ranks}, but one rank does not hide another's "
            f"communication; give it one rank's spans: overlap(select(spans, rank={ranks[0]}))"
        )
    computation = merged((span.start_seconds, span.end_seconds) for span in select(spans, lane=COMPUTATION))
    communication = merged(
        (span.start_seconds, span.end_seconds) for span in select(spans, lane=COMMUNICATION)
    )
    active = _length(merged([*computation, *communication]))
    both = _length(computation) + _length(communication) - active
    return Overlap(active, _length(computation), _length(communication), both)


def side_by_side(spans: Iterable[Span]) -> list[list[Span]]:
    """Share spans out over as few rows as it takes for none to lie on another, in order of start."""
    rows: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: span.start_seconds):
        free = (row for row in rows if row[-1].end_seconds <= span.start_seconds)
        row = next(free, None)
        if row is None:
            rows.append(row := [])
        row.append(span)
    return rows


def merged(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Unite intervals that touch or overlap, in order of time."""
    united: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if united and start <= united[-1][1]:
            united[-1] = (united[-1][0], max(end, united[-1][1]))
        else:
            united.append((start, end))
    return united


def _length(intervals: Iterable[tuple[float, float]]) -> float:
    return sum(end - start for start, end in intervals)
