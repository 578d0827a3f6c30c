"""Lab 09, third question: the table of decisions as a function, walked on facts that nobody has seen."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

from dpcourse.labs.question import Mistake
from dpcourse.labs.values.functions import Job, Judge, Values, function
from dpcourse.planning.decision import (
    DDP,
    FULL,
    HYBRID,
    KEPT,
    OFFLOAD,
    RECOMPUTED,
    SINGLE,
    TIE,
    TREE,
    Facts,
    answers,
    counted,
    walk,
)

NONE = "none"
CARD_GB = 80.0
_MOST_DRAWS = 5000
_EACH = 2  # so many jobs for each answer of the table
_SHARDINGS = (HYBRID, KEPT, FULL)
_EXACT_SHARE = 0.3  # of the jobs have a strategy that fills a card to the last byte
# How much longer than the quickest a step may take: as long, within the tie, just beyond it, far beyond it.
_DELAYS = (1.0, 1.03, 1.07, 1.4)


def facts_of(asked: Mapping[str, Any]) -> Facts:
    """The plan's own facts for a job; no layer fits where nothing else does, so that this leaf is one."""
    return Facts(
        asked["num_cards"], asked["num_hosts"], asked["card_gb"], 0.0, asked["peak_gb"], asked["step_seconds"]
    )


def goal_of(asked: Mapping[str, Any]) -> str:
    """Where the plan's table leads."""
    return walk(TREE, facts_of(asked)).answer.candidate or NONE


def _draw(random: np.random.Generator) -> dict[str, Any]:
    """A job of random sizes: sixteen bytes a parameter, shared out, and activations on top."""
    num_hosts, on_host = int(random.choice((1, 1, 2, 4, 8))), int(random.choice((1, 2, 4, 8)))
    num_cards = num_hosts * on_host
    billions, kept = float(random.choice((0.5, 2, 4, 6, 12, 30, 70, 150))), float(random.uniform(1, 90))
    states = {SINGLE: 16 * billions} if num_cards == 1 else _states(billions, num_hosts, on_host)
    peaks, seconds = {OFFLOAD: 2 * billions / num_cards + kept / 8}, {}
    base = billions / 4
    for name, gigabytes in states.items():
        peaks |= {name: gigabytes + kept, name + RECOMPUTED: gigabytes + kept / 8}
        seconds[name] = base * float(random.choice(_DELAYS))
        seconds[name + RECOMPUTED] = 1.33 * seconds[name]
    seconds[OFFLOAD] = 3 * base
    if random.random() < _EXACT_SHARE:
        peaks[str(random.choice(list(peaks)))] = CARD_GB
    return {
        "num_cards": num_cards,
        "num_hosts": num_hosts,
        "card_gb": CARD_GB,
        "peak_gb": {name: round(gigabytes, 1) for name, gigabytes in peaks.items()},
        "step_seconds": {name: round(time, 3) for name, time in seconds.items()},
    }


def _states(billions: float, num_hosts: int, on_host: int) -> dict[str, float]:
    share = 16 * billions / (num_hosts * on_host)
    found = {DDP: 16 * billions, KEPT: 2 * billions + share, FULL: share}
    return {**found, HYBRID: 16 * billions / on_host} if num_hosts > 1 and on_host > 1 else found


def _drawn(seed: int) -> Iterator[dict[str, Any]]:
    random = np.random.default_rng([seed, 9])
    for _ in range(_MOST_DRAWS):
        yield _draw(random)


@cache
def jobs(seed: int, sizes: tuple[int, ...]) -> tuple[Job, ...]:
    """Jobs for every answer of the table, and for every known mistake one that it gets wrong."""
    wanted = dict.fromkeys({answer.candidate or NONE for answer in answers(TREE)}, _EACH)
    wanted |= dict.fromkeys(WRONG_WAYS, 1)
    chosen = []
    for asked in _drawn(seed):
        if max(wanted.values()) <= 0:
            break
        goal = goal_of(asked)
        missed = [name for name, way in WRONG_WAYS.items() if way(Job("", asked))["take"] != goal]
        if any(wanted[name] > 0 for name in (goal, *missed)):
            chosen.append(asked)
            for name in (goal, *missed):
                wanted[name] -= 1
    return tuple(_job(asked) for asked in chosen)


def _job(asked: Mapping[str, Any]) -> Job:
    cards, hosts = counted(asked["num_cards"], "card"), counted(asked["num_hosts"], "host")
    return Job(f"{cards} on {hosts}, {_what_fits(asked)}", asked)


def _what_fits(asked: Mapping[str, Any]) -> str:
    """What fits and how long it takes: enough to follow the judge."""
    fitting = (name for name, gigabytes in asked["peak_gb"].items() if gigabytes <= asked["card_gb"])
    times = ", ".join(f"{name} {asked['step_seconds'][name]:g} s" for name in fitting)
    return f"of which fit: {times}" if times else "of which nothing fits"


def example(ranks: int) -> tuple[Job, ...]:
    """A few jobs with different answers."""
    chosen: dict[str, dict[str, Any]] = {}
    for asked in _drawn(1):
        chosen.setdefault(goal_of(asked), asked)
    return tuple(_job(asked) for asked in list(chosen.values())[:6])


# --- what known mistakes make of it ---


def take(asked: Mapping[str, Any], **twist: Any) -> Values:
    """The table in a few lines, or with a twist what a known mistake makes of it."""
    peaks, seconds, card = asked["peak_gb"], asked["step_seconds"], asked["card_gb"]
    fits = {name for name, gigabytes in peaks.items() if gigabytes <= card}
    fits -= {name for name in fits if twist.get("strict") and peaks[name] == card}
    timed = seconds if twist.get("all_timed") else fits - {OFFLOAD}
    quickest = min((seconds[name] for name in timed), default=float("inf"))
    tie = twist.get("tie", TIE)
    good = {name for name in fits - {OFFLOAD} if seconds[name] <= (1 + tie) * quickest}
    return {"take": _take(asked, fits, good, twist)}


def _take(asked: Mapping[str, Any], fits: set[str], good: set[str], twist: Mapping[str, Any]) -> str:
    again = "" if twist.get("never_again") else RECOMPUTED
    if asked["num_cards"] == 1:
        copies, copies_good = (SINGLE, SINGLE + again), fits
    else:
        copies, copies_good = (DDP, DDP + again), fits if twist.get("copies_first") else good
    for name in () if twist.get("no_copies") and asked["num_cards"] > 1 else copies:
        if name in copies_good:
            return name
    for suffix, wanted in (("", good), (again, fits)):
        if any(name + suffix in wanted for name in _SHARDINGS):
            return _sharded(suffix, asked, fits, good, twist)
    return OFFLOAD if OFFLOAD in fits and not twist.get("no_offload") else NONE


def _sharded(
    suffix: str, asked: Mapping[str, Any], fits: set[str], good: set[str], twist: Mapping[str, Any]
) -> str:
    enough = fits if twist.get("hybrid_if_it_fits") else good
    is_across = asked["num_hosts"] > 1 and not twist.get("no_hybrid")
    if is_across and HYBRID + suffix in enough:
        return HYBRID + suffix
    if twist.get("never_kept"):
        return FULL + suffix
    return (
        KEPT + suffix if KEPT + suffix in (fits if twist.get("kept_if_it_fits") else good) else FULL + suffix
    )


def _twisted(**twist: Any) -> Callable[[Job], Values]:
    return lambda job: take(job.arguments, **twist)


def _just_quickest(job: Job) -> Values:
    """The quickest of what fits, and nothing else asked."""
    asked = job.arguments
    fitting = [name for name, gigabytes in asked["peak_gb"].items() if gigabytes <= asked["card_gb"]]
    return {"take": min(fitting, key=lambda name: asked["step_seconds"][name], default=NONE)}


WRONG_WAYS: dict[str, Callable[[Job], Values]] = {
    "just_quickest": _just_quickest,
    "no_tie": _twisted(tie=0.0),
    "against_what_does_not_fit": _twisted(all_timed=True),
    "copies_whenever_they_fit": _twisted(copies_first=True),
    "shards_first": _twisted(no_copies=True),
    "never_recomputes": _twisted(never_again=True),
    "hybrid_whenever_it_fits": _twisted(hybrid_if_it_fits=True),
    "no_hybrid": _twisted(no_hybrid=True),
    "kept_whenever_it_fits": _twisted(kept_if_it_fits=True),
    "never_kept": _twisted(never_kept=True),
    "no_offload": _twisted(no_offload=True),
    "full_is_too_much": _twisted(strict=True),
}


MISTAKES = (
    Mistake(
        "just_quickest",
        "This is the quickest of what fits. Where several are within 5 % of it, the one that is least work "
        "wins: the order of the questions says which.",
    ),
    Mistake(
        "no_tie",
        "A step within 5 % of the quickest counts as equally quick: what is less work wins then.",
    ),
    Mistake(
        "against_what_does_not_fit",
        "The quickest step is looked for among what fits the card: nobody waits for what cannot run.",
    ),
    Mistake(
        "copies_whenever_they_fit",
        "Whole copies that fit are taken only where no way of sharding is quicker by more than 5 %.",
    ),
    Mistake(
        "shards_first",
        "Ask for whole copies first: where they fit and are as quick there is nothing to shard for.",
    ),
    Mistake(
        "never_recomputes",
        "Recomputing blocks is a way to fit, for one card, for copies and for shards, and it comes before"
        " offloading.",
    ),
    Mistake(
        "hybrid_whenever_it_fits",
        "A hybrid that fits is taken only where its step is as quick as any that fits.",
    ),
    Mistake(
        "no_hybrid",
        "On several hosts ask first whether one host holds the model in shards: its gathers need not cross.",
    ),
    Mistake(
        "kept_whenever_it_fits",
        "Units are kept until backward only where that step is as quick as any that fits.",
    ),
    Mistake(
        "never_kept",
        "Before you shard fully, ask whether units may stay whole until backward: one gather less.",
    ),
    Mistake(
        "no_offload",
        "When nothing fits on the cards the optimizer's step can still go to host memory, where that fits.",
    ),
    Mistake(
        "full_is_too_much",
        "What fills a card to the last byte still fits it: at most card_gb, not less than.",
    ),
    Mistake(
        "wrong_type",
        "Return the name of what to take, as a text: one of those in the task.",
    ),
    Mistake(
        "take",
        "The table leads elsewhere: go through its questions for this job, one after the other.",
    ),
)

CHOOSE = function(
    "choose",
    "The table of decisions",
    points=30,
    minutes=20,
    jobs=jobs,
    example=example,
    judge=Judge(lambda job: {"take": goal_of(job.arguments)}, WRONG_WAYS),
    mistakes=MISTAKES,
)
