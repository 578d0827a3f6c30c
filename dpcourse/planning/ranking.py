"""Rank candidates: which fit, which of those are as quick as the quickest, and which is least work."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpcourse.planning.candidates import EFFORTS, Candidate
from dpcourse.planning.clock import StepTime
from dpcourse.planning.decision import (
    DDP,
    FULL,
    HYBRID,
    KEPT,
    OFFLOAD,
    RECOMPUTED,
    SINGLE,
    TIE,
    Facts,
)
from dpcourse.planning.peak import Held, Memory
from dpcourse.tables import bytes_text, seconds_text

# Of what is equally quick the first is best: whole copies before shards, shards within hosts before shards
# across them, and recomputation last.
PREFERENCE = (
    SINGLE, SINGLE + RECOMPUTED, DDP, DDP + RECOMPUTED, HYBRID, KEPT, FULL,
    HYBRID + RECOMPUTED, KEPT + RECOMPUTED, FULL + RECOMPUTED, OFFLOAD,
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One candidate judged: peak, bytes moved, time, effort, the number that decides, and why.

    recipe: the one it was counted with. is_alone: a single card of several.
    """

    candidate: Candidate
    recipe: str
    memory: Memory
    time: StepTime
    capacity_bytes: int
    is_alone: bool = False
    number: str = ""
    reason: str = ""

    @property
    def label(self) -> str:
        return self.candidate.label

    @property
    def peak(self) -> Held:
        """The fullest moment, margin included."""
        return self.memory.fullest

    @property
    def peak_bytes(self) -> int:
        return self.peak.total_bytes

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.capacity_bytes

    @property
    def effort(self) -> str:
        return EFFORTS[self.candidate.effort]

    def to_dict(self) -> dict[str, Any]:
        """Give plain data, as JSON has it."""
        return {
            "strategy": self.candidate.strategy,
            "options": dict(self.candidate.options),
            "checkpointing": self.candidate.checkpointing,
            "recipe": self.recipe,
            "label": self.label,
            "fits": self.fits,
            "peak_bytes": self.peak_bytes,
            "peak_moment": self.peak.moment,
            "peak_parts": dict(self.peak.num_bytes),
            "start_bytes": self.memory.start_bytes,
            "start_on_meta_bytes": self.memory.start_on_meta_bytes,
            "saving_bytes": self.memory.saving_bytes,
            "sharded_saving_bytes": self.memory.sharded_saving_bytes,
            "host_bytes": self.memory.host_bytes,
            "sent_bytes": self.time.sent_bytes,
            "sent_between_hosts_bytes": self.time.card_bytes,
            "num_collectives": self.time.num_collectives,
            "step_seconds": self.time.seconds,
            "compute_seconds": self.time.compute_seconds,
            "effort": self.effort,
            "number": self.number,
            "reason": self.reason,
        }


def smallest_of(rows: Sequence[Row]) -> dict[str, Row]:
    """Give for each name of the table of decisions the row that holds least."""
    found: dict[str, Row] = {}
    for row in rows:
        key = row.candidate.key
        if key is not None and (key not in found or row.peak_bytes < found[key].peak_bytes):
            found[key] = row
    return found


def facts_of(
    rows: Sequence[Row], num_gpus: int, num_hosts: int, capacity_bytes: int, layer_bytes: int
) -> Facts:
    """Gather the numbers by which the table of decisions is settled; of two rows of one name the smaller."""
    smallest = smallest_of(rows)
    peaks = {key: row.peak_bytes for key, row in smallest.items()}
    seconds = {key: row.time.seconds for key, row in smallest.items()}
    return Facts(num_gpus, num_hosts, capacity_bytes, layer_bytes, peaks, seconds)


def ranked(rows: Sequence[Row], facts: Facts) -> list[Row]:
    """Sort rows: what the table chooses from and is as quick as the quickest, then the rest that fits.

    Equals stay in the order in which they came.
    """
    return sorted(rows, key=lambda row: _place(row, facts))


def _place(row: Row, facts: Facts) -> tuple[float, ...]:
    key, effort = row.candidate.key, row.candidate.effort
    if not row.fits:
        return 5, row.peak_bytes, 0
    group = _group(row, facts)
    preference = PREFERENCE.index(key) if group == 0 and key else 0
    return group, preference, effort if group < 2 else row.time.seconds


def _group(row: Row, facts: Facts) -> int:
    """0: good and in the table, 1: good, 2: fits and is slower, 3: alone, 4: offloaded."""
    if row.is_alone or row.candidate.is_offloaded:
        return 3 if row.is_alone else 4
    if not is_good(row, facts):
        return 2
    return 0 if row.candidate.key else 1


def is_good(row: Row, facts: Facts) -> bool:
    """Tell whether a row fits and is as quick as the quickest that does."""
    return row.fits and row.time.seconds <= (1 + TIE) * facts.quickest()


def number_and_reason(row: Row, best: Row | None, facts: Facts) -> tuple[str, str]:
    """Say what decides about a row, and why in a sentence."""
    capacity = bytes_text(row.capacity_bytes)
    if not row.fits:
        over, (part, size) = bytes_text(row.peak_bytes - row.capacity_bytes), _largest(row.peak.num_bytes)
        reason = (
            f"{over} over a card at the {_named(row.peak.moment)}; most of it is {part}, {bytes_text(size)}"
        )
        return f"{bytes_text(row.peak_bytes)} of {capacity}", reason
    spare = f"{bytes_text(row.capacity_bytes - row.peak_bytes)} to spare"
    if row is best:
        return f"{bytes_text(row.peak_bytes)} of {capacity}", f"fits with {spare}; {_why_best(row)}"
    if row.is_alone:
        return "1 card", "fits one card, which sees one share of the samples and leaves the others idle"
    number = seconds_text(row.time.seconds)
    if is_good(row, facts) and best is not None:
        return number, f"fits with {spare} and is as quick, but {_but(row, best)}"
    quickest = facts.quickest()
    if quickest == float("inf") or row.candidate.is_offloaded:
        return number, f"fits with {spare}; the update waits for host memory"
    return (
        number,
        f"fits with {spare}; a step takes {row.time.seconds / quickest - 1:.0%} longer: {_slow(row)}",
    )


def _why_best(row: Row) -> str:
    if row.candidate.is_offloaded:
        return "nothing else does, and every step waits for host memory"
    return f"nothing that fits is over {TIE:.0%} quicker with less work"


def _but(row: Row, best: Row) -> str:
    if row.candidate.effort > best.candidate.effort:
        return f"more work to set up: {row.effort}"
    if row.time.sent_bytes > 1.01 * best.time.sent_bytes:
        return f"sends {bytes_text(row.time.sent_bytes)} against {bytes_text(best.time.sent_bytes)}"
    if row.candidate.checkpointing != best.candidate.checkpointing:
        return "computes blocks twice where there is room"
    return f"nothing is gained over {best.label}"


def _slow(row: Row) -> str:
    exposed = row.time.seconds - row.time.compute_seconds
    if row.candidate.checkpointing != "none" and exposed < 0.1 * row.time.seconds:
        return "blocks are computed twice"
    return f"{seconds_text(exposed)} of communication that computation does not hide"


def _largest(parts: Mapping[str, int]) -> tuple[str, int]:
    part = max(parts, key=lambda name: parts[name])
    return part, parts[part]


def _named(moment: str) -> str:
    return {"backward begins": "beginning of backward", "backward ends": "end of backward"}.get(
        moment, moment
    )
