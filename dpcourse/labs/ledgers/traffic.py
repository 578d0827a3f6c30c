"""Lab 07, third question: a function that fills in a row of the traffic ledger."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dpcourse.labs.ledgers.jobs import Setting, expected, job, model, run_of
from dpcourse.labs.question import Mistake
from dpcourse.labs.values.functions import Job, Judge, Values, function
from dpcourse.tables import bytes_text

# Bytes of a number that is sent: of a parameter that is gathered, and of a gradient that is reduced.
SENT_BYTES = {"fp32": (4, 4), "autocast": (4, 4), "bf16": (2, 2), "mixed-adam": (2, 2), "fsdp-mixed": (2, 2)}
_ASKED = (
    ("ddp", "autocast", "gloo"),
    ("fsdp", "fsdp-mixed", "gloo"),
    ("zero2", "fp32", "ring"),
    ("ddp, views", "mixed-adam", "ring"),
    ("zero1", "bf16", "ring"),
    ("fsdp, kept", "mixed-adam", "ring"),
    ("fsdp", "fp32", "ring"),
    ("fsdp, kept", "autocast", "gloo"),
)
_RUN = 2  # so many of them, from the first on, are run for real


def jobs(seed: int, sizes: tuple[int, ...]) -> tuple[Job, ...]:
    """Every strategy, on both backends where they differ, most models partly frozen; two are run for real."""
    made = []
    for number, (way, recipe, backend) in enumerate(_ASKED):
        size = sizes[number % len(sizes)]
        setting = Setting(way, recipe, model(seed, number, number % 3 != 0), size, backend)
        made.append(_with_backend(setting, is_run=number < _RUN))
    return tuple(made)


def example(ranks: int) -> tuple[Job, ...]:
    """Two jobs for the picture, both run for real."""
    asked = (("ddp", "fp32", "gloo"), ("fsdp", "mixed-adam", "ring"))
    return tuple(
        _with_backend(Setting(way, recipe, model(0, 9, False), ranks, backend), is_run=True)
        for way, recipe, backend in asked
    )


def _with_backend(setting: Setting, is_run: bool) -> Job:
    made = job(setting, is_run)
    title = f"{made.title}, {setting.backend}"
    return replace(made, title=title, arguments={**made.arguments, "backend": setting.backend})


def sent(arguments: Mapping[str, Any], **twist: Any) -> Values:
    """The headline formula, or with a twist what a known mistake makes of it."""
    gathered, reduced = twist.get("recipes", SENT_BYTES)[arguments["recipe"]]
    params, trained = (
        arguments[twist.get("gathers", "num_params")],
        arguments[twist.get("reduces", "num_trained")],
    )
    way, ranks = arguments["strategy"], arguments["ranks"]
    if way.startswith("fsdp"):
        gathers = twist.get("kept", 1) if way == "fsdp, kept" else twist.get("full", 2)
        reduces = twist.get(arguments["backend"], {"gloo": 2, "ring": 1}[arguments["backend"]])
        payload = gathers * gathered * params + reduces * reduced * trained
    else:
        payload = twist.get("all_reduce", 2) * reduced * trained
    return {"sent": payload * twist.get("trip", lambda ranks: (ranks - 1) / ranks)(ranks)}


def _twisted(**twist: Any) -> Callable[[Job], Values]:
    return lambda job: sent(job.arguments, **twist)


WRONG_WAYS = {
    "one_format": _twisted(recipes=dict.fromkeys(SENT_BYTES, (4, 4))),
    "autocast_is_bf16": _twisted(recipes={**SENT_BYTES, "autocast": (2, 2)}),
    "sends_shards_as_kept": _twisted(recipes={**SENT_BYTES, "fsdp-mixed": (4, 4)}),
    "reduces_in_fp32": _twisted(recipes={**SENT_BYTES, "fsdp-mixed": (2, 4)}),
    "sends_masters": _twisted(recipes={**SENT_BYTES, "mixed-adam": (4, 4)}),
    "elements": _twisted(recipes=dict.fromkeys(SENT_BYTES, (1, 1))),
    "whole_payload": _twisted(trip=lambda ranks: 1),
    "of_all_ranks": _twisted(trip=lambda ranks: ranks - 1),
    "one_way": _twisted(all_reduce=1),
    "gloo_as_a_ring": _twisted(gloo=1),
    "ring_as_gloo": _twisted(ring=2),
    "kept_gathers_twice": _twisted(kept=2),
    "full_gathers_once": _twisted(full=1),
    "frozen_reduced": _twisted(reduces="num_params"),
    "frozen_not_gathered": _twisted(gathers="num_trained"),
}


MISTAKES = (
    Mistake(
        "one_format",
        "This is 4 bytes for each number whatever the recipe: ask in which format each is sent.",
    ),
    Mistake(
        "autocast_is_bf16",
        "Under autocast the gradients of fp32 parameters are fp32, and so is what is sent.",
    ),
    Mistake(
        "sends_shards_as_kept",
        "fsdp-mixed keeps its shards in fp32 but gathers and reduces in bf16: 2 bytes for each number on the"
        " wire.",
    ),
    Mistake(
        "reduces_in_fp32",
        "fsdp-mixed reduces in the format in which it gathers: gradients travel in bf16 as well.",
    ),
    Mistake(
        "sends_masters",
        "The fp32 masters of mixed-adam never travel: parameters and gradients do, in bf16.",
    ),
    Mistake(
        "elements",
        "These are numbers sent, not bytes: each takes 2 or 4 bytes on the wire.",
    ),
    Mistake(
        "whole_payload",
        "A rank never sends its own piece to itself: a trip round the ring is (N - 1)/N of the payload.",
    ),
    Mistake(
        "of_all_ranks",
        "This is what all ranks send together: the ledger is one rank's.",
    ),
    Mistake(
        "one_way",
        "An all-reduce is a reduce-scatter and an all-gather, and stages 1 and 2 make both halves too: two"
        " trips.",
    ),
    Mistake(
        "gloo_as_a_ring",
        "gloo carries out a reduce-scatter as an all-reduce: on it the third term counts twice.",
    ),
    Mistake(
        "ring_as_gloo",
        "On a ring a reduce-scatter is one trip: only gloo makes an all-reduce of it.",
    ),
    Mistake(
        "kept_gathers_twice",
        "What is kept after forward need not be gathered for backward: one all-gather, not two.",
    ),
    Mistake(
        "full_gathers_once",
        "Full sharding lets the parameters go after forward, and gathers them again in backward.",
    ),
    Mistake(
        "frozen_reduced",
        "A frozen parameter has no gradient, so nothing of it is reduced: gradients go by num_trained.",
    ),
    Mistake(
        "frozen_not_gathered",
        "Frozen parameters are sharded as well, and computing takes them whole: gathers go by num_params.",
    ),
    Mistake(
        "wrong_type",
        "Return one plain number: the bytes that a rank sends in a step.",
    ),
    Mistake(
        "sent",
        "Off, in a way that fits none of the usual mistakes: name the collectives of a step, then the "
        "payload, the format and the trips of each.",
    ),
)

TRAFFIC_BYTES = function(
    "traffic_bytes",
    "A row of the traffic ledger",
    points=25,
    minutes=15,
    jobs=jobs,
    example=example,
    judge=Judge(
        goals=lambda job: {"sent": expected(job).sent_bytes()},
        wrong_ways=WRONG_WAYS,
        measure=lambda job: {"sent": run_of(job).traffic.sent_bytes() or 0},
        text=bytes_text,
    ),
    mistakes=MISTAKES,
)
