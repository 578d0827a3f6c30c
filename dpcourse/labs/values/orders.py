"""A question that puts events in order, judged by what must come before what: every right order passes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpcourse.labs.question import Finding, Mistake, Target, ValueQuestion
from dpcourse.labs.values.form import shown


@dataclass(frozen=True)
class Before:
    """One event that must come before another, and the reason, told to who has them the other way round."""

    first: str
    then: str
    reason: str

    @property
    def name(self) -> str:
        """The mistake of who puts it the other way round."""
        return f"{self.then} before {self.first}"


def order(
    name: str,
    title: str,
    *,
    points: int,
    minutes: int,
    entry: str,
    events: tuple[str, ...],
    relations: tuple[Before, ...],
    measure: Callable[[Any, int], Any],
) -> ValueQuestion:
    """Put `events` in order, each once; any order passes in which every relation holds.

    events: in one right order (show them in another). relations: none may follow from others, so that each
    can be broken alone. The answer is a list of texts, in the variable `entry`; the first pair of it that is
    out of order decides.
    """
    assert not _broken(list(events), relations)
    assert not any(_follows(relation, relations) for relation in relations)

    def source(listed: list[str]) -> str:
        return f"{entry} = {listed!r}"

    mistakes = (
        Mistake("wrong_type", "Write a list of the events' names.", f"{entry} = {', '.join(events)!r}"),
        Mistake(
            "unknown",
            "A name in the list is none of the events: copy them from the task.",
            source(["something else", *events]),
        ),
        Mistake(
            "doubled", "An event stands in the list twice: each happens once.", source([*events, events[0]])
        ),
        Mistake("missing", "An event is not in the list: each must be there.", source(list(events[1:]))),
        *(
            Mistake(relation.name, relation.reason, source(_other_way_round(relation, events, relations)))
            for relation in relations
        ),
    )
    return ValueQuestion(
        name,
        title,
        points,
        minutes,
        entry,
        "order",
        lambda v: _judge(v, events, relations),
        measure,
        mistakes,
    )


def _judge(value: Any, events: tuple[str, ...], relations: tuple[Before, ...]) -> Finding:
    if problem := _wrong_list(value, events):
        return problem
    broken = _broken(value, relations)
    num_right = len(relations) - len(broken)
    target = Target("pairs in order", str(len(relations)), str(num_right), not broken)
    if not broken:
        return Finding(targets=(target,))
    first = min(broken, key=lambda relation: value.index(relation.then))
    where = f"{first.then!r} stands before {first.first!r}"
    return Finding(first.name, where, (target,))


def _wrong_list(value: Any, events: tuple[str, ...]) -> Finding | None:
    if type(value) is not list:
        return Finding("wrong_type", f"expected a list of texts, got a value {shown(value)}")
    if not value or any(item is None for item in value):
        return Finding("incomplete", f"{sum(item is not None for item in value)} of {len(events)} events")
    for item in value:
        if type(item) is not str:
            return Finding("wrong_type", f"an item of the list is {shown(item)}")
        if item not in events:
            return Finding("unknown", f"not an event: {shown(item)}")
        if value.count(item) > 1:
            return Finding("doubled", f"more than once: {item!r}")
    missing = [event for event in events if event not in value]
    return Finding("missing", f"not in the list: {missing[0]!r}") if missing else None


def _broken(listed: list[str], relations: tuple[Before, ...]) -> list[Before]:
    return [r for r in relations if listed.index(r.then) < listed.index(r.first)]


def _earlier(event: str, relations: tuple[Before, ...]) -> set[str]:
    """All events that must come before `event`."""
    found: set[str] = set()
    for relation in relations:
        if relation.then == event:
            found |= {relation.first} | _earlier(relation.first, relations)
    return found


def _follows(relation: Before, relations: tuple[Before, ...]) -> bool:
    """Whether a relation is implied by the others."""
    others = tuple(other for other in relations if other is not relation)
    return relation.first in _earlier(relation.then, others)


def _other_way_round(relation: Before, events: tuple[str, ...], relations: tuple[Before, ...]) -> list[str]:
    """An order that breaks this relation and no other: what both need, the pair turned round, the rest."""
    pair = [relation.then, relation.first]
    needed = _earlier(relation.then, relations) | _earlier(relation.first, relations)
    before = [event for event in events if event in needed and event not in pair]
    return [*before, *pair, *(event for event in events if event not in needed and event not in pair)]
