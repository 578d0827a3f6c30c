"""A question for one number or several that lead to it, with the known wrong ways to compute them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dpcourse.labs.question import Finding, Mistake, Target, ValueQuestion
from dpcourse.labs.values.form import wrong_fields

# A tenth of a thousandth: room for rounding to five digits, far from every wrong way to compute a number.
RELATIVE_TOLERANCE = 1e-4
# Factors that make a wrong number of a right one; the first that no wrong way explains is taken.
_FACTORS = (1.37, 0.71, 1.83, 2.9)


@dataclass(frozen=True)
class Number:
    """A number of a derivation, and what is said when it is off in a way that nobody foresaw."""

    name: str
    goal: float
    message: str


@dataclass(frozen=True)
class WrongWay:
    """A way to compute some of the numbers that is known to be wrong, what comes out, and what is said."""

    name: str
    numbers: Mapping[str, float]
    message: str


def numbers(
    name: str,
    title: str,
    *,
    points: int,
    minutes: int,
    entry: str,
    asked: tuple[Number, ...],
    wrong_ways: tuple[WrongWay, ...] = (),
    measure: Callable[[Any, int], Any],
    relative_tolerance: float = RELATIVE_TOLERANCE,
) -> ValueQuestion:
    """Ask for the numbers `asked`, in the order of their derivation; the first that is off decides.

    It gets the message of the first wrong way that explains it, else its own. The answer is a dict of
    numbers, in the variable `entry`.
    """
    goals = {number.name: number.goal for number in asked}

    def judge(value: Any) -> Finding:
        return _judge(value, goals, wrong_ways, relative_tolerance)

    def source(changed: Mapping[str, float]) -> str:
        return f"{entry} = { ({**goals, **changed})!r}"

    mistakes = (
        Mistake(
            "wrong_type",
            "Write plain numbers, under the names that stand in the stub.",
            f"{entry} = {list(goals.values())!r}",
        ),
        *(Mistake(way.name, way.message, source(way.numbers)) for way in wrong_ways),
        *(
            Mistake(number.name, number.message, source({number.name: _unforeseen(number, judge, goals)}))
            for number in asked
        ),
    )
    return ValueQuestion(name, title, points, minutes, entry, "number", judge, measure, mistakes)


def is_near(number: float, goal: float, relative_tolerance: float = RELATIVE_TOLERANCE) -> bool:
    """Whether a number is the goal but for rounding; nan is near to nothing."""
    return abs(as_float(number) - goal) <= relative_tolerance * abs(goal)


def as_float(number: float) -> float:
    """The number as a float; one too large for that is infinite."""
    try:
        return float(number)
    except OverflowError:
        return float("inf")


def _judge(
    value: Any, goals: Mapping[str, float], wrong_ways: tuple[WrongWay, ...], relative_tolerance: float
) -> Finding:
    if problem := wrong_fields(value, goals, (int, float)):
        return problem
    is_right = {name: is_near(value[name], goal, relative_tolerance) for name, goal in goals.items()}
    targets = tuple(
        Target(name, "see the task", f"{as_float(value[name]):g}", is_met)
        for name, is_met in is_right.items()
    )
    first = next((name for name, is_met in is_right.items() if not is_met), "")
    where = f"{first} is {as_float(value[first]):g}" if first else ""
    return Finding(_mistake(value, first, wrong_ways, relative_tolerance), where, targets)


def _mistake(
    value: Mapping[str, float], first: str, wrong_ways: tuple[WrongWay, ...], relative_tolerance: float
) -> str:
    for way in wrong_ways:
        if first in way.numbers and all(
            is_near(value[name], number, relative_tolerance) for name, number in way.numbers.items()
        ):
            return way.name
    return first


def _unforeseen(number: Number, judge: Callable[[Any], Finding], goals: Mapping[str, float]) -> float:
    """A wrong number that no wrong way explains."""
    tried = (number.goal * factor for factor in _FACTORS)
    return next(wrong for wrong in tried if judge({**goals, number.name: wrong}).mistake == number.name)
