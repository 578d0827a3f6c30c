"""A question that picks one of several things: the trace of a run, what eats the memory, the cause."""

from collections.abc import Callable, Mapping
from typing import Any

from dpcourse.labs.question import Finding, Mistake, ValueQuestion
from dpcourse.labs.values.form import shown


def pick(
    name: str,
    title: str,
    *,
    points: int,
    minutes: int,
    entry: str,
    goal: str,
    hints: Mapping[str, str],
    measure: Callable[[Any, int], Any],
) -> ValueQuestion:
    """Pick `goal` among it and the keys of `hints`: what is said to who picks one of those.

    The answer is a text, in the variable `entry`.
    """
    assert goal not in hints
    options = sorted([goal, *hints])
    mistakes = (
        Mistake("wrong_type", f"Write one of: {', '.join(options)}.", f"{entry} = 'something else'"),
        *(Mistake(option, hint, f"{entry} = {option!r}") for option, hint in hints.items()),
    )

    def judge(value: Any) -> Finding:
        if value is None:
            return Finding("incomplete", f"{entry} is still None")
        if type(value) is not str or value not in options:
            return Finding("wrong_type", f"{entry} is {shown(value)}")
        return Finding() if value == goal else Finding(value, f"you picked {value!r}")

    return ValueQuestion(name, title, points, minutes, entry, "pick", judge, measure, mistakes)
