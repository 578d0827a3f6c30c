"""A prediction beside its formula and its measurement: guess first, then look."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpcourse import learner
from dpcourse.show import Shown, is_reference
from dpcourse.tables import Table

if TYPE_CHECKING:
    from dpcourse.room import RoomGuesses
    from dpcourse.widgets.prediction import PredictionBox


@dataclass(frozen=True, repr=False)
class Prediction(Shown):
    """A learner's guess beside what the formula says and what was measured.

    first_guess: the one that was locked first, where it is another. notes: what went wrong beside it. room:
    the guesses of all, where there is a room.
    """

    question: str
    guess: float | None
    formula: float | None
    measured: float | None
    unit: str = ""
    digits: int = 2
    first_guess: float | None = None
    notes: tuple[str, ...] = ()
    room: "RoomGuesses | None" = field(default=None, compare=False)
    folder: Path | None = field(default=None, compare=False)

    @property
    def truth(self) -> float | None:
        """What was measured; the formula, where nothing was."""
        return self.formula if self.measured is None else self.measured

    @property
    def is_right(self) -> bool:
        """Whether the guess is within 1 % of what was measured (of the formula, where nothing was)."""
        return self._is_near(self.guess)

    def _is_near(self, guess: float | None) -> bool:
        if guess is None or self.truth is None:
            return False
        return abs(guess - self.truth) <= max(0.01 * abs(self.truth), 0.5 * 10**-self.digits)

    @property
    def verdict(self) -> str:
        """The guess judged in words."""
        first = self.first_guess
        if first is None or first == self.guess:
            return self._judged()
        return f"{self._judged()}; the guess that you locked first was {self._text(first)}"

    def _judged(self) -> str:
        if self.guess is None:
            return "no guess"
        if self.truth is None:
            return f"your guess is locked: {self._text(self.guess)}"
        if self.is_right:
            return "your guess is right"
        if self.truth == 0:
            return "the right answer is 0"
        ratio, what = self.guess / self.truth, "the formula" if self.measured is None else "what was measured"
        if ratio > 100:
            return f"your guess is over 100 times {what}"
        return f"your guess is {ratio:.2f} times {what}"

    def _text(self, value: float) -> str:
        return f"{value:,.{self.digits}f} {self.unit}".rstrip()

    def reveal(
        self, formula: float | None = None, measured: float | None = None, is_timed: bool = False
    ) -> "Prediction":
        """Set the guess beside a formula, a measurement or both.

        is_timed: a clock had a part in what was measured, so that reference outputs leave it out.
        """
        _check_numbers(formula=formula, measured=measured)
        if is_timed and is_reference():
            measured = None
        return _kept(replace(self, formula=formula, measured=measured))

    def table(self) -> Table:
        values = (self.guess, self.formula, self.measured)
        texts: list[Any] = [None if value is None else f"{value:,.{self.digits}f}" for value in values]
        return Table(["", "your guess", "formula", "measured"], [[self.unit, *texts]], self.question)

    def plot(self) -> Any:
        from dpcourse.figures import prediction_bars

        values = {"your guess": self.guess, "formula": self.formula, "measured": self.measured}
        return prediction_bars(self.question, values, self.unit, self.digits)

    def __str__(self) -> str:
        if self.guess is None and self.truth is None:
            return f"{self.question}: no guess yet"
        room = [self.room] if self.room else []
        return "\n".join(map(str, [self.table(), self.verdict, *self.notes, *room]))

    def to_html(self) -> str:
        from html import escape

        known = [value for value in (self.guess, self.formula, self.measured) if value is not None]
        shown = self.plot() if len(known) > 1 and min(known) >= 0 else self.table()
        said = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        room = self.room.to_html() if self.room else ""
        return f"{shown.to_html()}<p><strong>{escape(self.verdict)}</strong></p>{said}{room}"


def predict(
    question: str,
    guess: float | None = None,
    formula: float | None = None,
    measured: float | None = None,
    unit: str = "",
    digits: int = 2,
    room: Any = None,
) -> "Prediction | PredictionBox":
    """Lay a guess, a formula and a measurement side by side.

    ```
    dc.predict("bytes sent", guess=1.5, formula=2 * 3 / 4, measured=run.traffic.sent_per_parameter_byte())
    held = dc.predict("bytes held")       # a box to type a number into, and to lock it
    held.reveal(formula=16, measured=run.memory.bytes_per_parameter())
    ```

    A guess is locked by what shows it first: one that is changed later stands beside it. Your record
    (`dc.progress()`) keeps both.

    Args:
        question: what was asked, with its unit.
        guess, formula, measured: the three numbers; None for one that there is not. With none of them a
            notebook shows a box for the guess.
        unit: what they count.
        digits: decimals shown; a guess within 1 %, or within half of the last digit, is right.
        room: a folder that all in a room can reach; guesses are drawn together. None takes DPCOURSE_ROOM.

    Raises:
        TypeError: a question that is no text, or a value that is no number.
        ValueError: a guess that is not finite.
    """
    from dpcourse.room_files import room_folder

    if not isinstance(question, str):
        raise TypeError(
            f'question={question!r}: write what was asked first: dc.predict("bytes sent", guess=1.5)'
        )
    _check_numbers(guess=guess, formula=formula, measured=measured)
    folder = room_folder(room)
    if guess is None and formula is None and measured is None and not is_reference():
        from dpcourse.widgets.prediction import PredictionBox

        return PredictionBox(question, unit, digits, folder)
    asked = Prediction(question, None, None, None, unit, digits, folder=folder)
    locked = asked if guess is None else lock(asked, guess)
    return _kept(replace(locked, formula=formula, measured=measured))


def lock(asked: Prediction, guess: float) -> Prediction:
    """Lock a guess: in the learner's record, and in the room where there is one.

    Raises ValueError for one that is not finite.
    """
    from dpcourse.room_files import is_finite

    if not is_finite(guess):
        raise ValueError(f"guess={guess!r}: write a number that can be drawn, such as guess=1.5")
    if is_reference():
        return replace(asked, guess=guess)
    first = learner.lock_guess(asked.question, guess)
    problem = _put_in_the_room(asked, first)
    return replace(asked, guess=guess, first_guess=first, notes=(problem,) if problem else ())


def _put_in_the_room(asked: Prediction, guess: float) -> str:
    from dpcourse.room import put_guess

    if asked.folder is None:
        return ""
    return put_guess(asked.folder, asked.question, guess, learner.learner_number())


def _kept(found: Prediction) -> Prediction:
    """Keep what a guess was held against; gather the room's once there is an answer."""
    from dpcourse.room import guesses_of

    if found.truth is None or is_reference():
        return found
    first = found.guess if found.first_guess is None else found.first_guess
    if first is not None:
        learner.reveal(found.question, found.formula, found.measured, found._is_near(first))
    if found.folder is None:
        return found
    try:
        room = guesses_of(found.question, found.folder, found.truth, found.unit, found.digits)
    except ValueError as error:  # a room that one may write to and not read, or that is gone
        return replace(found, notes=found.notes or (str(error),))
    return replace(found, room=room)


def _check_numbers(**values: Any) -> None:
    for name, value in values.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not is_number:
            raise TypeError(f"{name}={value!r}: write a number, such as {name}=1.5")
