"""Lab 06: what the diaries of the ranks and the switch's log say of memory and traffic."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpcourse.labs.fsdp.steps import NUM_STEPS
from dpcourse.labs.question import Target
from dpcourse.labs.switch import Log

_BYTES = 4  # of a number
_PURPOSE_OF = {"forward": "forward", "backward": "backward", "backward done": "gradients"}
PURPOSES = ("forward", "backward", "gradients")


@dataclass(frozen=True)
class Line:
    """One line of a rank's diary, beside what should be there."""

    moment: str
    unit: int
    held: int
    problem: str
    is_whole: bool
    shards: int  # bytes of parameters and gradients in shards
    whole: int  # bytes of the unit that is to be whole now

    @property
    def over(self) -> int:
        """Bytes that should not be there."""
        return self.held - self.shards - self.whole

    def __str__(self) -> str:
        return f"{self.moment} {self.unit}" if self.unit >= 0 else self.moment


@dataclass(frozen=True)
class Books:
    """The diaries of all ranks, and the log of their messages."""

    title: str
    shapes: Sequence[tuple[int, int]]
    sent_lines: list[list[list[Any]]]
    log: Log

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.sent_lines)

    def shard_bytes(self, unit: int) -> int:
        """A rank's shard of a unit, with the zeros at its end."""
        rows, columns = self.shapes[unit]
        return -(-rows * columns // self.size) * _BYTES

    @cached_property
    def lines(self) -> list[list[Line]]:
        """Each rank's diary."""
        return [list(self._read(lines)) for lines in self.sent_lines]

    def _read(self, lines: list[list[Any]]) -> Iterator[Line]:
        parameters = sum(self.shard_bytes(unit) for unit in range(len(self.shapes)))
        gradients = 0
        for moment, unit, held, problem, is_whole in lines:
            if moment == "backward done":
                gradients += self.shard_bytes(unit)
            if moment == "step":
                gradients = 0
            whole = self.size * self.shard_bytes(unit) if moment in ("forward", "backward") else 0
            yield Line(moment, unit, held, problem, is_whole, parameters + gradients, whole)

    def problem(self) -> tuple[str, str] | None:
        """The first line at which a rank could not go on: a mistake, and words."""
        for rank, lines in enumerate(self.lines):
            for line in lines:
                if line.problem:
                    return self._name_of(rank, line), f"rank {rank}, {line}: {self._told(line)}"
            num_lines = 1 + NUM_STEPS * (4 * len(self.shapes) + 1)
            if len(lines) != num_lines:
                return "no_answer", f"rank {rank} has a diary of {len(lines)} lines"
        return None

    def _told(self, line: Line) -> str:
        rows, columns = self.shapes[line.unit]
        return f"{line.problem[:60]}, where the unit has {rows * columns} numbers"

    def _name_of(self, rank: int, line: Line) -> str:
        if line.moment == "backward done":
            rows, columns = self.shapes[line.unit]
            size = rows * columns
            whole = (f"a gradient of [{size}]", f"a gradient of [{size + -size % self.size}]")
            kinds = {"no gradient": "no_gradient", **dict.fromkeys(whole, "whole_gradient")}
            return kinds.get(line.problem, "wrong_gradient")
        if line.problem not in ("not there", "emptied"):
            return "padding"
        if any(self.sent_for(rank)[line.moment, line.unit]):
            return "frees_before_use"
        return "not_gathered" if line.moment == "forward" else "not_gathered_again"

    def sent_for(self, rank: int) -> dict[tuple[str, int], list[int]]:
        """For each moment and unit the bytes that a rank sent before it, one number a step."""
        found: dict[tuple[str, int], list[int]] = {}
        num_bytes = 0
        for event in self.log.events:
            if event.rank != rank:
                continue
            moment, _, unit = event.what.rpartition(" ")
            if event.what == "send":
                num_bytes += event.num_bytes
            elif moment in ("made", "forward", "forward done", "backward", "backward done", "step"):
                found.setdefault((moment, int(unit)), []).append(num_bytes)
                num_bytes = 0
        return found

    def sent(self, purpose: str) -> int:
        """What the busiest rank sent for a purpose, all units and steps together."""
        return max(
            sum(
                sum(sent)
                for (moment, _), sent in self.sent_for(rank).items()
                if _PURPOSE_OF.get(moment) == purpose
            )
            for rank in range(self.size)
        )

    @property
    def wanted_bytes(self) -> int:
        """What a rank of a ring sends to gather all units once a step, or to reduce and scatter them."""
        once = sum(self.shard_bytes(unit) for unit in range(len(self.shapes)))
        return NUM_STEPS * (self.size - 1) * once

    @property
    def most_sent(self) -> int:
        """All that the busiest rank sent."""
        return max(self.log.sent_bytes(rank) for rank in range(self.size))

    @property
    def fullest(self) -> Line:
        """The line with most bytes beside shards, of all ranks."""
        return max((line for lines in self.lines for line in lines), key=lambda line: line.held - line.shards)

    def targets(self) -> tuple[Target, ...]:
        """The most that was whole at once, what stayed, and the three forms of traffic."""
        largest = max(self.size * self.shard_bytes(unit) for unit in range(len(self.shapes)))
        fullest = self.fullest.held - self.fullest.shards
        left = max(max(line.over, 0) for lines in self.lines for line in lines if not line.whole)
        return (
            Target("bytes beside shards, at most", f"{largest:,}", f"{fullest:,}", fullest <= largest),
            Target("bytes beside shards, where nothing computes", "0", f"{left:,}", left == 0),
            *(self._sent_target(purpose) for purpose in PURPOSES),
        )

    def _sent_target(self, purpose: str) -> Target:
        names = {"forward": "to gather for forward", "backward": "to gather for backward"}
        sent, wanted = self.sent(purpose), self.wanted_bytes
        name = f"bytes sent {names.get(purpose, 'to reduce gradients')}"
        return Target(name, f"{wanted:,}", f"{sent:,}", sent == wanted)

    def mistake_of_memory(self) -> tuple[str, str] | None:
        """The first line with something that should not be there: a mistake, and words."""
        for rank, lines in enumerate(self.lines):
            for line in lines:
                if line.over > 0:
                    words = f"rank {rank} holds {line.over} bytes too many"
                    return self._name_of_memory(rank, line), f"{words} at {line}"
        return None

    def _name_of_memory(self, rank: int, line: Line) -> str:
        if line.moment == "made":
            return "keeps_the_whole"
        if line.moment in ("forward", "backward"):
            return "two_copies"
        if line.moment == "forward done":
            is_gathered = any(self.sent_for(rank).get(("backward", line.unit), []))
            return "never_frees" if is_gathered else "gathers_once"
        return "not_freed_in_backward" if line.is_whole else "keeps_gradient"

    def mistake_of_traffic(self) -> str:
        """What the messages say; empty when they are two gathers and a reduce-scatter."""
        if self.sent("gradients") > self.wanted_bytes:
            is_all_reduced = any(name == "all_reduce" for _, name in self.log.calls())
            return "all_reduced" if is_all_reduced else "too_many_bytes"
        if self.most_sent > len(PURPOSES) * self.wanted_bytes:
            return "too_many_bytes"
        return "" if self.sent("backward") == self.wanted_bytes else "hidden"

    def where(self) -> str:
        """The three forms of traffic, in words."""
        return "the busiest rank sent " + ", ".join(
            f"{self.sent(purpose):,} bytes for {purpose}" for purpose in PURPOSES
        )

    def diary(self) -> list[tuple[Any, ...]]:
        """The first step of rank 0, a row a line."""
        sent = self.sent_for(0)
        lines = self.lines[0][: 2 + 4 * len(self.shapes)]
        return [
            (
                str(line),
                line.held,
                line.shards,
                line.held - line.shards,
                next(iter(sent[line.moment, line.unit])),
            )
            for line in lines
        ]
