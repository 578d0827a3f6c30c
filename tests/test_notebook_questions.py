"""The questions of the chapters: each is asked in a box, shown and answered, and asked once in the course."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tests.notebook_rules import code_cells, tree_of

CHAPTERS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
FEWEST = 3


def boxes(notebook: nbformat.NotebookNode) -> Iterator[tuple[str, str, bool]]:
    """(name, question, whether its cell shows it) of every box that is given a name."""
    for _, cell in code_cells(notebook):
        body = tree_of(cell).body
        for node in body:
            if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("dc.predict("):
                call = node.value
                assert isinstance(call, ast.Call)
                name = ast.unparse(node.targets[0])
                yield name, ast.unparse(call.args[0]), ast.unparse(body[-1]) == name


def broken(notebook: nbformat.NotebookNode) -> list[str]:
    """What is wrong with a chapter's questions, a line each."""
    found = list(boxes(notebook))
    code = "\n".join(cell.source for _, cell in code_cells(notebook))
    problems = [f"{question} is not shown" for _, question, is_shown in found if not is_shown]
    problems += [f"{question} has no answer" for name, question, _ in found if f"{name}.reveal(" not in code]
    twice = [name for name, count in Counter(name for name, _, _ in found).items() if count > 1]
    problems += [f"{name} is the name of two questions" for name in twice]
    return problems + ([f"asks {len(found)} questions"] if len(found) < FEWEST else [])


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_asks_and_answers(path):
    assert broken(nbformat.read(path, as_version=4)) == []


def test_no_question_is_asked_twice_in_the_course():
    # The record knows a guess by its question: of two alike, the second would show the first one's guess.
    asked = Counter(
        question for path in CHAPTERS for _, question, _ in boxes(nbformat.read(path, as_version=4))
    )
    assert [question for question, count in asked.items() if count > 1] == []


def test_a_question_that_is_not_shown_or_not_answered_is_found():
    cells = [
        new_code_cell("a = dc.predict('one')\na"),
        new_code_cell("b = dc.predict('two')"),
        new_code_cell("a = dc.predict('three')\na"),
        new_code_cell("a.reveal(measured=1)"),
    ]
    assert broken(new_notebook(cells=cells)) == [
        "'two' is not shown",
        "'two' has no answer",
        "a is the name of two questions",
    ]
    assert broken(new_notebook(cells=cells[:1])) == ["'one' has no answer", "asks 1 questions"]
