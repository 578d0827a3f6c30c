"""`dc.progress()`: how far a learner is in the course, chapter by chapter, and the next step."""

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpcourse import learner
from dpcourse.show import Shown
from dpcourse.tables import Table
from dpcourse.workspace import WorkspaceError, course_root


@dataclass(frozen=True)
class Chapter:
    """A chapter's predictions and its lab's questions, all and those that are done."""

    name: str
    questions: tuple[str, ...]
    made: tuple[str, ...]
    num_right: int
    lab: str = ""
    lab_questions: tuple[str, ...] = ()
    lab_right: tuple[str, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether every prediction was made and every question of the lab is right."""
        return len(self.made) == len(self.questions) and len(self.lab_right) == len(self.lab_questions)

    def next_step(self) -> str:
        """Say what is open first."""
        if self.questions and not self.made:
            return f"Open {self.name} and make its first prediction: {self.questions[0]}."
        if left := [question for question in self.questions if question not in self.made]:
            open_of = f"{len(left)} of {len(self.questions)}"
            return f"Go on with {self.name}: {open_of} predictions are open, first: {left[0]}."
        left = [question for question in self.lab_questions if question not in self.lab_right]
        return f"Go on with the lab {self.lab}: {left[0]}."


@dataclass(frozen=True, repr=False)
class Progress(Shown):
    """What a learner has done: `.table()`, `.next_step`, and the file it is read from.

    others: predictions of questions that no chapter asks.
    """

    file: Path | None
    chapters: tuple[Chapter, ...]
    others: tuple[str, ...] = ()
    problem: str = ""

    @property
    def next_step(self) -> str:
        """Say what to do next."""
        left = [chapter for chapter in self.chapters if not chapter.is_done]
        begun = next((chapter for chapter in left if chapter.made or chapter.lab_right), None)
        if not left:
            return "All that the course has is done."
        return (begun or left[0]).next_step()

    def table(self) -> Table:
        rows: list[list[Any]] = [
            [
                chapter.name,
                f"{len(chapter.made)} of {len(chapter.questions)}",
                chapter.num_right,
                f"{len(chapter.lab_right)} of {len(chapter.lab_questions)}" if chapter.lab else None,
                "done" if chapter.is_done else "begun" if chapter.made or chapter.lab_right else "open",
            ]
            for chapter in self.chapters
        ]
        return Table(
            ["chapter", "predictions", "right at first", "lab questions right", "so far"],
            rows,
            "Your progress",
        )

    def words(self) -> str:
        """Say the next step, and where the record is."""
        count = "1 prediction" if len(self.others) == 1 else f"{len(self.others)} predictions"
        own = f"{count} of your own besides. " if self.others else ""
        kept = f"Kept in {self.file}." if self.file else _NOT_KEPT
        return " ".join(filter(None, [self.problem, f"Next: {self.next_step}", f"{own}{kept}"]))

    def __str__(self) -> str:
        return f"{self.table()}\n{self.words()}"

    def to_html(self) -> str:
        from html import escape

        return f"{self.table().to_html()}<p>{escape(self.words())}</p>"


_NOT_KEPT = (
    "Nothing is kept here: open the notebooks with `dpcourse lab`, or set DPCOURSE_PROGRESS to a file."
)


def progress() -> Progress:
    """Show your predictions, chapters and lab checks, and the next step: from one file of yours.

    It is progress.json in my/; what is in it stands in dpcourse/learner.py. Nothing is sent anywhere.
    """
    path, problem = learner.record_file(), ""
    record: learner.Record = {"predictions": {}, "checks": {}}
    if path is not None:
        try:
            record = learner.read_record(path)
        except learner.NotKept as error:
            problem = f"{error}."
    chapters = tuple(_chapters(record))
    asked = {question for chapter in chapters for question in chapter.questions}
    others = tuple(question for question in record["predictions"] if question not in asked)
    return Progress(path, chapters, others, problem)


def _chapters(record: learner.Record) -> Iterator[Chapter]:
    from dpcourse.labs import LAB_NAMES

    try:
        notebooks = sorted((course_root() / "notebooks").glob("*.ipynb"))
    except WorkspaceError:
        return
    for notebook in notebooks:
        questions = tuple(questions_of(notebook))
        rows = record["predictions"]
        made = tuple(question for question in questions if question in rows)
        num_right = sum(rows[question].get("is_right") is True for question in made)
        number = notebook.stem.partition("_")[0]
        lab = next((name for name in LAB_NAMES if name.startswith(f"{number}_")), "")
        yield Chapter(notebook.stem, questions, made, num_right, lab, *_lab_questions(lab, record))


def _lab_questions(lab: str, record: learner.Record) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A lab's questions, and those whose check was right."""
    if not lab:
        return (), ()
    from dpcourse.labs import load

    names = tuple(question.name for question in load(lab).questions)
    checks = record["checks"]
    return names, tuple(n for n in names if checks.get(f"{lab}/{n}", {}).get("status") == "right")


def questions_of(notebook: Path) -> Iterator[str]:
    """The questions that a notebook's cells ask with `dc.predict`, in order."""
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for source in sources:
        try:
            nodes: list[Any] = list(ast.walk(ast.parse(source)))
        except (SyntaxError, ValueError):
            continue  # a magic, or a cell that somebody is at work on
        yield from (node.args[0].value for node in nodes if _is_asking(node))


def _is_asking(node: Any) -> bool:
    """Whether a node is a call of `dc.predict` with its question written out."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
        return False
    first = node.args[0] if node.func.attr == "predict" else None
    return isinstance(first, ast.Constant) and isinstance(first.value, str)
