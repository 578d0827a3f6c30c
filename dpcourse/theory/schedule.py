"""Predicted time: an expected list laid out on a clock, from what a link and the computation take.

Nothing is measured here. The result is the ledger's spans, so that `overlap` and the figure of a timeline
read a prediction as they read a measurement.
Sources: Li et al., PyTorch Distributed: experiences on accelerating data parallel training, VLDB 2020,
section 3.2 (buckets are reduced while backward goes on); Zhao et al., PyTorch FSDP, VLDB 2023, section 3.3
(gathering ahead, two units at once at most); links.py and hierarchy.py for the time of one collective.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from dpcourse.ledger import COMMUNICATION, COMPUTATION, Span, Transfer, merged, select
from dpcourse.theory.hierarchy import Machine, transfer_seconds
from dpcourse.theory.links import Link

PHASES = ("forward", "backward", "step")
GATHERED_AT_ONCE = 2
_BEFORE = ("all_gather", "broadcast", "scatter", "recv")  # computation needs what they bring
_WITH_UNITS = ("all_gather", "reduce_scatter", "all_reduce")  # each has its part of the computation


def schedule(
    transfers: Iterable[Transfer],
    compute_seconds: Mapping[str, float],
    link: Link | Machine | Callable[[Transfer], float],
    is_blocking: bool = False,
    backend: str | None = None,
) -> list[Span]:
    """Lay out one step of one rank: computation in stretches named by phase, collectives named by unit.

    A phase's computation divides over its units (buckets) by their payload. What is gathered is needed before
    its unit computes, what is reduced is there after, and one collective goes on at a time: a bucket of DDP
    starts when as large a share of backward is over as its bytes and those before it are of all gradients. A
    phase ends with the last of both lanes; the optimizer's step computes first.

    Args:
        transfers: one rank's expected list, in order; what belongs to the start ("init") is left out.
        compute_seconds: how long this rank computes in "forward", "backward" and "step".
        link: what every rank has to itself, a machine of hosts whose ranks share a card, or a function that
            gives a transfer's seconds.
        is_blocking: computation waits for every collective, as FSDP's does on gloo.
        backend: whose rounds are counted: "gloo", whose reduce-scatter is an all-reduce, "nccl" or "ring".

    Raises ValueError for the transfers of several ranks, and for a phase that there is not.
    """
    transfers = list(transfers)
    _check(transfers, compute_seconds)
    seconds_of = link if callable(link) else partial(transfer_seconds, link=link, backend=backend)
    clock = _Clock(seconds_of, is_blocking, transfers[0].rank if transfers else 0)
    for phase in PHASES:
        clock.lay_out(phase, select(transfers, phase=phase), compute_seconds.get(phase, 0.0))
    return clock.spans


def step_seconds(spans: Iterable[Span]) -> float:
    """Give the predicted time of a step: when the last of its spans ends."""
    return max((span.end_seconds for span in spans), default=0.0)


def _check(transfers: list[Transfer], compute_seconds: Mapping[str, float]) -> None:
    ranks = sorted({transfer.rank for transfer in transfers})
    if len(ranks) > 1:
        raise ValueError(
            f"a schedule was asked for the transfers of ranks {ranks}, and each rank has a clock of its own; "
            f"give it one rank's: schedule(select(transfers, rank={ranks[0]}), ...)"
        )
    if unknown := set(compute_seconds) - set(PHASES):
        raise ValueError(f"no phase is called {sorted(unknown)[0]!r}; there is {', '.join(PHASES)}")


@dataclass
class _Clock:
    """Where the two lanes of a rank stand, and the spans so far."""

    seconds_of: Callable[[Transfer], float]
    is_blocking: bool
    rank: int
    computes_until: float = 0.0
    communicates_until: float = 0.0
    spans: list[Span] = field(default_factory=list)

    def lay_out(self, phase: str, transfers: list[Transfer], seconds: float) -> None:
        self._meet()
        pieces: list[tuple[float, float]] = []  # of computation
        there: dict[str, float] = {}  # when a unit's gather is over
        for event, share in _events(phase, transfers):
            if isinstance(event, Transfer):
                self._communicate(event, pieces, there)
            else:
                start = max(self.computes_until, there.get(event, 0.0))
                self.computes_until = start + share * seconds
                pieces.append((start, self.computes_until))
                if event == phase:  # computed as a whole: what comes after it waits for it
                    self._meet()
        stretches = [stretch for stretch in merged(pieces) if stretch[0] < stretch[1]]
        self.spans += [Span(COMPUTATION, phase, start, end, self.rank) for start, end in stretches]
        self._meet()

    def _communicate(
        self, transfer: Transfer, pieces: list[tuple[float, float]], there: dict[str, float]
    ) -> None:
        start = self.communicates_until
        if self.is_blocking or transfer.collective not in _BEFORE:
            start = max(start, self.computes_until)
        elif transfer.collective == "all_gather" and len(there) >= GATHERED_AT_ONCE:
            computed = len(there) - GATHERED_AT_ONCE  # the unit that has to be freed first
            start = max(start, pieces[computed][1] if computed < len(pieces) else self.computes_until)
        self.communicates_until = start + self.seconds_of(transfer)
        if self.communicates_until > start:
            span = Span(COMMUNICATION, transfer.unit, start, self.communicates_until, self.rank)
            self.spans.append(span)
        if transfer.collective == "all_gather":
            there[transfer.unit] = self.communicates_until
        if self.is_blocking or transfer.collective in _BEFORE[1:]:
            self.computes_until = max(self.computes_until, self.communicates_until)

    def _meet(self) -> None:
        self.computes_until = self.communicates_until = max(self.computes_until, self.communicates_until)


def _events(phase: str, transfers: list[Transfer]) -> Iterator[tuple[Transfer | str, float]]:
    """A phase in order: its transfers, and each unit's computation with its share.

    A unit computes just before its first reduction, or where there is none just after its gather; where no
    collective has a unit, all is computed after what has to be there before.
    """
    shares = {} if phase == "step" else _shares(transfers)
    if not shares:
        before = [t for t in transfers if phase != "step" and t.collective in _BEFORE]
        yield from ((transfer, 0.0) for transfer in before)
        yield phase, 1.0
        yield from ((transfer, 0.0) for transfer in transfers if transfer not in before)
        return
    reduced = {t.unit for t in transfers if t.collective not in _BEFORE}
    for transfer in transfers:
        is_gathered = transfer.collective in _BEFORE
        if not is_gathered and transfer.unit in shares:
            yield transfer.unit, shares.pop(transfer.unit)
        yield transfer, 0.0
        if is_gathered and transfer.unit in shares and transfer.unit not in reduced:
            yield transfer.unit, shares.pop(transfer.unit)


def _shares(transfers: list[Transfer]) -> dict[str, float]:
    """Divide a phase's computation over its units, by the largest payload that each has there."""
    sizes: dict[str, int] = {}
    for transfer in transfers:
        if transfer.collective in _WITH_UNITS:
            sizes[transfer.unit] = max(sizes.get(transfer.unit, 0), transfer.payload_bytes)
    whole = sum(sizes.values())
    return {unit: size / whole for unit, size in sizes.items()} if whole else {}
