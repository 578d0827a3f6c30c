"""The three parts of a Run: memory, traffic and timeline, each measured beside expected."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpcourse.ledger import (
    COMMUNICATION,
    COMPUTATION,
    KERNEL_COUNT,
    MEMORY_PHASES,
    OWNERS,
    STATES,
    TRAFFIC_PHASES,
    UNNAMED,
    Difference,
    Holding,
    Moment,
    Overlap,
    Span,
    Transfer,
    difference,
    group_by,
    overlap,
    select,
    sums_by,
    total,
)
from dpcourse.measure.process import EXPLANATIONS
from dpcourse.measure.trace import chrome_trace
from dpcourse.show import Shown, is_reference
from dpcourse.tables import Table, bytes_text, seconds_text
from dpcourse.theory.links import Link
from dpcourse.theory.schedule import schedule

if TYPE_CHECKING:
    from dpcourse.run import Run

# What the kernel counts beyond a formula are the backend's headers: a share of a large message, and more than
# half of a small one.
HEADER_SHARE, HEADER_BYTES = 0.005, 2000


class Part(Shown):
    """One part of a run; it shows its table."""

    def __init__(self, run: "Run") -> None:
        self.run = run

    def table(self) -> Table:
        raise NotImplementedError

    def __str__(self) -> str:
        return str(self.table())

    def to_html(self) -> str:
        return self.table().to_html()

    def _caption(self, what: str, rank: int) -> str:
        return f"{what} of rank {rank} of {self.run.world_size}: {self.run.title}"


class MemoryPart(Part):
    """What each rank held at the end of forward, backward and step, and at its fullest moment."""

    @property
    def measured(self) -> list[Holding]:
        return [holding for record in self.run.records for holding in record.holdings]

    @property
    def expected(self) -> list[Holding]:
        return list(self.run.expected_holdings)

    def differences(self, rank: int = 0) -> list[Difference]:
        """Compare measured and expected bytes of one rank under (phase, owner), in the order of a step.

        What is "other" stands under its unit, since a part of it is expected and a part is not.
        """
        measured = [_with_other_named(holding) for holding in select(self.measured, rank=rank)]
        expected = [_with_other_named(holding) for holding in select(self.expected, rank=rank)]
        return sorted(difference(measured, expected, ["phase", "owner"]), key=_place_in_step)

    def is_exact(self) -> bool:
        """Tell whether every rank held what was expected at the end of each phase, to the byte.

        What nobody predicts does not count against it: the fullest moment, activations of an unknown model,
        what is without an owner.
        """
        return all(
            item.is_exact if item.expected is not None else not _is_unexpected(item)
            for rank in range(self.run.world_size)
            for item in self.differences(rank)
        )

    def bytes_per_parameter(self, phase: str = "backward", rank: int = 0) -> float:
        """Give the bytes of model states (buckets included) that a rank holds for each parameter."""
        return _states_bytes(self.measured, phase, rank) / self.run.num_params

    def headlines(self) -> Iterator[list[Any]]:
        for phase, when in (("backward", "while gradients exist"), ("step", "after the step")):
            measured = _states_bytes(self.measured, phase, 0)
            expected = _states_bytes(self.expected, phase, 0)
            texts = [f"{value / self.run.num_params:.2f}" for value in (measured, expected)]
            yield [f"bytes held per parameter, {when}", *texts, Difference("", measured, expected).verdict]

    def table(self, rank: int = 0) -> Table:
        """Lay out one rank's bytes by phase and owner."""
        rows = [
            [*item.key, *_texts(item), _per_parameter(item.measured, self.run.num_params), item.verdict]
            for item in self.differences(rank)
            if item.key[0] != "peak" or not is_reference()  # temporaries differ from machine to machine
        ]
        columns = ["end of", "owner", "measured", "expected", "bytes per parameter", "verdict"]
        return Table(columns, rows, self._caption("memory", rank))

    def plot(self) -> Any:
        from dpcourse.figures import memory_bars

        return memory_bars(self)

    def over_time(self, rank: int = 0) -> list[Moment]:
        """Give what a rank held from moment to moment of one step; the fullest moment is among them."""
        return list(self.run.records[rank].moments)

    def plot_over_time(self, rank: int = 0) -> Any:
        from dpcourse.figures import memory_over_time

        return memory_over_time(self, rank)

    def peak_table(self, rank: int = 0) -> Table:
        """Lay out what a rank held at its fullest moment, by owner, and how much of it has no owner."""
        held = sums_by(select(self.measured, phase="peak", rank=rank), "owner")
        whole = sum(held.values())
        unnamed = total(select(self.measured, phase="peak", rank=rank, owner="other", unit=UNNAMED))
        parts = {owner: held[owner] for owner in OWNERS if owner in held}
        rows = [[owner, *_share(size, whole, self.run.num_params)] for owner, size in parts.items()]
        sums = {"in all": whole, "of which named": whole - unnamed, "of which without an owner": unnamed}
        rows += [[name, *_share(size, whole, self.run.num_params)] for name, size in sums.items()]
        columns = ["at the fullest moment", "measured", "share", "bytes per parameter"]
        return Table(columns, rows, self._caption("the peak of memory", rank))

    def process_table(self, rank: int = 0) -> Table:
        """Lay out what the system says of a rank's process after its bare steps, beside the ledger."""
        ledger = total(select(self.measured, phase="step", rank=rank))
        rows: list[list[Any]] = [
            ["ledger, end of step", bytes_text(ledger), "Every storage that a tensor of this rank lies in."]
        ]
        for name, size in self.run.records[rank].process.items():
            rows.append([name, None if is_reference() else bytes_text(size), EXPLANATIONS.get(name, "")])
        return Table(["count", "bytes", "what it counts"], rows, self._caption("memory of the process", rank))


class TrafficPart(Part):
    """The collectives of the start and of one step, and what the kernel counted on each rank's sockets."""

    @property
    def measured(self) -> list[Transfer]:
        return [transfer for record in self.run.records for transfer in record.transfers]

    @property
    def expected(self) -> list[Transfer]:
        return list(self.run.expected_transfers)

    def num_collectives(self, rank: int = 0) -> int:
        """Count the collectives of one step."""
        return len([t for t in _collectives(self.measured, rank) if t.phase != "init"])

    def payload_bytes(self, rank: int = 0) -> int:
        """Add up the payload of one step's collectives."""
        return sum(t.payload_bytes for t in _collectives(self.measured, rank) if t.phase != "init")

    def sent_bytes(self, rank: int = 0) -> float | None:
        """Give what the kernel counted on a rank's sockets in one step; None where it does not count."""
        counted = select(self.measured, collective=KERNEL_COUNT, rank=rank)
        if not counted and self.run.world_size > 1:
            return None
        return sum(t.sent_bytes or 0 for t in counted if t.phase != "init")

    def expected_sent_bytes(self, rank: int = 0) -> float:
        """Add up what the formulas say a rank sends in one step."""
        return sum(t.sent_bytes or 0 for t in select(self.expected, rank=rank) if t.phase != "init")

    def sent_per_parameter_byte(self, rank: int = 0) -> float | None:
        """Give the bytes a rank sends in one step for each byte of the model's parameters."""
        sent = self.sent_bytes(rank)
        return None if sent is None else sent / self.run.parameter_bytes

    def is_exact(self) -> bool:
        """Tell whether the recorder saw on every rank the collectives that were expected, to the byte."""
        keys = ["rank", "phase", "collective", "unit"]
        measured = [t for t in self.measured if t.collective != KERNEL_COUNT]
        return all(item.is_exact for item in difference(measured, self.expected, keys))

    def headlines(self) -> Iterator[list[Any]]:
        payload = sum(t.payload_bytes for t in select(self.expected, rank=0) if t.phase != "init")
        if payload or self.payload_bytes():
            item = Difference("", self.payload_bytes(), payload)
            yield ["payload of its collectives", *_texts(item), item.verdict]
        sent, formula = self.sent_bytes(), self.expected_sent_bytes()
        size = self.run.parameter_bytes
        texts = [None if value is None else f"{value / size:.2f}" for value in (sent, formula)]
        yield ["bytes sent per parameter-byte", *texts, wire_verdict(sent, formula)]

    def table(self, rank: int = 0) -> Table:
        """Lay out one rank's collectives as recorded, and below each phase what the kernel counted."""
        rows = [
            row
            for phase in TRAFFIC_PHASES
            for row in [*self._recorded(phase, rank), *self._counted(phase, rank)]
        ]
        columns = ["phase", "collective", "unit", "measured", "expected", "verdict"]
        return Table(columns, rows, self._caption("traffic", rank))

    def _recorded(self, phase: str, rank: int) -> Iterator[list[Any]]:
        measured = [t for t in _collectives(self.measured, rank) if t.phase == phase]
        expected = select(self.expected, rank=rank, phase=phase)
        for item in difference(measured, expected, ["collective", "unit"]):
            yield [phase, *item.key, *_texts(item), item.verdict]

    def _counted(self, phase: str, rank: int) -> Iterator[list[Any]]:
        counted = select(self.measured, collective=KERNEL_COUNT, rank=rank, phase=phase)
        formula = total(select(self.expected, rank=rank, phase=phase), "sent_bytes")
        for transfer in counted if formula else []:
            sent = None if is_reference() else bytes_text(transfer.sent_bytes or 0)  # headers may differ
            verdict = wire_verdict(transfer.sent_bytes, formula)
            yield [phase, "sent on the wire", "kernel count", sent, bytes_text(formula), verdict]

    def plot(self) -> Any:
        from dpcourse.figures import traffic_bars

        return traffic_bars(self)


class TimelinePart(Part):
    """When each rank computed and when its collectives were under way, in one step of their own."""

    @property
    def measured(self) -> list[Span]:
        """All ranks' spans; zero is where the first rank began."""
        spans = [span for record in self.run.records for span in record.spans]
        start = min((span.start_seconds for span in spans), default=0.0)
        return [
            Span(span.lane, span.name, span.start_seconds - start, span.end_seconds - start, span.rank)
            for span in spans
        ]

    @property
    def expected(self) -> list[Span]:
        """No time is expected of a machine that nobody knows: `predicted` takes a link that you name."""
        return []

    def predicted(self, link: Link, rank: int = 0) -> list[Span]:
        """Predict a rank's step on a link: its expected list as a schedule, its computation as measured here.

        `Link(latency_seconds, bytes_per_second)` is in dpcourse.theory.links.
        """
        transfers = [item for item in select(self.run.expected_transfers, rank=rank) if item.phase != "init"]
        computed = select(self.measured, rank=rank, lane=COMPUTATION)
        seconds = {
            phase: overlap(spans).computation_seconds for phase, spans in group_by(computed, "name").items()
        }
        return schedule(transfers, seconds, link, self.run.is_blocking)

    def overlap(self, rank: int = 0) -> Overlap:
        """Tell how a rank's computation and communication share its step, and how much is hidden."""
        return overlap(select(self.measured, rank=rank))

    def table(self) -> Table:
        """Lay out how each rank's step divides; the reference configuration shows counts and no times."""
        rows = [self._row(record.rank) for record in self.run.records]
        columns = ["rank", "collectives", "computing", "communicating", "at once", "hidden"]
        is_short = is_reference()
        return Table(
            columns[:2] if is_short else columns,
            [row[:2] if is_short else row for row in rows],
            f"one step: {self.run.title}",
        )

    def _row(self, rank: int) -> list[Any]:
        found = self.overlap(rank)
        seconds = (found.computation_seconds, found.communication_seconds, found.overlap_seconds)
        hidden = f"{100 * found.hidden_share:.0f} %" if found.communication_seconds else None
        num_collectives = len(select(self.measured, rank=rank, lane=COMMUNICATION))
        return [rank, num_collectives, *map(seconds_text, seconds), hidden]

    def plot(self) -> Any:
        from dpcourse.figures import timeline_lanes

        return timeline_lanes(self)

    def save_trace(self, path: str | Path) -> None:
        """Write the spans to a JSON file that https://ui.perfetto.dev and chrome://tracing open."""
        Path(path).write_text(json.dumps(chrome_trace(self.measured)) + "\n")


def wire_verdict(sent: float | None, formula: float) -> str:
    """Judge a kernel count by a formula: headers come on top, so that it is a little more, never "exact"."""
    if sent is None:
        return "no kernel count here"
    if sent == formula:
        return "exact"
    if not is_reference():
        return f"{sent / formula - 1:+.2%}" if formula else "expected none"
    is_near = abs(sent - formula) <= max(HEADER_SHARE * formula, HEADER_BYTES)
    return "formula and headers" if is_near else "off"


def _share(size: int, whole: int, num_params: int) -> list[str]:
    return [bytes_text(size), f"{100 * size / max(whole, 1):.1f} %", f"{size / num_params:.3f}"]


def _with_other_named(holding: Holding) -> Holding:
    is_other = holding.owner == "other"
    return replace(holding, owner=f"other: {holding.unit}") if is_other else holding


def _is_unexpected(item: Difference) -> bool:
    """Tell whether bytes lie where an owner was expected to have none."""
    phase, owner = item.key
    return phase in ("forward", "backward", "step") and owner in (*STATES, "gathered")


def _place_in_step(item: Difference) -> tuple[int, int]:
    phase, owner = item.key
    return MEMORY_PHASES.index(phase), OWNERS.index(owner.split(":")[0])


def _collectives(transfers: list[Transfer], rank: int) -> list[Transfer]:
    return [t for t in select(transfers, rank=rank) if t.collective != KERNEL_COUNT]


def _states_bytes(holdings: list[Holding], phase: str, rank: int) -> int:
    return sum(h.num_bytes for h in select(holdings, phase=phase, rank=rank) if h.owner in STATES)


def _texts(item: Difference) -> list[str | None]:
    return [None if value is None else bytes_text(value) for value in (item.measured, item.expected)]


def _per_parameter(num_bytes: float | None, num_params: int) -> str | None:
    return None if num_bytes is None else f"{num_bytes / num_params:.3f}"
