"""Lab 02: what the switch's log says of each step: who computed how many rows, who sent how much to whom."""

from dataclasses import dataclass

from dpcourse.labs.parameter_server.steps import MAIN, Training
from dpcourse.labs.question import Target
from dpcourse.labs.switch import Event, Log

STEP, COMPUTES, FORGOTTEN = "step", "computes ", "messages forgotten"
_SLACK_BYTES = 16  # of each worker in a step: who wants to may send along how many rows come


@dataclass(frozen=True)
class StarTraffic:
    """One step's events by rank, beside what a star sends. num_rows: each rank's share of the batch."""

    events: tuple[tuple[Event, ...], ...]
    num_rows: tuple[int, ...]
    row_bytes: int
    weight_bytes: int

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.events)

    @property
    def computed(self) -> list[int]:
        """How many rows each rank computed gradients of."""
        return [
            sum(int(e.what.removeprefix(COMPUTES)) for e in own if e.what.startswith(COMPUTES))
            for own in self.events
        ]

    def num_computed(self) -> int:
        """How many rows all ranks computed together."""
        return sum(self.computed)

    def messages(self, rank: int) -> list[Event]:
        """What a rank sent; the lab's own messages are empty."""
        return [event for event in self.events[rank] if event.what == "send" and event.num_bytes]

    def sent(self, rank: int) -> int:
        """The bytes that a rank sent."""
        return sum(message.num_bytes for message in self.messages(rank))

    def received(self, rank: int) -> int:
        """The bytes that were sent to it."""
        everybody = [message for other in range(self.size) for message in self.messages(other)]
        return sum(message.num_bytes for message in everybody if message.peer == rank)

    def wanted(self, rank: int) -> int:
        """What a rank of a star sends: a gradient, or from the main rank a copy and rows for each other."""
        if rank != MAIN:
            return self.weight_bytes
        return (self.size - 1) * self.weight_bytes + sum(self.num_rows[1:]) * self.row_bytes

    def is_cheap(self, rank: int) -> bool:
        """Whether it sent no more than that."""
        return self.sent(rank) <= self.wanted(rank) + _SLACK_BYTES * (self.size - 1)

    def is_star(self) -> bool:
        """Whether workers spoke to the main rank only."""
        return all(message.peer == MAIN for rank in range(1, self.size) for message in self.messages(rank))

    def mistake(self) -> str:
        """What is not as asked for, where the weights are right."""
        if not any(self.computed[1:]):
            return "idle_workers"
        if any(mine > share for mine, share in zip(self.computed, self.num_rows, strict=True)):
            return "whole_batch"
        if not self.is_star():
            return "not_through_main"
        if not all(map(self.is_cheap, range(self.size))):
            return "too_many_bytes"
        is_forgetful = any(event.what == FORGOTTEN for own in self.events for event in own)
        return "not_waited" if is_forgetful else ""

    def where(self) -> str:
        """Rows and bytes of each rank, in words."""
        each = [
            f"rank {rank} computed {self.computed[rank]} of its {self.num_rows[rank]} rows and sent"
            f" {self.sent(rank)} bytes"
            for rank in range(self.size)
        ]
        return ", ".join(each)

    def targets(self) -> tuple[Target, ...]:
        """Bytes out of and into the main rank, and rows."""
        into = (self.size - 1) * self.weight_bytes
        slack = _SLACK_BYTES * (self.size - 1)
        rows, num = list(self.num_rows), self.computed
        return (
            Target("rows computed, by rank", str(rows), str(num), rows == num),
            Target(
                "bytes that the main rank sends",
                f"{self.wanted(MAIN):,}",
                f"{self.sent(MAIN):,}",
                self.is_cheap(MAIN),
            ),
            Target(
                "bytes that it receives",
                f"{into:,}",
                f"{self.received(MAIN):,}",
                self.received(MAIN) <= into + slack,
            ),
        )


def traffic_of(log: Log, training: Training) -> list[StarTraffic]:
    """The traffic of each step.

    Raises:
        ValueError: a rank did not begin as many steps.
    """
    parts = [log.parts(rank, STEP) for rank in range(log.world_size)]
    if any(len(own) != len(training.batches) for own in parts):
        raise ValueError("a rank did not begin as many steps as it was asked for")
    return [
        StarTraffic(
            tuple(tuple(own[step]) for own in parts),
            tuple(training.num_rows(step)),
            batch.shape[1] * batch.itemsize,
            training.weights.nbytes,
        )
        for step, batch in enumerate(training.batches)
    ]
