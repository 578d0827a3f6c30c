"""Puts a student's answers into the released notebook: checks, points and texts are the grader's own."""

import ast
import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpcourse.grade.answers import Answer, find_answer, parse, with_helpers, without_magics
from dpcourse.grade.reading import Cell
from dpcourse.labs.inside import Source
from dpcourse.labs.question import LabSpec


@dataclass(frozen=True)
class Release:
    """A lab as it was handed out: its questions and its notebook."""

    lab: LabSpec
    notebook: dict[str, Any]

    @classmethod
    def read(cls, lab: LabSpec, folder: Path) -> "Release":
        """The student copy of `lab` in `folder`.

        Raises:
            ValueError: the folder has none.
        """
        path = folder / f"{lab.name}.ipynb"
        if not path.is_file():
            raise ValueError(
                f"there is no {path}; run from a working copy of the course, or name its labs folder"
            )
        return cls(lab, json.loads(path.read_text(encoding="utf-8")))

    @property
    def stubs(self) -> dict[str, str]:
        """The text of each answer cell as it was handed out."""
        cells = {cell["id"]: "".join(cell["source"]) for cell in self.notebook["cells"]}
        return {question.name: cells[question.name] for question in self.lab.questions}

    @property
    def preamble(self) -> str:
        """The imports of the released set-up cells."""
        names = {question.name for question in self.lab.questions}
        sources = [
            "".join(cell["source"])
            for cell in self.notebook["cells"]
            if cell["cell_type"] == "code" and cell["id"] not in names
        ]
        statements = [statement for source in sources for statement in ast.parse(source).body]
        imports = [s for s in statements if isinstance(s, ast.Import | ast.ImportFrom)]
        return "\n".join(ast.unparse(statement) for statement in imports)


@dataclass(frozen=True)
class Merged:
    """One submission, ready to run: the notebook for the report, each question's answer for the verdict."""

    notebook: dict[str, Any]
    answers: dict[str, Answer]
    preamble: str

    def source(self, question_name: str, entry: str) -> Source:
        """What the ranks are given."""
        return Source(without_magics(self.answers[question_name].text), entry, self.preamble)

    @property
    def notes(self) -> list[str]:
        """How the answers were found, where that is unusual."""
        return [answer.note for answer in self.answers.values() if answer.note]


def merge(release: Release, cells: Sequence[Cell]) -> Merged:
    """The released notebook with the student's answers in it; an answer that is missing leaves the stub."""
    stubs, preamble = release.stubs, release.preamble
    tree = parse(preamble)
    known = {alias for statement in (tree.body if tree else []) for alias in _imported(statement)}
    found = {
        question.name: find_answer(question, cells, stubs[question.name])
        for question in release.lab.questions
    }
    answers = {
        name: Answer(with_helpers(answer.text, cells, known), answer.note, answer.problem)
        for name, answer in found.items()
    }
    notebook = deepcopy(release.notebook)
    for cell in notebook["cells"]:
        answer = answers.get(cell["id"])
        if answer is not None and not answer.problem:
            cell["source"] = answer.text
    return Merged(notebook, answers, preamble)


def _imported(statement: ast.stmt) -> set[str]:
    names = statement.names if isinstance(statement, ast.Import | ast.ImportFrom) else []
    return {(alias.asname or alias.name).partition(".")[0] for alias in names}
