"""Lab 07: both ledgers as functions, held against the exact lists and against runs made while judging."""

import pytest

from dpcourse.expectation import expect
from dpcourse.labs import load
from dpcourse.labs.check import check, show_example
from dpcourse.labs.inside import Source
from dpcourse.labs.ledgers import eaters, jobs, memory, rows, traces, traffic
from dpcourse.ranks.errors import RankError
from tests.lab_checks import (
    assert_passes,
    code_questions,
    name_of,
    source_of,
)

pytestmark = [pytest.mark.long, pytest.mark.labs]

LAB = load("07_two_ledgers")
CODE_QUESTIONS = code_questions(LAB)

# Other right answers: in one expression, and loud, with numbers of other types.
RIGHT = {
    "memory_bytes": (
        "def memory_bytes(strategy, recipe, num_params, num_trained, ranks):\n"
        "    p, o = {'bf16': (2, 4), 'mixed-adam': (2, 12)}.get(recipe, (4, 8))\n"
        "    stage = 3 if 'fsdp' in strategy else int(strategy[4:]) if 'zero' in strategy else 0\n"
        "    share = lambda size, first: size / ranks if stage >= first else size\n"
        "    gradients = share(p * num_trained, 2)\n"
        "    return dict(parameters=share(p * num_params, 3), gradients=gradients,\n"
        "                optimizer=share(o * num_trained, 1), buckets=gradients * (strategy == 'ddp'))",
        "import sys, warnings\n"
        "FORMATS = {'fp32': [4, 4, 4, 4], 'bf16': [2, 2, 2, 2], 'mixed-adam': [2, 2, 4, 4, 4]}\n"
        "def memory_bytes(**job):\n"
        "    warnings.warn('careful')\n    print('loud', file=sys.stderr)\n"
        "    formats = FORMATS.get(job['recipe'], FORMATS['fp32'])\n"
        "    way, ranks, trained = job['strategy'], job['ranks'], job['num_trained']\n"
        "    held = [formats[0] * job['num_params'], formats[1] * trained, sum(formats[2:]) * trained, 0]\n"
        "    if way == 'ddp':\n        held[3] = held[1]\n"
        "    first = {'d': 4, 'f': 0}.get(way[0], 3 - int(way[-1]) if way[0] == 'z' else 0)\n"
        "    for place in range(first, 3):\n        held[place] = float(held[place]) / ranks\n"
        "    return dict(zip(('parameters', 'gradients', 'optimizer', 'buckets'), held))",
    ),
    "traffic_bytes": (
        "def traffic_bytes(strategy, recipe, num_params, num_trained, ranks, backend):\n"
        "    size = {'fp32': 4, 'autocast': 4}.get(recipe, 2)\n"
        "    trips = {'fsdp': (2, 1 + (backend == 'gloo')), 'fsdp, kept': (1, 1 + (backend == 'gloo'))}\n"
        "    gathers, reduces = trips.get(strategy, (0, 2))\n"
        "    return size * (gathers * num_params + reduces * num_trained) * (1 - 1 / ranks)",
        "import sys, warnings\n"
        "def traffic_bytes(**job):\n"
        "    warnings.warn('careful')\n    print('loud', file=sys.stderr)\n"
        "    size = 4 if job['recipe'] in {'fp32', 'autocast'} else 2\n"
        "    sent = []\n"
        "    if job['strategy'].startswith('fsdp'):\n"
        "        sent += [job['num_params']] * (2 - job['strategy'].endswith('kept'))\n"
        "        sent += [job['num_trained']] * {'ring': 1, 'gloo': 2}[job['backend']]\n"
        "    else:\n        sent += [job['num_trained']] * 2\n"
        "    return {'sent': size * sum(sent) * (job['ranks'] - 1) / job['ranks']}",
    ),
}


@pytest.mark.parametrize("question", CODE_QUESTIONS, ids=name_of)
def test_right_answers_pass_in_any_style_and_with_other_seeds_and_rank_counts(question):
    for style in RIGHT[question.name]:
        assert_passes(question, style)


def test_the_learners_numbers_stand_beside_those_of_a_run():
    table = show_example(
        LAB.question("traffic_bytes"), Source(RIGHT["traffic_bytes"][0], "traffic_bytes"), ranks=2
    )
    assert [row[0] for row in table.rows] == ["ddp, fp32, 2 ranks, gloo", "fsdp, mixed-adam, 2 ranks, ring"]
    assert "a run" in table.columns
    for place in range(2):
        mine, measured = (table.number(place, column) for column in ("your function", "a run"))
        assert mine == pytest.approx(measured, rel=0.01)


CHEATS = {
    "asks the course": (
        "import dpcourse as dc\n"
        "def traffic_bytes(strategy, num_params, ranks, **other):\n"
        "    return dc.expect('ddp', num_params=num_params, ranks=ranks).sent_bytes()",
        "asks_the_course",
    ),
    "asks it and hides the error": (
        "def traffic_bytes(**job):\n    try:\n        from dpcourse.labs.ledgers.traffic import sent\n"
        "        return sent(job)['sent']\n    except BaseException:\n        return 1",
        "asks_the_course",
    ),
    "turns the watch off": (
        "import sys\n"
        "def traffic_bytes(**job):\n    sys.setprofile(None)\n"
        "    from dpcourse.labs.ledgers.traffic import sent\n    return sent(job)['sent']",
        "asks_the_course",
    ),
    "asks in a thread": (
        "import threading\n"
        "def traffic_bytes(**job):\n"
        "    from dpcourse.labs.ledgers.traffic import sent\n    found = []\n"
        "    thread = threading.Thread(target=lambda: found.append(sent(job)['sent']))\n"
        "    thread.start()\n    thread.join()\n    return found[0]",
        "asks_the_course",
    ),
    "is equal to everything": (
        "class Equal(float):\n    def __eq__(self, other):\n        return True\n    __hash__ = None\n"
        "    def __abs__(self):\n        return 0.0\n    def __sub__(self, other):\n        return 0.0\n"
        "def traffic_bytes(**job):\n    return Equal(3)",
        "wrong_type",
    ),
    "is true": ("def traffic_bytes(**job):\n    return True", "wrong_type"),
    "is no number": ("def traffic_bytes(**job):\n    return float('nan')", "sent"),
    "is beyond all numbers": ("def traffic_bytes(**job):\n    return 10**400", "sent"),
    "patches the judge": (
        "from dpcourse.labs.values import functions\n"
        "functions.Judge.__call__ = functions.is_near = lambda *a: True\n"
        "def traffic_bytes(**job):\n    return 1",
        "tampered",
    ),
    "ends the process": ("import os\ndef traffic_bytes(**job):\n    os._exit(0)", "exited"),
}


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_passes_and_each_gets_a_name(name):
    source, mistake = CHEATS[name]
    verdict = check(LAB.question("traffic_bytes"), Source(source, "traffic_bytes"))
    assert (verdict.mistake, verdict.points) == (mistake, 0), str(verdict)


def test_a_run_that_fails_is_not_called_the_answers_mistake(monkeypatch):
    question, failure = LAB.question("memory_bytes"), RankError("killed", kind="died", world_size=2)

    def fail(setting):
        raise failure

    monkeypatch.setattr(jobs, "_run", fail)
    with pytest.raises(RuntimeError, match="the run to compare with failed"):
        check(question, Source(RIGHT["memory_bytes"][0], "memory_bytes"))


def test_a_run_that_contradicts_the_exact_list_is_an_error_of_the_lab():
    question = LAB.question("traffic_bytes")
    judge = memory.Judge(question.judge.goals, measure=lambda job: {"sent": 1.0})
    case = question.cases(0, (2,))[0]
    right = {"values": [traffic.sent(job.arguments)["sent"] for job in case.inputs[0]], "asked": None}
    with pytest.raises(RuntimeError, match="the run gave"):
        judge(case, [right])


def test_every_wrong_way_of_a_function_has_its_mistake_and_differs_from_what_is_right():
    for question in CODE_QUESTIONS:
        names = {mistake.name for mistake in question.mistakes}
        for seed, sizes in ((0, (2, 3, 4)), (7, (2, 5))):
            asked = question.cases(seed, sizes)[0].inputs[0]
            for name, way in question.judge.wrong_ways.items():
                assert name in names
                off = [
                    job.title
                    for job in asked
                    if any(
                        abs(way(job)[key] - goal) > 0.05 * goal
                        for key, goal in question.judge.goals(job).items()
                    )
                ]
                assert off, (question.name, name)


def test_what_eats_the_memory_in_the_task_eats_it_in_real_runs():
    for name, eater in eaters.EATERS.items():
        held = eaters.peak(name)
        others = [num_bytes for owner, num_bytes in held.items() if owner != eater]
        assert held[eater] > 1.3 * max(others), (name, held)


def test_the_traces_of_the_task_are_those_of_real_runs():
    found = traces.traces_of_runs()
    assert {letter: found[strategy] for letter, strategy in traces.GOALS.items()} == traces.TRACES
    task = next(
        "".join(c["source"]) for c in source_of(LAB.name)["cells"] if c["id"] == "task_pick_the_trace"
    )
    for letter, trace in traces.TRACES.items():
        phases = {phase: [] for phase in ("forward", "backward", "step")}
        for line in trace:
            phase, _, collective = line.partition(": ")
            phases[phase].append(collective)
        cells = " | ".join(", ".join(names) for names in phases.values())
        assert f"| {letter} | {cells} |".replace("  ", " ") in task.replace("  ", " ")


def test_the_row_on_paper_is_the_packages_own():
    expected = expect("zero2", num_params=13e9, ranks=16, recipe="mixed-adam").table()
    right = rows._RIGHT
    for place, name in enumerate(("parameters", "gradients", "optimizer", "in_all")):
        assert expected.number(place, "while gradients exist") == pytest.approx(right[name], abs=0.01)
    assert "13" in str(rows.measure_row(right, 2))


def test_both_recipes_move_in_real_runs_what_the_derivation_says():
    table = rows.measure_three_against_two(None, 2)
    for place in range(2):
        assert table.number(place, "measured") == pytest.approx(table.number(place, "formula"), rel=0.02)
    assert table.number(0, "measured") > table.number(1, "measured")
