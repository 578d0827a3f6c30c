"""notebooks/cheat_sheet.md: numbers against the package's formulas, flags against the installed PyTorch."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import dpcourse as dc
from dpcourse.planning.clock import operations
from dpcourse.planning.recipes import CHOICES
from dpcourse.planning.selection import plan
from dpcourse.planning.subject import microbatch
from dpcourse.theory import ring, star, wire
from dpcourse.theory.zero import whole_bytes

PAGE = Path(__file__).resolve().parent.parent / "notebooks" / "cheat_sheet.md"
TEXT = PAGE.read_text(encoding="utf-8")
RANKS, PER_HOST, SIZE = 8, 4, 8 * 1000


def table(heading: str, text: str = TEXT) -> list[list[str]]:
    """The rows of the table below a heading, without its header."""
    section = text.split(f"## {heading}", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[2:]]


def value(formula: str, **names: float) -> float:
    assert re.fullmatch(r"[\dNRPT+\-*/() ]+", formula), formula
    return eval(formula, {}, {"N": RANKS, "R": PER_HOST, **names})  # letters and signs alone, see above


def held(stage: int, num_ranks: int = RANKS) -> float:
    """GB of 7 billion parameters on one rank while gradients exist."""
    asked = {"num_params": 7e9, "ranks": num_ranks, "recipe": "mixed-adam"}
    return dc.expect(f"zero{stage}", **asked).table().number(3, "while gradients exist")


HELD = {
    "DDP": lambda: held(0),
    "ZeRO-1": lambda: held(1),
    "ZeRO-2": lambda: held(2),
    "ZeRO-3, FSDP": lambda: held(3),
    "hybrid, R = 4": lambda: held(3, PER_HOST),
}


def _ideal(*collectives: str) -> float:
    return sum(wire.ideal_sent_bytes(name, SIZE, RANKS) for name in collectives) / SIZE


def _gloo(*collectives: str) -> float:
    return sum(wire.sent_bytes("gloo", name, SIZE, RANKS, 1) for name in collectives) / SIZE


TWO_GATHERS = ("all_gather", "all_gather", "reduce_scatter")
SENT = {
    "star, the main rank": lambda: star.all_reduce_sent_bytes(SIZE, RANKS, 0) / SIZE,
    "reduce-scatter, or all-gather": lambda: _ideal("reduce_scatter"),
    "all-reduce (ring), DDP": lambda: ring.all_reduce_sent_bytes(SIZE, RANKS) / SIZE,
    "ZeRO-1, ZeRO-2, FSDP kept after forward": lambda: _ideal("reduce_scatter", "all_gather"),
    "ZeRO-3, FSDP": lambda: _ideal(*TWO_GATHERS),
    "FSDP on gloo": lambda: _gloo(*TWO_GATHERS),
    "steps of a ring all-reduce, each with a latency": lambda: ring.num_steps(RANKS),
}


def wrong_numbers(text: str) -> list[str]:
    """Rows whose number, formula and package are not one."""
    found = []
    for name, formula, number, total in table("What a rank holds", text):
        truth = HELD[name]()
        if not value(formula) == float(number) == pytest.approx(truth / 7, abs=1e-3):
            found.append(name)
        if float(total) != pytest.approx(truth, abs=5e-3):
            found.append(f"{name}, in all")
    for name, formula, number in table("What a rank sends", text):
        if not value(formula) == float(number) == pytest.approx(SENT[name](), abs=1e-9):
            found.append(name)
    return found


def test_what_is_held_and_sent_is_what_the_package_computes():
    assert wrong_numbers(TEXT) == []
    assert {row[0] for row in table("What a rank holds")} == set(HELD)
    assert {row[0] for row in table("What a rank sends")} == set(SENT)


@pytest.mark.parametrize(
    ("right", "wrong", "name"),
    [
        ("| `4 + 12 / N` | 5.5 |", "| `4 + 12 / N` | 5.0 |", "ZeRO-1"),
        ("`2 + 14 / N`", "`4 + 14 / N`", "ZeRO-2"),
        ("| 2 | 14 |", "| 2 | 17.5 |", "ZeRO-3, FSDP, in all"),
        ("| `3 * (N - 1) / N` | 2.625 |", "| `3 * N / N` | 3 |", "ZeRO-3, FSDP"),
        ("| `N - 1` | 7 |", "| `2 * (N - 1)` | 14 |", "star, the main rank"),
    ],
)
def test_a_wrong_number_is_found(right, wrong, name):
    assert TEXT.count(right) == 1
    assert name in wrong_numbers(TEXT.replace(right, wrong))


def test_recipes_are_those_of_the_plan():
    rows = {name: (summands, total) for name, summands, total in table("What a parameter costs")}
    assert set(rows) == set(CHOICES)
    for name, (summands, total) in rows.items():
        choice = CHOICES[name]
        assert choice.says.startswith(summands)
        assert int(total) == choice.bytes_per_parameter("adamw") == sum(map(int, summands.split("+")))
    assert sum(whole_bytes(CHOICES["mixed-adam"].recipe, "adamw").values()) == 16


def test_operations_are_those_of_the_plans_clock():
    asked, tokens = plan("1B", gpus=1, sequence_length=1000).asked, 1000
    micro = [microbatch(asked.choice.recipe, 1, tokens, "fused", m) for m in ("none", "full")]
    (forward, none), (_, again) = (operations(asked.subject, each) for each in micro)
    truths = [forward, 3 * forward + none, 3 * forward + again]
    for (name, formula, number), truth in zip(table("What a step computes"), truths, strict=True):
        assert value(formula, P=1e9, T=tokens) == float(number) == truth, name


def resolved(name: str):
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def has_flag(flag: str, owner: str) -> bool:
    """Whether a function takes an argument, or a class has a method, of this name."""
    found = resolved(owner)
    return flag in inspect.signature(found).parameters or hasattr(found, flag)


def test_every_flag_is_one_of_the_installed_torch():
    rows = table("Flags")
    assert [row[0] for row in rows if not has_flag(row[0], row[1])] == []
    assert len(rows) > 15
    assert not has_flag("bucket_size_mb", "torch.nn.parallel.DistributedDataParallel")


def default_buckets() -> tuple[int, int]:
    """The caps in bytes of DDP's first bucket and of the others."""
    from torch import distributed, nn
    from torch.nn.parallel import DistributedDataParallel

    ddp = DistributedDataParallel(nn.Linear(1, 1))
    return distributed._DEFAULT_FIRST_BUCKET_BYTES, ddp.bucket_bytes_cap


def test_the_default_buckets_are_those_of_the_installed_torch():
    assert dc.launch(default_buckets, ranks=1, device="cpu") == [(2**20, 25 * 2**20)]


def test_it_is_one_page():
    assert len(TEXT.splitlines()) < 110
