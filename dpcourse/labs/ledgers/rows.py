"""Lab 07, first and last question: a whole row on paper, and three against two in numbers and in bytes."""

from typing import Any

from dpcourse.expectation import expect
from dpcourse.labs.ledgers.memory import RECIPE_BYTES
from dpcourse.labs.values import Number, WrongWay, numbers
from dpcourse.tables import Table

# --- row: a row of the memory ledger, on paper ---

BILLIONS, RANKS = 13, 16
_PARAMETER, _GRADIENT, _STATES = RECIPE_BYTES["mixed-adam"]
_GIB = 1e9 / 2**30


def _row(parameters: float, gradients: float, optimizer: float) -> dict[str, float]:
    """A row in GB, with its sum."""
    held = {"parameters": parameters, "gradients": gradients, "optimizer": optimizer}
    return {**held, "in_all": sum(held.values())}


_WHOLE = _row(_PARAMETER * BILLIONS, _GRADIENT * BILLIONS, _STATES * BILLIONS)
_RIGHT = _row(_WHOLE["parameters"], _WHOLE["gradients"] / RANKS, _WHOLE["optimizer"] / RANKS)
_PERCENT = 100 * _WHOLE["optimizer"] / _WHOLE["in_all"]


def measure_row(value: Any, ranks: int) -> Table:
    """The row as the course's own formula has it, beside DDP's."""
    asked: dict[str, Any] = {"num_params": BILLIONS * 1e9, "ranks": RANKS, "recipe": "mixed-adam"}
    tables = [expect(stage, **asked).table() for stage in ("zero0", "zero2")]
    names = ("parameters", "gradients", "optimizer", "in_all")
    rows = [
        (name, *(table.number(place, "while gradients exist") for table in tables), value[name])
        for place, name in enumerate(names)
    ]
    columns = ("GB on a rank", "DDP, formula", "ZeRO-2, formula", "you wrote")
    return Table(columns, rows, f"{BILLIONS} billion parameters on {RANKS} ranks, mixed-adam")


ROW = numbers(
    "memory_row",
    "A whole row on paper",
    points=10,
    minutes=8,
    entry="row",
    asked=(
        Number(
            "parameters",
            _RIGHT["parameters"],
            "Stage 2 leaves the parameters whole: their bytes in this recipe, times 13 billion.",
        ),
        Number(
            "gradients",
            _RIGHT["gradients"],
            "Stage 2 shares out the gradients: their bytes in this recipe, times 13 billion, over 16.",
        ),
        Number(
            "optimizer",
            _RIGHT["optimizer"],
            "The optimizer's part is the masters and two means, all fp32, shared out over 16.",
        ),
        Number("in_all", _RIGHT["in_all"], "The three lines are right; their sum is not."),
        Number(
            "optimizer_percent",
            _PERCENT,
            "The row is right. Under DDP nothing is shared: what part of 2 + 2 + 12 is the 12?",
        ),
    ),
    wrong_ways=(
        WrongWay(
            "gibibytes",
            {name: number * _GIB for name, number in _RIGHT.items()},
            "These are GiB, of 2**30 bytes. A GB is 10**9 bytes.",
        ),
        WrongWay(
            "forgets_masters",
            _row(_RIGHT["parameters"], _RIGHT["gradients"], 8 * BILLIONS / RANKS),
            "The fp32 masters are missing: 4 bytes beside twice 4 of Adam's means.",
        ),
        WrongWay(
            "elements",
            _row(BILLIONS, BILLIONS / RANKS, 3 * BILLIONS / RANKS),
            "These are billions of numbers. Each takes 2 or 4 bytes.",
        ),
        WrongWay(
            "fp32",
            _row(4 * BILLIONS, 4 * BILLIONS / RANKS, 8 * BILLIONS / RANKS),
            "This is the fp32 recipe, 4 + 4 + 8; the job's is 2 + 2 + 12.",
        ),
        WrongWay("ddp", _WHOLE, "This is DDP's row: stage 2 shares two of the three out."),
        WrongWay(
            "stage_1",
            _row(_RIGHT["parameters"], _WHOLE["gradients"], _RIGHT["optimizer"]),
            "This is stage 1's row: stage 2 shares out the gradients too.",
        ),
        WrongWay(
            "stage_3",
            _row(*(_WHOLE[name] / RANKS for name in ("parameters", "gradients", "optimizer"))),
            "This is stage 3's row: stage 2 leaves the parameters whole.",
        ),
        WrongWay(
            "percent_of_the_row",
            {"optimizer_percent": 100 * _RIGHT["optimizer"] / _RIGHT["in_all"]},
            "That is its part of ZeRO-2's row. The question is DDP's, where nothing is shared.",
        ),
        WrongWay(
            "share",
            {"optimizer_percent": _PERCENT / 100},
            "That is the share; write it in percent.",
        ),
    ),
    measure=measure_row,
)

# --- three_against_two: where 50 % come from, and how bytes turn it round ---

N = 8
_TRIP = (N - 1) / N
_DDP, _FSDP = 2 * _TRIP, 3 * _TRIP


def measure_three_against_two(value: Any, ranks: int) -> Table:
    """Both recipes trained for real on so many ranks: bytes that a rank sends for each parameter."""
    from dpcourse.training import train

    trip = (ranks - 1) / ranks
    real: dict[str, Any] = {"ranks": ranks, "device": "cpu", "steps": 1}
    runs = {
        "DDP under autocast": (train("ddp", recipe="autocast", **real), 2 * trip * 4),
        "full sharding, fsdp-mixed": (
            train("fsdp2", recipe="fsdp-mixed", backend="ring", **real),
            3 * trip * 2,
        ),
    }
    rows = [
        (name, (run.traffic.sent_bytes() or 0) / run.num_params, formula)
        for name, (run, formula) in runs.items()
    ]
    return Table(
        ("strategy", "measured", "formula"), rows, f"{ranks} ranks: bytes sent a step, for each parameter"
    )


THREE_AGAINST_TWO = numbers(
    "three_against_two",
    "Three against two, and how it turns round",
    points=10,
    minutes=7,
    entry="counts",
    asked=(
        Number(
            "ddp_numbers",
            _DDP,
            "DDP makes one all-reduce of the gradients, which is two trips: how much of the model does a rank"
            " send on one trip round a ring of 8?",
        ),
        Number(
            "fsdp_numbers",
            _FSDP,
            "Full sharding makes three trips: gather in forward, gather in backward, reduce-scatter.",
        ),
        Number(
            "extra_percent",
            100 * (_FSDP / _DDP - 1),
            "Both counts are right. How much more is the second than the first, in percent of the first?",
        ),
        Number("ddp_bytes", 4 * _DDP, "Under autocast the gradients are fp32: 4 bytes for each number sent."),
        Number("fsdp_bytes", 2 * _FSDP, "Gathers and reduces are bf16: 2 bytes for each number sent."),
    ),
    wrong_ways=(
        WrongWay(
            "whole_payload",
            {"ddp_numbers": 2, "fsdp_numbers": 3},
            "2 and 3 are for very many ranks. On 8 a trip sends all but the rank's own eighth.",
        ),
        WrongWay(
            "one_way",
            {"ddp_numbers": _TRIP},
            "An all-reduce is two trips: a reduce-scatter and an all-gather.",
        ),
        WrongWay(
            "gathers_once",
            {"fsdp_numbers": 2 * _TRIP},
            "The parameters were let go after forward: backward gathers them once more.",
        ),
        WrongWay(
            "reduce_as_all_reduce",
            {"fsdp_numbers": 4 * _TRIP},
            "Each rank keeps its own shard of the gradient, so a reduce-scatter is enough: one trip. (gloo "
            "makes two of it; the task has a ring.)",
        ),
        WrongWay(
            "percent_of_the_larger",
            {"extra_percent": 100 * (1 - _DDP / _FSDP)},
            "That is in percent of full sharding's count; the question is in percent of DDP's.",
        ),
        WrongWay(
            "ratio",
            {"extra_percent": 100 * _FSDP / _DDP},
            "That is the one in percent of the other: how much more is it?",
        ),
        WrongWay(
            "autocast_is_bf16",
            {"ddp_bytes": 2 * _DDP},
            "Autocast casts in forward; the parameters and their gradients, which DDP reduces, stay fp32.",
        ),
        WrongWay(
            "shards_as_kept",
            {"fsdp_bytes": 4 * _FSDP},
            "The shards are kept in fp32, but what travels is bf16.",
        ),
        WrongWay(
            "reduces_in_fp32",
            {"fsdp_bytes": (2 + 2 + 4) * _TRIP},
            "This recipe reduces in the format in which it gathers: 2 + 2 + 2.",
        ),
    ),
    measure=measure_three_against_two,
)
