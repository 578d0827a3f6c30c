"""What the tests of sharding share: the collectives that were asked for, whatever a backend makes of them."""

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_NAMES = {
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "allreduce_": "all_reduce",
}


class Asked(TorchDispatchMode):
    """Counts c10d operations while it is on: a reduce-scatter is one, though gloo makes it an all-reduce."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.counts[_NAMES.get(func._opname, func._opname)] += 1
        return func(*args, **(kwargs or {}))


def asked_in(step: Any) -> dict[str, int]:
    """Run something and count the collectives it asks for."""
    with Asked() as asked:
        step()
    return dict(asked.counts)
