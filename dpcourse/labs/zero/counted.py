"""Lab 05, last two questions: sixteen bytes shared out, and what each stage and strategy cuts."""

from typing import Any

from dpcourse.labs.values import Number, WrongWay, match, numbers
from dpcourse.ledger import select, sums_by
from dpcourse.models import Mlp
from dpcourse.tables import Table

# --- sixteen bytes: numbers with their derivation ---

BILLIONS, RANKS = 3, 8
_GIBI = 1e9 / 2**30
_GOALS = {
    "ddp": 16 * BILLIONS,
    "optimizer": 12 * BILLIONS,
    "stage_1": (4 + 12 / RANKS) * BILLIONS,
    "stage_2": (2 + 14 / RANKS) * BILLIONS,
    "stage_3": 16 / RANKS * BILLIONS,
}


def measure_bytes(value: Any, ranks: int) -> Table:
    """What a real run holds for each parameter, and what the ideal of each stage does."""
    rows = [
        (f"{name}, {how}", f"{found:.2f}", value[name])
        for name, how, found in (*_measured(), *((f"stage_{s}", "computed", _ideal(s)) for s in (1, 2, 3)))
    ]
    title = f"GB for {BILLIONS} billion parameters on {RANKS} ranks"
    return Table(("number", "found", "you wrote"), rows, title)


def _measured() -> list[tuple[str, str, float]]:
    """A whole copy, as each rank of DDP has it, by a real run of a small model."""
    from dpcourse.training import train

    run = train("single", model=Mlp(width=96, depth=3), recipe="mixed-adam", device="cpu", steps=1)
    held = sums_by(select(run.memory.measured, phase="step", rank=0), "owner")
    each = run.memory.bytes_per_parameter()
    optimizer = held["optimizer"] / run.num_params
    return [("ddp", "measured", each * BILLIONS), ("optimizer", "measured", optimizer * BILLIONS)]


def _ideal(stage: int) -> float:
    """GB on a rank while gradients exist."""
    from dpcourse.expectation import expect

    expected = expect(f"zero{stage}", num_params=BILLIONS * 1e9, ranks=RANKS, recipe="mixed-adam")
    return float(expected.table().number(3, "while gradients exist"))


SIXTEEN_BYTES = numbers(
    "sixteen_bytes",
    "Sixteen bytes, shared out",
    points=20,
    minutes=8,
    entry="gigabytes",
    asked=(
        Number(
            "ddp",
            _GOALS["ddp"],
            "2 bytes of weight, 2 of gradient, 12 for Adam, for each parameter, on each rank: DDP shares"
            " nothing.",
        ),
        Number(
            "optimizer",
            _GOALS["optimizer"],
            "Adam works on a master and two means of each parameter. How many bytes is each of the three?",
        ),
        Number(
            "stage_1",
            _GOALS["stage_1"],
            "Stage 1 divides Adam's part by the ranks; weights and gradients stay whole.",
        ),
        Number(
            "stage_2",
            _GOALS["stage_2"],
            "Stage 2 divides gradients too: one summand more than at stage 1 is divided.",
        ),
        Number("stage_3", _GOALS["stage_3"], "At stage 3 nothing is whole: divide all of it."),
    ),
    wrong_ways=(
        WrongWay(
            "two_fp32_copies",
            {"optimizer": 16 * BILLIONS},
            "Sixteen is the sum of all. The optimizer has 12 of it: one master and two means, 4 bytes each.",
        ),
        WrongWay(
            "no_masters",
            {"optimizer": 8 * BILLIONS},
            "Those are Adam's two means. In this recipe it keeps a master as well, in fp32.",
        ),
        WrongWay(
            "states_in_bf16",
            {"ddp": 8 * BILLIONS},
            "That would be all in bf16, where small steps are lost: Adam works in fp32, 4 bytes each.",
        ),
        WrongWay(
            "gibibytes",
            {"ddp": 16 * BILLIONS * _GIBI},
            "Those are GiB. The task asks for GB: a billion parameters of 16 bytes are 16 GB.",
        ),
        WrongWay(
            "only_moments",
            {"stage_1": (2 + 2 + 4 + 8 / RANKS) * BILLIONS},
            "Here the masters stay whole. They are the optimizer's, and are cut with its means: 12, not 8.",
        ),
        WrongWay(
            "only_states",
            {"stage_1": 12 / RANKS * BILLIONS},
            "That is the optimizer's slice alone: weights and gradients are there too, and whole.",
        ),
        WrongWay(
            "gradients_forgotten",
            {"stage_2": (4 + 12 / RANKS) * BILLIONS},
            "That is stage 1. Stage 2 leaves gradients as slices too.",
        ),
        WrongWay(
            "all_but_states",
            {"stage_3": (12 + 4 / RANKS) * BILLIONS},
            "Stage 3 comes on top of the first two: the states stay cut.",
        ),
    ),
    measure=measure_bytes,
)

# --- stages: what is in slices under each name ---

NOTHING, STATES = "nothing", "optimizer states"
TWO = "optimizer states and gradients"
KEPT = "all three, parameters whole from forward to backward"
UNITS = "all three, parameters whole one unit at a time"
GROUP = "all three, within a group of ranks"
STAGES_OF = {
    "DDP": NOTHING,
    "NO_SHARD": NOTHING,
    "ZeRO stage 1": STATES,
    "ZeRO stage 2": TWO,
    "SHARD_GRAD_OP": KEPT,
    "FULL_SHARD": UNITS,
    "ZeRO stage 3": UNITS,
    "HYBRID_SHARD": GROUP,
}
_HINTS = {
    "DDP": "Each rank of DDP has a whole copy of everything: the batch alone is shared out.",
    "NO_SHARD": "Its name says it: FSDP1 in DDP's clothes.",
    "ZeRO stage 1": "The first stage takes the largest part, and that alone.",
    "ZeRO stage 2": "The second stage leaves parameters whole at all times, gradients no longer.",
    "SHARD_GRAD_OP": "Much-read tables call it stage 2. Look at what a rank holds between two steps, and at "
    "what it skips: the second gather.",
    "FULL_SHARD": "Each unit is gathered before it computes and let go right after, in both directions.",
    "ZeRO stage 3": "FSDP is PyTorch's form of it.",
    "HYBRID_SHARD": "It divides by the ranks of one host, and not by all.",
}
_RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "DDP": ("ddp", {"gradient_as_bucket_view": True}),
    "NO_SHARD": ("fsdp1", {"sharding": "NO_SHARD"}),
    "ZeRO stage 1": ("scratch-zero1", {}),
    "ZeRO stage 2": ("scratch-zero2", {}),
    "SHARD_GRAD_OP": ("fsdp1", {"sharding": "SHARD_GRAD_OP"}),
    "FULL_SHARD": ("fsdp1", {"sharding": "FULL_SHARD"}),
    "ZeRO stage 3": ("scratch-fsdp", {}),
    "HYBRID_SHARD": ("fsdp1", {"sharding": "HYBRID_SHARD", "mesh": (2, 2)}),
}


def bytes_of_runs() -> dict[str, tuple[float, float]]:
    """For each name a real run on 4 ranks, in fp32: bytes a parameter before the step, and between steps."""
    from dpcourse.training import train

    found = {}
    for name, (strategy, options) in _RUNS.items():
        run = train(strategy, model=Mlp(width=96, depth=3), ranks=4, device="cpu", steps=1, **options)
        resting = sums_by(select(run.memory.measured, phase="step", rank=0), "owner")
        states = sum(resting.get(owner, 0) for owner in ("parameters", "optimizer"))
        found[name] = run.memory.bytes_per_parameter(), states / run.num_params
    return found


def measure_stages(value: Any, ranks: int) -> Table:
    """Every one of them run for real, with what a rank holds."""
    rows = [
        (name, f"{full:.1f}", f"{resting:.1f}", value[name])
        for name, (full, resting) in bytes_of_runs().items()
    ]
    columns = ("", "bytes a parameter, with gradients", "parameters and states alone", "you wrote")
    return Table(columns, rows, "Real runs on 4 ranks, in fp32: 4 + 4 + 8")


STAGES = match(
    "stages",
    "What is cut under which name",
    points=15,
    minutes=7,
    entry="stages",
    noun="name",
    options=(NOTHING, STATES, TWO, KEPT, UNITS, GROUP),
    goals=STAGES_OF,
    hints=_HINTS,
    measure=measure_stages,
)
