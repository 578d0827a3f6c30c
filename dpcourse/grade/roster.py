"""The class list: who is to hand in, and whose a submission is."""

import csv
import io
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dpcourse.grade.senders import Sender

# Headings of class lists, as letters and digits only; of several ids the first counts.
_IDS = ("studentid", "sisuserid", "idnumber", "username", "sisloginid", "loginid", "login", "id")
_EMAILS = ("email", "emailaddress", "mail")
_FIRST_NAMES = ("firstname", "givenname", "first")
_LAST_NAMES = ("lastname", "surname", "familyname", "last")
_NAMES = ("fullname", "name", "student")


@dataclass(frozen=True)
class Student:
    """One line of the list. `key` is what grades and files call them; `numbers` are all their ids."""

    key: str
    first_name: str = ""
    last_name: str = ""
    email: str = ""
    numbers: tuple[str, ...] = ()
    section: str = ""
    canvas_id: str = ""

    @property
    def name(self) -> str:
        """The full name."""
        return f"{self.first_name} {self.last_name}".strip()

    def as_dict(self) -> dict[str, str]:
        """What a record keeps of them."""
        kept = ("first_name", "last_name", "email", "section", "canvas_id")
        return {name: getattr(self, name) for name in kept}


@dataclass(frozen=True)
class Roster:
    """All students, in the order of the list."""

    students: tuple[Student, ...]

    def find(self, sender: Sender) -> Student | None:
        """The one student whose submission this is; None where the name fits nobody, or more than one."""
        for keys, words in _WAYS:
            found = [student for student in self.students if keys(student) & words(sender)]
            if found:
                return found[0] if len(found) == 1 else None
        return None


def _exact_keys(student: Student) -> set[str]:
    return {_plain(text) for text in (student.key, student.email, *student.numbers) if text}


def _name_keys(student: Student) -> set[str]:
    first, last = _letters(student.first_name), _letters(student.last_name)
    return {first + last, last + first} - {""}


def _token_keys(student: Student) -> set[str]:
    """Ids that may stand as one word in a longer name; shorter ones would fit by accident."""
    return {key for key in _exact_keys(student) if len(key) >= 4}


def _exact_words(sender: Sender) -> set[str]:
    return {_plain(text) for text in (sender.name, sender.number) if text}


def _name_words(sender: Sender) -> set[str]:
    return {_letters(sender.name)} - {""}


def _token_words(sender: Sender) -> set[str]:
    return {_plain(word) for word in re.split(r"[\s_()\[\],;]+", sender.name) if word}


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).strip().casefold()


def _letters(text: str) -> str:
    """Letters and digits only, accents left out, as Canvas writes names."""
    bare = unicodedata.normalize("NFKD", text).casefold()
    return "".join(char for char in bare if char.isalnum())


# What a student is known by, and what of a sender is held against it; the first that fits anybody decides.
_WAYS = ((_exact_keys, _exact_words), (_name_keys, _name_words), (_token_keys, _token_words))


def read_roster(path: Path) -> Roster:
    """The class list in a CSV file, such as a learning management system exports.

    Raises:
        ValueError: it has no column that names a student, a line that names none, or two of one name.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        text = path.read_bytes().decode("latin-1")
    except OSError as error:
        raise ValueError(f"the roster {path} cannot be read: {error.strerror or error}") from None
    try:
        rows = list(csv.DictReader(io.StringIO(text, newline=""), dialect=_dialect(text), strict=True))
    except csv.Error as error:
        raise ValueError(f"the roster {path} is no table of values ({error}): save it as CSV again") from None
    students = tuple(_students(rows, path))
    if not students:
        raise ValueError(f"the roster {path} has no students: give a heading, and a line for each of them")
    doubled = [key for key, count in Counter(student.key for student in students).items() if count > 1]
    if doubled:
        raise ValueError(f"the roster {path} has {doubled[0]!r} twice: give each student an id of their own")
    return Roster(students)


def _dialect(text: str) -> type[csv.Dialect]:
    class Found(csv.excel):
        delimiter = max(",;\t", key=text.partition("\n")[0].count)

    return Found


def _students(rows: Iterable[Mapping[str | None, str]], path: Path) -> Iterable[Student]:
    for number, row in enumerate(rows, start=2):
        values = {_letters(key or ""): (value or "").strip() for key, value in row.items() if key}
        if not any(values.values()) or values.get("student") == "Points Possible":
            continue
        student = _student(values)
        if not student.key:
            wanted = "a column such as student_id, email or name"
            raise ValueError(f"the roster {path}, line {number}: no student in it; {wanted} is needed")
        yield student


def _student(values: Mapping[str, str]) -> Student:
    ids = tuple(values[name] for name in _IDS if values.get(name))
    first, last = _first(values, _FIRST_NAMES), _first(values, _LAST_NAMES)
    name = _first(values, _NAMES)
    if not (first or last):
        first, last = _split(name)
    email = _first(values, _EMAILS)
    key = next((text for text in (*ids, email, name, f"{first} {last}".strip()) if text), "")
    return Student(key, first, last, email, ids, values.get("section", ""), values.get("id", ""))


def _split(name: str) -> tuple[str, str]:
    """First and last name of "Lovelace, Ada" or "Ada Lovelace"."""
    if ", " in name:
        last, _, first = name.partition(", ")
    else:
        first, _, last = name.rpartition(" ")
    return first, last


def _first(values: Mapping[str, str], names: Iterable[str]) -> str:
    return next((values[name] for name in names if values.get(name)), "")
