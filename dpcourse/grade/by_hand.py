"""Points that a person gives, with the reason: they stand over the check's, and outlive a new grading."""

from typing import Any

from dpcourse.labs.question import LabSpec

Record = dict[str, Any]


def check_given(lab: LabSpec, question: str, points: float, reason: str) -> None:
    """Refuse a question that there is not, points that it does not have, and a missing reason.

    Raises:
        ValueError: says which.
    """
    most = lab.question(question).points
    if not 0 <= points <= most:
        raise ValueError(f"{points:g} points for {question}: it has from 0 to {most}")
    if not reason.strip():
        raise ValueError(f"{points:g} points for {question}: give the reason, which stands in the report")


def give(record: Record, question: str, points: float, reason: str) -> Record:
    """The record with points given by hand."""
    given = {**record["by_hand"], question: {"points": points, "reason": reason.strip()}}
    return with_points(record, given)


def with_points(record: Record, by_hand: dict[str, Any]) -> Record:
    """The record with these given by hand, and its points added up anew."""
    return {**record, "by_hand": by_hand, "points": sum(points_of(record, by_hand).values())}


def points_of(record: Record, by_hand: dict[str, Any]) -> dict[str, float]:
    """The points of each question: those given by hand, else the check's."""
    checked = {item["question"]: item["points"] for item in record["questions"]}
    return checked | {name: given["points"] for name, given in by_hand.items() if name in checked}


def words(record: Record) -> list[str]:
    """What was given by hand, and why."""
    return [
        f"{name}: {given['points']:g} points by hand: {given['reason']}"
        for name, given in sorted(record["by_hand"].items())
    ]
