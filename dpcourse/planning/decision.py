"""One table of decisions for choosing a strategy: questions as data, each settled by a number.

It is the sources' tree (does a whole copy fit? one host or several? how much is short?) with their
disagreements settled by predicted numbers: recomputing against sharding by time, hybrid sharding against
sharding over all hosts by whether one host holds the model. Source: chapter 4.1, section 9, and the article's
section 6.2, as far as predicted memory and time bear them out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from dpcourse.tables import bytes_text, seconds_text

SINGLE, DDP, KEPT, FULL, HYBRID, OFFLOAD = "single", "ddp", "kept", "full", "hybrid", "offload"
FAMILIES = (SINGLE, DDP, KEPT, FULL, HYBRID, OFFLOAD)
RECOMPUTED = "+recompute"  # the same with blocks computed once more in backward
TIE = 0.05  # steps this close to the quickest count as equal: what is less work to set up wins


@dataclass(frozen=True)
class Answer:
    """A leaf. candidate: the strategy it stands for, such as "ddp" or "full+recompute"; None: none fits."""

    key: str
    text: str
    candidate: str | None = None


@dataclass(frozen=True)
class Question:
    """A fork: what is asked, and where each reply leads."""

    key: str
    text: str
    yes: "Node"
    no: "Node"


Node: TypeAlias = Question | Answer


@dataclass(frozen=True)
class Facts:
    """The numbers that questions are settled by: for each candidate its peak (margin included) and its step.

    layer_bytes: the largest unit, whole, with its gradient and what one micro-batch leaves in it.
    A candidate without an entry cannot be had, such as hybrid sharding on one host.
    """

    num_gpus: int
    num_hosts: int
    capacity_bytes: float
    layer_bytes: float
    peak_bytes: Mapping[str, float] = field(default_factory=dict)
    step_seconds: Mapping[str, float] = field(default_factory=dict)

    def fits(self, candidate: str) -> bool:
        return self.peak_bytes.get(candidate, float("inf")) <= self.capacity_bytes

    def quickest(self) -> float:
        """The shortest step of those that fit without leaving the card; infinity where none does."""
        times = (t for name, t in self.step_seconds.items() if self.fits(name) and not _is_offloaded(name))
        return min(times, default=float("inf"))

    def is_good(self, candidate: str) -> bool:
        """Tell whether a candidate fits, and is as good as the quickest that does."""
        return self.fits(candidate) and self.step_seconds[candidate] <= (1 + TIE) * self.quickest()


@dataclass(frozen=True)
class Step:
    """One question on the way, how it was settled, and by which number."""

    question: Question
    is_yes: bool
    because: str


@dataclass(frozen=True)
class Path:
    """The way through the table for some facts: its steps, and the answer at the end."""

    steps: tuple[Step, ...]
    answer: Answer


Settle: TypeAlias = Callable[[str, Facts], tuple[bool, str]]


def _is_offloaded(candidate: str) -> bool:
    return candidate.startswith(OFFLOAD)


# -- the table


def _sharded(suffix: str, otherwise: str) -> Question:
    """Ask how to shard: within hosts first, then what is kept whole after forward."""
    also = f" {otherwise}" if otherwise else ""
    kept = Question(
        f"kept{suffix}",
        "Is it as quick, and does it fit, to keep units whole between forward and backward?",
        Answer(
            f"answer-kept{suffix}",
            f"Shard without freeing after forward: fsdp2, reshard_after_forward=False{also}",
            KEPT + suffix,
        ),
        Answer(f"answer-full{suffix}", f"Shard fully: fsdp2, over all ranks{also}", FULL + suffix),
    )
    return Question(
        f"hosts{suffix}",
        "Are there several hosts?",
        Question(
            f"hybrid{suffix}",
            "Does one host hold the model in shards, in a step as quick?",
            Answer(
                f"answer-hybrid{suffix}",
                f"Shard inside each host, average between hosts: fsdp2, mesh=(hosts, ranks per host){also}",
                HYBRID + suffix,
            ),
            kept,
        ),
        kept,
    )


_WITH = "with activation checkpointing"
_NONE_FITS = Question(
    "offload",
    "Does it fit with shards and the optimizer's step in host memory?",
    Answer("answer-offload", "Offload: fsdp2, cpu_offload=True", OFFLOAD),
    Question(
        "layer",
        "Does the largest unit alone, whole and with one micro-batch, fit a card?",
        Answer(
            "answer-more",
            "Nothing fits: more cards, or the next dimension, pipeline parallelism (layers shared out)",
        ),
        Answer(
            "answer-tensor",
            "Nothing fits, not even one layer: the next dimension, tensor parallelism (each matrix cut)",
        ),
    ),
)
_SEVERAL = Question(
    "whole",
    "Does a whole copy fit a card, and is no way of sharding quicker?",
    Answer("answer-ddp", "Data parallel with whole copies: ddp", DDP),
    Question(
        "whole-recomputed",
        "Does a whole copy fit once blocks are computed again, and is no way of sharding quicker?",
        Answer("answer-ddp+recompute", f"Whole copies {_WITH}: ddp", DDP + RECOMPUTED),
        Question(
            "sharded",
            "Does sharding alone fit, and is no recomputation quicker?",
            _sharded("", ""),
            Question(
                "sharded-recomputed",
                "Does sharding with activation checkpointing fit?",
                _sharded(RECOMPUTED, _WITH),
                _NONE_FITS,
            ),
        ),
    ),
)
_ALONE = Question(
    "alone",
    "Does everything fit the card?",
    Answer("answer-single", "One card is enough: single; sharding would share with nobody", SINGLE),
    Question(
        "alone-recomputed",
        "Does it fit once blocks are computed again?",
        Answer("answer-single+recompute", f"One card {_WITH}: single", SINGLE + RECOMPUTED),
        _NONE_FITS,
    ),
)
TREE = Question("several", "Is there more than one card?", _SEVERAL, _ALONE)


# -- the way through it


def walk(root: Node, facts: Facts, settle: Settle | None = None) -> Path:
    """Go from the root to an answer, each question settled by the facts.

    settle: for questions of another tree; given a question's key and the facts it says yes or no, and why.
    """
    steps: list[Step] = []
    node = root
    while isinstance(node, Question):
        is_yes, because = (settle or _settle)(node.key, facts)
        steps.append(Step(node, is_yes, because))
        node = node.yes if is_yes else node.no
    return Path(tuple(steps), node)


def answers(root: Node) -> list[Answer]:
    """List the leaves, from left to right."""
    return [root] if isinstance(root, Answer) else answers(root.yes) + answers(root.no)


def _settle(key: str, facts: Facts) -> tuple[bool, str]:
    name, _, suffix = key.partition("+")
    suffix = f"+{suffix}" if suffix else ""
    if name == "several":
        return facts.num_gpus > 1, counted(facts.num_gpus, "card")
    if name == "hosts":
        return facts.num_hosts > 1, counted(facts.num_hosts, "host")
    if name == "layer":
        return compared(facts.layer_bytes, facts)
    if name in ("hybrid", "kept"):
        return _is_good([name + suffix], facts)
    if name == "offload":
        return _fits([OFFLOAD], facts)
    return _OTHER[name](facts)


def counted(number: int, what: str) -> str:
    """Write a number of cards or hosts."""
    return f"{number:,} {what}{'s'[: number > 1]}"


def _fits(candidates: list[str], facts: Facts) -> tuple[bool, str]:
    peaks = [facts.peak_bytes[name] for name in candidates if name in facts.peak_bytes]
    return compared(min(peaks), facts) if peaks else (False, "nothing of the kind was planned")


def compared(num_bytes: float, facts: Facts) -> tuple[bool, str]:
    """Tell whether so many bytes fit a card, and say it with both numbers."""
    is_less = num_bytes <= facts.capacity_bytes
    sign = "of" if is_less else "over the"
    return is_less, f"{bytes_text(num_bytes)} {sign} {bytes_text(facts.capacity_bytes)} of a card"


def _is_good(candidates: list[str], facts: Facts) -> tuple[bool, str]:
    """Settle by memory where it does not fit, else by time."""
    fitting = [name for name in candidates if facts.fits(name)]
    if not fitting:
        return _fits(candidates, facts)
    best = min(fitting, key=lambda name: facts.step_seconds[name])
    is_good, held = facts.is_good(best), bytes_text(facts.peak_bytes[best])
    seconds, quickest = facts.step_seconds[best], facts.quickest()
    if is_good:
        return True, f"{held} of {bytes_text(facts.capacity_bytes)}, a step of {seconds_text(seconds)}"
    return False, f"{held} fits, but {seconds_text(seconds)} a step against {seconds_text(quickest)}"


_SHARDINGS = [KEPT, FULL, HYBRID]
_OTHER = {
    "whole": lambda facts: _is_good([DDP], facts),
    "whole-recomputed": lambda facts: _is_good([DDP + RECOMPUTED], facts),
    "sharded": lambda facts: _is_good(_SHARDINGS, facts),
    "sharded-recomputed": lambda facts: _fits([name + RECOMPUTED for name in _SHARDINGS], facts),
    "alone": lambda facts: _fits([SINGLE], facts),
    "alone-recomputed": lambda facts: _fits([SINGLE + RECOMPUTED], facts),
}
