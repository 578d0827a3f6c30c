"""The steps of a check, in order, each with the seconds that it may take on one GPU."""

from collections.abc import Callable
from dataclasses import dataclass

from dpcourse.gpu_check import ledgers, numbers, times
from dpcourse.gpu_check.place import Place
from dpcourse.gpu_check.running import Note


@dataclass(frozen=True)
class Step:
    """What a step does: it notes what it looks at, or raises Skipped with the reason."""

    function: Callable[[Place, Note], None]
    limit_seconds: float


# The first: a new process has it done before any other, so that no other's time goes into imports.
START = "start"
STEPS = {
    START: Step(numbers.start, 50),
    "refusals": Step(ledgers.refusals, 5),
    "strategies": Step(ledgers.strategies, 130),
    "allocator": Step(ledgers.allocator, 40),
    "shared": Step(ledgers.shared, 55),
    "recipes": Step(numbers.recipes, 45),
    "checkpointing": Step(numbers.checkpointing, 25),
    "prefetch": Step(times.prefetch, 30),
    "timeline": Step(times.timeline, 30),
    "dataparallel": Step(numbers.dataparallel, 25),
    "figures": Step(times.figures, 35),
}
