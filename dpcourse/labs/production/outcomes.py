"""Holding what ranks sent against what right scripts give, and against what known wrong ones give."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpcourse.labs.question import Finding, Target
from dpcourse.labs.tensors import first_difference, is_close

Values = Mapping[str, Any]  # arrays and numbers by name
# All is computed in float64, whose rounding is 1e-16 of a number: some hundred operations stay far below
# this, and every known wrong script is far above it.
RELATIVE_BOUND = 1e-10


@dataclass(frozen=True)
class Outcomes:
    """What each rank must hold, and, for each known mistake, what each would hold then."""

    right: Sequence[Values]
    wrong: Mapping[str, Sequence[Values]] = field(default_factory=dict)

    def judge(self, title: str, held: list[Any]) -> Finding:
        """Every rank's values are the right ones; else the known mistake that explains all of them."""
        for rank, (got, goal) in enumerate(zip(held, self.right, strict=True)):
            if wrong := wrong_form(got, goal):
                return Finding("no_answer", f"{title}: rank {rank}: {wrong}")
        num_right = sum(map(holds, held, self.right))
        targets = (Target("ranks that hold it", str(len(held)), str(num_right), num_right == len(held)),)
        if num_right == len(held):
            return Finding(targets=targets)
        named = [name for name, values in self.wrong.items() if all(map(holds, held, values))]
        where = next(filter(None, map(self.difference, range(len(held)), held)))
        return Finding([*named, "other"][0], f"{title}: {where}", targets)

    def difference(self, rank: int, got: Values) -> str:
        """Where a rank's values first differ from the right ones; empty where they do not."""
        for name, goal in self.right[rank].items():
            if found := first_difference(_array(got[name]), _array(goal), _bound(goal)):
                return f"rank {rank}, {name}, {found}"
        return ""


def holds(got: Values, goal: Values) -> bool:
    """Whether all values of a rank are the goal's, but for rounding."""
    return all(is_close(_array(got[name]), _array(value), _bound(value)) for name, value in goal.items())


def wrong_form(got: Any, goal: Values) -> str:
    """What keeps values from being compared with the goal's, in words; empty where nothing does."""
    if type(got) is not dict:
        return f"sent {type(got).__name__} in place of values by name"
    for name, value in goal.items():
        if name not in got:
            return f"{name} is missing"
        kinds = (np.ndarray,) if type(value) is np.ndarray else (int, float)
        if type(got[name]) not in kinds or _array(got[name]).shape != _array(value).shape:
            return f"{name} is none" if got[name] is None else f"{name} has another type or shape"
    return ""


def _array(value: Any) -> np.ndarray:
    return np.asarray(value, np.float64)


def _bound(goal: Any) -> np.ndarray:
    size = np.abs(_array(goal))
    return np.full(size.shape, RELATIVE_BOUND * (1.0 + size.max(initial=0.0)))
