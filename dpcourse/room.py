"""A room's guesses: one small file for each learner and question in a folder that all can reach.

The folder is named by DPCOURSE_ROOM or by `dc.predict(..., room=folder)`. A file says the question, the guess
and, only where the learner chose one (DPCOURSE_NAME), a name; its own name is made of hashes and random
numbers, never of what somebody wrote. The first guess stays. Nothing else is written, nothing is sent.
"""

import hashlib
import json
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from dpcourse.show import Shown, is_reference
from dpcourse.tables import Table

KIND = "dpcourse guess"
_MOST_BYTES, _MOST_FILES, _NAME_LETTERS = 4096, 5000, 40
_LARGEST = 1e100  # beyond it a number is no guess, and no axis has room for it
_SHOWN_SKIPPED = 5


@dataclass(frozen=True)
class Guess:
    """One learner's guess; `name` is empty for one who chose none."""

    value: float
    name: str = ""


@dataclass(frozen=True, repr=False)
class RoomGuesses(Shown):
    """All guesses for a question. answer: what was measured, or the formula; None while it is not revealed.

    skipped: files that are no guess, each with why.
    """

    question: str
    guesses: tuple[Guess, ...]
    answer: float | None = None
    unit: str = ""
    digits: int = 2
    skipped: tuple[str, ...] = ()

    @property
    def median(self) -> float:
        return median(guess.value for guess in self.guesses)

    @property
    def num_text(self) -> str:
        return "1 guess" if len(self.guesses) == 1 else f"{len(self.guesses)} guesses"

    def nearest(self) -> str:
        """The names of those whose guess is nearest to the answer, of those who have one."""
        if self.answer is None or not self.guesses:
            return ""
        least = min(abs(guess.value - self.answer) for guess in self.guesses)
        near = [g.name for g in self.guesses if g.name and abs(g.value - self.answer) == least]
        return ", ".join(sorted(near)[:_SHOWN_SKIPPED])

    def words(self) -> str:
        """Say how many guesses there are, their median, who is nearest, and what was skipped."""
        if not self.guesses:
            parts = ["No guesses in the room yet."]
        else:
            parts = [f"{self.num_text} in the room, median {self.text(self.median)}."]
        if near := self.nearest():
            parts.append(f"Nearest: {near}.")
        if self.skipped:
            more = len(self.skipped) - _SHOWN_SKIPPED
            also = f" and {more} more" if more > 0 else ""
            parts.append(f"Skipped: {'; '.join(self.skipped[:_SHOWN_SKIPPED])}{also}.")
        return " ".join(parts)

    def text(self, value: float) -> str:
        """Write a value with the question's digits and unit."""
        large = abs(value) >= 1e9
        return (
            f"{value:.3g} {self.unit}".rstrip() if large else f"{value:,.{self.digits}f} {self.unit}".rstrip()
        )

    def table(self) -> Table:
        named = sorted((g for g in self.guesses if g.name), key=lambda guess: guess.name)
        return Table(["name", "guess"], [[g.name, self.text(g.value)] for g in named], self.question)

    def plot(self) -> Any:
        """Draw the guesses with their median and the answer."""
        from dpcourse.figures.room import room_dots

        return room_dots(self)

    def __str__(self) -> str:
        return f"{self.question}: {self.words()}"

    def to_html(self) -> str:
        from html import escape

        return f"{self.plot().to_html() if self.guesses else ''}<p>{escape(self.words())}</p>"


def room_folder(asked: Any = None) -> Path | None:
    """The room's folder, from the argument or DPCOURSE_ROOM; None where there is no room.

    Raises TypeError for what is no path.
    """
    if asked is not None and not isinstance(asked, str | os.PathLike):
        raise TypeError(f"room={asked!r}: give the path of a folder that all learners can reach")
    named = asked or os.environ.get("DPCOURSE_ROOM")
    return Path(named) if named and not is_reference() else None


def put_guess(folder: Path, question: str, guess: float, learner: str) -> str:
    """Write a learner's guess, whole or not at all; the first stays. Gives what went wrong, or nothing."""
    name = _clean(os.environ.get("DPCOURSE_NAME", ""))
    plain = {"kind": KIND, "question": question, "guess": guess, "name": name}
    path = folder / f"{_key(question)}-{hashlib.sha256(learner.encode()).hexdigest()[:16]}.json"
    try:
        if not folder.is_dir():
            return f"the room's folder {folder} is not there: ask who gave you its path"
        if not path.exists():
            _write_once(path, json.dumps(plain).encode())
    except OSError as error:
        return f"your guess did not reach the room ({error.strerror or error}); it is kept here"
    return ""


def _write_once(path: Path, content: bytes) -> None:
    """Write a file of a name that nobody can know before, then give it its name."""
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=".guess-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(part, 0o644)  # all in the room may read it
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise


def guesses_of(
    question: str, folder: Any = None, answer: float | None = None, unit: str = "", digits: int = 2
) -> RoomGuesses:
    """Gather a room's guesses for a question; files that are none are skipped and named.

    Raises ValueError where there is no such folder.
    """
    path = room_folder(folder)
    if path is None or not path.is_dir():
        raise ValueError(f"there is no room at {path}: give the folder, or set DPCOURSE_ROOM to its path")
    files = sorted(file for file in path.iterdir() if not file.name.startswith("."))
    found, skipped = [], []
    for file in files[:_MOST_FILES]:
        try:
            plain = _read(file)
            if plain["question"] == question:
                found.append(Guess(_number(plain), _clean(plain.get("name", ""))))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            skipped.append(f"{_clean(file.name)} ({_clean(str(error) or type(error).__name__)})")
    if len(files) > _MOST_FILES:
        skipped.append(f"{len(files) - _MOST_FILES} files beyond {_MOST_FILES}")
    return RoomGuesses(question, tuple(found), answer, unit, digits, tuple(skipped))


def _read(file: Path) -> Any:
    """Read a small regular file as JSON; a link is not followed, and a pipe is not waited for."""
    handle = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "rb") as opened:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("no regular file")
        content = opened.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"over {_MOST_BYTES} bytes")
    plain = json.loads(content.decode())
    if not isinstance(plain, dict) or plain.get("kind") != KIND or not isinstance(plain["question"], str):
        raise ValueError("no guess")
    return plain


def _number(plain: dict[str, Any]) -> float:
    value = plain["guess"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("its guess is no number")
    if not is_finite(value):
        raise ValueError("its guess is no finite number of a size to draw")
    return float(value)


def _clean(text: Any) -> str:
    """Text as it may stand in a figure: printable, not long, and nothing that is drawn as a formula."""
    kept = "".join(letter for letter in str(text) if letter.isprintable() and letter != "$")
    return kept.strip()[:_NAME_LETTERS] if isinstance(text, str) else ""


def _key(question: str) -> str:
    return hashlib.sha256(question.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def is_finite(value: float) -> bool:
    """Whether a guess is a number that a file and an axis have room for."""
    return abs(value) <= _LARGEST  # nan is not
