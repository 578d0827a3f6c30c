"""Lab 05 is checked here: no optimizer that is not cut up passes, however it hides its states."""

import pytest

from dpcourse.labs import load
from dpcourse.labs.check import check, show_example
from dpcourse.labs.inside import Source
from dpcourse.labs.zero import counted
from tests.lab_checks import (
    IMPORTS,
    assert_passes,
    code_questions,
    name_of,
    solution,
)

pytestmark = [pytest.mark.long, pytest.mark.labs, pytest.mark.usefixtures("warm_ranks")]
LAB = load("05")
CODE_QUESTIONS = code_questions(LAB)

# Each parameter cut by itself, Adam by hand, the mean taken in bf16; with warnings and prints.
BY_PARAMETER = """
import sys, warnings

def padded(tensor):
    size = dist.get_world_size()
    row = tensor.detach().reshape(-1)
    return torch.cat([row, row.new_zeros(-len(row) % size)])

class ShardedAdamW:
    def __init__(self, parameters, lr, betas, eps, weight_decay):
        warnings.warn("careful")
        print("loud", file=sys.stderr)
        self.lr, self.betas, self.eps, self.decay = lr, betas, eps, weight_decay
        self.rank, self.size, self.age, self.state = dist.get_rank(), dist.get_world_size(), 0, {}
        for parameter in parameters:
            if parameter.requires_grad:
                master = padded(parameter).view(self.size, -1)[self.rank].float()
                self.state[parameter] = master, torch.zeros_like(master), torch.zeros_like(master)

    def step(self):
        self.age += 1
        for parameter, (master, first, second) in self.state.items():
            whole = padded(parameter.grad)
            mean = whole.new_empty(len(master))
            dist.reduce_scatter_tensor(mean, whole, op=dist.ReduceOp.AVG)
            mean = mean.float()
            first.lerp_(mean, 1 - self.betas[0])
            second.lerp_(mean * mean, 1 - self.betas[1])
            root = (second / (1 - self.betas[1] ** self.age)).sqrt() + self.eps
            master -= self.lr * (self.decay * master + first / (1 - self.betas[0] ** self.age) / root)
            dist.all_gather_into_tensor(whole, master.to(parameter.dtype))
            parameter.data.copy_(whole[: parameter.numel()].view_as(parameter))

def on_gradient(parameter, slices):
    warnings.warn("careful")
    whole, parameter.grad = padded(parameter.grad), None
    own = whole.new_empty(len(whole) // dist.get_world_size())
    dist.reduce_scatter_tensor(own, whole, op=dist.ReduceOp.AVG)
    slices[parameter] = slices.pop(parameter, torch.zeros_like(own)) + own
"""
# Parameters become windows on one row, which the slice is a part of; slices by hand of send and receive.
IN_ONE_ROW = """
class ShardedAdamW:
    def __init__(self, parameters, **options):
        self.mine = [p for p in parameters if p.requires_grad]
        rank, size = dist.get_rank(), dist.get_world_size()
        numbers = torch.cat([p.data.view(-1) for p in self.mine])
        self.row = torch.nn.functional.pad(numbers, (0, -len(numbers) % size))
        place = 0
        for p in self.mine:
            p.data = self.row[place : place + p.numel()].view(p.shape)
            place += p.numel()
        self.own = self.row.view(size, -1)[rank]
        self.master = torch.nn.Parameter(self.own.float())
        self.adamw = torch.optim.AdamW([self.master], **options)

    def step(self):
        rank, size = dist.get_rank(), dist.get_world_size()
        gradients = torch.zeros_like(self.row)
        torch.cat([p.grad.view(-1) for p in self.mine], out=gradients[: sum(p.numel() for p in self.mine)])
        for p in self.mine:
            p.grad = None
        pieces = list(gradients.view(size, -1).float() / size)
        partial = pieces[rank - 1].bfloat16()
        for step in range(2, size + 1):
            came = torch.empty_like(partial)
            work = dist.isend(partial, (rank + 1) % size)
            dist.recv(came, (rank - 1) % size)
            work.wait()
            partial = (came.float() + pieces[(rank - step) % size]).bfloat16()
        self.master.grad = partial.float()
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        self.own.copy_(self.master.data)
        dist.all_gather_into_tensor(self.row, self.own.clone())

def on_gradient(parameter, slices):
    size = dist.get_world_size()
    length = -(-parameter.numel() // size)
    whole = parameter.grad.new_zeros(size, length)
    whole.view(-1)[: parameter.numel()] = parameter.grad.view(-1)
    parameter.grad = None
    own = torch.empty(length, dtype=parameter.dtype)
    dist.reduce_scatter(own, list(whole))
    slices[parameter] = slices.get(parameter, 0) + own / size
"""
STYLES = {"by parameter": BY_PARAMETER, "in one row": IN_ONE_ROW}


def answer(name: str, style: str) -> str:
    return STYLES.get(style) or solution(LAB, name)


@pytest.mark.parametrize("question", CODE_QUESTIONS, ids=name_of)
@pytest.mark.parametrize("style", ["solution", *STYLES])
def test_right_answers_pass_in_any_style_and_with_other_seeds_and_rank_counts(question, style):
    assert_passes(question, answer(question.name, style))


# AdamW over whole masters, whose states are out of the object's own sight.
_WHOLE = """
{before}
class ShardedAdamW:
    def __init__(self, parameters, **options):
        kept = [p for p in parameters if p.requires_grad]
        masters = [p.detach().float() for p in kept]
        adamw = torch.optim.AdamW(masters, **options)

        @torch.no_grad()
        def step():
            for p, master in zip(kept, masters):
                mean = p.grad.clone()
                dist.all_reduce(mean)
                master.grad = mean.float() / dist.get_world_size()
            adamw.step()
            for p, master in zip(kept, masters):
                p.copy_(master)
                master.grad = None
        {hide}
"""
_BY_REFERENCE = """
class ShardedAdamW:
    def __init__(self, parameters, **options):
        from dpcourse.labs.zero import optimizer
        self.parameters = parameters
        optimizer.judge = lambda *anything: optimizer.Finding()
        optimizer.bound = lambda *anything: float("inf")

    def step(self):
        pass
"""
CHEATS = {
    "in a closure": (_WHOLE.format(before="", hide="self.step = step"), "unsharded"),
    "in a global": (
        _WHOLE.format(
            before="states = []", hide="states.append(step)\n        self.step = lambda: states[-1]()"
        ),
        "unsharded",
    ),
    "out of the collector's sight": (
        _WHOLE.format(
            before="import gc",
            hide="self.step = lambda: (step(), gc.freeze())",
        ),
        "unsharded",
    ),
    "changes the judge in its own process": (_BY_REFERENCE, "tampered"),
    "an object equal to everything": (
        "class ShardedAdamW:\n    def __init__(self, *a, **o): pass\n    def step(self): return self\n"
        "    def __eq__(self, other): return True\n    __hash__ = None",
        "not_in_place",
    ),
    "exits": (
        "class ShardedAdamW:\n    def __init__(self, *a, **o):\n        import os\n        os._exit(0)",
        "exited",
    ),
}


@pytest.mark.parametrize("name", CHEATS)
def test_no_unsharded_optimizer_passes_wherever_it_hides_its_states(name):
    source, mistake = CHEATS[name]
    verdict = check(LAB.question("sharded_optimizer"), Source(IMPORTS + source, "ShardedAdamW"))
    assert (verdict.mistake, verdict.points) == (mistake, 0), str(verdict)


def test_gradients_that_are_hidden_in_a_global_are_found():
    source = IMPORTS + "hidden = []\n\n" + solution(LAB, "sharded_gradients")
    source = source.replace(
        "    parameter.grad = None", "    hidden.append(parameter.grad)\n    parameter.grad = None"
    )
    verdict = check(LAB.question("sharded_gradients"), Source(source, "on_gradient"))
    assert (verdict.mistake, verdict.points) == ("holds_more", 0), str(verdict)


@pytest.mark.parametrize("question", CODE_QUESTIONS, ids=name_of)
def test_the_picture_sets_what_is_held_beside_what_is_wanted(question):
    shown = show_example(question, Source(solution(LAB, question.name), question.entry), ranks=2)
    assert "DDP" in str(shown)
    assert "<table" in shown.to_html()


def test_the_numbers_of_the_lab_are_those_of_the_course_and_of_a_run():
    question = LAB.question("sixteen_bytes")
    for name, found, wrote in question.measure(counted._GOALS, 4).rows:
        assert float(found) == pytest.approx(float(wrote), abs=0.005), name


def test_what_each_name_holds_is_what_a_run_on_four_ranks_holds():
    # fp32 on 4 ranks: 4 + 4 + 8, of which a part is divided by 4 (by 2 in groups of two)
    wanted = {
        counted.NOTHING: (16, 12),
        counted.STATES: (10, 6),
        counted.TWO: (7, 6),
        counted.KEPT: (4, 3),
        counted.UNITS: (4, 3),
        counted.GROUP: (8, 6),
    }
    for name, found in counted.bytes_of_runs().items():
        assert found == pytest.approx(wanted[counted.STAGES_OF[name]], abs=0.1), name
