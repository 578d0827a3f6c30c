"""Two written rules for choosing, as trees to walk, and what the ledgers say of where they lead.

The chapter's tree (chapter 4.1, section 9) asks whether the model's states fit a card, whether there are
several hosts, and how much is short. Its question about one layer that is too large comes first here, since
every way through the original ends at it. The article's list (sections 4.4, 5.2, 6.2 and 6.3) recomputes
before it shards, and shards fully first.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from dpcourse.planning.decision import (
    DDP,
    FULL,
    HYBRID,
    KEPT,
    OFFLOAD,
    RECOMPUTED,
    SINGLE,
    TIE,
    Answer,
    Facts,
    Path,
    Question,
    compared,
    counted,
    walk,
)
from dpcourse.planning.ranking import Row, smallest_of
from dpcourse.planning.selection import Plan
from dpcourse.show import Shown
from dpcourse.tables import Table, bytes_text

NAMES = {SINGLE: "single", DDP: "DDP", KEPT: "shards, kept", FULL: "shards", HYBRID: "hybrid"}
NAMES |= {OFFLOAD: "offload"}

CHAPTER = Question(
    "states",
    "Do the model's states fit a card?",
    Answer("thumb-ddp", "DDP: simple, and moves least", DDP),
    Question(
        "layer",
        "Does the largest unit alone fit a card?",
        Question(
            "hosts",
            "Are there several hosts?",
            Answer("thumb-hybrid", "HYBRID_SHARD: shards inside a host, copies between hosts", HYBRID),
            Question(
                "kept",
                "Is only a little short?",
                Answer("thumb-kept", "SHARD_GRAD_OP: gradients and states in shards", KEPT),
                Answer("thumb-full", "FULL_SHARD: everything in shards", FULL),
            ),
        ),
        Answer("thumb-more", "Tensor or pipeline parallelism on top"),
    ),
)
ARTICLE = Question(
    "whole",
    "Does the model fit a card?",
    Answer("thumb-ddp", "DDP, without thinking", DDP),
    Question(
        "whole-recomputed",
        "Does it fit once blocks are computed again?",
        Answer("thumb-ddp+recompute", "Recompute first, and stay with DDP", DDP + RECOMPUTED),
        Answer("thumb-full+recompute", "Recomputing, then FSDP: FULL_SHARD first", FULL + RECOMPUTED),
    ),
)
RULES = {"the chapter's tree": CHAPTER, "the article's list": ARTICLE}


@dataclass(frozen=True)
class Led:
    """Where a rule leads for one plan, and the row that it comes to; None where it names no strategy."""

    rule: str
    path: Path
    row: Row | None
    longer: float | None

    @property
    def fits(self) -> bool:
        return self.row is not None and self.row.fits

    @property
    def is_good(self) -> bool:
        """Whether what the rule says fits, and is as quick as the best that does."""
        return self.fits and (self.longer or 0.0) <= TIE

    @property
    def verdict(self) -> str:
        """The ledger's word on it."""
        if self.row is None:
            return "another dimension" if self.path.answer.candidate is None else "no choice here"
        if not self.fits:
            return f"{bytes_text(self.row.peak_bytes)} of {bytes_text(self.row.capacity_bytes)}: does not fit"
        return "fits, as quick as any" if self.is_good else f"fits, {self.longer:.0%} slower than need be"

    @property
    def name(self) -> str:
        return name_of(self.path.answer.candidate)

    def plot(self) -> Any:
        """Draw the rule's tree with the way lit."""
        from dpcourse.figures.tree import decision_tree

        title = f"{self.rule}: {self.path.answer.text} ({self.verdict})"
        return decision_tree(RULES[self.rule], self.path, title)


@dataclass(frozen=True, repr=False)
class Trial(Shown):
    """Rules held against plans: `.led` has, for each job, where each rule leads; prints as a table."""

    plans: tuple[tuple[str, Plan], ...]
    led: tuple[dict[str, Led], ...]

    def table(self) -> Table:
        """Lay out a line for each job and rule: its answer, and the ledger's word on it."""
        rows = []
        for (job, plan), ways in zip(self.plans, self.led, strict=True):
            rows += [["", led.rule, led.name, led.verdict] for led in ways.values()]
            rows[-len(ways)][0] = job
            best = bytes_text(plan.best.peak_bytes) if plan.best else "nothing fits"
            rows.append(["", "the plan", name_of(plan.path.answer.candidate), best])
        return Table(["job", "who", "says", "the ledger"], rows, "Rules of thumb, and the ledgers")

    def num_good(self, rule: str) -> int:
        """Count the jobs for which a rule's answer fits and is as quick as any."""
        return sum(ways[rule].is_good for ways in self.led)

    def __str__(self) -> str:
        return str(self.table())

    def to_html(self) -> str:
        return self.table().to_html()


def on_trial(jobs: dict[str, Plan]) -> Trial:
    """Walk both rules for each job, and look up in its plan what they say.

    ```
    on_trial({"7B on 8 cards": dc.plan("llama-2-7b", gpus=8)})
    ```

    Raises ValueError for no job, TypeError for what is no plan.
    """
    if not jobs:
        raise ValueError("on_trial was given no job; give it plans by name: on_trial({'mine': dc.plan(...)})")
    for name, plan in jobs.items():
        if not isinstance(plan, Plan):
            raise TypeError(f"job {name!r} is a {type(plan).__name__}; give it what dc.plan returned")
    led = tuple({rule: led_by(rule, plan) for rule in RULES} for plan in jobs.values())
    return Trial(tuple(jobs.items()), led)


def led_by(rule: str, plan: Plan) -> Led:
    """Walk one rule's tree by a plan's numbers. rule: a key of RULES."""
    facts = plan.facts
    path = walk(RULES[rule], facts, partial(_settle, plan))
    row = smallest_of(plan.rows).get(path.answer.candidate or "")
    quickest = facts.quickest()
    longer = row.time.seconds / quickest - 1 if row and quickest < float("inf") else None
    return Led(rule, path, row, longer)


def name_of(candidate: str | None) -> str:
    """Write a candidate of the table of decisions in words."""
    if candidate is None:
        return "another dimension"
    family, _, again = candidate.partition("+")
    return NAMES[family] + (" + recomputing" if again else "")


def states_bytes(plan: Plan) -> int:
    """Add up the states of a whole copy: what the recipe counts for each parameter."""
    asked = plan.asked
    return asked.choice.bytes_per_parameter(asked.optimizer) * asked.subject.layout.num_params


def _settle(plan: Plan, key: str, facts: Facts) -> tuple[bool, str]:
    if key == "states":
        return compared(states_bytes(plan), facts)
    if key == "layer":
        return compared(facts.layer_bytes, facts)
    if key == "hosts":
        return facts.num_hosts > 1, counted(facts.num_hosts, "host")
    candidate = {"kept": KEPT, "whole": DDP, "whole-recomputed": DDP + RECOMPUTED}[key]
    return compared(facts.peak_bytes.get(candidate, float("inf")), facts)
