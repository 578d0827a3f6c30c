"""`plan.confirm()`: the best few strategies run on small models, prediction beside measurement.

The lists that a plan adds up are made for the small model and these ranks, and held against what the meters
of a real run report: states, buckets and gathered units to the byte, and each collective's payload.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpcourse.checks import check_count
from dpcourse.ledger import COUNTS, GATHERED_PEAK, Difference, Holding, Transfer, select, total
from dpcourse.models import GptSmall
from dpcourse.planning.candidates import Candidate
from dpcourse.planning.clock import transfers_of
from dpcourse.planning.peak import holdings_of
from dpcourse.planning.ranking import Row
from dpcourse.ranks.progress import with_progress
from dpcourse.show import Shown
from dpcourse.strategies import Setting, options_for
from dpcourse.tables import Table, bytes_text
from dpcourse.theory.recipes import RECIPES

if TYPE_CHECKING:
    from dpcourse.planning.selection import Plan
    from dpcourse.run import Run

SIZES = (
    GptSmall(width=256, depth=2),
    GptSmall(vocabulary=512, context=48, width=96, heads=6, depth=3),
    GptSmall(vocabulary=1000, context=16, width=192, heads=3, depth=2),
)
_STATES = ("parameters", "gradients", "optimizer", "buckets")
_AT_MOST, _PAYLOAD = "gathered at most", "collectives' payload"
_CAPTION = "bytes of rank 0 of small GPTs, predicted and really measured"
_COLUMNS = (
    "strategy", "parameters in all", "states", "measured", "gathered at most", "measured", "moved",
    "measured", "to the byte",
)  # fmt: skip
_NOT_SMALL = ("deepspeed", "dp")  # an extra that compiles, and no choice for more than a trial
_HYBRID_RANKS = 4  # a mesh of two by two


@dataclass(frozen=True)
class Check:
    """One number of one run. what: "parameters", ..., "gathered at the end of forward", "moved"."""

    label: str
    model: GptSmall
    what: str
    predicted: int
    measured: int

    @property
    def num_params(self) -> int:
        return self.model.layout().num_params

    @property
    def verdict(self) -> str:
        return Difference(self.what, self.measured, self.predicted).verdict


@dataclass(frozen=True, repr=False)
class Confirmation(Shown):
    """What was predicted for small models beside what real ranks held and moved: `.table()`, `.is_exact`."""

    checks: tuple[Check, ...]
    ranks: int

    @property
    def is_exact(self) -> bool:
        """Whether every number was met to the byte."""
        return all(check.predicted == check.measured for check in self.checks)

    def table(self, everything: bool = False) -> Table:
        """Lay out a line for each run, or everything: a line for each number."""
        if everything:
            columns = ["strategy", "parameters in all", "rank 0", "predicted", "measured", "verdict"]
            rows = [[c.label, c.num_params, c.what, c.predicted, c.measured, c.verdict] for c in self.checks]
            return Table(columns, rows, _CAPTION)
        runs = dict.fromkeys((check.label, check.model) for check in self.checks)
        return Table(_COLUMNS, [self._run_row(label, model) for label, model in runs], _CAPTION)

    def _run_row(self, label: str, model: GptSmall) -> list[Any]:
        checks = [check for check in self.checks if (check.label, check.model) == (label, model)]
        met = sum(check.predicted == check.measured for check in checks)
        cells: list[Any] = [label, model.layout().num_params]
        for kind in (_STATES, (_AT_MOST,), (_PAYLOAD,)):
            found = [check for check in checks if check.what in kind]
            cells += [sum(check.predicted for check in found), sum(check.measured for check in found)]
        return [*cells, f"{met} of {len(checks)}"]

    def words(self) -> str:
        """Say how many numbers were met."""
        met = sum(check.predicted == check.measured for check in self.checks)
        largest = max(check.predicted for check in self.checks)
        return (
            f"{met} of {len(self.checks)} numbers to the byte; the largest is {bytes_text(largest)}. The "
            "plan adds up the same lists at full size; activations, logits and the margin are formulas "
            "beside them."
        )

    def __str__(self) -> str:
        return f"{self.table()}\n{self.words()}"

    def to_html(self) -> str:
        return f"{self.table().to_html()}<p>{self.words()}</p>"


def confirm(plan: "Plan", num_strategies: int = 3, ranks: int = 2) -> Confirmation:
    """Run the best few of a plan's strategies on small GPTs of three sizes, each on fresh ranks.

    Hybrid sharding takes four ranks in place of two. DeepSpeed, DataParallel and offloading are left out.
    """
    check_count("num_strategies", num_strategies)
    check_count("ranks", ranks)
    chosen = _chosen(plan)[:num_strategies]
    if not chosen:
        raise ValueError(
            "none of the plan's strategies runs small on this machine; plan more cards, or ask dc.train"
        )
    pairs = [(row, model) for row in chosen for model in SIZES]
    checks = [check for row, model in with_progress(pairs) for check in checked(row, model, ranks)]
    return Confirmation(tuple(checks), ranks)


def _chosen(plan: "Plan") -> list[Row]:
    return [
        row
        for row in plan.shown
        if row.candidate.strategy not in _NOT_SMALL and not row.candidate.is_offloaded
    ]


def checked(row: Row, model: GptSmall, ranks: int) -> list[Check]:
    """Run one strategy on one small model, and compare."""
    from dpcourse.training import train

    candidate, world_size = _small(row.candidate, ranks)
    setting = _setting(candidate, row.recipe, model, world_size)
    run = train(
        candidate.strategy,
        model=model,
        ranks=world_size,
        steps=1,
        batch_size=setting.batch_size,
        recipe=row.recipe,
        device="cpu",
        **candidate.options,
    )
    held = holdings_of(candidate.strategy, setting)
    moved = transfers_of(candidate.strategy, setting)
    return [
        Check(candidate.label, model, what, predicted, measured)
        for what, predicted, measured in _numbers(held, moved, run)
        if predicted or measured
    ]


def _small(candidate: Candidate, ranks: int) -> tuple[Candidate, int]:
    """Ask the same of few ranks: a mesh of hosts becomes two by two."""
    plain = replace(candidate, checkpointing="none")
    if candidate.strategy == "single":
        return plain, 1
    if "mesh" in candidate.options:
        return replace(plain, options={**candidate.options, "mesh": (2, 2)}), _HYBRID_RANKS
    return plain, ranks


def _setting(candidate: Candidate, recipe: str, model: GptSmall, ranks: int) -> Setting:
    formats = RECIPES[recipe]
    layout = model.layout().cast(formats.parameter_dtype)
    return Setting(
        layout=layout.under_autocast() if formats.autocast_dtype else layout,
        world_size=ranks,
        batch_size=2 * ranks,
        options=options_for(candidate.strategy, candidate.options),
        recipe=formats,
    )


def _numbers(held: list[Holding], moved: list[Transfer], run: "Run") -> Iterator[tuple[str, int, int]]:
    rank = held[0].rank
    measured = select(run.memory.measured, rank=rank)
    for owner in _STATES:
        where = {"owner": owner, "phase": "backward"}
        yield owner, total(select(held, **where)), total(select(measured, **where))
    for phase, what in (("forward", "gathered at the end of forward"), (GATHERED_PEAK, _AT_MOST)):
        where = {"owner": "gathered", "phase": phase}
        yield what, total(select(held, **where)), total(select(measured, **where))
    seen = [item for item in select(run.traffic.measured, rank=0) if item.phase != "init"]
    yield _PAYLOAD, total(moved), _payload(seen)


def _payload(seen: list[Any]) -> int:
    """Add up what collectives carried, without the rows of the sockets' counters."""
    return sum(item.payload_bytes for item in seen if item.collective not in COUNTS)
