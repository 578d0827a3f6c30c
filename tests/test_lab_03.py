"""Lab 03 is checked here: each wrong DDP gets its own message, and right ones pass in any style."""

import numpy as np
import pytest

from dpcourse.labs import load
from dpcourse.labs.check import check, show_example
from dpcourse.labs.ddp import against_dp, unused
from dpcourse.labs.ddp.chains import NUM_ROWS, awkward_models
from dpcourse.labs.inside import Source
from tests.lab_checks import (
    IMPORTS,
    assert_passes,
    code_questions,
    name_of,
    solution,
)
from tests.wrong_answers.ddp_buckets import BUCKETS

pytestmark = [pytest.mark.long, pytest.mark.labs]
LAB = load("03")
CODE_QUESTIONS = code_questions(LAB)

# By state_dict and one row for all; buckets filled as gradients arrive.
IN_ROWS = """
def same_start(model):
    state = model.state_dict()
    for tensor in state.values():
        dist.broadcast(tensor, 0)
    model.load_state_dict(state)

def average_gradients(model):
    trained = [p for p in model.parameters() if p.requires_grad]
    row = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).reshape(-1) for p in trained])
    row /= dist.get_world_size()
    dist.all_reduce(row)
    for p in trained:
        p.grad, row = row[:p.numel()].view(p.shape).clone(), row[p.numel():]

class Bucket:
    def __init__(self, parameters):
        self.parameters = parameters
        self.row = torch.zeros(sum(p.numel() for p in parameters), dtype=parameters[0].dtype)
        self.sizes = [p.numel() for p in parameters]
        self.reset()

    def reset(self):
        self.missing, self.work = {id(p) for p in self.parameters}, None

    def send(self):
        for p, part in zip(self.parameters, self.row.split(self.sizes)):
            part.zero_() if p.grad is None else part.copy_(p.grad.flatten())
        self.row /= dist.get_world_size()
        self.work = dist.all_reduce(self.row, async_op=True)

class Averager:
    def __init__(self, model, cap_bytes):
        self.buckets, collected = [], []
        for p in [p for p in model.parameters() if p.requires_grad][::-1]:
            collected.append(p)
            if sum(q.numel() * q.element_size() for q in collected) >= cap_bytes:
                self.buckets.append(Bucket(collected))
                collected = []
        if collected:
            self.buckets.append(Bucket(collected))
        for bucket in self.buckets:
            for p in bucket.parameters:
                p.register_post_accumulate_grad_hook(lambda p, bucket=bucket: self.arrived(p, bucket))

    def arrived(self, parameter, bucket):
        bucket.missing.discard(id(parameter))
        for each in self.buckets:
            if each.missing:
                break
            if each.work is None:
                each.send()

    def __call__(self):
        [bucket.send() for bucket in self.buckets if bucket.work is None]
        for bucket in self.buckets:
            bucket.work.get_future().wait()
            for p, part in zip(bucket.parameters, bucket.row.split(bucket.sizes)):
                p.grad = part.view_as(p).clone()
            bucket.reset()

average_in_buckets = Averager
"""
LOUD = """
import sys, warnings

def loud():
    warnings.warn("careful")
    print("loud", file=sys.stderr)

@torch.no_grad()
def same_start(model):
    loud()
    for _, tensor in list(model.named_buffers()) + list(model.named_parameters()):
        if dist.get_rank():
            tensor.zero_()
        dist.all_reduce(tensor)

def average_gradients(model):
    loud()
    for p in reversed([p for p in model.parameters() if p.requires_grad]):
        whole = torch.zeros_like(p.data) + (0 if p.grad is None else p.grad)
        dist.all_reduce(whole, op=dist.ReduceOp.AVG)
        p.grad = whole

def average_in_buckets(model, cap_bytes):
    loud()
    names = [name for name, p in model.named_parameters() if p.requires_grad][::-1]
    parameters, places = dict(model.named_parameters()), {}
    size = number = 0
    for name in names:
        places[name] = number
        size += parameters[name].nbytes
        if size >= cap_bytes:
            size, number = 0, number + 1
    arrived, sent = [], []

    def members(number):
        return [name for name in names if places[name] == number]

    def send(number):
        own = [parameters[name] for name in members(number)]
        row = torch.cat([torch.zeros_like(p).view(-1) if p.grad is None else p.grad.view(-1) for p in own])
        sent.append((own, row, dist.all_reduce(row, op=dist.ReduceOp.AVG, async_op=True)))

    def hook(name):
        def note(parameter):
            arrived.append(name)
            while len(sent) <= max(places.values()) and set(members(len(sent))) <= set(arrived):
                send(len(sent))
        return note

    for name in names:
        parameters[name].register_post_accumulate_grad_hook(hook(name))

    def finish():
        while len(sent) <= max(places.values()):
            send(len(sent))
        while sent:
            own, row, work = sent.pop(0)
            work.wait()
            for p in own:
                p.grad = row[: p.numel()].reshape(p.shape)
                row = row[p.numel() :]
        arrived.clear()

    return finish
"""


@pytest.mark.parametrize("question", CODE_QUESTIONS, ids=name_of)
@pytest.mark.parametrize("style", ["solution", "in rows", "loud"])
def test_right_answers_pass_in_any_style_and_with_other_seeds_and_rank_counts(question, style):
    assert_passes(question, {"in rows": IN_ROWS, "loud": LOUD}.get(style) or solution(LAB, question.name))


def cheat(body: str) -> Source:
    return Source(IMPORTS + f"def average_in_buckets(model, cap_bytes):\n{body}", "average_in_buckets")


CHEATS = {
    "the library's DDP": (
        "    from torch.nn.parallel import DistributedDataParallel\n"
        "    ddp = DistributedDataParallel(model)\n    return lambda: None",
        "forbidden",
    ),
    "equal on all ranks, and wrong": (
        "    def finish():\n        for p in model.parameters():\n            if p.requires_grad:\n"
        "                p.grad = torch.ones_like(p)\n    return finish",
        "other",
    ),
    "patches the judge": (
        "    from dpcourse.labs.ddp import buckets, means\n"
        "    buckets.judge = means.judge_means = lambda *a: None\n    return lambda: None",
        "tampered",
    ),
    "says that it was early": (
        "    from dpcourse.labs import plug\n"
        "    def early(parameter):\n        plug.note('call all_reduce 60')\n"
        "    list(model.parameters())[-1].register_post_accumulate_grad_hook(early)\n"
        "    return lambda: None",
        "not_waited",
    ),
    "equal to everything": (
        "    class Equal(torch.Tensor):\n        def __eq__(self, other):\n            return True\n"
        "    def finish():\n        for p in model.parameters():\n"
        "            p.grad = torch.zeros_like(p).as_subclass(Equal) if p.requires_grad else None\n"
        "    return finish",
        "wrong_type",
    ),
    "begins a step of its own": (
        "    from dpcourse.labs import plug\n    plug.note('step')\n    return lambda: None",
        "no_answer",
    ),
    "ends the process": ("    import os\n    os._exit(0)", "exited"),
}


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_passes_and_each_gets_a_name(name):
    body, mistake = CHEATS[name]
    verdict = check(LAB.question("buckets"), cheat(body))
    assert (verdict.mistake, verdict.points) == (mistake, 0), str(verdict)


def test_a_hook_that_waits_is_named_at_once_with_who_waits_for_whom():
    question = LAB.question("buckets")
    verdict = check(question, Source(BUCKETS["waits"], question.entry), sizes=(3,))
    assert "rank 2 waits to receive from rank 0" in verdict.where


def test_the_picture_shows_all_reduces_between_gradients():
    question = LAB.question("buckets")
    shown = show_example(question, Source(solution(LAB, "buckets"), question.entry), ranks=2)
    kinds = ["ready" if row[1] else "sent" for row in shown.rows]
    assert kinds.count("sent") == 4
    assert kinds.index("sent") < len(kinds) - 1 - kinds[::-1].index("ready")


def test_gradients_of_the_judge_are_those_of_torch():
    torch = pytest.importorskip("torch")
    from dpcourse.labs.ddp.module import Layers

    for shares in awkward_models(np.random.default_rng(5), 2):
        for share in shares:
            model = Layers(share.chain)
            outputs = model(torch.from_numpy(share.samples[1]), share.layers)
            ((outputs * torch.from_numpy(share.targets[1])).sum() / NUM_ROWS).backward()
            for name, gradient in share.gradients(1).items():
                held = dict(model.named_parameters())[name].grad
                assert np.array_equal(np.zeros_like(gradient) if held is None else held.numpy(), gradient)


def test_what_the_lab_says_of_ddp_is_what_ddp_does():
    rows = unused.measure_unused(unused.GOALS, 2).rows
    assert all(happened == wrote for _, happened, wrote in rows), rows
    table = against_dp.measure_both(None, 2)
    assert [round(row[4], 3) for row in table.rows] == [0, 16]
    assert table.rows[0][5] == table.rows[1][5]


def test_an_error_in_a_hook_is_told_and_not_who_waits_for_it():
    body = (
        "    def arrived(parameter):\n        return no_such_name\n"
        "    for p in model.parameters():\n"
        "        p.requires_grad and p.register_post_accumulate_grad_hook(arrived)\n"
        "    return lambda: None"
    )
    verdict = check(LAB.question("buckets"), cheat(body), sizes=(2,))
    assert verdict.status == "raised"
    assert "no_such_name" in verdict.where


def test_an_answer_without_a_picture_gets_its_verdict_in_place_of_one():
    question = LAB.question("buckets")
    shown = show_example(question, Source(BUCKETS["no_finish"], question.entry), ranks=2)
    assert shown.mistake == "no_finish"
