"""A collective made of sends says what it is, so that a meter lists the collective and not its sends.

Torch knows nothing of a ring written in Python: it sees messages. Whoever writes one opens an announcement
around its messages; a timeline then shows it by name, and every listener hears of it once.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PREFIX = "scratch: "  # of the name under which a profiler shows an announced collective
HELD = "held message "  # of the name under which it shows the start of a message that is held

# Called as listener(collective, dtype's name, the group's ranks, payload_bytes, unit).
Listener = Callable[[str, str, tuple[int, ...], int, str], None]
_listeners: list[Listener] = []
# Called as namer(tensor, owner, unit).
Namer = Callable[["torch.Tensor", str, str], None]
_namers: list[Namer] = []
_numbers = itertools.count()
held_until: dict[str, float] = {}  # for each name of a held message its end


class _Depth(threading.local):
    value = 0
    since_seconds = 0.0  # on time.monotonic's clock


_depth = _Depth()  # each thread has its own: a backward pass may communicate from another one


def is_announced() -> bool:
    """Tell whether this thread is inside an announced collective: what it sends now is part of that one."""
    return _depth.value > 0


def carry_out(since_seconds: float) -> None:
    """Have this thread announce nothing from now on: it carries out what another one announced at a time."""
    _depth.value, _depth.since_seconds = 1, since_seconds


def under_way_since() -> float | None:
    """Give the time when the collective was asked for that this thread carries out; None if it does not."""
    return _depth.since_seconds if is_announced() else None


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Tell `listener` of each collective that is announced while this is open, in any thread of the rank."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def hear_names(namer: Namer) -> Iterator[None]:
    """Tell `namer` of each tensor that is named while this is open."""
    _namers.append(namer)
    try:
        yield
    finally:
        _namers.remove(namer)


def name_held() -> str:
    """Make a name under which a profiler shows the start of a message whose end is known by `note_end`."""
    return f"{HELD}{next(_numbers)}"


def note_end(name: str, seconds: float) -> None:
    """Note when a message ended, on time.monotonic's clock: waited for later, a profiler shows it longer."""
    if name:
        held_until[name] = seconds


def name(tensor: "torch.Tensor", owner: str, unit: str) -> None:
    """Say what a tensor is for, so that a ledger knows it though it is gone before the phase ends.

    owner, unit: as in ledger.Holding.
    """
    for namer in tuple(_namers):
        namer(tensor, owner, unit)


@contextmanager
def announced(
    collective: str, payload_bytes: int, group: Any = None, unit: str = "", dtype: "torch.dtype | None" = None
) -> Iterator[None]:
    """Announce that what is sent while this is open carries out one collective.

    Inside another announcement nothing is said: an all-reduce made of a reduce-scatter and an all-gather is
    one all-reduce.

    Args:
        payload_bytes: the whole tensor's size, as in ledger.Transfer.
        group: the process group; None for all ranks.
        unit: which parameters it is for, where the caller knows.
    """
    from torch.profiler import record_function

    tell(collective, payload_bytes, group, unit, dtype)
    if not is_announced():
        _depth.since_seconds = time.monotonic()
    _depth.value += 1
    try:
        with record_function(PREFIX + collective):
            yield
    finally:
        _depth.value -= 1


def tell(
    collective: str, payload_bytes: int, group: Any = None, unit: str = "", dtype: "torch.dtype | None" = None
) -> None:
    """Announce a collective that another thread will carry out; for the arguments see `announced`."""
    if is_announced() or not _listeners:
        return
    import torch.distributed as dist

    ranks = tuple(dist.get_process_group_ranks(group))
    dtype_name = str(dtype).removeprefix("torch.") if dtype else ""
    for listener in tuple(_listeners):
        listener(collective, dtype_name, ranks, payload_bytes, unit)
