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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from dpcourse.ranks.links import Links
from dpcourse.ranks.processes import sleep_until
from dpcourse.theory.sharing import Path, carry

SLOTS = 1024  # messages that the file has room for
_MOST_PASSED = 32  # that are kept though nobody has waited for them
_HEAD, _ROW = struct.Struct("=q"), struct.Struct("=Qhhiddd")
_OUT, _IN, _INSIDE = range(3)  # the three links of a host


class Message(NamedTuple):
    """A message between two hosts, and how many still want to know its end. Times are of time.monotonic.

    left_bytes: what was left of it when it was planned last, beside others. end_seconds: as it stands.
    """

    key: int
    source_host: int
    target_host: int
    num_waiters: int
    left_bytes: float
    planned_seconds: float = 0.0
    end_seconds: float = 0.0

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
    messages: Sequence[Message], new: Message, start: float, capacities: Mapping[int, float]
) -> list[Message]:
    """Enter a message that starts at a time: those it shares a link with, and theirs, are planned anew.

    It may have started a while ago, but not before those that it shares with were planned last. What has
    passed is kept until all have waited for it.
    """
    joined = _joined(messages, new, start, capacities)
    start = max([start, *(item.planned_seconds for item in joined)])
    left = _left_at(start, messages, {item.planned_seconds for item in joined}, capacities)
    going = [
        item._replace(left_bytes=left[item.key], planned_seconds=start)
        for item in joined
        if item.end_seconds > start
    ]
    going.append(new._replace(planned_seconds=start))
    _, ends = carry([m.path(capacities) for m in going], [m.left_bytes for m in going], capacities, start)
    planned = [item._replace(end_seconds=end) for item, end in zip(going, ends, strict=True)]
    moved = {item.key for item in going}
    return _without_forgotten([item for item in messages if item.key not in moved], start) + planned


def _joined(
    messages: Sequence[Message], new: Message, start: float, capacities: Mapping[int, float]
) -> list[Message]:
    """Find who shares a link with a message, and with those, or was planned with one of them."""
    under_way = [item for item in messages if item.end_seconds > start]
    links, plans, joined = set(new.path(capacities)), set[float](), list[Message]()
    while True:
        more = [
            item
            for item in under_way
            if item not in joined
            and (item.planned_seconds in plans or links.intersection(item.path(capacities)))
        ]
        if not more:
            return joined
        joined += more
        links.update(link for item in more for link in item.path(capacities))
        plans.update(item.planned_seconds for item in more)


def _left_at(
    now: float, messages: Sequence[Message], plans: Iterable[float], capacities: Mapping[int, float]
) -> dict[int, float]:
    """Compute what is left of the messages of some plans, by their keys; some had a share and have passed."""
    left: dict[int, float] = {}
    for plan in plans:
        mates = [item for item in messages if item.planned_seconds == plan]
        paths, sizes = [item.path(capacities) for item in mates], [item.left_bytes for item in mates]
        left |= zip((item.key for item in mates), carry(paths, sizes, capacities, plan, now)[0], strict=True)
    return left


def _without_forgotten(messages: Sequence[Message], now: float) -> list[Message]:
    """Leave out what has passed and nobody waits for, unless one is under way that was planned with it."""
    open_plans = {item.planned_seconds for item in messages if item.end_seconds > now}
    kept = [item for item in messages if item.num_waiters > 0 or item.planned_seconds in open_plans]
    passed = [item for item in kept if item.planned_seconds not in open_plans]
    dropped = {item.key for item in passed[:-_MOST_PASSED]}
    return [item for item in kept if item.key not in dropped]


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

        start: when it is sent, now or a moment ago.
        """
        with self._locked():
            start = time.monotonic() if start is None else start
            new = Message(key, source_host, target_host, 2, float(num_bytes))
            messages = with_another(self._read(), new, start, self.capacities)
            if len(messages) > SLOTS:
                raise RuntimeError(
                    f"{len(messages)} messages are under way at once, and paced links keep {SLOTS}; wait for "
                    'some before sending more, or ask for links="kernel"'
                )
            rows = b"".join(_ROW.pack(*message) for message in messages)
            self._table[: _HEAD.size + len(rows)] = _HEAD.pack(len(messages)) + rows

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

    def _read(self) -> list[Message]:
        (count,) = _HEAD.unpack_from(self._table)
        rows = memoryview(self._table)[_HEAD.size : _HEAD.size + count * _ROW.size]
        return [Message._make(row) for row in _ROW.iter_unpack(rows)]

    def _find(self, key: int) -> tuple[int, Message] | None:
        """Find the latest message with a key, and its place."""
        messages = self._read()
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
