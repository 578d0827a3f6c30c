"""Lab 06 is checked here: a unit that keeps anything, or sends too much, is refused by name."""

import pytest

from dpcourse.labs import load
from dpcourse.labs.check import check, run_case, show_example
from dpcourse.labs.fsdp import cuts, flow
from dpcourse.labs.inside import Source
from tests.lab_checks import (
    IMPORTS,
    assert_passes,
    solution,
)

pytestmark = [pytest.mark.long, pytest.mark.labs, pytest.mark.usefixtures("warm_ranks")]
LAB = load("06")
UNIT = LAB.question("unit")

# A storage that is emptied and filled again, as PyTorch has it; with warnings and prints.
RESIZED = """
import sys, warnings

class Unit:
    def __init__(self, whole):
        warnings.warn("careful")
        print("loud", file=sys.stderr)
        rank, size = dist.get_rank(), dist.get_world_size()
        self.length, self.numbers = -(-whole.numel() // size), whole.numel()
        self.shard = torch.zeros(self.length)
        mine = whole[rank * self.length : (rank + 1) * self.length]
        self.shard[: len(mine)] = mine
        self.row = torch.empty(self.length * size)
        self.free()

    def free(self):
        self.row.untyped_storage().resize_(0)

    def fill(self):
        self.row.untyped_storage().resize_(self.row.numel() * 4)
        pieces = list(self.row.chunk(dist.get_world_size()))
        dist.all_gather(pieces, self.shard)

    @property
    def whole(self):
        is_there = self.row.untyped_storage().nbytes() > 0
        return self.row[: self.numbers] if is_there else None

    before_forward = before_backward = fill
    after_forward = free

    def after_backward(self, gradient):
        self.free()
        rows = gradient.new_zeros(dist.get_world_size(), self.length)
        rows.view(-1)[: self.numbers] = gradient
        self.grad = torch.empty_like(self.shard)
        dist.reduce_scatter(self.grad, list(rows), op=dist.ReduceOp.AVG)
"""
# A ring of send and receive, and nothing but functions in a closure.
BY_HAND = """
def pass_on(outgoing, incoming):
    rank, size = dist.get_rank(), dist.get_world_size()
    work = dist.isend(outgoing.contiguous(), (rank + 1) % size)
    dist.recv(incoming, (rank - 1) % size)
    work.wait()

class Unit:
    whole = grad = None

    def __init__(self, whole):
        self.rank, self.size, self.length = dist.get_rank(), dist.get_world_size(), len(whole)
        self.shard = self.rows(whole)[self.rank].clone()

    def rows(self, row):
        return torch.cat([row, torch.zeros(-len(row) % self.size)]).view(self.size, -1)

    def before_forward(self):
        rows = torch.empty(self.size, len(self.shard))
        rows[self.rank] = self.shard
        for step in range(self.size - 1):
            pass_on(rows[(self.rank - step) % self.size], rows[(self.rank - step - 1) % self.size])
        self.whole = rows.view(-1)[: self.length].clone()

    def after_forward(self):
        del self.whole

    before_backward = before_forward

    def after_backward(self, gradient):
        del self.whole
        rows = self.rows(gradient)
        partial = rows[self.rank - 1]
        for step in range(2, self.size + 1):
            came = torch.empty_like(partial)
            pass_on(partial, came)
            partial = came + rows[(self.rank - step) % self.size]
        self.grad = partial / self.size
"""
STYLES = {"resized": RESIZED, "by hand": BY_HAND}


@pytest.mark.parametrize("style", ["solution", *STYLES])
def test_right_answers_pass_in_any_style_and_with_other_seeds_and_rank_counts(style):
    assert_passes(UNIT, STYLES.get(style) or solution(LAB, "unit"))


def changed(old: str, new: str) -> str:
    text = solution(LAB, "unit")
    assert old in text
    return text.replace(old, new)


CHEATS = {
    "keeps every whole in a global": (
        "hidden = []\n"
        + changed(
            "        self.whole = None\n", "        hidden.append(self.whole)\n        self.whole = None\n"
        ),
        "never_frees",
    ),
    "keeps the whole in a closure": (
        changed("        self.whole = row[", "        self.again = lambda: row\n        self.whole = row["),
        "never_frees",
    ),
    "all layers on every rank, in numpy": (
        changed(
            "        row = self.shard.new_empty(len(self.shard) * self.size)\n"
            "        dist.all_gather_into_tensor(row, self.shard)\n",
            "        row = torch.tensor(self.kept)\n",
        ).replace(
            "        self.num_numbers =", "        self.kept = whole.tolist()\n        self.num_numbers ="
        ),
        "stale",
    ),
    "changes the judge in its own process": (
        "from dpcourse.labs.fsdp import unit\nunit.judge = lambda *anything: unit.Finding()\n"
        + changed("        self.grad /= self.size\n", ""),
        "tampered",
    ),
    "an object equal to everything": (
        "class Unit:\n    def __init__(self, whole): pass\n    def __eq__(self, other): return True\n"
        "    def __getattr__(self, name): return lambda *anything: self",
        "not_gathered",
    ),
    "exits": (changed("        self.whole = None\n", "        import os\n        os._exit(0)\n"), "exited"),
}


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_passes_and_each_gets_a_name(name):
    source, mistake = CHEATS[name]
    verdict = check(UNIT, Source(IMPORTS + source, "Unit"))
    assert (verdict.mistake, verdict.points) == (mistake, 0), str(verdict)


def test_the_switch_counts_three_times_what_a_gather_sends():
    case = UNIT.cases(0, (3,))[0]
    _, log = run_case(UNIT, case, Source(solution(LAB, "unit"), "Unit"), 20)
    padded = sum(-(-weight.size // 3) * 3 for weight in case.inputs[0][0])
    assert sum(log.sent_bytes(rank) for rank in range(3)) == 2 * 3 * (3 - 1) * padded * 4


def test_the_picture_is_a_diary_of_one_step():
    shown = show_example(UNIT, Source(solution(LAB, "unit"), "Unit"), ranks=2)
    assert "backward done 0" in str(shown)
    assert "<table" in shown.to_html()


def test_the_flow_is_that_of_a_real_unit_and_any_right_order_passes():
    rows = LAB.question("unit_flow").measure(list(flow.EVENTS), 2).rows
    assert [what for what, _, _ in rows] == list(flow.EVENTS)
    assert [num_bytes > 0 for _, num_bytes, _ in rows] == [True, True, False, True, True, False, False, False]
    other = [*flow.EVENTS[:5], flow.EVENTS[6], flow.EVENTS[7], flow.EVENTS[5]]
    assert not LAB.question("unit_flow").judge_value(other).mistake


def test_a_reduce_scatter_sends_half_of_an_all_reduce():
    rows = LAB.question("why_reduce_scatter").measure("B", 3).rows
    assert [row[1] for row in rows] == [2 * 400 * 4, 2 * 2 * 400 * 4]
    assert [row[2] / row[3] for row in rows] == [1, 3]


@pytest.mark.parametrize(("name", "goals"), [("wrapping", cuts._CUTS_GOALS), ("clipping", cuts._CLIP_GOALS)])
def test_the_numbers_of_the_lab_are_those_of_real_runs(name, goals):
    rows = LAB.question(name).measure(goals, 4).rows
    pairs = [(row[k], row[k + 1]) for row in rows for k in range(1, len(row), 2) if row[k + 1] != "-"]
    assert len(pairs) == 4
    for found, wrote in pairs:
        assert found == pytest.approx(wrote, rel=1e-3)
