"""The scorecard: what a check says about one answer, as a value that shows itself."""

import html
from dataclasses import asdict, dataclass
from typing import Any

from dpcourse.labs.question import Target
from dpcourse.show import Shown

# What became of an answer. Only "right" makes points.
HEADLINES = {
    "right": "right",
    "wrong": "not right yet",
    "unanswered": "not answered yet",
    "raised": "your code raised an error",
    "exited": "your code ended its process",
    "died": "a rank died",
    "hang": "the ranks hang",
    "deadline": "stopped at the deadline",
    "missing": "no answer found",
    "failed": "could not be judged",
}
_COLOURS = {"right": "#0b6e4f", "unanswered": "#5b6470"}
_OTHER_COLOUR = "#a4390d"


@dataclass(frozen=True, repr=False)
class Verdict(Shown):
    """One question's result: its points, the likely mistake, where it shows first, and the targets."""

    question: str
    status: str
    points: float
    max_points: float
    message: str = ""
    mistake: str = ""
    where: str = ""
    targets: tuple[Target, ...] = ()
    details: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the answer was found right."""
        return self.status == "right"

    @property
    def headline(self) -> str:
        """What became of the answer, and its points, in one line."""
        return f"{HEADLINES[self.status]} ({self.points:g} of {self.max_points:g} points)"

    def as_dict(self) -> dict[str, Any]:
        """The verdict as JSON types."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Verdict":
        """The verdict that `as_dict` wrote."""
        return cls(**{**data, "targets": tuple(Target(**target) for target in data["targets"])})

    def __str__(self) -> str:
        lines = [f"{self.question}: {self.headline}"]
        lines += [f"  {text}" for text in (self.message, self.where) if text]
        lines += [
            f"  target: {target.name}: wanted {target.wanted}, measured {target.measured}"
            f" ({'met' if target.is_met else 'missed'})"
            for target in self.targets
        ]
        lines += [f"    {line}" for line in self.details.splitlines()]
        return "\n".join(lines)

    def to_html(self) -> str:
        """The same as HTML."""
        return verdict_html(self)


def verdict_html(verdict: Verdict) -> str:
    """The scorecard as HTML; every text in it is escaped, since answers write some of it."""
    colour = _COLOURS.get(verdict.status, _OTHER_COLOUR)
    body = [f"<strong style='color:{colour}'>{_text(verdict.headline)}</strong>"]
    body += [
        f"<p style='margin:.4em 0'>{_text(text)}</p>" for text in (verdict.message, verdict.where) if text
    ]
    body += [_targets_html(verdict.targets)] if verdict.targets else []
    body += (
        [f"<pre style='margin:.4em 0;white-space:pre-wrap'>{_text(verdict.details)}</pre>"]
        if verdict.details
        else []
    )
    return (
        f"<div style='border-left:5px solid {colour};background:#fff;color:#1b1f24;"
        "padding:.6em 1em;margin:.4em 0'>"
        f"<code>{_text(verdict.question)}</code>: {''.join(body)}</div>"
    )


def _targets_html(targets: tuple[Target, ...]) -> str:
    rows = "".join(
        f"<tr><td style='text-align:left'>{_text(target.name)}</td><td>{_text(target.wanted)}</td>"
        f"<td>{_text(target.measured)}</td><td>{'met' if target.is_met else 'missed'}</td></tr>"
        for target in targets
    )
    head = "<tr><th style='text-align:left'>target</th><th>wanted</th><th>measured</th><th></th></tr>"
    return f"<table style='border-spacing:1em .1em;margin:.2em 0'>{head}{rows}</table>"


def _text(text: str) -> str:
    return html.escape(text, quote=True)


@dataclass(frozen=True, repr=False)
class Score(Shown):
    """The points of a lab so far; in an executed notebook it stays as scrap data that scrapbook can read."""

    lab: str
    verdicts: tuple[Verdict, ...]

    @property
    def points(self) -> float:
        """The points so far."""
        return sum(verdict.points for verdict in self.verdicts)

    @property
    def max_points(self) -> float:
        """The points that can be had."""
        return sum(verdict.max_points for verdict in self.verdicts)

    def as_dict(self) -> dict[str, Any]:
        """The score as JSON types: the sum, and the points and status of each question."""
        questions = {item.question: {"points": item.points, "status": item.status} for item in self.verdicts}
        return {"lab": self.lab, "points": self.points, "max_points": self.max_points, "questions": questions}

    def __str__(self) -> str:
        lines = [f"{self.lab}: {self.points:g} of {self.max_points:g} points"]
        return "\n".join(lines + [f"  {item.question}: {item.headline}" for item in self.verdicts])

    def to_html(self) -> str:
        """The same as HTML."""
        rows = "".join(
            f"<li><code>{_text(v.question)}</code>: {_text(v.headline)}</li>" for v in self.verdicts
        )
        head = f"{_text(self.lab)}: {self.points:g} of {self.max_points:g} points"
        return f"<strong>{head}</strong><ul>{rows}</ul>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        scrap = {"name": "score", "data": self.as_dict(), "encoder": "json", "version": 1}
        return {**super()._repr_mimebundle_(), "application/scrapbook.scrap.json+json": scrap}
