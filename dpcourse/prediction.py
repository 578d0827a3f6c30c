"""A prediction beside its formula and its measurement: guess first, then look."""

from dataclasses import dataclass
from typing import Any

from dpcourse.show import Shown
from dpcourse.tables import Table


@dataclass(frozen=True, repr=False)
class Prediction(Shown):
    """A learner's guess beside what the formula says and what was measured."""

    question: str
    guess: float | None
    formula: float | None
    measured: float | None
    unit: str = ""
    digits: int = 2

    @property
    def is_right(self) -> bool:
        """Whether the guess is within 1 % of what was measured (of the formula, where nothing was)."""
        truth = self.formula if self.measured is None else self.measured
        if self.guess is None or truth is None:
            return False
        return abs(self.guess - truth) <= max(0.01 * abs(truth), 0.5 * 10**-self.digits)

    @property
    def verdict(self) -> str:
        """The guess judged in words."""
        truth = self.formula if self.measured is None else self.measured
        if self.guess is None or truth is None:
            return "no guess"
        if self.is_right:
            return "your guess is right"
        if truth == 0:
            return "the right answer is 0"
        ratio = self.guess / truth
        if ratio > 100:
            return "your guess is over 100 times what was measured"
        return f"your guess is {ratio:.2f} times what was measured"

    def table(self) -> Table:
        values = (self.guess, self.formula, self.measured)
        texts: list[Any] = [None if value is None else f"{value:,.{self.digits}f}" for value in values]
        return Table(["", "your guess", "formula", "measured"], [[self.unit, *texts]], self.question)

    def plot(self) -> Any:
        from dpcourse.figures import prediction_bars

        values = {"your guess": self.guess, "formula": self.formula, "measured": self.measured}
        return prediction_bars(self.question, values, self.unit, self.digits)

    def __str__(self) -> str:
        return f"{self.table()}\n{self.verdict}"

    def to_html(self) -> str:
        known = [value for value in (self.guess, self.formula, self.measured) if value is not None]
        shown = self.plot() if len(known) > 1 and min(known) >= 0 else self.table()
        return f"{shown.to_html()}<p><strong>{self.verdict}</strong></p>"


def predict(
    question: str,
    guess: float | None = None,
    formula: float | None = None,
    measured: float | None = None,
    unit: str = "",
    digits: int = 2,
) -> Prediction:
    """Lay a guess, a formula and a measurement side by side.

    Args:
        question: what was asked, with its unit.
        guess, formula, measured: the three numbers; None for one that there is not.
        unit: what they count.
        digits: decimals shown; a guess within 1 %, or within half of the last digit, is right.

    Raises:
        TypeError: a question that is no text, or a value that is no number.
    """
    if not isinstance(question, str):
        raise TypeError(
            f'question={question!r}: write what was asked first: dc.predict("bytes sent", guess=1.5)'
        )
    for name, value in (("guess", guess), ("formula", formula), ("measured", measured)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise TypeError(f"{name}={value!r}: write a number, such as {name}=1.5")
    return Prediction(question, guess, formula, measured, unit, digits)
