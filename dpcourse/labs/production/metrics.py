"""Script 12: metrics added up over ranks that know them in different orders."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dpcourse.labs.production.outcomes import Outcomes
from dpcourse.labs.production.script import script
from dpcourse.labs.question import Case, Finding, Mistake

NAMES = ("loss", "tokens", "correct", "seconds")
Metrics = dict[str, float]


def _case(random: np.random.Generator, size: int, is_first: bool) -> tuple[Metrics, ...]:
    full = [_metrics(random, NAMES[rank % 4 :] + NAMES[: rank % 4]) for rank in range(size)]
    if not is_first:
        del full[int(random.integers(size))]["correct"]  # this rank has had no such sample yet
    return tuple(full)


def _metrics(random: np.random.Generator, names: tuple[str, ...]) -> Metrics:
    return {name: float(random.integers(1, 1000)) for name in names}


def call(answer: Callable[..., Any], metrics: Metrics) -> Any:
    """In a rank: the sums that it gives."""
    sums = answer(dict(metrics))
    return {name: float(value) for name, value in sums.items()} if type(sums) is dict else None


def judge(case: Case, sent: list[Any]) -> Finding:
    """Every rank knows the sum of each metric over all ranks that have it."""
    goal = {name: float(sum(own.get(name, 0.0) for own in case.inputs)) for name in NAMES}
    if any(type(sums) is dict and set(sums) < set(NAMES) for sums in sent):
        rank = next(rank for rank, sums in enumerate(sent) if set(sums) < set(NAMES))
        return Finding("lacking", f"{case.title}: rank {rank} gives {', '.join(sent[rank]) or 'no metric'}")
    wrong_ways: dict[str, list[Any]] = {"own": [{**dict.fromkeys(NAMES, 0.0), **own} for own in case.inputs]}
    if all(len(own) == len(NAMES) for own in case.inputs):
        columns = list(zip(*(own.values() for own in case.inputs), strict=True))
        wrong_ways["swapped"] = [dict(zip(own, map(sum, columns), strict=True)) for own in case.inputs]
    wrong_ways["rank_0s"] = [case.inputs[0] if len(case.inputs[0]) == len(NAMES) else goal] * case.world_size
    return Outcomes([goal] * case.world_size, wrong_ways).judge(case.title, sent)


def _row(metrics: Metrics, sums: Any) -> tuple[Any, ...]:
    return tuple(
        " ".join(f"{name}={value:g}" for name, value in values.items()) for values in (metrics, sums)
    )


_BROKEN = """\
def sum_metrics(metrics):
    sums = {}
    for name, value in metrics.items():
        total = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(total)
        sums[name] = total.item()
    return sums
"""

SUM_METRICS = script(
    "sum_metrics",
    "Metrics of each rank, and the sums it gives",
    minutes=8,
    case=_case,
    call=call,
    judge=judge,
    columns=("its own", "its sums"),
    row=_row,
    broken=_BROKEN,
    mistakes=(
        Mistake(
            "swapped",
            "No error, and wrong numbers: each rank goes through its metrics in its own order, and one"
            " rank's loss is added to another's tokens. A collective knows no names, only whose turn it is.",
        ),
        Mistake(
            "hang",
            "With the same metrics everywhere this would do. Here a rank lacks one, makes one all-reduce"
            " fewer, and the others wait: the ranks have to agree on the names first.",
        ),
        Mistake(
            "own",
            "Each rank gives its own numbers: nothing was added up.",
        ),
        Mistake(
            "rank_0s",
            "All ranks give rank 0's numbers: equal everywhere, and no sum over ranks.",
        ),
        Mistake(
            "lacking",
            "A metric that not every rank has is missing from the sums: what some ranks know would be lost.",
        ),
        Mistake(
            "other",
            "These are not the sums over all ranks.",
        ),
    ),
)
