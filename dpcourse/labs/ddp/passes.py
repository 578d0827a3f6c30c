"""Lab 03: what the switch's log says of one step: gradients that became ready, and all-reduces that began."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpcourse.labs.ddp.chains import Share
from dpcourse.labs.question import Target
from dpcourse.labs.switch import Event, Log
from dpcourse.theory import ring

STEP, OVER, FINISHED = "step", "backward is over", "finished"
_READY, _CALL = "ready ", "call all_reduce "


@dataclass(frozen=True)
class Pass:
    """One rank's events of a step, in order, beside the buckets that are asked for."""

    share: Share
    world_size: int
    rank: int
    events: tuple[Event, ...]

    @property
    def calls(self) -> list[int]:
        """The bytes of each all-reduce, in order."""
        return [int(words.removeprefix(_CALL)) for words in self._words() if words.startswith(_CALL)]

    @property
    def wanted(self) -> list[int]:
        """The bytes of each bucket that is asked for."""
        return [sum(p.num_bytes for p in bucket.parameters) for bucket in self.share.chain.buckets()]

    def _words(self) -> list[str]:
        return [event.what for event in self.events]

    def sent_bytes(self) -> int:
        """What the rank sent."""
        return sum(event.num_bytes for event in self.events if event.what == "send")

    def ring_bytes(self) -> int:
        """What it sends in a ring for the buckets that are asked for."""
        each = next(iter(self.share.chain.trained().values())).itemsize
        counts = [num_bytes // each for num_bytes in self.wanted]
        return sum(ring.all_reduce_sent_exactly(n, each, self.world_size, self.rank) for n in counts)

    def mistake(self) -> str:
        """What is off about the all-reduces: their number, their bytes, then when they began."""
        if self.calls != self.wanted:
            return self._wrong_calls()
        if self.sent_bytes() > self.ring_bytes():
            return "too_many_bytes"
        if not self._uses_all():
            return ""
        if self.num_hidden() == 0:
            return "no_overlap"
        return "late" if self.num_prompt() < len(self.wanted) - 1 else ""

    def _wrong_calls(self) -> str:
        whole, doubled = sum(self.wanted), self._tied_bytes()
        if not self.calls:
            return "no_messages"
        if doubled and sum(self.calls) == whole + doubled:
            return "tied_twice"
        if len(self.calls) == len(self.share.chain.trained()) > len(self.wanted):
            return "one_per_parameter"
        return "one_bucket" if len(self.calls) == 1 else "wrong_buckets"

    def _tied_bytes(self) -> int:
        tied = self.share.chain.tied
        return self.share.chain.weights[tied[0]].nbytes if tied else 0

    def _uses_all(self) -> bool:
        return self.share.used() >= set(self.share.chain.trained())

    def num_hidden(self) -> int:
        """How many all-reduces began before the last gradient was ready."""
        words = self._words()
        last = max((k for k, said in enumerate(words) if said.startswith(_READY)), default=0)
        return sum(said.startswith(_CALL) for said in words[:last])

    def num_prompt(self) -> int:
        """How many buckets but the last one left before any gradient that came after they were full."""
        words = self._words()
        begun = [k for k, said in enumerate(words) if said.startswith(_CALL)]
        ready = {said.removeprefix(_READY): k for k, said in enumerate(words) if said.startswith(_READY)}
        full, num = 0, 0
        for bucket, start in zip(self.share.chain.buckets()[:-1], begun, strict=False):
            full = max(full, *(ready[parameter.name] for parameter in bucket.parameters))
            later = [k for k in ready.values() if k > full]
            num += start < min(later, default=len(words))
        return num

    def where(self) -> str:
        """The all-reduces, and what came before the first, in words."""
        words = self._words()
        first = next((k for k, said in enumerate(words) if said.startswith(_CALL)), len(words))
        num_ready = sum(said.startswith(_READY) for said in words[:first])
        num_all = sum(said.startswith(_READY) for said in words)
        sizes = ", ".join(map(str, self.calls[:8])) or "none"
        return (
            f"rank {self.rank} made all-reduces of {sizes} bytes, the first after {num_ready} of"
            f" {num_all} gradients; asked for: {', '.join(map(str, self.wanted))}"
        )

    def targets(self) -> tuple[Target, ...]:
        """The number of all-reduces, and how many of them were hidden."""
        found = [Target("all-reduces", str(len(self.wanted)), str(len(self.calls)), self._has_number())]
        if self._uses_all():
            num, hidden = len(self.wanted) - 1, self.num_hidden()
            name = "of them before the last gradient is ready"
            found.append(Target(name, f"{num} or more", str(hidden), hidden >= num))
        return tuple(found)

    def _has_number(self) -> bool:
        return len(self.calls) == len(self.wanted)


def passes_of(log: Log, shares: Sequence[Sequence[Share]], num_steps: int) -> list[list[list[Pass]]]:
    """For each model and step the passes of all ranks; shares: by model, then by rank.

    Raises:
        ValueError: a rank did not begin as many steps.
    """
    size = log.world_size
    parts = [log.parts(rank, STEP) for rank in range(size)]
    if any(len(own) != len(shares) * num_steps for own in parts):
        raise ValueError("a rank did not begin as many steps as it was asked for")
    return [
        [
            [
                Pass(shares[k][rank], size, rank, tuple(parts[rank][k * num_steps + step]))
                for rank in range(size)
            ]
            for step in range(num_steps)
        ]
        for k in range(len(shares))
    ]


def left_early(log: Log) -> str:
    """Who ended a step before another rank had begun all its all-reduces, so that it can't have waited.

    The switch learns that a rank has finished after all that it waited for has passed.
    """
    finished = [0] * log.world_size
    for event in log.events:
        finished[event.rank] += event.what == FINISHED
        if event.what.startswith(_CALL) and max(finished) > finished[event.rank]:
            early = finished.index(max(finished))
            return f"rank {early} was through with finish() before rank {event.rank} began its all-reduces"
    return ""
