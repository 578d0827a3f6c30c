"""A question's solution, for who has tried: from labs/source, where this copy of the course has it."""

import json
from dataclasses import dataclass
from html import escape
from pathlib import Path

from dpcourse.labs.question import Question
from dpcourse.labs.release import BEGIN_SOLUTION, solutions_in
from dpcourse.show import Shown


@dataclass(frozen=True, repr=False)
class Solution(Shown):
    """One right answer to a question; others are as right."""

    question: str
    text: str

    def __str__(self) -> str:
        return self.text

    def to_html(self) -> str:
        """The same as HTML."""
        style = "background:#fff;color:#1b1f24;border-left:5px solid #0b6e4f;padding:.6em 1em"
        return f"<pre style='{style}'><code>{escape(self.text)}</code></pre>"


def solution_of(lab: str, question: Question) -> Solution:
    """A question's solution.

    Raises:
        ValueError: this copy of the course has no solutions.
    """
    path = Path(__file__).parents[2] / "labs" / "source" / f"{lab}.ipynb"
    if not path.is_file():
        raise ValueError(
            f"no solution of {lab}/{question.name} is here: this copy of the course came without labs/source;"
            " ask whoever gave it to you"
        )
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    source = "".join(next(cell["source"] for cell in cells if cell["id"] == question.name))
    return Solution(question.name, _text(source))


def _text(source: str) -> str:
    """The solution with what stands round it; one at the left margin takes the place of its stub."""
    if BEGIN_SOLUTION in source.splitlines():
        return "\n\n".join(part.strip("\n") for part in solutions_in(source))
    return "\n".join(line for line in source.splitlines() if not line.strip().startswith("### "))
