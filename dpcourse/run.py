"""What a run measured beside what was expected: data that is saved, loaded, shown and compared. No torch."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from html import escape
from pathlib import Path
from statistics import fmean, median
from typing import Any

from dpcourse.checks import check_count, read_as
from dpcourse.files import write_whole
from dpcourse.ledger import (
    COMMUNICATION,
    COMPUTATION,
    MEMORY_PHASES,
    OWNERS,
    TRAFFIC_PHASES,
    Holding,
    Moment,
    Span,
    Transfer,
)
from dpcourse.measure.cores import CoreUse
from dpcourse.parts import MemoryPart, TimelinePart, TrafficPart
from dpcourse.ranks.links import Links
from dpcourse.show import Shown, is_reference
from dpcourse.tables import Table, seconds_text

KIND, FORMAT = "dpcourse run", 4  # other files of the course have a format too
MACHINE, RECORDED_ON = "machine", "recorded on"  # what the environment of a run that is handed out says too
LANES = (COMPUTATION, COMMUNICATION)
_BUSY_SHARE = 0.25  # of the cores, in other programs' hands: from here on it is said
# Where a run's numbers come from: ranks that trained, one on tensors without contents, or none at all.
TRAINED, DRY_RUN, EXPECTED_LIST = "ranks that trained", "dry run", "expected list"
_NOTHING = {
    DRY_RUN: "nothing computed, on fake tensors and a fake process group: no times, no losses",
    EXPECTED_LIST: "nothing was run",
}


@dataclass(frozen=True)
class RankRecord:
    """What one rank measured: plain data."""

    rank: int
    losses: tuple[float | None, ...]
    step_seconds: tuple[float, ...]
    parameter_norms: Mapping[str, float]
    holdings: tuple[Holding, ...]
    transfers: tuple[Transfer, ...]
    spans: tuple[Span, ...]
    environment: Mapping[str, str]
    moments: tuple[Moment, ...]
    process: Mapping[str, int]
    cores: CoreUse | None = None
    waited_seconds: float = 0.0  # for GPUs that other runs had

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "RankRecord":
        """Read a record back from a rank's answer."""
        return read_as(cls, plain, "record")


@dataclass(frozen=True, repr=False)
class Run(Shown):
    """One training run on one or more ranks: what was asked, what was expected, what each rank measured.

    Printed, it is the numbers that sum it up. Its parts print their tables and plot themselves: `memory`
    (also `.memory.plot_over_time()`), `traffic`, `timeline` (also `.timeline.predicted(link)` and
    `.timeline.save_trace(path)`). Every figure has `.save("figure.png")`. `run.save(path)` and
    `dc.Run.load(path)` keep a run; `dc.compare([run, other])` lays runs side by side.
    """

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
    is_checkpointed: bool = False
    backend: str = "gloo"
    links: Links | None = None  # between emulated hosts; None for a machine as it is
    pace_compute: float | None = None  # seconds that each layer was given in forward
    source: str = TRAINED  # a dry run and an expected list have one rank's record, with no times and losses
    is_recorded: bool = field(default=False, compare=False)

    @property
    def memory(self) -> MemoryPart:
        """What each rank held: .measured, .expected, .table(), .plot(), .plot_over_time(), .peak_table()."""
        return MemoryPart(self)

    @property
    def traffic(self) -> TrafficPart:
        """What each rank sent, at the start and in one step: .measured, .expected, .table(), .plot()."""
        return TrafficPart(self)

    @property
    def timeline(self) -> TimelinePart:
        """When each rank computed and communicated in one step: .plot(), .predicted(link), .save_trace()."""
        return TimelinePart(self)

    @property
    def losses(self) -> list[list[float | None]]:
        """For each rank, the loss on its own share of the batch, step by step; None where it has none."""
        return [list(record.losses) for record in self.records]

    @property
    def mean_losses(self) -> list[float]:
        """The loss on the global batch, step by step: the mean over the ranks' equal shares."""
        steps = zip(*self.losses, strict=True)
        return [fmean(loss for loss in step if loss is not None) for step in steps]

    @property
    def step_seconds(self) -> list[list[float]]:
        """For each rank, how long each bare step took."""
        return [list(record.step_seconds) for record in self.records]

    @property
    def first_rank(self) -> int:
        """The rank that is shown where none is named: the first that has a record."""
        return self.records[0].rank

    @property
    def is_trained(self) -> bool:
        """Whether ranks trained, so that there are times and losses."""
        return self.source == TRAINED

    @property
    def is_measured(self) -> bool:
        """Whether anything ran at all."""
        return self.source != EXPECTED_LIST

    @property
    def environment(self) -> Mapping[str, str]:
        """What the first rank ran on."""
        return self.records[0].environment

    @property
    def title(self) -> str:
        """Say what ran, on what: "ddp (bucket_cap_mb=1): mlp on 4 ranks"."""
        options = self.options_text
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        if self.links:
            ranks = self.links.title
        if self.cards_text:
            ranks += f" {self.cards_text}"
        if self.pace_compute:
            ranks += f", layers paced to {seconds_text(self.pace_compute)}"
        recorded = " (recorded)" if self.is_recorded else ""
        if not self.is_trained:
            recorded += f" ({self.source} of rank {self.first_rank})"
        model = f"{self.model} with recomputation" if self.is_checkpointed else self.model
        return f"{self.strategy}{f' ({options})' if options else ''}: {model} on {ranks}{recorded}"

    @property
    def cards_text(self) -> str:
        """Say that its ranks shared GPUs: times are those of a card that does several ranks' work."""
        cards = {record.environment.get("card", "") for record in self.records} - {""}
        if self.backend != "staged" or not 0 < len(cards) < self.world_size:
            return ""
        return "sharing one card" if len(cards) == 1 else f"sharing {len(cards)} cards"

    @cached_property
    def options_text(self) -> str:
        from dpcourse import strategies

        return strategies.options_text(strategies.options_for(self.strategy, self.options))

    @property
    def is_blocking(self) -> bool:
        """Whether the strategy's computation waits for each of its collectives on this backend."""
        from dpcourse import strategies

        options = strategies.options_for(self.strategy, self.options)
        return strategies.find(self.strategy).is_blocking(options, self.backend)

    def facts(self) -> str:
        """Say in one line what the run was made of, and on what it ran."""
        facts = [
            f"{self.num_params:,} parameters",
            f"batch of {self.batch_size}",
            self.optimizer,
            self.recipe,
            *(["activations recomputed"] if self.is_checkpointed else []),
            *(["ring backend"] if self.backend == "ring" else []),
            *(["messages through host memory"] if self.backend == "staged" else []),
            *([str(self.links)] if self.links else []),
        ]
        if RECORDED_ON in self.environment:
            facts.append(f"recorded on {self.environment[RECORDED_ON]}: {self.environment.get(MACHINE)}")
        if not self.is_trained:
            facts.append(_NOTHING[self.source])
        elif not is_reference():
            device = self.environment["device"]
            facts += [f"{self.environment['backend']} on {device}", f"torch {self.environment['torch']}"]
            facts += [*self._company(), *self._late_layers()]
        return ", ".join(facts)

    def _late_layers(self) -> list[str]:
        """Say of the first rank that has some which layers did not keep to the pace that was asked for."""
        late = ((record.rank, record.environment.get("pace")) for record in self.records)
        return next(([f"rank {rank}: {text}"] for rank, text in late if text), [])

    @property
    def waited_seconds(self) -> float:
        """How long the run waited for GPUs that other runs had; no time of a step holds any of it."""
        return max(record.waited_seconds for record in self.records)

    @property
    def cores_of_others(self) -> float | None:
        """How many of the cores that its ranks could use other programs took, from its start to its end.

        None where nobody knows. With ranks on several machines it is too low: theirs are taken off as well.
        """
        first = self.records[0].cores
        if first is None:
            return None
        own = sum(record.cores.own_seconds for record in self.records if record.cores)
        return min(max(0.0, (first.all_seconds - own) / first.seconds), first.num_cores)

    def _company(self) -> Iterable[str]:
        """Say what makes times odd: cores that other programs had, and a queue before."""
        others, first = self.cores_of_others, self.records[0].cores
        if others is not None and first is not None and others >= _BUSY_SHARE * first.num_cores:
            yield f"a busy machine: other programs took {others:.1f} of {first.num_cores} cores"
        if self.waited_seconds >= 1:
            yield f"after {self.waited_seconds:.0f} s in the queue for GPUs"

    def headlines(self) -> Table:
        """The numbers that sum the run up, measured beside expected."""
        times = self._loss_and_time() if self.is_trained else []
        rows = [*self.memory.headlines(), *self.traffic.headlines(), *times]
        return Table(["one rank, one step", "measured", "expected", "verdict"], rows)

    def _loss_and_time(self) -> Iterable[list[Any]]:
        digits = 2 if is_reference() else 4
        first, last = self.mean_losses[0], self.mean_losses[-1]
        yield ["loss of the first step", f"{first:.{digits}f}", None, ""]
        yield [f"loss of step {len(self.mean_losses)}", f"{last:.{digits}f}", None, ""]
        if not is_reference():
            yield ["time of a bare step, no meter on", seconds_text(self.median_step_seconds), None, ""]

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

    def to_json(self) -> str:
        """Write the run as one JSON document."""
        plain = {item.name: getattr(self, item.name) for item in fields(self) if item.compare}
        for name in ("records", "expected_holdings", "expected_transfers"):
            plain[name] = [asdict(item) for item in plain[name]]
        plain["links"] = asdict(self.links) if self.links else None
        return json.dumps({"kind": KIND, "format": FORMAT, **plain})

    def save(self, path: str | Path) -> None:
        """Write the run to one JSON file, whole or not at all."""
        write_whole(Path(path), f"{self.to_json()}\n".encode())

    @classmethod
    def load(cls, path: str | Path) -> "Run":
        """Read a run from its file; it opens and plots like any other, labelled as recorded.

        Raises ValueError for a file that is no run, one of a format that this version cannot read, or one
        that is damaged.
        """
        plain = _plain_run(path)
        try:
            run = read_as(cls, plain, "run")
            _check_whole(run)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is a damaged run: {error}; save it again with run.save(path)") from None
        return replace(run, is_recorded=True)


def _plain_run(path: str | Path) -> dict[str, Any]:
    """Read a file that says it is a run of this format."""
    try:
        plain = json.loads(Path(path).read_text())
    except (ValueError, RecursionError):
        plain = None
    if not isinstance(plain, dict) or plain.pop("kind", None) != KIND:
        raise ValueError(f"{path} is not a run that was saved with run.save(path)")
    found = plain.pop("format", None)
    if type(found) is not int or found != FORMAT:
        raise ValueError(
            f"{path} has format {found!r} and this version reads {FORMAT}; run it again, or update dpcourse"
        )
    return plain


def _check_whole(run: Run) -> None:
    """Refuse a run whose parts do not fit together, or that could not be shown."""
    for name in ("world_size", "batch_size", "num_params", "parameter_bytes"):
        check_count(name, getattr(run, name))
    _check_records(run)
    _check_words(run)
    run.options_text  # noqa: B018  the strategy and its options are known


def _check_records(run: Run) -> None:
    """Refuse missing ranks, and ranks that took different numbers of steps."""
    ranks = [record.rank for record in run.records]
    is_whole = ranks == list(range(run.world_size))
    is_one = len(ranks) == 1 and 0 <= ranks[0] < run.world_size
    if not (is_whole if run.is_trained else is_one):
        raise ValueError(f"it has records of ranks {ranks}, and world_size is {run.world_size}")
    counts = {len(values) for record in run.records for values in (record.losses, record.step_seconds)}
    if len(counts) > 1 or (0 in counts) == run.is_trained:
        raise ValueError(f"its ranks have {sorted(counts)} losses and times, and each has one for each step")
    for record in run.records:
        rows: tuple[Any, ...] = (*record.holdings, *record.moments, *record.transfers, *record.spans)
        if {row.rank for row in rows} - {record.rank}:
            raise ValueError(f"the record of rank {record.rank} has rows of another rank")
        if missing := {"torch", "backend", "device"} - set(record.environment):
            raise ValueError(f"the environment of rank {record.rank} lacks {', '.join(sorted(missing))}")


def _check_words(run: Run) -> None:
    """Refuse rows with an owner, a phase or a lane that there is not."""
    holdings = [*run.memory.measured, *run.memory.expected]
    transfers = [*run.traffic.measured, *run.traffic.expected]
    spans = [span for record in run.records for span in record.spans]
    moments = [moment for record in run.records for moment in record.moments]
    _check_known([run.source], (TRAINED, *_NOTHING))
    _check_known((holding.owner for holding in holdings), OWNERS)
    _check_known((owner for moment in moments for owner in moment.num_bytes), OWNERS)
    _check_known((moment.phase for moment in moments), MEMORY_PHASES)
    _check_known((holding.phase for holding in holdings), MEMORY_PHASES)
    _check_known((transfer.phase for transfer in transfers), TRAFFIC_PHASES)
    _check_known((span.lane for span in spans), LANES)


def _check_known(words: Iterable[str], known: Iterable[str]) -> None:
    for word in set(words) - set(known):
        raise ValueError(f"a row says {word!r}, and there is {', '.join(known)}")
