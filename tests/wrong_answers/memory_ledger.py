"""Lab 07, the memory ledger: a wrong answer for each mistake."""

from dpcourse.labs.ledgers.memory import RECIPE_BYTES, SHARED

_ALL = SHARED["fsdp"]


def _answer(changed: str = "", then: str = "", end: str = "", name: str = "memory_bytes") -> str:
    """The solution with something in it replaced, or something done at its end."""
    source = f"""RECIPES = {RECIPE_BYTES!r}
SHARED = {SHARED!r}


def {name}(strategy, recipe, num_params, num_trained, ranks):
    parameter, gradient, states = RECIPES[recipe]
    held = dict(parameters=parameter * num_params, gradients=gradient * num_trained)
    held["optimizer"] = states * num_trained
    held["buckets"] = held["gradients"] if strategy == "ddp" else 0
    for owner in SHARED[strategy]:
        held[owner] /= ranks
{end}    return held
"""
    assert changed in source
    return source.replace(changed, then) if changed else source


MEMORY_BYTES = {
    "forgets_buckets": _answer('held["gradients"] if strategy == "ddp" else 0', "0"),
    "copies_views": _answer('strategy == "ddp"', 'strategy.startswith("ddp")'),
    "buckets_everywhere": _answer('strategy == "ddp"', 'strategy != "ddp, views"'),
    "one_recipe": _answer("RECIPES[recipe]", "4, 4, 8"),
    "autocast_is_bf16": _answer("'autocast': (4, 4, 8)", "'autocast': (2, 2, 4)"),
    "gathers_are_kept": _answer("'fsdp-mixed': (4, 4, 8)", "'fsdp-mixed': (2, 2, 4)"),
    "forgets_masters": _answer("'mixed-adam': (2, 2, 12)", "'mixed-adam': (2, 2, 8)"),
    "one_moment": _answer("[recipe]", "[recipe]; states -= 4 if recipe == 'mixed-adam' else states // 2"),
    "elements": _answer("RECIPES[recipe]", "(1, 1, 3 if recipe == 'mixed-adam' else 2)"),
    "nothing_shared": _answer("SHARED[strategy]", "()"),
    "all_shared": _answer("SHARED[strategy]", f"() if strategy.startswith('ddp') else {_ALL!r}"),
    "stage_1_too_far": _answer("'zero1': ('optimizer',)", "'zero1': ('optimizer', 'gradients')"),
    "stage_2_too_short": _answer("'zero2': ('optimizer', 'gradients')", "'zero2': ('optimizer',)"),
    "kept_is_whole": _answer(
        "'fsdp, kept': ('optimizer', 'gradients', 'parameters')",
        "'fsdp, kept': ('optimizer', 'gradients')",
    ),
    "frozen_counted": _answer("* num_trained", "* num_params"),
    "wrong_type": _answer("return held", "return sum(held.values())"),
    "parameters": _answer(end="    held['parameters'] *= 1.5\n"),
    "gradients": _answer(end="    held['gradients'] *= 1.5\n"),
    "optimizer": _answer(end="    held['optimizer'] *= 1.7\n"),
    "buckets": _answer(end="    held['buckets'] *= 1.5\n"),
}
