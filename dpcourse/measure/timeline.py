"""When a rank computed and when its collectives were under way, from torch's profiler in a step of its own.

On gloo a collective's span starts when one of gloo's own threads takes it up and ends when it is done, so
that it lies beside the computation of the main thread. All ranks of one machine read the same clock.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from dpcourse.ledger import COMMUNICATION, COMPUTATION, Span, merged

_MARK = "dpcourse phase: "
# Between two operations of a phase Python itself is at work; a longer gap is taken as waiting.
_GAP_SECONDS = 100e-6
_BACKENDS = ("gloo:", "nccl:")

Event = tuple[str, int, float, float]  # name, thread, start, end


class TimelineMeter:
    """Profiles one step: `with meter: step(meter.mark)`, then `meter.spans(names)`."""

    def __init__(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        self._profile = profile(activities=[ProfilerActivity.CPU])

    def __enter__(self) -> "TimelineMeter":
        with _without_announcement():
            self._profile.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        with _without_announcement():
            self._profile.__exit__(*error)

    def mark(self, phase: str) -> None:
        """Close a phase."""
        from torch.profiler import record_function

        with record_function(_MARK + phase):
            pass

    def spans(self, names: Sequence[str]) -> list[Span]:
        """Give the step's spans, in seconds of the machine's clock; `names` name the collectives in order."""
        import torch.distributed as dist

        events = self._events()
        found = [*_computation(events), *_communication(events, names)]
        return [Span(lane, name, start, end, dist.get_rank()) for lane, name, start, end in found]

    def _events(self) -> list[Event]:
        """List name, thread, start and end of all that was recorded, in order of start."""
        recorded = self._profile.profiler
        assert recorded is not None
        assert recorded.kineto_results is not None
        origin = recorded.kineto_results.trace_start_ns() / 1e9
        events = [
            (
                event.name,
                event.thread,
                origin + event.time_range.start / 1e6,
                origin + event.time_range.end / 1e6,
            )
            for event in self._profile.events()
        ]
        return sorted(events, key=lambda event: event[2])


def _computation(events: Sequence[Event]) -> Iterator[tuple[str, str, float, float]]:
    """Unite the main thread's operations between two marks."""
    begin = float("-inf")
    for name, thread, end, _ in [event for event in events if event[0].startswith(_MARK)]:
        operations = [
            (start, stop)
            for operation, its_thread, start, stop in events
            if its_thread == thread and operation.startswith("aten::") and begin <= start < end
        ]
        for start, stop in united(operations, _GAP_SECONDS):
            yield COMPUTATION, name.removeprefix(_MARK), start, stop
        begin = end


def _communication(events: Sequence[Event], names: Sequence[str]) -> Iterator[tuple[str, str, float, float]]:
    events = [event for event in events if event[0].startswith(_BACKENDS)]
    has_names = len(events) == len(names)
    for index, (name, _, start, end) in enumerate(events):
        yield COMMUNICATION, names[index] if has_names else name, start, end


def united(intervals: Sequence[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """Unite intervals that overlap or lie closer together than `gap`."""
    return [(start, end - gap) for start, end in merged((start, end + gap) for start, end in intervals)]


@contextlib.contextmanager
def _without_announcement() -> Iterator[None]:
    """Keep the profiler's own two lines ("USDT: ... profiler_start") out of the cell; pass on all else."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            others = [line for line in file.read().splitlines(keepends=True) if not line.startswith(b"USDT:")]
            os.write(2, b"".join(others))
