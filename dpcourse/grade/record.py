"""What is kept of a graded submission: one JSON file each, written whole or not at all, and grades.csv."""

import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from dpcourse import files
from dpcourse.grade.by_hand import points_of, words
from dpcourse.grade.exports import EXPORTS, csv_text
from dpcourse.labs.question import LabSpec
from dpcourse.labs.verdict import Verdict

FORMAT = 2
_SEED_BITS = 48  # too many to try, and few enough for every reader of JSON
# The columns of grades.csv before and after those of the questions.
_BEFORE = ("student", "points", "max_points")
_AFTER = ("problem", "run", "notes", "isolation", "submission")


def write_whole(path: Path, content: str | bytes) -> bool:
    """Write a file whole or not at all; a file that says the same already is left alone.

    Returns whether it was written.
    """
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    if path.exists() and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_whole(path, data)
    return True


def file_key(student: str) -> str:
    """A file name for a student: readable, of plain letters, and different for different names."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", student).strip("._")[:60]
    return plain if plain == student else f"{plain or 'student'}-{sha256(student.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Book:
    """The folder with everything that was graded."""

    folder: Path
    lab: LabSpec

    def record_path(self, student: str) -> Path:
        """Where a student's record is."""
        return self.folder / "records" / f"{file_key(student)}.json"

    def notebook_path(self, student: str) -> Path:
        """Where a student's executed notebook is."""
        return self.folder / "notebooks" / f"{file_key(student)}.ipynb"

    def report_path(self, student: str) -> Path:
        """Where the page for a student is."""
        return self.folder / "reports" / f"{file_key(student)}.html"

    def seed(self) -> int:
        """What chooses the cases of this batch: drawn when first asked for, so that no answer knows it."""
        path = self.folder / "seed"
        try:
            return int(path.read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            seed = secrets.randbits(_SEED_BITS)
            write_whole(path, f"{seed}\n")
            return seed

    def read(self, student: str) -> dict[str, Any] | None:
        """The record of a student, or None; a file that is no record counts as none."""
        try:
            record = json.loads(self.record_path(student).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return record if _is_record(record, self.lab) else None

    def read_notebook(self, student: str) -> dict[str, Any] | None:
        """The executed notebook of a student, or None."""
        try:
            notebook: dict[str, Any] = json.loads(self.notebook_path(student).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return notebook

    def write(self, record: dict[str, Any]) -> None:
        """Write a student's record."""
        text = json.dumps(record, indent=1, ensure_ascii=False, sort_keys=True)
        write_whole(self.record_path(record["student"]), text + "\n")

    def remove(self, student: str) -> None:
        """Remove all that is kept of a student, who goes by another name now."""
        for path in (self.record_path, self.notebook_path, self.report_path):
            path(student).unlink(missing_ok=True)

    def all_records(self) -> list[dict[str, Any]]:
        """Every record that is here, in order of the students' names."""
        found = []
        for path in (self.folder / "records").glob("*.json"):
            try:
                record = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            found += [record] if _is_record(record, self.lab) else []
        return sorted(found, key=lambda record: str(record["student"]))


def _is_record(record: Any, lab: LabSpec) -> bool:
    """Whether it is a whole record of this lab: everything that is read from one is there."""
    if type(record) is not dict or record.get("format") != FORMAT or record.get("lab") != lab.name:
        return False
    try:
        for written in (grades_csv, *EXPORTS.values()):
            written(lab, [record])
        verdicts = [Verdict.from_dict(item) for item in record["questions"]]
    except (TypeError, KeyError, ValueError, AttributeError):
        return False
    names = [question.name for question in lab.questions]
    return type(record.get("fingerprint")) is str and [verdict.question for verdict in verdicts] == names


def grades_csv(lab: LabSpec, records: Iterable[dict[str, Any]]) -> str:
    """One row a submission; text that a spreadsheet would take for a formula begins with an apostrophe."""
    questions = [question.name for question in lab.questions]
    rows: list[list[Any]] = [[*_BEFORE, *questions, *_AFTER]]
    for record in records:
        points = points_of(record, record["by_hand"])
        row = [*[record[name] for name in _BEFORE], *[points[name] for name in questions]]
        rows.append(row + _remarks(record))
    return csv_text(rows)


def _remarks(record: dict[str, Any]) -> list[str]:
    """The columns of `_AFTER`."""
    run = record["run"]["problem"] or ("" if record["run"]["is_run"] else "not run")
    notes = "; ".join([*record["notes"], *words(record)])
    return [record["problem"], run, notes, record["isolation"]["kind"], record["submission"]]
