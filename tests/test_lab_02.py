"""Lab 02 is checked here: each wrong star gets its own message, and right ones pass in any style."""

import numpy as np
import pytest

from dpcourse.labs import load
from dpcourse.labs.check import check, run_case, show_example
from dpcourse.labs.inside import Source
from dpcourse.labs.parameter_server import counts, flaws
from dpcourse.labs.parameter_server.star_step import _TOLERANCE
from dpcourse.labs.parameter_server.steps import by_rows, ways
from tests.lab_checks import (
    IMPORTS,
    assert_passes,
    solution,
)

pytestmark = [pytest.mark.long, pytest.mark.labs]
LAB = load("02")
STAR_STEP = LAB.question("star_step")

# All messages at once, and gradients added up before they are divided; and loud, the last worker first.
AT_ONCE = """
def star_step(weights, batch, num_rows, gradient_of, learning_rate):
    rank, size = dist.get_rank(), dist.get_world_size()
    shares = [num_rows // size + (k < num_rows % size) for k in range(size)]
    if rank > 0:
        rows = torch.empty(shares[rank], batch.shape[1], dtype=batch.dtype)
        works = [dist.irecv(rows, 0), dist.irecv(weights, 0)]
        [work.wait() for work in works]
        dist.isend(gradient_of(weights, rows) * shares[rank], 0).wait()
    else:
        parts, works = batch.split(shares), []
        for worker in range(1, size):
            works += [dist.isend(parts[worker], worker), dist.isend(weights, worker)]
        gradients = torch.zeros(size, weights.numel(), dtype=weights.dtype)
        works += [dist.irecv(gradients[worker], worker) for worker in range(1, size)]
        gradients[0] = gradient_of(weights, parts[0]) * shares[0]
        [work.wait() for work in works]
        weights[:] = weights - learning_rate * gradients.sum(0) / num_rows
"""
LOUD = """
import sys, warnings

def star_step(weights, batch, num_rows, gradient_of, learning_rate):
    warnings.warn("careful")
    print("loud", file=sys.stderr)
    size, me = dist.get_world_size(), dist.get_rank()
    if me:
        count = torch.zeros(1, dtype=torch.int64)
        dist.recv(count, 0)
        rows = torch.zeros(int(count), batch.shape[1], dtype=batch.dtype)
        dist.recv(rows, 0)
        model = torch.zeros_like(weights)
        dist.recv(model, 0)
        dist.send(gradient_of(model, rows), 0)
        return None
    parts = torch.tensor_split(batch, size)
    for worker in reversed(range(1, size)):
        for message in (torch.tensor([len(parts[worker])]), parts[worker].contiguous(), weights):
            dist.send(message, worker)
    found = [gradient_of(weights, parts[0])]
    for worker in range(1, size):
        found.append(torch.zeros_like(weights))
        dist.recv(found[-1], worker)
    for part, gradient in zip(parts, found):
        weights.sub_(gradient, alpha=learning_rate * len(part) / num_rows)
    return weights
"""


@pytest.mark.parametrize("style", ["solution", "at once", "loud"])
def test_right_answers_pass_in_any_style_and_with_other_seeds_and_rank_counts(style):
    assert_passes(STAR_STEP, {"at once": AT_ONCE, "loud": LOUD}.get(style) or solution(LAB, "star_step"))


CHEATS = {
    "hides the error it got": (
        "    try:\n        dist.broadcast(weights, 0)\n    except Exception:\n        pass",
        "forbidden",
    ),
    "patches the judge": (
        "    from dpcourse.labs.parameter_server import star_step as lab\n"
        "    lab.judge = lab._mistake = lambda *a: ''",
        "tampered",
    ),
    "claims that workers computed": (
        "    from dpcourse.labs import plug\n    plug.note(f'computes {num_rows}')",
        "never_updated",
    ),
    "makes a model that is equal to everything": (
        "    class Equal(torch.Tensor):\n        def __eq__(self, other):\n            return True\n"
        "    weights.__class__ = Equal",
        "wrong_type",
    ),
    "makes a step of its own": (
        "    from dpcourse.labs import plug\n    plug.note('step')",
        "no_answer",
    ),
    "notes what is no number": (
        "    from dpcourse.labs import plug\n    plug.note('computes much')",
        "no_answer",
    ),
    "ends the process": ("    import os\n    os._exit(0)", "exited"),
}


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_passes_and_each_gets_a_name(name):
    body, mistake = CHEATS[name]
    head = "def star_step(weights, batch, num_rows, gradient_of, learning_rate):\n"
    verdict = check(STAR_STEP, Source(IMPORTS + head + body, "star_step"))
    assert (verdict.mistake, verdict.points) == (mistake, 0), str(verdict)


@pytest.mark.parametrize("seed", range(20))
def test_every_known_mistake_ends_far_from_what_is_right(seed):
    for size in (2, 3, 4, 5):
        training = STAR_STEP.cases(seed, (size,))[0].inputs[0][0]
        goal = training.after(by_rows)[-1]
        for name, wrong in ways(training).items():
            assert np.max(np.abs(wrong[-1] - goal)) > 2 * _TOLERANCE["float32"], (name, size)


def test_workers_are_sent_no_rows_but_through_the_main_rank():
    training, is_main = STAR_STEP.cases(0, (3,))[0].inputs[1]
    assert not is_main
    assert all(np.isnan(batch).all() for batch in training.batches)


def test_the_switch_counts_what_the_formula_says_and_the_picture_shows_it_beside_a_ring():
    case = STAR_STEP.cases(0, (4,))[0]
    _, log = run_case(STAR_STEP, case, Source(solution(LAB, "star_step"), "star_step"), 20)
    training = case.inputs[0][0]
    rows = sum(sum(training.num_rows(step)[1:]) for step in range(2)) * 5 * 8
    assert log.sent_bytes(0) == 2 * 3 * training.weights.nbytes + rows
    shown = show_example(STAR_STEP, Source(solution(LAB, "star_step"), "star_step"), ranks=4)
    assert shown.rows[0][3] == 3 * 16
    assert [row[4] for row in shown.rows] == [24] * 4


def values_of(name: str) -> dict:
    namespace: dict = {}
    exec(solution(LAB, name).partition("### BEGIN SOLUTION")[2], namespace)
    return namespace[LAB.question(name).entry]


@pytest.mark.parametrize("name", ["main_rank_bytes", "running_mean"])
def test_what_the_lab_says_of_a_star_is_what_a_real_star_does(name):
    question, value = LAB.question(name), values_of(name)
    assert check(question, value).is_right
    rows = question.measure(value, 4).rows
    assert all(measured == pytest.approx(wrote) for _, measured, wrote in rows), rows
    assert counts.RANKS == 8


def test_two_of_the_flaws_show_in_a_real_star_and_not_in_ddp():
    star, ddp = flaws.measure_flaws(None, 3).rows, flaws.measure_answers(None, 3).rows
    assert star[0][2] > 0 == star[1][2]
    assert star[0][1] != star[1][1]
    assert len({row[1:] for row in ddp}) == 1
