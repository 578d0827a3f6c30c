"""Lab 09: choices that are judged by what the plan says when they are judged."""

import ast

import pytest

from dpcourse.labs import load
from dpcourse.labs.check import check, show_example
from dpcourse.labs.choosing import choose, jobs, order, recipes
from dpcourse.labs.inside import Source
from dpcourse.planning.decision import TREE, answers
from dpcourse.tables import bytes_text
from tests.lab_checks import (
    assert_passes,
    code_questions,
    name_of,
    source_of,
)
from tests.wrong_answers import jobs as wrong_jobs

pytestmark = [pytest.mark.long, pytest.mark.labs]

LAB = load("09_choosing")
CODE_QUESTIONS = code_questions(LAB)
JOBS = LAB.question("jobs")

# Other right answers: by recursion over a list, and loud, by ranks of preference.
RIGHT = (
    "def choose(num_cards, num_hosts, card_gb, peak_gb, step_seconds):\n"
    "    room = [n for n, gb in peak_gb.items() if gb <= card_gb]\n"
    "    fast = [step_seconds[n] for n in room if not n.startswith('off')]\n"
    "    good = [n for n in room if n != 'offload' and step_seconds[n] / min(fast) <= 1.05]\n"
    "    R = '+recompute'\n"
    "    rules = [('single', room), ('single' + R, room), ('ddp', good), ('ddp' + R, good)]\n"
    "    for again in ('', R):\n"
    "        trio = [way + again for way in ('hybrid', 'kept', 'full')]\n"
    "        if set(trio) & set(good if not again else room):\n"
    "            rules += [(trio[0], good), (trio[1], good), (trio[2], trio)]\n"
    "            break\n"
    "    rules += [('offload', room), ('none', ['none'])]\n"
    "    return next(name for name, allowed in rules if name in allowed)",
    "import sys, warnings\n"
    "def choose(**job):\n"
    "    warnings.warn('careful')\n    print('loud', file=sys.stderr)\n"
    "    fits = lambda n: job['peak_gb'].get(n, 1e9) <= job['card_gb']\n"
    "    left = [s for n, s in job['step_seconds'].items() if fits(n) and n != 'offload']\n"
    "    good = lambda n: fits(n) and job['step_seconds'][n] <= min(left) * 1.05\n"
    "    if job['num_cards'] == 1:\n"
    "        for n in ('single', 'single+recompute', 'offload'):\n"
    "            if fits(n): return n\n"
    "        return 'none'\n"
    "    for n in ('ddp', 'ddp+recompute', 'hybrid', 'kept', 'full'):\n"
    "        if good(n): return n\n"
    "    if any(map(fits, ('hybrid+recompute', 'kept+recompute', 'full+recompute'))):\n"
    "        for n in ('hybrid+recompute', 'kept+recompute'):\n"
    "            if good(n): return n\n"
    "        return 'full+recompute'\n"
    "    return 'offload' if fits('offload') else 'none'",
)


def test_right_answers_pass_in_any_style_and_with_other_seeds_and_rank_counts():
    for style in RIGHT:
        assert_passes(LAB.question("choose"), style)


CHEATS = {
    "asks the course": (
        "def choose(num_cards, num_hosts, card_gb, peak_gb, step_seconds):\n"
        "    from dpcourse.planning.decision import TREE, Facts, walk\n"
        "    facts = Facts(num_cards, num_hosts, card_gb, 0.0, peak_gb, step_seconds)\n"
        "    return walk(TREE, facts).answer.candidate or 'none'",
        "asks_the_course",
    ),
    "is equal to everything": (
        "class Equal(str):\n    def __eq__(self, other):\n        return True\n    __hash__ = str.__hash__\n"
        "def choose(**job):\n    return Equal('ddp')",
        "wrong_type",
    ),
    "is a number": ("def choose(**job):\n    return 3", "wrong_type"),
    "names everything": ("def choose(**job):\n    return list(job['peak_gb'])", "wrong_type"),
    "ends the process": ("import os\ndef choose(**job):\n    os._exit(0)", "exited"),
}


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_passes_and_each_gets_a_name(name):
    source, mistake = CHEATS[name]
    verdict = check(LAB.question("choose"), Source(source, "choose"))
    assert (verdict.mistake, verdict.points) == (mistake, 0), str(verdict)


@pytest.mark.parametrize("seed", [0, 7, 11])
def test_the_hidden_jobs_reach_every_answer_and_every_mistake_gets_one_wrong(seed):
    asked = choose.jobs(seed, (2,))
    found = [choose.goal_of(job.arguments) for job in asked]
    assert {name: found.count(name) >= 2 for name in found} == dict.fromkeys(
        {answer.candidate or "none" for answer in answers(TREE)}, True
    )
    assert [choose.take(job.arguments)["take"] for job in asked] == found
    for name, way in choose.WRONG_WAYS.items():
        assert [way(job)["take"] for job in asked] != found, name
    assert set(choose.WRONG_WAYS) < {mistake.name for mistake in LAB.question("choose").mistakes}


def test_the_relations_of_the_order_are_those_of_the_plans_table():
    def above(node, seen=()):
        if hasattr(node, "candidate"):
            return set()
        key = node.key.partition("+")[0]
        pairs = {(before, key) for before in seen}
        return pairs | above(node.yes, (*seen, key)) | above(node.no, (*seen, key))

    asked_before = above(TREE)
    for relation in order.RELATIONS:
        pair = order.KEYS[relation.first], order.KEYS[relation.then]
        assert pair in asked_before
        assert pair[::-1] not in asked_before
    earlier = {(order.KEYS[r.first], order.KEYS[r.then]) for r in order.RELATIONS}
    while more := {(a, d) for a, b in earlier for c, d in earlier if b == c} - earlier:
        earlier |= more
    names = set(order.KEYS.values())
    assert {pair for pair in asked_before if set(pair) <= names} <= earlier


def test_the_run_shows_how_deep_each_question_lies():
    table = order.measure_order(list(order.KEYS), 2)
    assert [row[2] for row in table.rows][:6] == [0, 1, 2, 3, 4, 4]


# --- the dozen jobs ---


def answer(**changed):
    right = ast.literal_eval(wrong_jobs.answer().partition(" = ")[2])
    return right | {job: {"take": take, "states_gb": states} for job, (take, states) in changed.items()}


def test_the_judge_asks_the_plan_and_no_list(monkeypatch):
    right = check(JOBS, answer())
    assert right.is_right, str(right)
    other = jobs.verdict("C")
    monkeypatch.setattr(jobs, "verdict", lambda job: other)  # as if the plan had changed its mind
    assert not check(JOBS, answer()).is_right


def test_every_job_differs_and_most_answers_of_the_table_are_there():
    taken = [jobs.verdict(job).take for job in jobs.JOBS]
    assert len(taken) == 12
    assert set(taken) >= {"single", "ddp", "kept", "full", "hybrid", "offload", "none", "kept+recompute"}


@pytest.mark.parametrize(
    ("changed", "mistake", "where"),
    [
        ({"F": ("kept", 26)}, "does_not_fit", "F: kept would take"),
        ({"B": ("single", 48)}, "does_not_fit", "B: single would take"),
        ({"I": ("offload", 800)}, "does_not_fit", "I: offload would take"),
        ({"B": ("none", 48)}, "gives_up", "B: offload takes"),
        ({"D": ("offload", 14)}, "gives_up", "D: kept takes"),
        ({"A": ("ddp", 16)}, "cannot_be_had", "A: ddp is not to be had"),
        ({"D": ("hybrid", 14)}, "cannot_be_had", "D: hybrid is not"),
        ({"J": ("full", 1)}, "slower", "J: full takes"),
        ({"C": ("full", 6)}, "more_than_needed", "C: full takes"),
        ({"G": ("full", 7.5)}, "sends_more", "G: full sends"),
        ({"L": ("full+recompute", 26)}, "sends_more", "L: full+recompute sends"),
        ({"D": ("kept", 112)}, "whole_states", "D: states_gb is 112"),
        ({"C": ("ddp", 6)}, "shared_by_all", "C: states_gb is 6"),
        ({"K": ("full", 68)}, "number", "K: states_gb is 68"),
        ({"K": ("full", float("nan"))}, "number", "K: states_gb is nan"),
        ({"K": ("full", 10**400)}, "number", "K: states_gb is inf"),
    ],
)
def test_a_choice_is_refused_with_the_plans_own_numbers(changed, mistake, where):
    finding = jobs.judge_jobs(answer(**changed))
    assert (finding.mistake, finding.where[: len(where)]) == (mistake, where)
    assert "11" in [target.measured for target in finding.targets]


def test_where_says_by_how_much_it_does_not_fit():
    peak = jobs.verdict("F").rows["kept"].peak_bytes
    assert bytes_text(peak) in jobs.judge_jobs(answer(F=("kept", 26))).where


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        [],
        "ddp",
        dict.fromkeys(jobs.JOBS),
        {job: {} for job in jobs.JOBS},
        {**answer(), "A": {"take": ["single"], "states_gb": 16}},
        {**answer(), "A": {"take": 16, "states_gb": 16}},
        {**answer(), "A": {"take": "single", "states_gb": "16"}},
        {**answer(), "A": {"take": "single", "states_gb": True}},
        {**answer(), "A": {"take": "single", "states_gb": {"type": "Equal"}}},
        {**answer(), "M": {"take": "single", "states_gb": 16}},
    ],
    ids=range(12),
)
def test_values_of_another_form_are_refused_in_words(value):
    finding = jobs.judge_jobs(value)
    assert finding.mistake == "wrong_type"
    assert finding.where


def test_a_missing_value_is_not_answered_yet():
    assert jobs.judge_jobs({**answer(), "B": {"take": None, "states_gb": 1}}).mistake == "incomplete"


def test_the_words_of_the_task_are_what_the_plan_is_asked():
    task = next("".join(c["source"]) for c in source_of(LAB.name)["cells"] if c["id"] == "task_jobs")
    lines = {line[2]: line for line in task.splitlines() if line[:2] == "| " and line[3:5] == " |"}
    for job, (model, asked) in jobs.JOBS.items():
        row = jobs.verdict(job).rows
        billions = 13 if model == "llama-2-13b" else round(model / 1e9)
        capacity = round(jobs.verdict(job).capacity_bytes / 1e9)
        assert f"| {billions} billion" in lines[job]
        assert f"| {asked['gpus']} of {capacity} GB" in lines[job], row
    kept, again = (
        jobs.verdict("L").rows[name].memory.moments[0].num_bytes for name in ("kept", "kept+recompute")
    )
    for held, text in ((kept, "keeps 67 GB"), (again, "or 7 GB")):
        assert text in lines["L"]
        assert f"{(held['activations'] + held['logits']) / 1e9:.0f} GB" in text
    assert "10 Gbit/s" in lines["J"]
    assert "33 billion are frozen" in lines["K"]


def test_runs_show_the_plans_word_beside_the_learners():
    assert "hybrid" in str(jobs.measure_jobs(answer(), 2))
    assert "104" in str(recipes.measure_recipes(dict.fromkeys(recipes.STATES_GB, 1.0), 2))


@pytest.mark.parametrize("question", CODE_QUESTIONS, ids=name_of)
def test_the_picture_shows_names_side_by_side(question):
    table = show_example(question, Source(RIGHT[0], question.entry), ranks=2)
    assert all(row[2] == row[3] for row in table.rows)
    assert len(table.rows) == 6
