"""Lab 07, second question: a function that fills in a row of the memory ledger."""

from collections.abc import Callable, Mapping
from typing import Any

from dpcourse.labs.ledgers.jobs import OWNERS, Setting, expected, held, job, model, run_of
from dpcourse.labs.question import Mistake
from dpcourse.labs.values.functions import Job, Judge, Values, function
from dpcourse.tables import bytes_text

# Bytes for each parameter of "parameters", "gradients" and "optimizer" on a rank that shares nothing.
RECIPE_BYTES = {
    "fp32": (4, 4, 8),
    "autocast": (4, 4, 8),
    "bf16": (2, 2, 4),
    "mixed-adam": (2, 2, 12),
    "fsdp-mixed": (4, 4, 8),
}
SHARED = {
    "ddp": (),
    "ddp, views": (),
    "zero1": ("optimizer",),
    "zero2": ("optimizer", "gradients"),
    "fsdp": ("optimizer", "gradients", "parameters"),
    "fsdp, kept": ("optimizer", "gradients", "parameters"),
}
# Each strategy once, and every recipe; the two that are run for real stand first and last but one.
_ASKED = (
    ("ddp", "mixed-adam"),
    ("ddp, views", "autocast"),
    ("zero1", "bf16"),
    ("zero2", "fp32"),
    ("ddp", "fp32"),
    ("fsdp", "mixed-adam"),
    ("fsdp, kept", "fsdp-mixed"),
)
_RUN = ("ddp", "fsdp")


def jobs(seed: int, sizes: tuple[int, ...]) -> tuple[Job, ...]:
    """Every strategy, on models of hidden sizes, most of them partly frozen; two are run for real."""
    made = []
    for number, (way, recipe) in enumerate(_ASKED):
        setting = Setting(way, recipe, model(seed, number, number % 3 != 1), sizes[number % len(sizes)])
        made.append(job(setting, is_run=way in _RUN and recipe == "mixed-adam"))
    return tuple(made)


def example(ranks: int) -> tuple[Job, ...]:
    """Two jobs for the picture, both run for real."""
    asked = (("ddp", "fp32"), ("fsdp", "mixed-adam"))
    return tuple(job(Setting(*each, model(0, 9, False), ranks), is_run=True) for each in asked)


def row(arguments: Mapping[str, Any], **twist: Any) -> Values:
    """The headline formula, or with a twist what a known mistake makes of it."""
    recipe = twist.get("recipes", RECIPE_BYTES)[arguments["recipe"]]
    trained = arguments[twist.get("trained", "num_trained")]
    counts = dict(zip(OWNERS, (arguments["num_params"], trained, trained), strict=False))
    bytes_held = {owner: each * counts[owner] for owner, each in zip(counts, recipe, strict=True)}
    bytes_held["buckets"] = (
        bytes_held["gradients"] if arguments["strategy"] in twist.get("copied", ("ddp",)) else 0
    )
    for owner in twist.get("shared", SHARED)[arguments["strategy"]]:
        bytes_held[owner] /= arguments["ranks"]
    return bytes_held


def _twisted(**twist: Any) -> Callable[[Job], Values]:
    return lambda job: row(job.arguments, **twist)


_NOTHING_SHARED = dict.fromkeys(SHARED, ())
_ALL = ("optimizer", "gradients", "parameters")
WRONG_WAYS = {
    "forgets_buckets": _twisted(copied=()),
    "copies_views": _twisted(copied=("ddp", "ddp, views")),
    "buckets_everywhere": _twisted(copied=("ddp", "zero1", "zero2", "fsdp", "fsdp, kept")),
    "one_recipe": _twisted(recipes=dict.fromkeys(RECIPE_BYTES, (4, 4, 8))),
    "autocast_is_bf16": _twisted(recipes={**RECIPE_BYTES, "autocast": (2, 2, 4)}),
    "gathers_are_kept": _twisted(recipes={**RECIPE_BYTES, "fsdp-mixed": (2, 2, 4)}),
    "forgets_masters": _twisted(recipes={**RECIPE_BYTES, "mixed-adam": (2, 2, 8)}),
    "one_moment": _twisted(
        recipes={
            name: (p, g, 8 if name == "mixed-adam" else o // 2) for name, (p, g, o) in RECIPE_BYTES.items()
        }
    ),
    "elements": _twisted(recipes={name: (1, 1, 2 + (name == "mixed-adam")) for name in RECIPE_BYTES}),
    "nothing_shared": _twisted(shared=_NOTHING_SHARED),
    "all_shared": _twisted(shared={**SHARED, "zero1": _ALL, "zero2": _ALL}),
    "stage_1_too_far": _twisted(shared={**SHARED, "zero1": ("optimizer", "gradients")}),
    "stage_2_too_short": _twisted(shared={**SHARED, "zero2": ("optimizer",)}),
    "kept_is_whole": _twisted(shared={**SHARED, "fsdp, kept": ("optimizer", "gradients")}),
    "frozen_counted": _twisted(trained="num_params"),
}


MISTAKES = (
    Mistake(
        "forgets_buckets",
        "DDP's buckets are missing: they are a second copy of the gradients, unless the gradients are views"
        " into them.",
    ),
    Mistake(
        "copies_views",
        "With gradient_as_bucket_view=True the gradients lie in the buckets: those bytes are there once.",
    ),
    Mistake(
        "buckets_everywhere",
        "Only DDP keeps buckets until backward ends: in the other rows no second copy of the gradients"
        " is left.",
    ),
    Mistake(
        "one_recipe",
        "This is 4 + 4 + 8 whatever the recipe: read each recipe's own three summands off the table.",
    ),
    Mistake(
        "autocast_is_bf16",
        "Autocast casts in forward and keeps nothing in bf16: weights, gradients and states stay in fp32.",
    ),
    Mistake(
        "gathers_are_kept",
        "fsdp-mixed gathers and reduces in bf16, but the shards that a rank keeps are fp32: 4 + 4 + 8.",
    ),
    Mistake(
        "forgets_masters",
        "The fp32 masters are missing: mixed-adam's optimizer has 4 bytes of them beside twice 4 of means.",
    ),
    Mistake(
        "one_moment",
        "Adam keeps two means for each parameter, of the gradient and of its square: one is missing.",
    ),
    Mistake(
        "elements",
        "These are numbers, not bytes: each one takes 2 or 4 bytes, as its format says.",
    ),
    Mistake(
        "nothing_shared",
        "Every rank holds everything here, as under DDP: the other strategies share some of it out.",
    ),
    Mistake(
        "all_shared",
        "All of it is shared out at every stage: stage 1 shares the optimizer's states alone, stage 2 also "
        "the gradients, and only stage 3 the parameters.",
    ),
    Mistake(
        "stage_1_too_far",
        "ZeRO-1 shares out the optimizer's states only: its gradients are whole.",
    ),
    Mistake(
        "stage_2_too_short",
        "ZeRO-2 shares out the gradients as well: whole ones are freed piece by piece during backward.",
    ),
    Mistake(
        "kept_is_whole",
        "Without the second gather the parameters are whole only until backward has passed them: when it ends"
        " a rank holds shards again.",
    ),
    Mistake(
        "frozen_counted",
        "A frozen parameter has neither gradient nor optimizer states: those go by num_trained.",
    ),
    Mistake(
        "wrong_type",
        "Return a dict with a plain number of bytes for each owner: parameters, gradients, optimizer,"
        " buckets.",
    ),
    Mistake(
        "parameters",
        "The parameters are off: their bytes in this recipe, times num_params, over the ranks where shared.",
    ),
    Mistake(
        "gradients",
        "The gradients are off: their bytes in this recipe, times num_trained, over the ranks where shared.",
    ),
    Mistake(
        "optimizer",
        "The optimizer's states are off: two means, and the masters where the recipe has them, times"
        " num_trained, over the ranks where shared.",
    ),
    Mistake(
        "buckets",
        "The buckets are off: as large as the gradients where DDP copies them, and 0 everywhere else.",
    ),
)

MEMORY_BYTES = function(
    "memory_bytes",
    "A row of the memory ledger",
    points=25,
    minutes=15,
    jobs=jobs,
    example=example,
    judge=Judge(
        goals=lambda job: held(expected(job).memory),
        wrong_ways=WRONG_WAYS,
        measure=lambda job: held(run_of(job).memory.measured),
        text=bytes_text,
    ),
    mistakes=MISTAKES,
)
