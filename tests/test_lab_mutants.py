"""Mutants of right answers, each run on real ranks: a check that lets one pass is broken."""

import pytest

from dpcourse.labs import LAB_NAMES, load
from dpcourse.labs.question import CodeQuestion
from tests.lab_checks import IMPORTS, code_questions, name_of, passing, solution
from tests.mutants import mutants
from tests.test_labs import RIGHT

pytestmark = [pytest.mark.long, pytest.mark.labs, pytest.mark.usefixtures("warm_ranks")]

FIRST = load("01_equivalence")
# A script to mend has mutants of its own, in test_lab_10_mutants.py; all_reduce is two calls of what is here.
QUESTIONS = [
    (lab, question)
    for lab in map(load, LAB_NAMES)
    for question in code_questions(lab)
    if not question.handed_out and question.name != "all_reduce"
]

# Mutants that are right answers too, each with its reason.
EQUIVALENT = {
    "combine_weighted": {"line 9: 0 becomes -1": "total[0] of a tensor with one number is total[-1]"},
    "unit": {"line 6: without self.whole = self.grad = None": "both are set before they are used"},
    "choose": {
        "line 8: LtE becomes Lt in step_seconds[name] <= 1.05 * min(times)": (
            "no job is at 5 % to the last bit, where it would depend on how a right answer divides"
        ),
    },
}


def refused_too_little(question: CodeQuestion, source: str) -> list[str]:
    """The mutants that pass without being right."""
    return [what for what in passing(question, source) if what not in EQUIVALENT.get(question.name, {})]


@pytest.mark.parametrize(("lab", "question"), QUESTIONS, ids=name_of)
def test_every_mutant_of_the_solution_is_refused(lab, question):
    assert refused_too_little(question, solution(lab, question.name)) == []


@pytest.mark.parametrize("name", RIGHT)
def test_every_mutant_of_another_right_answer_is_refused(name):
    assert refused_too_little(FIRST.question(name), IMPORTS + RIGHT[name][0]) == []


def test_mutants_drop_swap_and_shift():
    found = dict(mutants('def f(x):\n    """Words."""\n    y = x + 1\n    return y[x:] == 2'))
    assert "line 1: without y = x + 1" in found
    assert "line 3: Add becomes Sub in x + 1" in found
    assert "line 4: Eq becomes NotEq in y[x:] == 2" in found
    assert "line 4: lower bound x Add 1" in found
    assert not any("Words" in what for what in found)
