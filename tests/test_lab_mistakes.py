"""What holds of every question of labs 02 to 10: its mistakes, messages and stub. Lab 01 has its own."""

import pytest

from dpcourse.labs import LAB_NAMES, load
from dpcourse.labs.question import Mistake, Question
from tests.lab_checks import (
    assert_messages_differ,
    assert_refused,
    assert_unanswered,
    code_questions,
    known_mistakes,
    name_of,
)

pytestmark = [pytest.mark.long, pytest.mark.labs, pytest.mark.usefixtures("warm_ranks")]
LABS = [load(name) for name in LAB_NAMES[1:]]
QUESTIONS = [question for lab in LABS for question in lab.questions]
STUBS = [question for lab in LABS for question in code_questions(lab) if not question.handed_out]


@pytest.mark.parametrize(
    ("question", "mistake"), [pair for lab in LABS for pair in known_mistakes(lab)], ids=name_of
)
def test_each_mistake_is_refused_with_its_own_message(question: Question, mistake: Mistake):
    assert_refused(question, mistake)


@pytest.mark.parametrize("question", QUESTIONS, ids=name_of)
def test_messages_differ_from_mistake_to_mistake(question: Question):
    assert_messages_differ(question)


@pytest.mark.parametrize("question", STUBS, ids=name_of)
def test_a_stub_is_not_answered_yet(question: Question):
    assert_unanswered(question)
