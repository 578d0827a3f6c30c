"""Whether a rank had the cores it could use to itself: what it took of them, and what all programs took."""

import time
from dataclasses import dataclass

from dpcourse.ranks.cluster import cpu_set


@dataclass(frozen=True)
class CoreUse:
    """The cores that a rank could use, from its start to its end, in core-seconds.

    all_seconds: what all programs took, and what a virtual machine was denied. own_seconds: its own share.
    """

    num_cores: int
    seconds: float
    all_seconds: float
    own_seconds: float


class CoreMeter:
    """Make one when the rank begins, and read it when it ends."""

    def __init__(self) -> None:
        self._before = _counts()

    def read(self) -> CoreUse | None:
        """Give what has passed since; None where the system does not say."""
        if self._before is None or (now := _counts()) is None:
            return None
        seconds, everyone, own = (after - before for after, before in zip(now, self._before, strict=True))
        return CoreUse(len(cpu_set()), seconds, everyone, own)


def _counts() -> tuple[float, float, float] | None:
    """Read the time, the core-seconds that all programs have taken, and those of this process."""
    import psutil

    try:
        each = psutil.cpu_times(percpu=True)
    except OSError:  # a sandbox without /proc
        return None
    busy = sum(_busy(each[core]) for core in cpu_set() if core < len(each))
    return time.monotonic(), busy, time.process_time()


def _busy(times: object) -> float:
    """Add up what a core did; guests are part of user and nice, and idle is idle with or without a disk."""
    kinds = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(getattr(times, kind, 0.0) for kind in kinds)
