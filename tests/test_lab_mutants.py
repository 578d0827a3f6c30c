"""Mutants of right answers, each run on real ranks: a check that lets one pass is broken."""

import pytest

from dpcourse.labs import load
from tests.lab_checks import IMPORTS, code_questions, passing, solution
from tests.mutants import mutants
from tests.test_labs import RIGHT

pytestmark = [pytest.mark.long, pytest.mark.labs]

LAB = load("01_equivalence")
QUESTIONS = [question.name for question in code_questions(LAB)]

# Mutants that are right answers too, each with its reason.
EQUIVALENT = {
    "line 9: 0 becomes -1": "total[0] of a tensor with one number is total[-1]",
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_mutant_of_the_solution_is_refused(name):
    assert [what for what in passing(LAB.question(name), solution(LAB, name)) if what not in EQUIVALENT] == []


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_mutant_of_another_right_answer_is_refused(name):
    assert [
        what for what in passing(LAB.question(name), IMPORTS + RIGHT[name][0]) if what not in EQUIVALENT
    ] == []


def test_mutants_drop_swap_and_shift():
    found = dict(mutants('def f(x):\n    """Words."""\n    y = x + 1\n    return y[x:] == 2'))
    assert "line 1: without y = x + 1" in found
    assert "line 3: Add becomes Sub in x + 1" in found
    assert "line 4: Eq becomes NotEq in y[x:] == 2" in found
    assert "line 4: lower bound x Add 1" in found
    assert not any("Words" in what for what in found)
