"""Where ranks stand, and whether they can still go on: pure functions of what the ranks reported.

A verdict is given only where it is certain: a rank that has finished will never join the collective that
another waits in, and two different operations at one place never meet. Ranks that are merely idle may
be waiting for a peer that computes.
"""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from dpcourse.ranks.places import Place, learner_place

# Operations whose payload must be the same on every rank; gather, all-to-all and the like may differ.
_SAME_SIZE = {"all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base"}
_FORGOTTEN = 1 << 62  # more than any number of calls
_IDLE_CPU_SECONDS = 0.05
_STILL_ROUNDS = 3


_DTYPE_NAMES = {"Float": "float32", "Double": "float64", "Half": "float16", "Int": "int32", "Long": "int64"}


@dataclass(frozen=True)
class Call:
    """One collective as one rank called it; `number` is its place among its group's calls."""

    group_name: str
    group: tuple[int, ...]
    number: int
    name: str
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    is_pending: bool = False

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Call":
        return cls(
            fields["group_name"],
            tuple(fields["group"]),
            fields["number"],
            fields["name"],
            tuple(tuple(size) for size in fields["sizes"]),
            tuple(fields["dtypes"]),
            fields["is_pending"],
        )

    @property
    def place(self) -> tuple[str, int]:
        """Which call of which group: the same on every rank of the group."""
        return self.group_name, self.number

    def agrees_with(self, other: "Call") -> bool:
        """Whether the two are the same operation, as far as ranks must agree."""
        if self.name != other.name:
            return False
        if self.name not in _SAME_SIZE:  # scatter: all but one rank bring nothing
            return not self.dtypes or not other.dtypes or set(self.dtypes) == set(other.dtypes)
        return (self.num_elements, self.dtypes) == (other.num_elements, other.dtypes)

    @property
    def num_elements(self) -> list[int]:
        return [math.prod(size) for size in self.sizes]

    def __str__(self) -> str:
        shapes = ", ".join(f"[{', '.join(map(str, size))}]" for size in self.sizes)
        kinds = ", ".join(sorted({_DTYPE_NAMES.get(name, name.lower()) for name in self.dtypes}))
        return f"{self.name} #{self.number}" + (f" of {shapes} {kinds}" if shapes else "")


_WAITING_PLACES = ("torch/distributed/", "dpcourse/scratch/", "dpcourse/network/")


@dataclass(frozen=True)
class Standing:
    """What one rank is doing: returned or not, the collectives it has called, its stack, its CPU time."""

    rank: int
    is_returned: bool = False
    calls: tuple[Call, ...] = ()
    stack: tuple[Place, ...] = ()
    cpu_seconds: float = 0.0
    is_alone: bool = True  # no thread of the learner's that could still act
    has_forgotten: bool = False  # its recorder has dropped its oldest calls

    @property
    def pending(self) -> tuple[Call, ...]:
        return tuple(call for call in self.calls if call.is_pending)

    def last_number(self, group_name: str) -> int:
        """How many collectives of a group it has called; beyond any number if its recorder forgot."""
        numbers = [call.number for call in self.calls if call.group_name == group_name]
        return max(numbers, default=_FORGOTTEN if self.has_forgotten else 0)

    def is_still(self, earlier: "Standing | None") -> bool:
        """Whether it has not moved since `earlier`."""
        return (
            earlier is not None
            and (self.pending, self.stack) == (earlier.pending, earlier.stack)
            and self.cpu_seconds - earlier.cpu_seconds < _IDLE_CPU_SECONDS
        )

    @property
    def is_in_torch_distributed(self) -> bool:
        """Whether it stands in a call that waits for a peer: of torch's, or of the course's own sends."""
        file = self.stack[-1].file.replace("\\", "/") if self.stack else ""
        return any(place in file for place in _WAITING_PLACES)

    def in_brief(self) -> str:
        """What it does, in a few words."""
        if self.is_returned:
            groups = {call.group_name for call in self.calls}
            return (
                f"rank {self.rank} finished after {_count(sum(map(self.last_number, groups)), 'collective')}"
            )
        if self.pending:
            return f"rank {self.rank} waits in {self.pending[0]}"
        if not self.stack:
            return f"rank {self.rank} did not answer"
        return (
            f"rank {self.rank} waits for a peer" if self.is_in_torch_distributed else f"rank {self.rank} runs"
        )

    def __str__(self) -> str:
        where = f", at {learner_place(self.stack)}" if self.stack and not self.is_returned else ""
        return self.in_brief() + where


def never_ends(now: dict[int, Standing], earlier: list[dict[int, Standing]]) -> str | None:
    """Why the run can never end, in words, or None where that is not certain.

    Args:
        now: the latest standing of every rank.
        earlier: the rounds before it, oldest first, all of them asked for after the last rank returned.
    """
    if not earlier:
        return None
    now = dict(sorted(now.items()))  # as ranks are numbered, not as their answers came
    return _absent_peer(now, earlier[-1]) or _different_calls(now, earlier[-1]) or _abandoned(now, earlier)


def _still_pending(now: dict[int, Standing], before: dict[int, Standing]) -> list[tuple[Standing, Call]]:
    return [
        (standing, call)
        for standing in now.values()
        for call in standing.pending
        if standing.rank in before and call in before[standing.rank].pending
    ]


def _absent_peer(now: dict[int, Standing], before: dict[int, Standing]) -> str | None:
    for standing, call in _still_pending(now, before):
        for peer in call.group:
            absent = now.get(peer)
            if absent and absent.is_returned and absent.last_number(call.group_name) < call.number:
                return f"{absent.in_brief()}, {standing.in_brief()}"
    return None


def _different_calls(now: dict[int, Standing], before: dict[int, Standing]) -> str | None:
    for standing, call in _still_pending(now, before):
        for peer in now.values():
            its_call = next((its for its in peer.calls if its.place == call.place), call)
            if not call.agrees_with(its_call):
                did = "called" if peer.is_returned or not its_call.is_pending else "waits in"
                return f"rank {standing.rank} waits in {call}, rank {peer.rank} {did} {its_call}"
    return None


def _abandoned(now: dict[int, Standing], earlier: list[dict[int, Standing]]) -> str | None:
    waiting = [standing for standing in now.values() if not standing.is_returned]
    finished = [standing for standing in now.values() if standing.is_returned]
    if not finished or not waiting or len(earlier) < _STILL_ROUNDS:
        return None
    for standing in waiting:
        rounds = [past.get(standing.rank) for past in earlier[-_STILL_ROUNDS:]]
        steps = zip(rounds, [*rounds[1:], standing], strict=True)
        is_waiting = standing.is_in_torch_distributed and standing.is_alone
        if not is_waiting or not all(new and new.is_still(old) for old, new in steps):
            return None
    return ", ".join(standing.in_brief() for standing in [*finished, *waiting])


def first_disagreement(calls: dict[int, list[Call]]) -> str | None:
    """The first place where ranks called different collectives, in words.

    Backends let some of these pass with wrong numbers: swapped order, unlike sizes, unlike dtypes.
    """
    seen: dict[tuple[str, int, int], tuple[int, Call]] = {}
    clashes = []
    for rank, its_calls in sorted(calls.items()):
        times: Counter[tuple[str, int]] = Counter()  # a group made anew begins again at number 1
        for call in its_calls:
            times[call.place] += 1
            other_rank, other = seen.setdefault((*call.place, times[call.place]), (rank, call))
            if not call.agrees_with(other):
                clashes.append((call.number, f"rank {other_rank} called {other}, rank {rank} called {call}"))
    return min(clashes)[1] if clashes else None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
