"""Lab 04 is checked here: each wrong ring gets its own message, and right ones pass in any style."""

import pytest

from dpcourse.labs import load
from dpcourse.labs.check import check, run_case, show_example
from dpcourse.labs.inside import Source
from tests.lab_checks import (
    IMPORTS,
    assert_passes,
    code_questions,
    name_of,
    solution,
)
from tests.wrong_answers import ring

pytestmark = [pytest.mark.long, pytest.mark.labs]
LAB = load("04")
CODE_QUESTIONS = code_questions(LAB)

# To the left, both messages started before any is waited for; with warnings, prints and send/recv in turns.
LEFTWARDS = """
def reduce_scatter(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = list(torch.tensor_split(tensor.reshape(-1).clone(), size))
    for step in range(1, size):
        sent, kept = parts[(rank + step) % size], parts[(rank + step + 1) % size]
        came = torch.zeros_like(kept)
        works = [dist.isend(sent, (rank - 1) % size), dist.irecv(came, (rank + 1) % size)]
        [work.wait() for work in works]
        parts[(rank + step + 1) % size] = kept + came
    return parts[rank].clone()

def all_gather(piece, num_elements):
    rank, size = dist.get_rank(), dist.get_world_size()
    lengths = [num_elements // size + (k < num_elements % size) for k in range(size)]
    found = {rank: piece}
    for step in range(size - 1):
        came = torch.empty(lengths[(rank + step + 1) % size], dtype=piece.dtype)
        sent = found[(rank + step) % size]
        works = [dist.irecv(came, (rank + 1) % size), dist.isend(sent, (rank - 1) % size)]
        [work.wait() for work in works]
        found[(rank + step + 1) % size] = came
    return torch.cat([found[k] for k in range(size)])

def all_reduce(tensor):
    tensor[...] = all_gather(reduce_scatter(tensor), tensor.numel()).reshape(tensor.shape)
"""
IN_TURNS = """
import sys, warnings

def turn(outgoing, incoming):
    warnings.warn("careful")
    print("loud", file=sys.stderr)
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        dist.send(outgoing.contiguous(), 1)
        dist.recv(incoming, size - 1)
    else:
        dist.recv(incoming, rank - 1)
        dist.send(outgoing.contiguous(), (rank + 1) % size)

def reduce_scatter(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    pieces = tensor.flatten().tensor_split(size)
    running = pieces[(rank - 1) % size].clone()
    for step in range(size - 1):
        mine = pieces[(rank - step - 2) % size].clone()
        came = torch.empty_like(mine)
        turn(running, came)
        running = mine + came
    return running

def all_gather(piece, num_elements):
    rank, size = dist.get_rank(), dist.get_world_size()
    pieces = list(torch.empty(num_elements, dtype=piece.dtype).tensor_split(size))
    pieces[rank] = piece
    for step in range(size - 1):
        turn(pieces[(rank - step) % size], pieces[(rank - step - 1) % size])
    return torch.cat(pieces)

def all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    row = tensor.flatten()
    pieces = list(row.tensor_split(size))
    for step in range(size - 1):
        came = torch.empty_like(pieces[(rank - step - 2) % size])
        turn(pieces[(rank - step - 1) % size], came)
        pieces[(rank - step - 2) % size] += came
    for step in range(size - 1):
        turn(pieces[(rank - step) % size], pieces[(rank - step - 1) % size])
    tensor.copy_(torch.cat(pieces).view_as(tensor))
"""


def answer(name: str) -> str:
    """The solution, with those of the questions before it, which it may use."""
    names = [question.name for question in CODE_QUESTIONS]
    return "\n\n".join(solution(LAB, used) for used in names[: names.index(name) + 1])


@pytest.mark.parametrize("question", CODE_QUESTIONS, ids=name_of)
@pytest.mark.parametrize("style", ["solution", "leftwards", "in turns"])
def test_right_answers_pass_in_any_style_and_with_other_seeds_and_rank_counts(question, style):
    assert_passes(
        question, {"leftwards": LEFTWARDS, "in turns": IN_TURNS}.get(style) or answer(question.name)
    )


def define(body: str) -> Source:
    return Source(IMPORTS + f"def all_reduce(tensor):\n{body}", "all_reduce")


CHEATS = {
    "hides the error it got": (
        "    try:\n        dist.all_reduce(tensor)\n    except Exception:\n        pass",
        ("wrong", "forbidden"),
    ),
    "hides that it hangs": (
        "    try:\n        dist.recv(tensor, (dist.get_rank() + 1) % dist.get_world_size())\n"
        "    except Exception:\n        pass",
        ("hang", "hang"),
    ),
    "asks for anybody's message": ("    dist.recv(tensor)", ("wrong", "forbidden")),
    "sends nonsense to the switch": (
        "    from dpcourse.labs import plug\n    plug._joined[-1].sock.sendall(b'x' * 1000)\n"
        "    import time\n    time.sleep(0.5)",
        ("wrong", "no_answer"),
    ),
    "waits for a message on a line that it has broken": (
        "    from dpcourse.labs import plug\n    work = dist.irecv(tensor, 1 - dist.get_rank())\n"
        "    plug._joined[-1].sock.sendall(b'x' * 1000)\n    work.wait()",
        ("wrong", "no_answer"),
    ),
    "begins more often than there are tensors": (
        "    from dpcourse.labs import plug\n    plug.note('begin')",
        ("wrong", "no_answer"),
    ),
    "patches the judge": (
        "    from dpcourse.labs import question\n    from dpcourse.labs.ring import traffic\n"
        "    traffic.Traffic.mistake = traffic.traffic_of = lambda *a: question.Finding()",
        ("wrong", "tampered"),
    ),
    "exits": ("    import os\n    os._exit(0)", ("exited", "exited")),
    "never ends": ("    while True:\n        pass", ("deadline", "deadline")),
}


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_passes_and_each_gets_a_name(name):
    body, expected = CHEATS[name]
    verdict = check(
        LAB.question("all_reduce"), define(body), deadline_seconds=3 if name == "never ends" else 20
    )
    assert ((verdict.status, verdict.mistake), verdict.points) == (expected, 0), str(verdict)


def test_a_deadlock_is_named_at_once_and_says_who_waits_for_whom():
    verdict = check(LAB.question("reduce_scatter"), Source(source_of("hang"), "reduce_scatter"), sizes=(3,))
    assert verdict.where.endswith(
        "rank 0 waits to send to rank 1, rank 1 waits to send to rank 2, rank 2 waits to send to rank 0"
    )


def source_of(name: str) -> str:
    return ring.REDUCE_SCATTER[name]


def test_a_message_that_does_not_fit_its_receiver_is_said_in_words():
    body = (
        "    other = 1 - dist.get_rank()\n    work = dist.isend(tensor.flatten()[:1], other)\n"
        "    dist.recv(torch.empty(4, dtype=tensor.dtype), other)\n    work.wait()"
    )
    verdict = check(LAB.question("all_reduce"), define(body), sizes=(2,))
    assert "sent 4 bytes, and the tensor to receive them in has 16" in verdict.where


def test_the_switch_counts_what_the_formula_says():
    question = LAB.question("all_reduce")
    case = question.cases(0, (5,))[0]
    _, log = run_case(question, case, Source(answer("all_reduce"), "all_reduce"), 20)
    elements = sum(tensor.size * tensor.itemsize for tensor in case.inputs[0])
    assert sum(log.sent_bytes(rank) for rank in range(5)) == 2 * 4 * elements
    assert [len(log.sent(rank)) for rank in range(5)] == [3 * 2 * 4] * 5


def test_the_picture_says_who_sent_how_much_to_whom():
    question = LAB.question("all_reduce")
    shown = show_example(question, Source(answer("all_reduce"), "all_reduce"), ranks=3)
    assert "rank 0 to rank 1: " in str(shown)
    assert "rank 0 to rank 2: " not in str(shown)
    assert "<table" in shown.to_html()
    assert "<img alt=" in shown.to_html()


@pytest.mark.parametrize("name", ["costs", "pieces"])
def test_what_the_lab_says_of_costs_is_what_a_real_ring_and_a_real_star_do(name):
    question = LAB.question(name)
    right = next(cell for cell in [solution(LAB, name)]).partition("### BEGIN SOLUTION")[2]
    namespace: dict = {}
    exec(right, namespace)
    rows = question.measure(namespace[question.entry], 4).rows
    assert all(measured == wrote for _, measured, wrote in rows), rows
    assert ring.both("")  # the wrong answers are made of the same ring
