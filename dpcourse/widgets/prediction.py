"""The box of a prediction: type a number, lock it, and see it beside what comes out."""

from html import escape
from pathlib import Path

from dpcourse.prediction import Prediction, lock
from dpcourse.widgets.controls import button, rows, text
from dpcourse.widgets.panel import news, view_of, wrong


class PredictionBox:
    """A question with a field for the guess and a button that locks it; `reveal` shows what comes out.

    guess: what was locked; None before. A locked guess cannot be changed.
    """

    def __init__(self, question: str, unit: str = "", digits: int = 2, folder: Path | None = None) -> None:
        self.prediction = Prediction(question, None, None, None, unit, digits, folder=folder)
        self.field = text(f"Your guess ({unit})" if unit else "Your guess")
        self.button = button("Lock", self.lock)
        self._news = news()
        self.widget = rows([rows([self.field, self.button], is_beside=True), self._news])

    @property
    def guess(self) -> float | None:
        return self.prediction.guess

    def lock(self) -> None:
        """Lock what stands in the field, or say in words why that cannot be."""
        try:
            if self.guess is None:
                self.prediction = lock(self.prediction, _number(self.field.value))
        except ValueError as error:
            self._news.value = wrong(str(error))
            return
        self.field.disabled = self.button.disabled = True
        said = [f"{self.prediction.verdict[0].upper()}{self.prediction.verdict[1:]}.", *self.prediction.notes]
        self._news.value = f'<div role="status">{escape(" ".join(said))}</div>'

    def reveal(
        self, formula: float | None = None, measured: float | None = None, is_timed: bool = False
    ) -> Prediction:
        """Set the locked guess beside a formula, a measurement or both; without one, they stand alone."""
        self.field.disabled = self.button.disabled = True
        self.prediction = self.prediction.reveal(formula, measured, is_timed)
        return self.prediction

    def __repr__(self) -> str:
        return f"{self.prediction.question}\n{self._fallback()}"

    def _ipython_display_(self) -> None:
        from IPython.display import display

        question = self.prediction.question
        display({"text/plain": question, "text/html": f"<strong>{escape(question)}</strong>"}, raw=True)
        display(view_of(self.widget, self._fallback()), raw=True)

    def _fallback(self) -> str:
        return f"[where a notebook runs: {self.field.description}; Lock]"


def _number(typed: str) -> float:
    try:
        return float(typed.replace(",", "").replace("_", ""))
    except ValueError:
        found = f"{typed!r} is no number" if typed.strip() else "Nothing is written yet"
        raise ValueError(f"{found}: write a number such as 1.5, then lock it") from None
