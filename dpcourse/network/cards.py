"""The cards of paced hosts: which messages are under way, and when each will have passed.

All ranks of a run map one file. Who sends a message enters it; from then on all that are under way share the
cards anew (theory/sharing.py), so that each one's end is known for as long as no other comes. Nobody carries
anything, and nobody is busy: ranks sleep until the ends.
"""

import fcntl
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from dpcourse.ranks.links import Links
from dpcourse.ranks.processes import sleep_until
from dpcourse.theory.sharing import Path, carry

SLOTS = 1024  # messages that the file has room for
_MOST_PASSED = 32  # that are kept though nobody has waited for them
_HEAD, _ROW = struct.Struct("=qd"), struct.Struct("=Qhhidd")
_OUT, _IN, _INSIDE = range(3)  # the three links of a host


class Message(NamedTuple):
    """A message between two hosts: how many still want to know its end, what is left of it, and its end."""

    key: int
    source_host: int
    target_host: int
    num_waiters: int
    left_bytes: float
    end_seconds: float  # of the machine's clock since it started; as it stands

    def path(self, capacities: Mapping[int, float]) -> Path:
        """Name the links it passes whose rates are limited: both hosts' cards, or the inside of one."""
        if self.source_host == self.target_host:
            numbers: Path = (3 * self.source_host + _INSIDE,)
        else:
            numbers = (3 * self.source_host + _OUT, 3 * self.target_host + _IN)
        return tuple(number for number in numbers if number in capacities)


def capacities_of(links: Links) -> dict[int, float]:
    """Give the rates of the hosts' links, in bytes per second; those without a limit are left out."""
    out, inside = links.inter_bytes_per_second, links.intra_bytes_per_second
    numbers = range(3 * links.hosts)
    found = ((number, inside if number % 3 == _INSIDE else out) for number in numbers)
    return {number: rate for number, rate in found if rate is not None}


def with_another(
    messages: Sequence[Message], at: float, new: Message, now: float, capacities: Mapping[int, float]
) -> list[Message]:
    """Enter a message that is sent `now` beside those that were under way `at` the time of the entry before.

    What has passed is kept until all have waited for it. The ends of all others move.
    """
    passed = [item for item in messages if item.end_seconds <= now and item.num_waiters > 0]
    going = [item for item in messages if item.end_seconds > now]
    # Those that have passed since then had their share until their end.
    then = [item for item in messages if item.end_seconds > at]
    left, _ = carry([m.path(capacities) for m in then], [m.left_bytes for m in then], capacities, at, now)
    left_now = dict(zip((id(item) for item in then), left, strict=True))
    going = [item._replace(left_bytes=left_now[id(item)]) for item in going] + [new]
    _, ends = carry([m.path(capacities) for m in going], [m.left_bytes for m in going], capacities, now)
    moved = [item._replace(end_seconds=end) for item, end in zip(going, ends, strict=True)]
    return passed[-_MOST_PASSED:] + moved


class Cards:
    """The table of messages, in a file that all ranks of a run map.

    path: the file; whoever comes first makes it.
    """

    def __init__(self, links: Links, path: str) -> None:
        self.capacities = capacities_of(links)
        self._mutex = threading.Lock()  # a lock of the file holds between processes alone
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        num_bytes = _HEAD.size + SLOTS * _ROW.size
        os.ftruncate(self._file, num_bytes)  # zeros where it is new, no change where it is not
        self._table = mmap.mmap(self._file, num_bytes)

    def enter(
        self, key: int, source_host: int, target_host: int, num_bytes: int, start: float | None = None
    ) -> None:
        """Enter a message; two will wait for its end, who sends it and who receives it.

        start: when it is sent, now or a moment ago; but not before another was entered.
        """
        with self._locked():
            count, at = _HEAD.unpack_from(self._table)
            now = max(at, time.monotonic() if start is None else start)
            new = Message(key, source_host, target_host, 2, float(num_bytes), now)
            messages = with_another(self._read(count), at, new, now, self.capacities)
            if len(messages) > SLOTS:
                raise RuntimeError(
                    f"{len(messages)} messages are under way at once, and paced links keep {SLOTS}; wait for "
                    'some before sending more, or ask for links="kernel"'
                )
            rows = b"".join(_ROW.pack(*message) for message in messages)
            self._table[: _HEAD.size + len(rows)] = _HEAD.pack(len(messages), now) + rows

    def end(self, key: int) -> float | None:
        """Give a message's end as it stands; None for one that passed long ago."""
        with self._locked():
            found = self._find(key)
        return found[1].end_seconds if found else None

    def has_passed(self, key: int, more_seconds: float) -> bool:
        """Tell whether a message has passed, and some seconds more."""
        end = self.end(key)
        return end is None or end + more_seconds <= time.monotonic()

    def wait(self, key: int, more_seconds: float) -> float:
        """Sleep until a message has passed, and some seconds more; give that time."""
        while True:
            end = self.end(key)
            over = time.monotonic() if end is None else end + more_seconds
            if over <= time.monotonic():
                self._leave(key)
                return over
            sleep_until(over)  # others that come meanwhile move the end: look again

    def _leave(self, key: int) -> None:
        """Note that one waits for a message no more."""
        with self._locked():
            if found := self._find(key):
                place, message = found
                row = message._replace(num_waiters=message.num_waiters - 1)
                _ROW.pack_into(self._table, _HEAD.size + place * _ROW.size, *row)

    def _read(self, count: int) -> list[Message]:
        rows = memoryview(self._table)[_HEAD.size : _HEAD.size + count * _ROW.size]
        return [Message._make(row) for row in _ROW.iter_unpack(rows)]

    def _find(self, key: int) -> tuple[int, Message] | None:
        """Find the latest message with a key, and its place."""
        messages = self._read(_HEAD.unpack_from(self._table)[0])
        places = (place for place in reversed(range(len(messages))) if messages[place].key == key)
        return next(((place, messages[place]) for place in places), None)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._mutex:
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)
