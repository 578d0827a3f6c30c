"""Lab 07, fifth question: which strategy left this trace?"""

from typing import Any

from dpcourse.labs.values import match
from dpcourse.ledger import COUNTS, Transfer
from dpcourse.models import Mlp
from dpcourse.tables import Table

OPTIONS = ("DDP", "DataParallel", "ZeRO-2", "full sharding", "full sharding, kept", "hybrid")
# The collectives of one part of the model (a bucket, a tensor, a unit) in one step on 4 ranks, in order.
TRACES = {
    "A": ("forward: all_gather of 4", "backward: all_gather of 4", "backward: reduce_scatter of 4"),
    "B": ("backward: reduce_scatter of 4", "step: all_gather of 4"),
    "C": ("forward: broadcast of 4", "backward: reduce of 4"),
    "D": (
        "forward: all_gather of 2",
        "backward: all_gather of 2",
        "backward: reduce_scatter of 2",
        "backward: all_reduce of 2",
    ),
    "E": ("backward: all_reduce of 4",),
    "F": ("forward: all_gather of 4", "backward: reduce_scatter of 4"),
}
GOALS = {
    "A": "full sharding",
    "B": "ZeRO-2",
    "C": "DataParallel",
    "D": "hybrid",
    "E": "DDP",
    "F": "full sharding, kept",
}
# The run that leaves each trace, and the part of the model that is looked at.
_RUNS: dict[str, tuple[str, dict[str, Any], str]] = {
    "DDP": ("ddp", {}, "bucket 0"),
    "DataParallel": ("dp", {}, "layers.2.weight"),
    "ZeRO-2": ("scratch-zero2", {}, "row 0"),
    "full sharding": ("fsdp2", {}, "layers.2"),
    "full sharding, kept": ("fsdp2", {"reshard_after_forward": False}, "layers.2"),
    "hybrid": ("fsdp2", {"mesh": (2, 2)}, "layers.2"),
}
_HINTS = {
    "A": "Parameters come together twice, and gradients leave in shards: who lets go of them after forward?",
    "B": "Nothing is gathered before computing: parameters are whole. Who shares out gradients, and updates?",
    "C": "Parameters go out from one rank and gradients come back to it: who has a main rank?",
    "D": "Groups of two, and at the end a second pair averages what is left: two levels.",
    "E": "One collective of the gradients, none in forward: nothing is shared out.",
    "F": "Gathered once and then kept until backward: which option saves the second gather?",
}


def trace_of(transfers: Any, part: str) -> tuple[str, ...]:
    """One part's collectives of a step on rank 1, in order."""
    wanted = (t for t in transfers if (t.unit, t.rank) == (part, 1) and _is_of_a_step(t))
    return tuple(f"{t.phase}: {t.collective} of {len(t.group)}" for t in wanted)


def _is_of_a_step(transfer: Transfer) -> bool:
    return transfer.phase != "init" and transfer.collective not in COUNTS


def traces_of_runs() -> dict[str, tuple[str, ...]]:
    """Every strategy's trace, from a real run on 4 ranks."""
    from dpcourse.training import train

    model, found = Mlp(width=48, depth=2), {}
    for name, (strategy, options, part) in _RUNS.items():
        run = train(strategy, model=model, ranks=4, device="cpu", steps=1, **options)
        found[name] = trace_of(run.traffic.measured, part)
    return found


def measure_traces(value: Any, ranks: int) -> Table:
    """Every strategy run for real on 4 ranks, with the trace it left, beside the letter that it was given."""
    letters = {strategy: letter for letter, strategy in value.items()}
    rows = [(name, ", ".join(trace), letters.get(name)) for name, trace in traces_of_runs().items()]
    return Table(("strategy", "one part of the model, one step", "you wrote"), rows, "Real runs on 4 ranks")


PICK_THE_TRACE = match(
    "pick_the_trace",
    "Pick the trace",
    points=15,
    minutes=7,
    entry="traces",
    noun="trace",
    options=OPTIONS,
    goals=GOALS,
    hints=_HINTS,
    measure=measure_traces,
)
