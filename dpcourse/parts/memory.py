"""What each rank of a run held, measured beside expected."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dpcourse.ledger import (
    MEMORY_PHASES,
    OWNERS,
    STATES,
    UNNAMED,
    Difference,
    Holding,
    Moment,
    difference,
    select,
    sums_by,
    total,
)
from dpcourse.measure.process import EXPLANATIONS
from dpcourse.parts.base import Part, texts
from dpcourse.show import is_reference
from dpcourse.tables import Table, bytes_text


class MemoryPart(Part):
    """What each rank held at the end of forward, backward and step, and at its fullest moment.

    Printed, it is rank 0's table; `table(rank)` is any rank's. `plot_over_time(rank)` draws a step from
    moment to moment, `peak_table(rank)` says how much of the peak has an owner, and `process_table(rank)`
    sets what the system says of the process beside it.
    """

    @property
    def measured(self) -> list[Holding]:
        return [holding for record in self.run.records for holding in record.holdings]

    @property
    def expected(self) -> list[Holding]:
        return list(self.run.expected_holdings)

    def differences(self, rank: int | None = None) -> list[Difference]:
        """Compare measured and expected bytes of one rank under (phase, owner), in the order of a step.

        What is "other" stands under its unit, since a part of it is expected and a part is not.
        """
        rank = self.chosen(rank)
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
            for rank in self.ranks
            for item in self.differences(rank)
        )

    def bytes_per_parameter(self, phase: str = "backward", rank: int | None = None) -> float:
        """Give the bytes of model states (buckets included) that a rank holds for each parameter."""
        rank = self.chosen(rank)
        held = self.measured if self.run.is_measured else self.expected
        return _states_bytes(held, phase, rank) / self.run.num_params

    def headlines(self) -> Iterator[list[Any]]:
        for phase, when in (("backward", "while gradients exist"), ("step", "after the step")):
            found, expected = (
                _states_bytes(held, phase, self.run.first_rank) for held in (self.measured, self.expected)
            )
            measured = found if self.run.is_measured else None
            each = [_per_parameter(value, self.run.num_params, 2) for value in (measured, expected)]
            yield [f"bytes held per parameter, {when}", *each, Difference("", measured, expected).verdict]

    def table(self, rank: int | None = None) -> Table:
        """Lay out one rank's bytes by phase and owner."""
        rank = self.chosen(rank)
        rows = [
            [*item.key, *texts(item), _per_parameter(item.measured, self.run.num_params), item.verdict]
            for item in self.differences(rank)
            if item.key[0] != "peak" or not is_reference()  # temporaries differ from machine to machine
        ]
        columns = ["end of", "owner", "measured", "expected", "bytes per parameter", "verdict"]
        return Table(columns, rows, self._caption("memory", rank))

    def plot(self) -> Any:
        """Draw what rank 0 held at the end of each phase and at the peak, by owner."""
        from dpcourse.figures import memory_bars

        return memory_bars(self)

    def plot_by_rank(self, *phases: str) -> Any:
        """Draw what each rank held at the ends of phases, by owner; none named: of backward, and the peak."""
        from dpcourse.figures import memory_by_rank

        phases = phases or ("backward", "peak")
        if unknown := [phase for phase in phases if phase not in MEMORY_PHASES]:
            raise ValueError(f"there is no phase {unknown[0]!r}; give some of {', '.join(MEMORY_PHASES)}")
        return memory_by_rank(self, phases)

    def over_time(self, rank: int | None = None) -> list[Moment]:
        """Give what a rank held from moment to moment of one step; the fullest moment is among them."""
        rank = self.chosen(rank)
        return list(self.record(rank).moments)

    def plot_over_time(self, rank: int | None = None) -> Any:
        """Draw what a rank held from moment to moment of one step, by owner, with its peak marked."""
        rank = self.chosen(rank)
        from dpcourse.figures import memory_over_time

        return memory_over_time(self, rank)

    def peak_table(self, rank: int | None = None) -> Table:
        """Lay out what a rank held at its fullest moment, by owner, and how much of it has no owner."""
        rank = self.chosen(rank)
        held = sums_by(select(self.measured, phase="peak", rank=rank), "owner")
        whole = sum(held.values())
        unnamed = total(select(self.measured, phase="peak", rank=rank, owner="other", unit=UNNAMED))
        parts = {owner: held[owner] for owner in OWNERS if owner in held}
        rows = [[owner, *_share(size, whole, self.run.num_params)] for owner, size in parts.items()]
        sums = {"in all": whole, "of which named": whole - unnamed, "of which without an owner": unnamed}
        rows += [[name, *_share(size, whole, self.run.num_params)] for name, size in sums.items()]
        columns = ["at the fullest moment", "measured", "share", "bytes per parameter"]
        return Table(columns, rows, self._caption("the peak of memory", rank))

    def process_table(self, rank: int | None = None) -> Table:
        """Lay out what the system says of a rank's process after its bare steps, beside the ledger."""
        rank = self.chosen(rank)
        ledger = total(select(self.measured, phase="step", rank=rank))
        rows: list[list[Any]] = [
            ["ledger, end of step", bytes_text(ledger), "Every storage that a tensor of this rank lies in."]
        ]
        for name, size in self.record(rank).process.items():
            rows.append([name, None if is_reference() else bytes_text(size), EXPLANATIONS.get(name, "")])
        return Table(["count", "bytes", "what it counts"], rows, self._caption("memory of the process", rank))


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


def _states_bytes(holdings: list[Holding], phase: str, rank: int) -> int:
    return sum(h.num_bytes for h in select(holdings, phase=phase, rank=rank) if h.owner in STATES)


def _per_parameter(num_bytes: float | None, num_params: int, digits: int = 3) -> str | None:
    return None if num_bytes is None else f"{num_bytes / num_params:.{digits}f}"
