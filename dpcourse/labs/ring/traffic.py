"""Lab 04: what the switch's log says of each tensor's messages, held against a ring's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dpcourse.labs.question import Target
from dpcourse.labs.switch import Event, Log

_BEGIN, _FORGOTTEN = "begin", "messages forgotten"
Given = TypeVar("Given")


def run_each(tensors: Sequence[Given], call: Callable[[Given], Any]) -> list[Any]:
    """In a rank: call for one tensor after the other, and have the log say where each begins."""
    from dpcourse.labs import plug

    found = []
    for tensor in tensors:
        plug.note(_BEGIN)
        found.append(call(tensor))
        if plug.num_forgotten():
            plug.note(_FORGOTTEN)
    return found


# numbers in the whole, bytes of one, ranks, rank: the bytes that this rank of a ring sends
SentExactly = Callable[[int, int, int, int], int]


@dataclass(frozen=True)
class Traffic:
    """The messages of all ranks for one tensor, beside what those of a ring send.

    wanted_bytes: by rank. slack_bytes: a ring that goes round the other way leaves out other pieces, which
    may be a number shorter. steps: how many messages a rank of the ring sends. is_forgetful: some were
    started and not waited for.
    """

    messages: tuple[tuple[Event, ...], ...]
    wanted_bytes: tuple[int, ...]
    slack_bytes: int
    steps: int
    is_forgetful: bool

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return len(self.messages)

    def sent_bytes(self, rank: int) -> int:
        """What a rank has sent."""
        return sum(message.num_bytes for message in self.messages[rank])

    def is_cheap(self) -> bool:
        """Whether no rank sends more than a ring's."""
        wanted = enumerate(self.wanted_bytes)
        return all(self.sent_bytes(rank) <= most + self.slack_bytes for rank, most in wanted)

    def is_neighbourly(self) -> bool:
        """Whether every rank speaks to one other only, all to the right or all to the left."""
        shifts = {(m.peer - m.rank) % self.world_size for messages in self.messages for m in messages}
        return len(shifts) <= 1 and shifts <= {1, self.world_size - 1}

    def mistake(self) -> str:
        """What is not a ring's about the messages; empty when nothing is."""
        if not any(map(len, self.messages)):
            return "no_messages"
        if not self.is_cheap():
            return "too_many_bytes"
        if not self.is_neighbourly():
            return "not_neighbours"
        if max(map(len, self.messages)) > self.steps:
            return "too_many_messages"
        return "not_waited" if self.is_forgetful else ""

    def where(self) -> str:
        """The messages of rank 0, in words."""
        peers = [f"{message.num_bytes} bytes to rank {message.peer}" for message in self.messages[0]]
        return f"rank 0 sent {', '.join(peers[:6]) or 'nothing'}{', ...' if len(peers) > 6 else ''}"

    def targets(self) -> tuple[Target, ...]:
        """Bytes, messages and peers of the busiest rank."""
        busiest = max(range(self.world_size), key=self.sent_bytes)
        wanted, sent = self.wanted_bytes[busiest], self.sent_bytes(busiest)
        most = max(map(len, self.messages))
        peers = max(len({message.peer for message in messages}) for messages in self.messages)
        return (
            Target("bytes sent by a rank", f"{wanted:,}", f"{sent:,}", self.is_cheap()),
            Target("messages sent by a rank", str(self.steps), str(most), most <= self.steps),
            Target("ranks that a rank sends to", "1, its neighbour", str(peers), self.is_neighbourly()),
        )


def traffic_of(
    log: Log, sizes: Sequence[tuple[int, int]], sent_exactly: SentExactly, halves: int = 1
) -> list[Traffic]:
    """The traffic of each tensor, of which `sizes` gives the numbers in the whole and the bytes of one.

    halves: 1 for a reduce-scatter or an all-gather, 2 for both. Raises ValueError where a rank did not begin
    as many tensors.
    """
    ranks = range(log.world_size)
    by_tensor = zip(*[_parts(log, rank) for rank in ranks], strict=True)
    return [
        Traffic(
            tuple(tuple(event for event in part if event.what == "send") for part in parts),
            tuple(sent_exactly(count, each, log.world_size, rank) for rank in ranks),
            halves * each,
            halves * (log.world_size - 1),
            any(event.what == _FORGOTTEN for part in parts for event in part),
        )
        for parts, (count, each) in zip(by_tensor, sizes, strict=True)
    ]


def _parts(log: Log, rank: int) -> list[list[Event]]:
    """A rank's events, one list for each tensor that it began; nothing is done before the first."""
    parts = log.parts(rank, _BEGIN)
    if sum(len(part) + 1 for part in parts) != sum(event.rank == rank for event in log.events):
        raise ValueError(f"rank {rank} did something before its first tensor")
    return parts
