"""When a rank computed and when its collectives were under way, from torch's profiler in a step of its own.

On gloo a collective's span starts when it is asked for or when one of gloo's own threads takes it up, and
ends when it is done, so that it lies beside the computation of the main thread. A collective made of sends
and receives that announces itself (scratch/announce.py) is one span, up to the end of its last message; gloo
knows that a message has ended when somebody waits for it, and paced links know by themselves. All ranks of
one machine read the same clock.

On CUDA computation is kernels. Communication is NCCL's kernels or, through host memory (network/staged.py),
whole collectives with their copies. The profiler brings kernels to the clock of the threads;
`dpcourse.gpu_check` holds that to CUDA's own events. Not proved on a GPU yet.
"""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpcourse.ledger import COMMUNICATION, COMPUTATION, Span, merged
from dpcourse.scratch import announce
from dpcourse.scratch.announce import HELD, PREFIX

_MARK = "dpcourse phase: "
PACED = "paced layer "  # before the name of a layer that takes a fixed time, see pacing.py
# Between two operations of a phase Python itself is at work; a longer gap is taken as waiting.
_GAP_SECONDS = 100e-6
_BACKENDS = ("gloo:", "nccl:")
_MESSAGES = ("gloo:send", "gloo:recv")
_SILENT = "6"  # above all levels of the library below torch's profiler, which writes to stderr
_NCCL_KERNEL, _COPIES = "nccl", ("Memcpy", "Memset")


@dataclass(frozen=True)
class Event:
    """Something that the profiler recorded, on a thread of the process or on the device."""

    name: str
    thread: int
    start: float  # seconds of the machine's clock
    end: float
    is_kernel: bool = False

    def is_within(self, other: "Event") -> bool:
        """Tell whether this began while the other was under way on the same thread."""
        return self.thread == other.thread and other.start <= self.start < other.end


class TimelineMeter:
    """Profiles one step: `with meter: step(meter.mark)`, then `meter.spans(names)`."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist
        from torch._C._profiler import _ExperimentalConfig
        from torch.profiler import ProfilerActivity, profile

        self._is_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        on_gpu = [ProfilerActivity.CUDA] if self._is_cuda else []
        if not on_gpu:  # a torch that is built for GPUs complains in a learner's cell that there is none
            os.environ.setdefault("KINETO_LOG_LEVEL", _SILENT)
        # All threads: the course's own backends carry collectives out on one of their own.
        config = _ExperimentalConfig(profile_all_threads=not (self._is_cuda and dist.get_backend() == "nccl"))
        # There is one cycle; asked to keep all cycles' events, torch 2.11 does not warn that it keeps one's.
        self.profile = profile(
            activities=[ProfilerActivity.CPU, *on_gpu], experimental_config=config, acc_events=True
        )
        self._held_until: dict[str, float] = {}

    def __enter__(self) -> "TimelineMeter":
        announce.held_until.clear()
        with _without_announcement():
            self.profile.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        with _without_announcement():
            self.profile.__exit__(*error)
        ahead = time.time() - time.monotonic()  # of the clock of messages that are held is the profiler's
        self._held_until = {name: ahead + end for name, end in announce.held_until.items()}

    def mark(self, phase: str) -> None:
        """Close a phase; on a GPU once its kernels are done, so that each lies in the phase that began it."""
        import torch
        from torch.profiler import record_function

        if self._is_cuda:
            torch.cuda.synchronize()
        with record_function(_MARK + phase):
            pass

    def spans(self, names: Sequence[str] = ()) -> list[Span]:
        """Give the step's spans, in seconds of the machine's clock.

        names: the collectives' (and single messages') units in the order in which they were asked for. Where
        they are not as many as the spans of communication, these keep the names the profiler has.
        """
        import torch.distributed as dist

        is_staged = dist.get_backend() == "staged"
        return spans_of(self.events(), names, dist.get_rank(), is_staged)

    def events(self) -> list[Event]:
        """List all that was recorded, in order of start.

        Read as the profiler keeps it. `profile.events()` makes a tree of it, with shapes and memory, which
        took ten times as long, a second or two for each rank of a small GPT.
        """
        recorded = self.profile.profiler
        assert recorded is not None
        assert recorded.kineto_results is not None
        events = (_event(event) for event in recorded.kineto_results.events() if not _is_copy(event))
        ordered = sorted(events, key=lambda event: (event.start, -event.end))  # what is around others first
        return with_held_ends(ordered, self._held_until)


def _event(event: Any) -> Event:
    start, end = event.start_ns() / 1e9, event.end_ns() / 1e9
    return Event(event.name(), event.start_thread_id(), start, end, _is_on_device(event))


def _is_on_device(event: Any) -> bool:
    return event.device_type().name != "CPU"


def _is_copy(event: Any) -> bool:
    """The profiler draws record_function's stretches on the device once more; they are no kernels."""
    return _is_on_device(event) and bool(event.is_user_annotation())


def with_held_ends(events: Sequence[Event], ends: Mapping[str, float]) -> list[Event]:
    """Let each message end when it was let go, where it was held; what tells its start is left out.

    events: in order of start. ends: by the name of what is around the start of a message that was held.
    """
    holders: dict[int, Event] = {}  # for each thread the latest
    found = []
    for event in events:
        if event.name.startswith(HELD):
            holders[event.thread] = event
            continue
        holder = holders.get(event.thread)
        if holder and event.name in _MESSAGES and event.is_within(holder):
            event = replace(event, end=ends.get(holder.name, event.end))
        found.append(event)
    return found


def spans_of(events: Sequence[Event], names: Sequence[str], rank: int, is_staged: bool = False) -> list[Span]:
    """Turn events, in order of start, into spans of computation and of communication.

    is_staged: all collectives are announced, and the backend's own are what those are made of.
    """
    kernels = [event for event in events if event.is_kernel]
    is_nccl = bool(kernels) and not is_staged
    communication = _nccl_kernels(events) if is_nccl else collectives(events, is_staged)
    computation = _other_kernels(events) if kernels else _operations(events)
    has_names = len(communication) == len(names)
    spans = [Span(COMPUTATION, name, start, end, rank) for name, start, end in _by_phase(events, computation)]
    spans += [Span(COMPUTATION, name, start, end, rank) for name, start, end in _paced_layers(events)]
    for index, event in enumerate(communication):
        name = names[index] if has_names else event.name
        spans.append(Span(COMMUNICATION, name, event.start, event.end, rank))
    return spans


def collectives(events: Sequence[Event], is_staged: bool = False) -> list[Event]:
    """Find the collectives: the backend's, and announced ones in place of what they are made of."""
    announced = _outermost(event for event in events if event.name.startswith(PREFIX))
    found = [_until_its_last_message(event, events) for event in announced]
    for event in events:
        is_message = event.name in _MESSAGES
        is_part = is_message and any(event.is_within(whole) for whole in announced)
        is_part |= is_staged and not is_message  # gloo starts it on a thread of its own
        if event.name.startswith(_BACKENDS) and not is_part:
            found.append(event)
    return sorted(found, key=lambda event: event.start)


def _outermost(announced: Iterable[Event]) -> list[Event]:
    """Leave out what is announced inside another announcement: an all-reduce's own reduce-scatter."""
    kept: list[Event] = []
    for event in announced:
        if not any(event.is_within(whole) for whole in kept):
            kept.append(event)
    return kept


def _until_its_last_message(whole: Event, events: Sequence[Event]) -> Event:
    ends = [event.end for event in events if event.name in _MESSAGES and event.is_within(whole)]
    return Event(whole.name, whole.thread, whole.start, max([whole.end, *ends]))


def _operations(events: Sequence[Event]) -> list[Event]:
    """Find the main thread's operations; the additions inside an announced collective are communication, and
    what is inside a paced layer is the layer's.
    """
    main = {event.thread for event in events if event.name.startswith(_MARK)}
    whole = _outermost(event for event in events if event.name.startswith((PREFIX, PACED)))
    return [
        event
        for event in events
        if event.thread in main
        and event.name.startswith("aten::")
        and not any(event.is_within(other) for other in whole)
    ]


def _paced_layers(events: Sequence[Event]) -> Iterator[tuple[str, float, float]]:
    """Name each paced layer's stretches by their phase and the layer."""
    begin = float("-inf")
    for mark in (event for event in events if event.name.startswith(_MARK)):
        for event in events:
            if event.name.startswith(PACED) and begin <= event.start < mark.start:
                layer = event.name.removeprefix(PACED)
                yield f"{mark.name.removeprefix(_MARK)}: {layer} (paced)", event.start, event.end
        begin = mark.start


def _nccl_kernels(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event.is_kernel and event.name.startswith(_NCCL_KERNEL)]


def _other_kernels(events: Sequence[Event]) -> list[Event]:
    return [
        event for event in events if event.is_kernel and not event.name.startswith((_NCCL_KERNEL, *_COPIES))
    ]


def _by_phase(events: Sequence[Event], working: Sequence[Event]) -> Iterator[tuple[str, float, float]]:
    """Unite what works between two marks: name of the phase, start and end of each stretch."""
    begin = float("-inf")
    for mark in (event for event in events if event.name.startswith(_MARK)):
        stretches = [(event.start, event.end) for event in working if begin <= event.start < mark.start]
        for start, end in united(stretches, _GAP_SECONDS):
            yield mark.name.removeprefix(_MARK), start, end
        begin = mark.start


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
