"""A question that matches each of several things with one of a few options."""

from collections.abc import Callable, Mapping
from typing import Any

from dpcourse.labs.question import Finding, Mistake, Target, ValueQuestion
from dpcourse.labs.values.form import shown, wrong_fields


def match(
    name: str,
    title: str,
    *,
    points: int,
    minutes: int,
    entry: str,
    noun: str,
    options: tuple[str, ...],
    goals: Mapping[str, str],
    hints: Mapping[str, str],
    measure: Callable[[Any, int], Any],
) -> ValueQuestion:
    """Match each key of `goals` with one of `options`; the first that is wrong gets its own hint.

    noun: what a key is, in the singular. The answer is a dict of texts, in the variable `entry`.
    """
    # A thing without a hint, or a goal that cannot be chosen, would make a question that nobody can answer.
    assert set(goals) == set(hints)
    assert set(goals.values()) <= set(options)

    def source(changed: str, option: str) -> str:
        return f"{entry} = { ({**goals, changed: option})!r}"

    def other(key: str) -> str:
        return next(option for option in options if option != goals[key])

    unknown = Mistake(
        "wrong_type",
        f"Match each {noun} with one of: {', '.join(options)}.",
        source(next(iter(goals)), "something else"),
    )
    mistakes = (unknown, *(Mistake(key, hints[key], source(key, other(key))) for key in goals))
    return ValueQuestion(
        name, title, points, minutes, entry, "match", lambda v: _judge(v, goals, options), measure, mistakes
    )


def _judge(value: Any, goals: Mapping[str, str], options: tuple[str, ...]) -> Finding:
    if problem := wrong_fields(value, goals, (str,)):
        return problem
    unknown = [key for key in goals if value[key] not in options]
    if unknown:
        return Finding("wrong_type", f"{unknown[0]}: {shown(value[unknown[0]])} is none of the options")
    wrong = [key for key, option in goals.items() if value[key] != option]
    targets = (Target("matched", str(len(goals)), str(len(goals) - len(wrong)), not wrong),)
    return Finding(wrong[0] if wrong else "", f"look again at: {wrong[0]}" if wrong else "", targets)
