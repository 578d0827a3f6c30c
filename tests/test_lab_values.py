"""The questions beside code: every mistake gets its message, every right answer passes, no form crashes."""

import ast
from itertools import permutations

import pytest

from dpcourse.labs.check import check, show_example
from dpcourse.labs.inside import plain
from dpcourse.labs.values import Before, Number, WrongWay, match, numbers, order, pick


def nothing(value, ranks):
    return "measured"


WORDS = {"points": 5, "minutes": 3, "measure": nothing}
NUMBERS = numbers(
    "bytes",
    "Bytes",
    entry="answer",
    asked=(Number("payload", 400.0, "Four bytes each."), Number("sent", 600.0, "Twice three quarters.")),
    wrong_ways=(
        WrongWay("elements", {"payload": 100, "sent": 150}, "These are elements."),
        WrongWay("one_way", {"sent": 300}, "There and back."),
    ),
    **WORDS,
)
MATCH = match(
    "stages",
    "Stages",
    entry="answer",
    noun="stage",
    options=("one", "two", "three"),
    goals={"gradients": "two", "parameters": "three"},
    hints={"gradients": "Think of gradients.", "parameters": "Think of parameters."},
    **WORDS,
)
EVENTS = ("gather", "forward", "free", "log", "backward")
ORDER = order(
    "flow",
    "Flow",
    entry="answer",
    events=EVENTS,
    relations=(
        Before("gather", "forward", "It computes with whole parameters."),
        Before("forward", "free", "They are in use."),
        Before("free", "backward", "Backward is long after."),
        Before("forward", "log", "There is nothing to log yet."),
    ),
    **WORDS,
)
PICK = pick("eater", "Eater", entry="answer", goal="states", hints={"buckets": "They are gone."}, **WORDS)
RIGHT = {
    "bytes": {"payload": 400, "sent": 600.03},
    "stages": {"gradients": "two", "parameters": "three"},
    "flow": list(EVENTS),
    "eater": "states",
}
QUESTIONS = (NUMBERS, MATCH, ORDER, PICK)
MISTAKES = [(question, mistake) for question in QUESTIONS for mistake in question.mistakes]


def value_in(source):
    return ast.literal_eval(source.partition(" = ")[2])


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)
def test_the_right_answer_passes_and_shows_what_was_measured(question):
    verdict = check(question, RIGHT[question.name])
    assert (verdict.status, verdict.points) == ("right", 5)
    assert all(target.is_met for target in verdict.targets)
    assert show_example(question, RIGHT[question.name], ranks=2) == "measured"


@pytest.mark.parametrize(("question", "mistake"), MISTAKES, ids=lambda item: item.name.replace(" ", "_"))
def test_each_mistake_is_refused_with_its_own_message(question, mistake):
    verdict = check(question, value_in(mistake.source))
    assert (verdict.mistake, verdict.message, verdict.points) == (mistake.name, mistake.message, 0), verdict
    assert verdict.where


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)
def test_every_message_is_said_for_one_mistake_only(question):
    messages = [mistake.message for mistake in question.mistakes]
    assert len(set(messages)) == len(messages)
    assert all(mistake.source for mistake in question.mistakes)


class Equal:
    def __eq__(self, other):
        return True

    def __hash__(self):
        return hash("sent")


FORGED = [
    [],
    {},
    (),
    3,
    True,
    "",
    "gather",
    [[]],
    [None],
    [True],
    Equal(),
    [Equal()] * 5,
    [*EVENTS, {}],
    {"type": "Equal"},
    {"payload": Equal(), "sent": Equal()},
    {"payload": True, "sent": True},
    {"payload": 400, "sent": "600"},
    {"payload": 400, "sent": float("nan")},
    {"payload": 400, "sent": float("inf")},
    {"payload": 400, "sent": 10**400},
    {"payload": 400, "sent": 600, "more": 0},
    {"gradients": "two", "parameters": Equal()},
    {"gradients": "two", "parameters": ["three"]},
    {"gradients": "two", 3: "three"},
    dict.fromkeys(("payload", "sent")),
]


@pytest.mark.parametrize("value", FORGED, ids=range(len(FORGED)))
def test_values_of_another_form_are_refused_in_words(value):
    for question in QUESTIONS:
        finding = question.judge_value(plain(value))
        assert finding.mistake, question.name
        assert finding.where, question.name
        assert check(question, value).points == 0


@pytest.mark.parametrize(
    ("question", "value", "where"),
    [
        (NUMBERS, {"payload": None, "sent": 600}, "still None: payload"),
        (MATCH, {"gradients": "two", "parameters": None}, "still None: parameters"),
        (ORDER, [], "0 of 5 events"),
        (ORDER, ["gather", None, None, None, None], "1 of 5 events"),
        (PICK, None, "answer is still None"),
    ],
)
def test_an_answer_that_is_not_whole_is_not_answered_yet(question, value, where):
    verdict = check(question, value)
    assert (verdict.status, verdict.points) == ("unanswered", 0)
    assert where in verdict.message + verdict.where
    assert show_example(question, value, ranks=2).status == "unanswered"


def test_a_number_passes_within_its_tolerance_and_no_further():
    assert check(NUMBERS, {"payload": 400 * (1 + 0.9e-4), "sent": 600}).is_right
    verdict = check(NUMBERS, {"payload": 400 * (1 + 1.1e-4), "sent": 600})
    assert (verdict.mistake, verdict.where) == ("payload", "payload is 400.044")
    assert [target.is_met for target in verdict.targets] == [False, True]


def test_a_wrong_way_is_named_only_where_all_its_numbers_came_out():
    assert check(NUMBERS, {"payload": 100, "sent": 150}).mistake == "elements"
    assert check(NUMBERS, {"payload": 100, "sent": 600}).mistake == "payload"
    assert check(NUMBERS, {"payload": 7, "sent": 300}).mistake == "payload"


def test_a_scorecard_of_numbers_does_not_tell_the_right_one():
    assert "600" not in str(check(NUMBERS, {"payload": 400, "sent": 7}))


def test_a_match_says_how_many_are_right():
    (target,) = check(MATCH, {"gradients": "two", "parameters": "one"}).targets
    assert (target.measured, target.wanted, target.is_met) == ("1", "2", False)


def test_just_the_orders_in_which_every_relation_holds_pass():
    passed = {listed for listed in permutations(EVENTS) if check(ORDER, list(listed)).is_right}
    assert passed == {
        ("gather", "forward", "free", "log", "backward"),
        ("gather", "forward", "free", "backward", "log"),
        ("gather", "forward", "log", "free", "backward"),
    }


def test_the_first_pair_out_of_order_is_named():
    verdict = check(ORDER, ["gather", "free", "backward", "forward", "log"])
    assert verdict.message == "They are in use."
    assert verdict.where == "'free' stands before 'forward'"


def test_a_question_that_no_answer_can_meet_is_not_built():
    words = {"entry": "answer", **WORDS}
    with pytest.raises(AssertionError):
        pick("p", "P", goal="a", hints={"a": "wrong"}, **words)
    with pytest.raises(AssertionError):
        match("m", "M", noun="x", options=("b",), goals={"a": "c"}, hints={"a": "wrong"}, **words)
    first, second, both = Before("a", "b", "1"), Before("b", "c", "2"), Before("a", "c", "3")
    with pytest.raises(AssertionError):
        order("o", "O", events=("b", "a", "c"), relations=(first,), **words)
    with pytest.raises(AssertionError):
        order("o", "O", events=("a", "b", "c"), relations=(first, second, both), **words)
