"""Lab 07, the traffic ledger: a wrong answer for each mistake."""

from dpcourse.labs.ledgers.traffic import SENT_BYTES


def _answer(changed: str = "", then: str = "") -> str:
    """The solution with something in it replaced."""
    source = f"""SENT = {SENT_BYTES!r}


def traffic_bytes(strategy, recipe, num_params, num_trained, ranks, backend):
    gathered, reduced = SENT[recipe]
    trip = (ranks - 1) / ranks
    if not strategy.startswith("fsdp"):
        return 2 * trip * reduced * num_trained
    gathers = 1 if strategy == "fsdp, kept" else 2
    reduces = 2 if backend == "gloo" else 1
    return trip * (gathers * gathered * num_params + reduces * reduced * num_trained)
"""
    assert changed in source
    return source.replace(changed, then)


TRAFFIC_BYTES = {
    "one_format": _answer("SENT[recipe]", "4, 4"),
    "autocast_is_bf16": _answer("'autocast': (4, 4)", "'autocast': (2, 2)"),
    "sends_shards_as_kept": _answer("'fsdp-mixed': (2, 2)", "'fsdp-mixed': (4, 4)"),
    "reduces_in_fp32": _answer("'fsdp-mixed': (2, 2)", "'fsdp-mixed': (2, 4)"),
    "sends_masters": _answer("'mixed-adam': (2, 2)", "'mixed-adam': (4, 4)"),
    "elements": _answer("SENT[recipe]", "1, 1"),
    "whole_payload": _answer("(ranks - 1) / ranks", "1"),
    "of_all_ranks": _answer("(ranks - 1) / ranks", "ranks - 1"),
    "one_way": _answer("return 2 * trip", "return trip"),
    "gloo_as_a_ring": _answer('2 if backend == "gloo" else 1', "1"),
    "ring_as_gloo": _answer('2 if backend == "gloo" else 1', "2"),
    "kept_gathers_twice": _answer('1 if strategy == "fsdp, kept" else 2', "2"),
    "full_gathers_once": _answer('1 if strategy == "fsdp, kept" else 2', "1"),
    "frozen_reduced": _answer("num_trained\n", "num_params\n").replace("* num_trained)", "* num_params)"),
    "frozen_not_gathered": _answer("gathered * num_params", "gathered * num_trained"),
    "wrong_type": _answer("return ", "return None and "),
    "sent": _answer("return ", "return 1.3 * "),
}
