"""Spans as a trace that chrome://tracing and Perfetto open: a process for each rank, a thread for each lane.

Source: the Trace Event Format (complete events "X", metadata "M"; times in microseconds).
"""

from collections.abc import Iterator, Sequence
from typing import Any

from dpcourse.ledger import COMMUNICATION, COMPUTATION, Span, select, side_by_side


def chrome_trace(spans: Sequence[Span]) -> dict[str, Any]:
    """Give the trace of some ranks' spans, as data for a JSON file."""
    ranks = sorted({span.rank for span in spans})
    events = [event for rank in ranks for event in _of_rank(select(spans, rank=rank), rank)]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _of_rank(spans: Sequence[Span], rank: int) -> Iterator[dict[str, Any]]:
    yield _named("process_name", f"rank {rank}", rank)
    thread = 0
    for lane in (COMPUTATION, COMMUNICATION):
        # A thread of a trace shows what lies within another span, and not what only overlaps it.
        for number, row in enumerate(side_by_side(select(spans, lane=lane))):
            yield _named("thread_name", f"{lane} {number + 1}" if number else lane, rank, thread)
            for span in row:
                times = {"ts": span.start_seconds * 1e6, "dur": span.seconds * 1e6}
                yield {"ph": "X", "name": span.name, "cat": lane, "pid": rank, "tid": thread} | times
            thread += 1


def _named(what: str, name: str, rank: int, thread: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": name}}
