"""Whether the fork server is as it was before students' code ran beside it."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil

_GRACE_SECONDS = 5.0
_LOOK_SECONDS = 0.02
_HALTED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD, psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


class Wholeness:
    """The processes that are kept between requests, with what a rank of the same user could do to them.

    It could stop them, leave a process among them, or take away their cores or what they may use: the next
    submission would pay for it.
    """

    def __init__(self, kept: frozenset[int]) -> None:
        self.kept = kept
        self.before = self._state()

    def look_again(self) -> None:
        """Take the same processes as they are now, such as a server that has set limits of its own since."""
        self.before = [_state_of(psutil.Process(pid)) for pid, *_ in self.before]

    def is_whole(self) -> bool:
        """Whether nothing has changed; a rank that is just ending gets a moment."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while (now := self._state()) != self.before and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        return now == self.before

    def _state(self) -> list[Any]:
        try:
            kept = [psutil.Process(pid) for pid in sorted(self.kept)]
            below = [child for process in kept for child in process.children(recursive=True)]
            return [_state_of(process) for process in [*kept, *below]]
        except (psutil.NoSuchProcess, OSError):
            return []


def _state_of(process: psutil.Process) -> tuple[Any, ...]:
    limits = Path(f"/proc/{process.pid}/limits").read_text() if sys.platform == "linux" else ""
    cores = tuple(sorted(os.sched_getaffinity(process.pid))) if sys.platform == "linux" else ()
    return process.pid, process.status() in _HALTED, process.nice(), cores, limits
