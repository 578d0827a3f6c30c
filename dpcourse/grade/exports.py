"""The grades as other systems read them: nbgrader's columns, Moodle's and Canvas's.

Each is a CSV file beside grades.csv. Text that a spreadsheet would take for a formula begins with an
apostrophe.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from dpcourse.grade.senders import sender_of
from dpcourse.labs.question import LabSpec

# Those of `nbgrader export` (nbgrader 0.9, plugins/export.py), in its order.
_NBGRADER = (
    "assignment",
    "duedate",
    "timestamp",
    "student_id",
    "last_name",
    "first_name",
    "email",
    "raw_score",
    "late_submission_penalty",
    "score",
    "max_score",
)
# Of Moodle's grading worksheet those that it reads back; a submission's folder has the identifier's number.
_MOODLE = ("Identifier", "Full name", "Email address", "Grade", "Maximum Grade", "Feedback comments")
_CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
Record = dict[str, Any]


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV, safe to open in a spreadsheet."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, int | float):
        return f"{value:g}"
    text = " ".join(str(value).splitlines())
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def nbgrader_csv(lab: LabSpec, records: Iterable[Record]) -> str:
    """One row a student, in the columns of `nbgrader export`. No due date is known, and no penalty given."""
    rows: list[Sequence[Any]] = [_NBGRADER]
    for record in records:
        person = _person(record)
        names = (record["student"], person["last_name"], person["first_name"], person["email"])
        scores = (record["points"], 0.0, record["points"], record["max_points"])
        rows.append((lab.name, "", record["submitted_at"], *names, *scores))
    return csv_text(rows)


def moodle_csv(lab: LabSpec, records: Iterable[Record]) -> str:
    """One row a student, in columns of Moodle's grading worksheet (upload as "grading worksheet")."""
    rows: list[Sequence[Any]] = [_MOODLE]
    for record in records:
        person, sender = _person(record), sender_of(record["arrived"])
        identifier = f"Participant {sender.number}" if sender.system == "moodle" else ""
        name = f"{person['first_name']} {person['last_name']}".strip() or record["student"]
        comments = record["problem"] or "; ".join(_comments(record))
        rows.append((identifier, name, person["email"], record["points"], record["max_points"], comments))
    return csv_text(rows)


def canvas_csv(lab: LabSpec, records: Iterable[Record]) -> str:
    """One row a student, in the columns of Canvas's gradebook, and one with the points that can be had."""
    possible = ("Points Possible", "", "", "", "", lab.max_points)
    rows: list[Sequence[Any]] = [(*_CANVAS, lab.title), possible]
    for record in records:
        person, sender = _person(record), sender_of(record["arrived"])
        last_first = f"{person['last_name']}, {person['first_name']}"
        name = last_first if person["last_name"] else record["student"]
        number = person["canvas_id"] or (sender.number if sender.system == "canvas" else "")
        rows.append((name, number, record["student"], person["email"], person["section"], record["points"]))
    return csv_text(rows)


def _person(record: Record) -> dict[str, str]:
    """What the roster says of the student; empty without one."""
    empty = dict.fromkeys(("first_name", "last_name", "email", "section", "canvas_id"), "")
    return empty | (record["person"] or {})


def _comments(record: Record) -> list[str]:
    """What was said of each question that is not right."""
    return [
        f"{item['question']}: {item['message'] or item['status']}"
        for item in record["questions"]
        if item["status"] != "right"
    ]


EXPORTS = {"nbgrader.csv": nbgrader_csv, "moodle.csv": moodle_csv, "canvas.csv": canvas_csv}
