"""A learner's record: predictions, lab checks and what comes next, in one readable file of their own.

It is `progress.json` in my/ (or the file that DPCOURSE_PROGRESS names; "off" keeps none): JSON with `kind`,
`format`, `learner` (a random number, so that a room's guesses can be told apart without names), and

- `predictions`: for each question the first `guess`, whatever it was `changed_to` later, `formula`,
  `measured`, whether the first guess `is_right`, and when,
- `checks`: for each "lab/question" the last `status`, `points` of `max_points`, `num_tries`, and when.

Outside of my/, in the reference configuration and in graders nothing is written. Nothing is sent anywhere.
"""

import json
import os
import secrets
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpcourse.files import write_whole
from dpcourse.show import is_reference
from dpcourse.workspace import STATE, free_name

KIND, FORMAT, NAME = "dpcourse progress", 1, "progress.json"
VARIABLE = "DPCOURSE_PROGRESS"
_OFF = ("", "0", "off")
_LOCK_SECONDS = 5.0
_MOST_BYTES = 10_000_000
_FIELDS = {
    "guess": int | float,
    "changed_to": list,
    "formula": int | float | None,
    "measured": int | float | None,
    "num_tries": int,
    "status": str,
    "points": int | float,
    "max_points": int | float,
}
Record = dict[str, Any]


class NotKept(Exception):
    """The record could not be read or written; str() is the sentence that says so."""


def record_file() -> Path | None:
    """Where the record is kept; None where none is."""
    named = os.environ.get(VARIABLE)
    if is_reference() or (named is not None and named.lower() in _OFF):
        return None
    if named:
        return Path(named).absolute()
    here = Path.cwd()
    return next((folder / NAME for folder in (here, *here.parents) if (folder / STATE).is_file()), None)


def read_record(path: Path) -> Record:
    """Read a record; an empty one where there is no file.

    Raises NotKept for a file that is no record, which is kept aside under another name, and for one of a
    newer version, which stays as it is.
    """
    try:
        text = _text(path)
    except FileNotFoundError:
        return _empty()
    except (OSError, ValueError) as error:
        raise NotKept(_aside(path, str(error))) from None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotKept(_aside(path, str(error))) from None
    if wrong := _wrong(found):
        raise NotKept(_aside(path, wrong))
    if found["format"] > FORMAT:
        raise NotKept(f"{path} was written by a newer dpcourse (format {found['format']}): update this one")
    return found


def _text(path: Path) -> str:
    """Read a regular file of a learner's size: a pipe or a device would never end."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is no regular file")
    if found.st_size > _MOST_BYTES:
        raise ValueError(f"it is over {_MOST_BYTES:,} bytes")
    return path.read_text(encoding="utf-8")


def _empty() -> Record:
    return {"kind": KIND, "format": FORMAT, "learner": secrets.token_hex(8), "predictions": {}, "checks": {}}


def _wrong(found: Any) -> str:
    """Say what keeps plain data from being a record, or nothing."""
    if not isinstance(found, dict) or found.get("kind") != KIND or type(found.get("format")) is not int:
        return "it is no record of dpcourse"
    if found["format"] > FORMAT:
        return ""  # what is in it is not for this version to judge
    if not isinstance(found.get("learner"), str):
        return "its learner is no text"
    for part in ("predictions", "checks"):
        rows = found.get(part)
        if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
            return f"its {part} are no table"
        if odd := next((key for row in rows.values() for key in row if not _is_known(key, row[key])), ""):
            return f"one of its {part} has a {odd} of another kind"
    return ""


def _is_known(key: str, value: Any) -> bool:
    """Tell whether a field that is calculated with or compared holds what it should."""
    kinds = _FIELDS.get(key)
    return kinds is None or (isinstance(value, kinds) and not isinstance(value, bool))


def _aside(path: Path, why: str) -> str:
    beside = free_name(path)
    try:
        os.replace(path, beside)
    except OSError as error:
        return f"{path} cannot be used ({why}), nor moved away ({error}): move it yourself"
    return f"{path} could not be read ({why}): it is kept as {beside.name}, and a new one begins"


def change(do: Callable[[Record], Any]) -> Any:
    """Change the record and give what `do` returns; None where no record is kept.

    Two notebooks that do so at once wait for each other. What goes wrong is said and stops nothing: a record
    is not worth a run.
    """
    path = record_file()
    if path is None:
        return None
    from filelock import FileLock, Timeout

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock"), timeout=_LOCK_SECONDS):
            return _changed(path, do)
    except Timeout:
        print(
            f"Your progress was not kept: another program holds {path} for {_LOCK_SECONDS:g} s; run it again"
        )
    except (NotKept, OSError) as error:
        print(f"Your progress was not kept: {error}")
    return None


def _changed(path: Path, do: Callable[[Record], Any]) -> Any:
    try:
        record = read_record(path)
    except NotKept as error:
        if path.exists():
            raise
        print(error)
        record = _empty()
    result = do(record)
    write_whole(path, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
    return result


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def lock_guess(question: str, guess: float) -> float:
    """Keep a guess and give the first for this question, which stays: a later one stands beside it."""

    def do(record: Record) -> float:
        row = record["predictions"].setdefault(question, {"guess": guess, "locked_at": _now()})
        first = row.setdefault("guess", guess)
        if guess != first and guess not in row.setdefault("changed_to", []):
            row["changed_to"].append(guess)
        return first

    first = change(do)
    return guess if first is None else first


def reveal(question: str, formula: float | None, measured: float | None, is_right: bool) -> None:
    """Keep what a locked guess was held against, and whether it is right; one that is not there stays out."""

    def do(record: Record) -> None:
        if row := record["predictions"].get(question):
            row |= {"formula": formula, "measured": measured, "is_right": is_right, "revealed_at": _now()}

    change(do)


def keep_check(lab: str, question: str, status: str, points: float, max_points: float) -> None:
    """Keep the outcome of a lab's check; once right, a question stays right."""

    def do(record: Record) -> None:
        row = record["checks"].setdefault(f"{lab}/{question}", {})
        row["num_tries"] = row.get("num_tries", 0) + 1
        if row.get("status") != "right":
            row |= {"status": status, "points": points, "max_points": max_points, "at": _now()}

    change(do)


def was_checked(lab: str, question: str) -> bool:
    """Tell whether the record has a check of a lab's question; a record that cannot be read has none."""
    path = record_file()
    try:
        return path is not None and path.exists() and f"{lab}/{question}" in read_record(path)["checks"]
    except (NotKept, OSError):
        return False


def learner_number() -> str:
    """The random number that stands for this learner; one for this process where no record is kept."""
    number = change(lambda record: record["learner"])
    return number or _PASSING


_PASSING = secrets.token_hex(8)
