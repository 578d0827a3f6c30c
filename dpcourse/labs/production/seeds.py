"""Script 11: one seed for everything, and so the same dropout masks on every rank."""

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import numpy as np

from dpcourse.labs.production.outcomes import wrong_form
from dpcourse.labs.production.script import script, short
from dpcourse.labs.question import Case, Finding, Mistake, Target

NUM_KEPT = 64  # of a dropout mask: two ranks' masks are alike by chance once in 2**64
AGAIN, ZERO = 1, 2  # the second start has the first one's seed, the third has seed 0


def _case(random: np.random.Generator, size: int, is_first: bool) -> tuple[tuple[int, list[int]], ...]:
    seed = int(random.integers(1, 10**6))
    return tuple((seed, random.integers(1, 10**9, 3).tolist()) for _ in range(size))


def call(answer: Callable[..., Any], own: tuple[int, list[int]]) -> list[dict[str, Any]]:
    """In a rank: the first weights and the first dropout mask of three starts."""
    import torch

    seed, leftovers = own
    sent = []
    for number, leftover in zip((seed, seed, 0), leftovers, strict=True):
        torch.manual_seed(leftover)  # a new process has drawn from nowhere else
        model = answer(number, lambda: torch.nn.Linear(3, 2, dtype=torch.float64))
        mask = torch.nn.functional.dropout(torch.ones(NUM_KEPT, dtype=torch.float64)) > 0
        weight = next(iter(model.parameters())).detach().clone()
        sent.append({"weight": weight, "mask": mask.double()})
    return sent


def judge(case: Case, sent: list[Any]) -> Finding:
    """Weights alike on all ranks, masks not, and both decided by the seed."""
    form = {"weight": np.zeros((2, 3)), "mask": np.zeros(NUM_KEPT)}
    for rank, starts in enumerate(sent):
        if type(starts) is not list or len(starts) != 3 or (any(wrong_form(start, form) for start in starts)):
            return Finding(
                "no_answer", f"{case.title}: rank {rank} gave no model of the kind that build() makes"
            )
    masks = {starts[0]["mask"].tobytes() for starts in sent}
    targets = (Target("different masks", str(len(sent)), str(len(masks)), len(masks) == len(sent)),)
    mistake, where = next(_problems(sent), ("", ""))
    return Finding(mistake, f"{case.title}: {where}" if where else "", targets)


def _problems(sent: list[Any]) -> Iterator[tuple[str, str]]:
    """What is wrong, the most telling first."""
    for name, mistake in (("weight", "unlike_weights"), ("mask", "not_decided")):
        for rank, starts in enumerate(sent):
            if name == "weight" and any(
                not np.array_equal(own[name], first[name]) for own, first in zip(starts, sent[0], strict=True)
            ):
                yield mistake, f"ranks 0 and {rank} begin with different weights"
            if not np.array_equal(starts[0][name], starts[AGAIN][name]):
                yield "not_decided", f"rank {rank}: two starts with one seed differ in the first {name}"
            if np.array_equal(starts[0][name], starts[ZERO][name]):
                yield "seed_ignored", f"rank {rank}: the first {name} is the same with two different seeds"
    for (rank, first), (other, second) in combinations(enumerate(sent), 2):
        alike = [
            number for number in (0, ZERO) if np.array_equal(first[number]["mask"], second[number]["mask"])
        ]
        if len(alike) == 2:
            yield "same_masks", f"ranks {rank} and {other} drop the same"
        if alike:
            yield (
                "by_luck",
                f"ranks {rank} and {other} drop the same where the seed is {'0' if alike[0] else 'not 0'}",
            )


def _row(own: tuple[int, list[int]], starts: Any) -> tuple[Any, ...]:
    return short(starts[0]["weight"]), "".join(".x"[int(kept)] for kept in starts[0]["mask"][:24])


_BROKEN = """\
def start(seed, build):
    torch.manual_seed(seed)
    return build()
"""

START = script(
    "start",
    "The first weights and the first dropout mask",
    minutes=5,
    case=_case,
    call=call,
    judge=judge,
    columns=("its weights", "its mask (x is kept)"),
    row=_row,
    broken=_BROKEN,
    mistakes=(
        Mistake(
            "same_masks",
            "All ranks drop the same units: the seed that makes their weights equal makes their dropout"
            " masks equal as well. Once the weights are made, each rank needs a seed of its own.",
        ),
        Mistake(
            "unlike_weights",
            "The masks differ, and so do the weights: a rank's own seed came before the model was made. DDP"
            " would hide this by sending rank 0's weights; nothing else would.",
        ),
        Mistake(
            "not_decided",
            "Two starts with one seed draw different masks: what is drawn from the clock can't be repeated."
            " Let the seed and the rank decide.",
        ),
        Mistake(
            "seed_ignored",
            "Two seeds give the same: whoever trains several times for an error bar gets one run several"
            " times.",
        ),
        Mistake(
            "by_luck",
            "The ranks' seeds differ for most seeds and not for all: a product is 0 wherever a factor is.",
        ),
    ),
)
