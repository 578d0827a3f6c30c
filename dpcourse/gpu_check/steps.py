"""The steps of a check, in order, each with the seconds that it may take on one GPU."""

from collections.abc import Callable
from dataclasses import dataclass

from dpcourse.gpu_check import ledgers, numbers, times
from dpcourse.gpu_check.place import Place
from dpcourse.gpu_check.running import Note, Skipped

__all__ = ["STEPS", "Skipped", "Step"]


@dataclass(frozen=True)
class Step:
    """What a step does: it notes what it looks at, or raises Skipped with the reason."""

    function: Callable[[Place, Note], None]
    limit_seconds: float


STEPS = {
    "refusals": Step(ledgers.refusals, 15),
    "strategies": Step(ledgers.strategies, 140),
    "allocator": Step(ledgers.allocator, 45),
    "shared": Step(ledgers.shared, 60),
    "recipes": Step(numbers.recipes, 50),
    "checkpointing": Step(numbers.checkpointing, 30),
    "prefetch": Step(times.prefetch, 35),
    "timeline": Step(times.timeline, 35),
    "dataparallel": Step(numbers.dataparallel, 30),
    "figures": Step(times.figures, 40),
}
