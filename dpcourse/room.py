"""A room's guesses: one small file for each learner and question in a folder that all can reach.

A file says the question, the guess and, only where the learner chose one (DPCOURSE_NAME), a name. The first
guess stays.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from dpcourse.room_files import (
    GUESS,
    Folder,
    chosen_name,
    file_of,
    is_finite,
    is_there,
    opened,
    put,
    skipped_words,
)
from dpcourse.show import Shown
from dpcourse.tables import Table

_SHOWN_NEAREST = 5


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
        return ", ".join(sorted(near)[:_SHOWN_NEAREST])

    def words(self) -> str:
        """Say how many guesses there are, their median, who is nearest, and what was skipped."""
        if not self.guesses:
            parts = ["No guesses in the room yet."]
        else:
            parts = [f"{self.num_text} in the room, median {self.text(self.median)}."]
        if near := self.nearest():
            parts.append(f"Nearest: {near}.")
        return " ".join(filter(None, [*parts, skipped_words(self.skipped)]))

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


def put_guess(folder: Path, question: str, guess: float, learner: str) -> str:
    """Write a learner's guess, whole or not at all; the first stays. Gives what went wrong, or nothing."""
    plain = {"kind": GUESS, "question": question, "guess": guess, "name": chosen_name()}
    path = file_of(folder, question, learner)
    try:
        if not is_there(folder):
            return f"the room's folder {folder} is not there: ask who gave you its path"
        if not path.exists():
            put(path, plain)
    except OSError as error:
        return f"your guess did not reach the room ({error.strerror or error}); it is kept here"
    return ""


def guesses_of(
    question: str, folder: Any = None, answer: float | None = None, unit: str = "", digits: int = 2
) -> RoomGuesses:
    """Gather a room's guesses for a question; files that are none are skipped and named.

    Raises ValueError where there is no such folder.
    """
    return gathered(opened(folder), question, answer, unit, digits)


def gathered(
    room: Folder, question: str, answer: float | None = None, unit: str = "", digits: int = 2
) -> RoomGuesses:
    """The same of a folder that is read again and again."""
    if answer is not None and not is_finite(answer):
        raise ValueError(f"answer={answer!r}: give a number that can be drawn beside the guesses")
    asked = [paper for paper in room.papers(GUESS) if paper.plain["question"] == question]
    found = tuple(Guess(float(paper.plain["guess"]), paper.name) for paper in asked)
    return RoomGuesses(question, found, answer, unit, digits, room.skipped)
