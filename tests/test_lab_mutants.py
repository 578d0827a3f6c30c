"""Mutants of right answers, each run on real ranks: a check that lets one pass is broken."""

import json
from pathlib import Path

import pytest

from dpcourse.labs import load
from dpcourse.labs.check import check
from dpcourse.labs.inside import Source
from dpcourse.labs.question import CodeQuestion
from tests.mutants import mutants
from tests.test_labs import IMPORTS, RIGHT

pytestmark = pytest.mark.long

SOURCE = Path(__file__).parents[1] / "labs" / "source"
LAB = load("01_equivalence")
QUESTIONS = [question.name for question in LAB.questions if isinstance(question, CodeQuestion)]

# Mutants that are right answers too, each with its reason.
EQUIVALENT = {
    "line 9: 0 becomes -1": "total[0] of a tensor with one number is total[-1]",
}


def solution(name: str) -> str:
    cells = json.loads((SOURCE / f"{LAB.name}.ipynb").read_text(encoding="utf-8"))["cells"]
    return IMPORTS + "".join(next(cell["source"] for cell in cells if cell["id"] == name))


def passing(name: str, source: str) -> list[str]:
    """What was changed in the mutants that a check takes for right."""
    question = LAB.question(name)
    found = []
    for what, mutant in mutants(source):
        if check(question, Source(mutant, question.entry), deadline_seconds=10).is_right:
            found.append(what)
    return found


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_mutant_of_the_solution_is_refused(name):
    assert [what for what in passing(name, solution(name)) if what not in EQUIVALENT] == []


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_mutant_of_another_right_answer_is_refused(name):
    assert [what for what in passing(name, IMPORTS + RIGHT[name][0]) if what not in EQUIVALENT] == []


def test_mutants_drop_swap_and_shift():
    found = dict(mutants('def f(x):\n    """Words."""\n    y = x + 1\n    return y[x:] == 2'))
    assert "line 1: without y = x + 1" in found
    assert "line 3: Add becomes Sub in x + 1" in found
    assert "line 4: Eq becomes NotEq in y[x:] == 2" in found
    assert "line 4: lower bound x Add 1" in found
    assert not any("Words" in what for what in found)
