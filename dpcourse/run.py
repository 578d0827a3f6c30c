"""What a run measured beside what was expected: data that is saved, loaded, shown and compared. No torch."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from html import escape
from pathlib import Path
from statistics import fmean, median
from typing import Any

from dpcourse.ledger import Holding, Span, Transfer
from dpcourse.parts import MemoryPart, TimelinePart, TrafficPart
from dpcourse.show import Shown, is_reference
from dpcourse.tables import Table, seconds_text

FORMAT = 1


@dataclass(frozen=True)
class RankRecord:
    """What one rank measured: plain data."""

    rank: int
    losses: tuple[float, ...]
    step_seconds: tuple[float, ...]
    parameter_norms: Mapping[str, float]
    holdings: tuple[Holding, ...]
    transfers: tuple[Transfer, ...]
    spans: tuple[Span, ...]
    environment: Mapping[str, str]

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "RankRecord":
        """Read a record back from JSON or from a rank's answer."""
        return cls(
            rank=plain["rank"],
            losses=tuple(plain["losses"]),
            step_seconds=tuple(plain["step_seconds"]),
            parameter_norms=plain["parameter_norms"],
            holdings=_holdings(plain["holdings"]),
            transfers=_transfers(plain["transfers"]),
            spans=tuple(Span(**item) for item in plain["spans"]),
            environment=plain["environment"],
        )


@dataclass(frozen=True, repr=False)
class Run(Shown):
    """One training run on one or more ranks: what was asked, what was expected, what each rank measured."""

    strategy: str
    options: Mapping[str, Any]
    model: str
    world_size: int
    batch_size: int
    recipe: str
    optimizer: str
    seed: int
    device: str
    num_params: int
    parameter_bytes: int
    records: tuple[RankRecord, ...]
    expected_holdings: tuple[Holding, ...]
    expected_transfers: tuple[Transfer, ...]
    is_recorded: bool = field(default=False, compare=False)

    @property
    def memory(self) -> MemoryPart:
        """What each rank held: .measured, .expected, .table(), .plot()."""
        return MemoryPart(self)

    @property
    def traffic(self) -> TrafficPart:
        """What each rank sent, at the start and in one step: .measured, .expected, .table(), .plot()."""
        return TrafficPart(self)

    @property
    def timeline(self) -> TimelinePart:
        """When each rank computed and communicated in one step: .measured, .table(), .plot()."""
        return TimelinePart(self)

    @property
    def losses(self) -> list[list[float]]:
        """For each rank, the loss on its own share of the batch, step by step."""
        return [list(record.losses) for record in self.records]

    @property
    def mean_losses(self) -> list[float]:
        """The loss on the global batch, step by step: the mean over the ranks' equal shares."""
        return [fmean(step) for step in zip(*self.losses, strict=True)]

    @property
    def step_seconds(self) -> list[list[float]]:
        """For each rank, how long each bare step took."""
        return [list(record.step_seconds) for record in self.records]

    @property
    def environment(self) -> Mapping[str, str]:
        """What rank 0 ran on."""
        return self.records[0].environment

    @property
    def title(self) -> str:
        """Say what ran, on what: "ddp (bucket_cap_mb=1) trained mlp on 4 ranks"."""
        options = self.options_text
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        recorded = " (recorded)" if self.is_recorded else ""
        return f"{self.strategy}{f' ({options})' if options else ''}: {self.model} on {ranks}{recorded}"

    @cached_property
    def options_text(self) -> str:
        from dpcourse import strategies

        return strategies.options_text(strategies.options_for(self.strategy, self.options))

    def facts(self) -> str:
        """Say in one line what the run was made of, and on what it ran."""
        facts = [
            f"{self.num_params:,} parameters",
            f"batch of {self.batch_size}",
            self.optimizer,
            self.recipe,
        ]
        if not is_reference():
            device = self.environment["device"]
            facts += [f"{self.environment['backend']} on {device}", f"torch {self.environment['torch']}"]
        return ", ".join(facts)

    def headlines(self) -> Table:
        """The numbers that sum the run up, measured beside expected."""
        rows = [*self.memory.headlines(), *self.traffic.headlines(), *self._loss_and_time()]
        return Table(["one rank, one step", "measured", "expected", "verdict"], rows)

    def _loss_and_time(self) -> Iterable[list[Any]]:
        digits = 2 if is_reference() else 4
        first, last = self.mean_losses[0], self.mean_losses[-1]
        yield ["loss of the first step", f"{first:.{digits}f}", None, ""]
        yield [f"loss of step {len(self.mean_losses)}", f"{last:.{digits}f}", None, ""]
        if not is_reference():
            yield ["time of a step", seconds_text(self.median_step_seconds), None, ""]

    @property
    def median_step_seconds(self) -> float:
        """The median over bare steps of the slowest rank's time, the first step (which warms up) left out."""
        slowest = [max(times) for times in zip(*self.step_seconds, strict=True)]
        return median(slowest[1:] or slowest)

    def __str__(self) -> str:
        return f"{self.title}\n{self.facts()}\n{self.headlines()}"

    def to_html(self) -> str:
        head = f"<strong>{escape(self.title)}</strong><br>{escape(self.facts())}"
        return f'<div style="line-height:1.5">{head}{self.headlines().to_html()}</div>'

    def save(self, path: str | Path) -> None:
        """Write the run to one JSON file."""
        plain = {item.name: getattr(self, item.name) for item in fields(self) if item.compare}
        for name in ("records", "expected_holdings", "expected_transfers"):
            plain[name] = [asdict(item) for item in plain[name]]
        Path(path).write_text(json.dumps({"format": FORMAT, **plain}) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> "Run":
        """Read a run from its file; it opens and plots like any other, labelled as recorded.

        Raises ValueError for a file that is no run, or one of a format that this version cannot read.
        """
        try:
            plain = json.loads(Path(path).read_text())
            found = plain.pop("format")
        except (ValueError, AttributeError, KeyError, TypeError):
            raise ValueError(f"{path} is not a run that was saved with run.save(path)") from None
        if found != FORMAT:
            raise ValueError(
                f"{path} has format {found} and this version reads {FORMAT}; run it again, or update dpcourse"
            )
        plain["records"] = tuple(RankRecord.from_plain(item) for item in plain["records"])
        plain["expected_holdings"] = _holdings(plain["expected_holdings"])
        plain["expected_transfers"] = _transfers(plain["expected_transfers"])
        return cls(**plain, is_recorded=True)


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """Several runs side by side: one table, one figure."""

    runs: tuple[Run, ...]

    def table(self) -> Table:
        columns = ["run", "held per parameter", "sent per parameter-byte", "collectives", "last loss"]
        rows = [_comparison_row(run) for run in self.runs]
        if is_reference():
            return Table(columns, rows)
        times = [[seconds_text(run.median_step_seconds)] for run in self.runs]
        return Table([*columns, "step"], [row + time for row, time in zip(rows, times, strict=True)])

    def plot(self) -> Any:
        from dpcourse.figures import compare_bars

        return compare_bars(self.runs)

    def __str__(self) -> str:
        return str(self.table())

    def to_html(self) -> str:
        return self.table().to_html()


def compare(runs: Iterable[Run]) -> Comparison:
    """Lay runs side by side: what a rank holds, sends and takes, and where the loss went.

    Raises ValueError for no run at all.
    """
    runs = tuple(runs)
    if not runs:
        raise ValueError("compare was given no run; give it a list of what dc.train returned")
    return Comparison(runs)


def _comparison_row(run: Run) -> list[Any]:
    sent = run.traffic.sent_per_parameter_byte()
    return [
        run.title,
        f"{run.memory.bytes_per_parameter():.2f}",
        None if sent is None else f"{sent:.2f}",
        run.traffic.num_collectives(),
        f"{run.mean_losses[-1]:.{2 if is_reference() else 4}f}",
    ]


def _holdings(items: Iterable[Mapping[str, Any]]) -> tuple[Holding, ...]:
    return tuple(Holding(**item) for item in items)


def _transfers(items: Iterable[Mapping[str, Any]]) -> tuple[Transfer, ...]:
    return tuple(Transfer(**{**item, "group": tuple(item["group"])}) for item in items)
