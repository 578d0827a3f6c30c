"""Lab 08: bytes across a cable, a model of a step, and choices, beside the course's lists and real hosts."""

import pytest

from dpcourse.labs import load
from dpcourse.labs.check import check
from dpcourse.labs.inside import Source
from dpcourse.labs.many_machines import choices, crossing, step, wall
from dpcourse.theory.links import latency_wall
from tests.lab_checks import (
    assert_passes,
    code_questions,
    name_of,
)

pytestmark = [pytest.mark.long, pytest.mark.labs]

LAB = load("08_many_machines")
CODE_QUESTIONS = code_questions(LAB)

# Other right answers: counted rank by rank, and loud, with a clock in place of a formula.
RIGHT = {
    "hybrid": (
        "def card_bytes(strategy, num_params, number_bytes, hosts, ranks_per_host, hosts_per_copy):\n"
        "    size, R, H = num_params * number_bytes, ranks_per_host, hosts\n"
        "    G = hosts_per_copy if strategy == 'fsdp' else 1\n"
        "    shards, copies = G * R, H // G\n"
        "    crossing = lambda trips, n: trips * (n - 1) / n\n"
        "    if strategy == 'ddp':\n"
        "        return {'across': size * crossing(2, H * R) * (H > 1), 'held': num_params * 16}\n"
        "    across = sum(size / shards * crossing(2, copies) for rank in range(R))\n"
        "    if strategy == 'two levels':\n        return {'across': across, 'held': num_params * 16}\n"
        "    across += size * crossing(3, shards) * (G > 1)\n"
        "    return {'across': across, 'held': 16 * num_params / shards}",
        "import sys, warnings\n"
        "def card_bytes(**job):\n"
        "    warnings.warn('careful')\n    print('loud', file=sys.stderr)\n"
        "    on, hosts = job['ranks_per_host'], job['hosts']\n"
        "    rings = []\n"
        "    def ring(ranks, payload, trips):\n"
        "        crossers = [r for r in range(on) if r in ranks\n"
        "                    and ranks[(ranks.index(r) + 1) % len(ranks)] // on != 0]\n"
        "        rings.append(len(crossers) * trips * payload * (len(ranks) - 1) / len(ranks))\n"
        "    size, everyone = job['num_params'] * job['number_bytes'], list(range(on * hosts))\n"
        "    shards = 1\n"
        "    if job['strategy'] == 'ddp':\n        ring(everyone, size, 2)\n"
        "    else:\n"
        "        part = on * (job['hosts_per_copy'] if job['strategy'] == 'fsdp' else 1)\n"
        "        ring(everyone[:part], size, 3)\n"
        "        for rank in range(part):\n            ring(everyone[rank::part], size / part, 2)\n"
        "        shards = part if job['strategy'] == 'fsdp' else 1\n"
        "    return {'across': sum(rings), 'held': 16 * job['num_params'] / shards}",
    ),
    "step_seconds": (
        "import math\n"
        "def step_seconds(payload_bytes, bucket_bytes, forward_seconds, backward_seconds, ranks,\n"
        "                 latency_seconds, bytes_per_second):\n"
        "    n = math.ceil(payload_bytes / bucket_bytes)\n"
        "    hop = latency_seconds + payload_bytes / n / ranks / bytes_per_second\n"
        "    each = 2 * (ranks - 1) * hop\n"
        "    return {'all_reduce': each, 'step': forward_seconds\n"
        "            + max(backward_seconds + each, backward_seconds / n + n * each)}",
        "import math, sys, warnings\n"
        "def step_seconds(**job):\n"
        "    warnings.warn('careful')\n    print('loud', file=sys.stderr)\n"
        "    n, ranks = math.ceil(job['payload_bytes'] / job['bucket_bytes']), job['ranks']\n"
        "    each = sum(job['latency_seconds'] + job['payload_bytes'] / n / ranks / job['bytes_per_second']\n"
        "               for message in range(2 * (ranks - 1)))\n"
        "    now, free = job['forward_seconds'], 0\n"
        "    for bucket in range(n):\n"
        "        now += job['backward_seconds'] / n\n        free = max(now, free) + each\n"
        "    return {'all_reduce': each, 'step': free}",
    ),
}


@pytest.mark.parametrize("question", CODE_QUESTIONS, ids=name_of)
def test_right_answers_pass_in_any_style_and_with_other_seeds_and_rank_counts(question):
    for style in RIGHT[question.name]:
        assert_passes(question, style)


CHEATS = {
    "asks the course": (
        "from dpcourse.theory.links import ring_seconds, Link\n"
        "def step_seconds(**job):\n"
        "    each = ring_seconds(1, 2, Link(1, 1))\n    return {'all_reduce': each, 'step': each}",
        "asks_the_course",
    ),
    "is equal to everything": (
        "class Equal(float):\n    def __eq__(self, other):\n        return True\n    __hash__ = None\n"
        "def step_seconds(**job):\n    return {'all_reduce': Equal(1), 'step': Equal(1)}",
        "wrong_type",
    ),
    "is no number": (
        "def step_seconds(**job):\n    return {'all_reduce': float('nan'), 'step': 1}",
        "all_reduce",
    ),
    "exits": ("import sys\ndef step_seconds(**job):\n    sys.exit(0)", "exited"),
}


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_passes_and_each_gets_a_name(name):
    source, mistake = CHEATS[name]
    verdict = check(LAB.question("step_seconds"), Source(source, "step_seconds"))
    assert (verdict.mistake, verdict.points) == (mistake, 0), str(verdict)


def test_every_wrong_way_of_a_function_has_its_mistake_and_differs_from_what_is_right():
    for question in CODE_QUESTIONS:
        names = {mistake.name for mistake in question.mistakes}
        for seed, sizes in ((0, (2, 3, 4)), (7, (2, 5)), (11, (3,))):
            asked = question.cases(seed, sizes)[0].inputs[0]
            for name, way in question.judge.wrong_ways.items():
                assert name in names
                far = (
                    abs(way(job)[key] - goal) > 0.05 * abs(goal)
                    for job in asked
                    for key, goal in question.judge.goals(job).items()
                )
                assert any(far), (question.name, name, seed)


def test_the_formulas_of_the_mistakes_are_right_without_a_twist():
    for question, formula in (("hybrid", crossing.row), ("step_seconds", step.times)):
        judge = LAB.question(question).judge
        for job in LAB.question(question).cases(3, (2, 5))[0].inputs[0]:
            assert dict(formula(job.arguments)) == pytest.approx(dict(judge.goals(job)), rel=1e-6), job.title


def test_real_hosts_send_what_the_lists_say_by_which_two_hosts_a_copy_cost_more_than_all():
    both = [crossing.run_job("fsdp", 3, 1, together) for together in (1, 3)]
    for job in both:
        assert dict(crossing.measured(job)) == pytest.approx(dict(crossing.goals(job)), rel=0.01)
    sent = {
        mesh: choices.mesh_numbers("70 billion on 8 hosts of 8", mesh)[1]
        for mesh in (choices.TWO, choices.ALL)
    }
    assert sent[choices.TWO] > 1.1 * sent[choices.ALL]


def test_each_choice_is_clearly_the_best():
    for network, best in choices.BEST_SIZES.items():
        times = sorted(choices.step_of(network, size) for size in choices.SIZES)
        assert choices.step_of(network, best) == times[0] < times[1] / 1.05
    assert set(choices.BEST_MESHES.values()) == {choices.INSIDE, choices.TWO, choices.ALL}
    for model, best in choices.BEST_MESHES.items():
        fitting = [
            across
            for held, across in (
                choices.mesh_numbers(model, m) for m in (choices.INSIDE, choices.TWO, choices.ALL)
            )
            if held <= choices.FREE_GB
        ]
        assert choices.mesh_numbers(model, best)[1] == min(fitting)
        assert sorted(fitting)[1] > 1.05 * min(fitting)


def test_the_wall_is_the_packages_own_and_its_run_fits_a_link():
    assert latency_wall(wall.PAYLOAD_BYTES, wall.LINK) == wall.WALL + 1  # the first number beyond it
    assert wall.measure_wall(None, 2).fit.bytes_per_second > 0


def test_tables_show_what_was_chosen():
    assert "10 MiB" in str(choices.measure_sizes(choices.BEST_SIZES, 2))
    assert "68.0 / 119.0" in str(choices.measure_meshes(choices.BEST_MESHES, 2))
