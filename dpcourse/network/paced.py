"""Paced links: the ring backend with each message held to the rate and the latency of its hosts' cards.

Messages travel between the ranks of one machine as fast as they can, and whoever waits for one sleeps until
its time has come: n bytes pass a card in n / rate, all that are under way at once share it, and what goes to
another host arrives a latency later. Works in containers, on macOS, in a sandbox: no privilege is needed.
`use` says what the links are; from then on the backend "ring" makes paced groups.

Where the machine itself takes longer than the links would, it takes that long: tests/benchmarks/paced.py has
the figures. But what it is late by does not add up over the messages of a collective: each starts when the
one before was due, and not when a busy core came round to it.
"""

# mypy: disable-error-code="override"

import itertools
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import record_function

from dpcourse.ledger import BETWEEN_HOSTS, INSIDE_HOSTS
from dpcourse.network import ring
from dpcourse.network.cards import Cards
from dpcourse.network.ring import RingProcessGroup, Tensors
from dpcourse.ranks.links import Links
from dpcourse.ranks.processes import sleep_exactly
from dpcourse.scratch import announce


def use(links: Links, path: str) -> None:
    """Make every ring group of this process from now on a paced one.

    path: a file that the ranks share and nobody else has; whoever comes first makes it.
    """
    place = _Place(links, path)
    ring.make = lambda options: PacedProcessGroup(options, place)
    SentCounter.place = place
    sleep_exactly()


class _Due(threading.local):
    """When the latest message was over that this thread has waited for."""

    seconds = 0.0


_due = _Due()


def _start_seconds() -> float | None:
    """Say when a collective's message starts: when the one before was due. None is now, for all others."""
    since = announce.under_way_since()
    return None if since is None else max(_due.seconds, since)


class _Place:
    """Where this rank stands: its links, their cards, and what it has sent."""

    def __init__(self, links: Links, path: str) -> None:
        self.links, self.cards = links, Cards(links, path)
        self.sent_bytes = {BETWEEN_HOSTS: 0, INSIDE_HOSTS: 0}
        self._mutex = threading.Lock()

    def count(self, source: int, target: int, num_bytes: int) -> None:
        way = BETWEEN_HOSTS if self.links.crosses((source, target)) else INSIDE_HOSTS
        with self._mutex:
            self.sent_bytes[way] += num_bytes


class SentCounter:
    """Counts the payload that this rank sends on paced links, between hosts and inside its own: exact."""

    place: _Place

    def __init__(self) -> None:
        self._before = dict(self.place.sent_bytes)

    def sent_since_last(self) -> dict[str, int]:
        """Give the bytes that were sent since the last reading."""
        before, self._before = self._before, dict(self.place.sent_bytes)
        return {way: count - before[way] for way, count in self._before.items()}


class PacedProcessGroup(RingProcessGroup):
    """A ring group whose messages are held; ranks of a group are known by their numbers among all ranks."""

    def __init__(self, options: Any, place: _Place) -> None:
        super().__init__(options)
        self._place, self.cards, self._name = place, place.cards, options.group_id
        self._global_ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
        # Messages of one rank to another with one tag arrive in order: both sides count the same.
        self._numbers: defaultdict[tuple, Iterator[int]] = defaultdict(itertools.count)

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> dist.Work:
        source, target = self._global_ranks[self.rank()], self._global_ranks[dst]
        num_bytes = sum(tensor.nbytes for tensor in tensors)
        self._place.count(source, target, num_bytes)
        if not self._is_held(source, target):
            return super().send(tensors, dst, tag)
        key, host_of = self._key(source, target, tag), self._place.links.host_of
        # Entered first: whoever has received it finds it.
        self.cards.enter(key, host_of(source), host_of(target), num_bytes, _start_seconds())
        return self._held(lambda: super(PacedProcessGroup, self).send(tensors, dst, tag), key, 0.0)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> dist.Work:
        source, target = self._global_ranks[src], self._global_ranks[self.rank()]
        if not self._is_held(source, target):
            return super().recv(tensors, src, tag)
        key, latency = self._key(source, target, tag), self._latency(source, target)
        return self._held(lambda: super(PacedProcessGroup, self).recv(tensors, src, tag), key, latency)

    def _latency(self, source: int, target: int) -> float:
        links = self._place.links
        return links.latency_seconds if links.crosses((source, target)) else 0.0

    def _is_held(self, source: int, target: int) -> bool:
        links = self._place.links
        if links.crosses((source, target)):
            return bool(links.inter_bytes_per_second or links.latency_seconds)
        return bool(links.intra_bytes_per_second)

    def _key(self, source: int, target: int, tag: int) -> int:
        """Name a message so that sender and receiver find the same name."""
        way = (source, target, self._tag(tag))
        text = f"{self._name} {way} {next(self._numbers[way])}"
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), sys.byteorder)

    def _held(self, start: Callable[[], dist.Work], key: int, more_seconds: float) -> dist.Work:
        if not torch.autograd.profiler._is_profiler_enabled:
            return Held(start(), self, key, more_seconds)
        name = announce.name_held()
        with record_function(name):
            work = start()
        return Held(work, self, key, more_seconds, name)


class Held(dist._Work):
    """A message under way: it is over once it is there and its time has come."""

    def __init__(
        self, carried: dist.Work, group: PacedProcessGroup, key: int, more_seconds: float, name: str = ""
    ) -> None:
        super().__init__()
        self._carried, self._group, self._key = carried, group, key
        self._more_seconds, self._name = more_seconds, name
        self._is_over = False

    def wait(self, timeout: Any = None) -> bool:
        if not self._is_over:
            self._carried.wait()
            over = self._group.cards.wait(self._key, self._more_seconds)
            self._is_over = True
            _due.seconds = max(_due.seconds, over)
            announce.note_end(self._name, over)
        return True

    def is_completed(self) -> bool:
        if self._is_over:
            return True
        return self._carried.is_completed() and self._group.cards.has_passed(self._key, self._more_seconds)
