"""Lab 09, first question: one word, four sums."""

import math
from typing import Any

from dpcourse.labs.values import Number, WrongWay, numbers
from dpcourse.planning.recipes import CHOICES
from dpcourse.tables import Table

BILLIONS, CARD_GB = 13, 80
_NAMES = {
    "pure_bf16": "pure-bf16",
    "mixed_adam": "mixed-adam",
    "fsdp_mixed": "fsdp-mixed",
    "deepspeed_fp32_gradients": "deepspeed-fp32-gradients",
}
STATES_GB = {
    name: float(CHOICES[recipe].bytes_per_parameter("adamw") * BILLIONS) for name, recipe in _NAMES.items()
}
CARDS = math.ceil(STATES_GB["mixed_adam"] / CARD_GB)


def measure_recipes(value: Any, ranks: int) -> Table:
    """The plan's own sums for the four meanings, beside what the learner wrote."""
    rows = [(recipe, CHOICES[recipe].says, STATES_GB[name], value[name]) for name, recipe in _NAMES.items()]
    return Table(("recipe", "says", "GB of states", "you wrote"), rows, f"{BILLIONS} billion parameters")


RECIPES = numbers(
    "one_word",
    "One word, four sums",
    points=10,
    minutes=6,
    entry="states",
    asked=(
        Number("pure_bf16", STATES_GB["pure_bf16"], "Parameters, gradients and two means, all of 2 bytes."),
        Number(
            "mixed_adam",
            STATES_GB["mixed_adam"],
            "bf16 parameters and gradients, and an optimizer with masters and two means of 4 bytes each.",
        ),
        Number(
            "fsdp_mixed",
            STATES_GB["fsdp_mixed"],
            "What is kept is fp32: parameters, gradients, two means. Only what travels is bf16.",
        ),
        Number(
            "deepspeed_fp32_gradients",
            STATES_GB["deepspeed_fp32_gradients"],
            "As mixed-adam, but with gradients of 4 bytes.",
        ),
        Number("cards", CARDS, "The sums are right. How many cards of 80 GB is the second one, rounded up?"),
    ),
    wrong_ways=(
        WrongWay(
            "per_parameter",
            {name: gigabytes / BILLIONS for name, gigabytes in STATES_GB.items()},
            "These are bytes a parameter; multiply by 13 billion for GB.",
        ),
        WrongWay(
            "gibibytes",
            {name: gigabytes * 1e9 / 2**30 for name, gigabytes in STATES_GB.items()},
            "These are GiB, of 2**30 bytes. A GB is 10**9.",
        ),
        WrongWay(
            "no_states", {"pure_bf16": 4.0 * BILLIONS}, "Adam's two means are missing: 2 bytes each here."
        ),
        WrongWay(
            "no_masters",
            {"mixed_adam": 12.0 * BILLIONS},
            "The fp32 masters are missing: 4 bytes that only the optimizer sees.",
        ),
        WrongWay(
            "shards_in_bf16",
            {"fsdp_mixed": STATES_GB["pure_bf16"]},
            "FSDP's policy casts what it gathers. The shards stay fp32, and so do gradients and means.",
        ),
        WrongWay(
            "gradients_in_bf16",
            {"deepspeed_fp32_gradients": STATES_GB["mixed_adam"]},
            "Accumulated in fp32, gradients take 4 bytes, not 2.",
        ),
        WrongWay(
            "not_rounded_up",
            {"cards": STATES_GB["mixed_adam"] / CARD_GB},
            "There is no part of a card: round up.",
        ),
    ),
    measure=measure_recipes,
)
