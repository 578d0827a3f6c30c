"""Buckets of gradients: which lie together, and when in a backward pass each is complete."""

import sys
from collections.abc import Callable, Iterable, Sequence

import torch

from dpcourse.layout import MIB, Parameter, assign_buckets


def in_buckets(parameters: Iterable[torch.Tensor], cap_mb: float | None) -> list[list[torch.Tensor]]:
    """Put parameters into buckets, in their order; a bucket closes once it has cap_mb MiB of gradients.

    Each dtype fills buckets of its own. cap_mb: None for one bucket, however large.
    """
    given = list(parameters)
    sizes = [
        Parameter(str(place), tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for place, tensor in enumerate(given)
    ]
    limit = sys.maxsize if cap_mb is None else int(cap_mb * MIB)
    return [
        [given[int(size.name)] for size in bucket.parameters] for bucket in assign_buckets(sizes, [limit])
    ]


class InOrder:
    """Starts buckets in one order, the same on all ranks, each once its last gradient has arrived.

    A complete bucket waits for those before it: were ranks to start different ones, each would add its
    bucket to another's. What is still incomplete at the end of the pass is started then.
    """

    def __init__(self, buckets: Sequence[Sequence[torch.Tensor]], start: Callable[[int], None]) -> None:
        self._buckets, self._start = buckets, start
        self._bucket_of = {member: index for index, bucket in enumerate(buckets) for member in bucket}
        self.reset()

    def reset(self) -> None:
        """Begin a pass: every gradient is missing."""
        self._missing = [set(bucket) for bucket in self._buckets]
        self._next = 0

    def arrived(self, parameter: torch.Tensor) -> None:
        """Note a gradient, and start what is complete."""
        self._missing[self._bucket_of[parameter]].discard(parameter)
        while self._next < len(self._buckets) and not self._missing[self._next]:
            self._start_next()

    def finish(self) -> None:
        """Start what is left, complete or not."""
        while self._next < len(self._buckets):
            self._start_next()

    def _start_next(self) -> None:
        self._next += 1
        self._start(self._next - 1)


class EndOfBackward:
    """Has a function called at the end of a backward pass, once, however often that pass asks for it."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function, self._pass = function, -1

    def ask(self) -> bool:
        """Ask from within a pass, in a hook. True if this is the first time in this pass."""
        this_pass = torch._C._current_graph_task_id()
        if this_pass == self._pass:
            return False
        self._pass = this_pass
        # The engine calls back when all gradients are there, before loss.backward() returns.
        torch.autograd.Variable._execution_engine.queue_callback(self._function)  # type: ignore[attr-defined]
        return True


def is_in_backward() -> bool:
    """Tell whether a backward pass is under way in this thread."""
    return torch._C._current_graph_task_id() != -1
