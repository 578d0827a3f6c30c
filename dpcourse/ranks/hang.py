"""Where ranks stand, and whether they can still go on: pure functions of what the ranks reported.

A verdict is given only where it is certain: a rank that has finished will never join the collective that
another waits in, and two different operations at one place never meet. Ranks that are merely idle may
be waiting for a peer that computes.
"""

from dataclasses import dataclass
from typing import Any

from dpcourse.ranks.places import Place, learner_place

# Operations whose payload must be the same on every rank; gather, all-to-all and the like may differ.
_SAME_SIZE = {"all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base"}
_IDLE_CPU_SECONDS = 0.05


@dataclass(frozen=True)
class Call:
    """One collective as one rank called it; `number` is its place among its group's calls."""

    group_name: str
    group: tuple[int, ...]
    number: int
    name: str
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Call":
        return cls(
            fields["group_name"],
            tuple(fields["group"]),
            fields["number"],
            fields["name"],
            tuple(tuple(size) for size in fields["sizes"]),
            tuple(fields["dtypes"]),
        )

    def agrees_with(self, other: "Call") -> bool:
        """Whether the two are the same operation, as far as ranks must agree."""
        if (self.name, self.dtypes) != (other.name, other.dtypes):
            return False
        return self.name not in _SAME_SIZE or self.sizes == other.sizes

    def __str__(self) -> str:
        shapes = ", ".join("x".join(map(str, size)) or "1" for size in self.sizes)
        kinds = ", ".join(sorted(set(self.dtypes)))
        return f"{self.name} #{self.number}" + (f" of [{shapes}] {kinds}" if shapes else "")


@dataclass(frozen=True)
class Standing:
    """What one rank is doing: returned or not, the collectives it waits in, its stack, its CPU time."""

    rank: int
    is_returned: bool = False
    pending: tuple[Call, ...] = ()
    last_numbers: tuple[tuple[str, int], ...] = ()
    stack: tuple[Place, ...] = ()
    cpu_seconds: float = 0.0

    def last_number(self, group_name: str) -> int:
        return dict(self.last_numbers).get(group_name, 0)

    @property
    def num_calls(self) -> int:
        return sum(number for _, number in self.last_numbers)

    def is_still(self, earlier: "Standing | None") -> bool:
        """Whether it has not moved since `earlier`."""
        return (
            earlier is not None
            and (self.pending, self.stack) == (earlier.pending, earlier.stack)
            and self.cpu_seconds - earlier.cpu_seconds < _IDLE_CPU_SECONDS
        )

    def __str__(self) -> str:
        if self.is_returned:
            return f"rank {self.rank} finished after {_count(self.num_calls, 'collective')}"
        where = f" at {learner_place(self.stack)}" if self.stack else ""
        if self.pending:
            return f"rank {self.rank} waits in {self.pending[0]}{where}"
        doing = "waits" if self.is_in_torch_distributed else "is"
        return f"rank {self.rank} {doing}{where}" if where else f"rank {self.rank} did not answer"

    @property
    def is_in_torch_distributed(self) -> bool:
        """Whether it stands in a call that waits for a peer, as far as the stack shows."""
        if not self.stack:
            return False
        last = self.stack[-1]
        return "torch/distributed/" in last.file.replace("\\", "/") or ".wait(" in last.line


def never_ends(now: dict[int, Standing], earlier: list[dict[int, Standing]]) -> str | None:
    """Why the run can never end, in words, or None where that is not certain.

    Args:
        now: the latest standing of every rank.
        earlier: the rounds of standings before it, oldest first.
    """
    if not earlier:
        return None
    return _absent_peer(now, earlier[-1]) or _different_calls(now, earlier[-1]) or _abandoned(now, earlier)


def _still_pending(now: dict[int, Standing], before: dict[int, Standing]) -> list[tuple[Standing, Call]]:
    return [
        (standing, call)
        for standing in now.values()
        for call in standing.pending
        if call in before.get(standing.rank, standing).pending and standing.rank in before
    ]


def _absent_peer(now: dict[int, Standing], before: dict[int, Standing]) -> str | None:
    for standing, call in _still_pending(now, before):
        for peer in call.group:
            absent = now.get(peer)
            if absent and absent.is_returned and absent.last_number(call.group_name) < call.number:
                return f"{absent}; {standing}"
    return None


def _different_calls(now: dict[int, Standing], before: dict[int, Standing]) -> str | None:
    waiting = _still_pending(now, before)
    for i, (one, call) in enumerate(waiting):
        for other, its_call in waiting[i + 1 :]:
            same_place = (call.group_name, call.number) == (its_call.group_name, its_call.number)
            if same_place and one.rank != other.rank and not call.agrees_with(its_call):
                return f"the ranks call different collectives: {one}; {other}"
    return None


def _abandoned(now: dict[int, Standing], earlier: list[dict[int, Standing]]) -> str | None:
    waiting = [standing for standing in now.values() if not standing.is_returned]
    finished = [standing for standing in now.values() if standing.is_returned]
    if not finished or not waiting or len(earlier) < 3:
        return None
    for standing in waiting:
        rounds = [past.get(standing.rank) for past in earlier[-3:]]
        steps = zip(rounds, [*rounds[1:], standing], strict=True)
        if not standing.is_in_torch_distributed or not all(new and new.is_still(old) for old, new in steps):
            return None
    return "; ".join(str(standing) for standing in [*finished, *waiting])


def first_disagreement(calls: dict[int, list[Call]]) -> str | None:
    """The first place where ranks called different collectives, in words.

    Backends let some of these pass with wrong numbers: swapped order, unlike sizes, unlike dtypes.
    """
    seen: dict[tuple[str, int], tuple[int, Call]] = {}
    clashes = []
    for rank, its_calls in sorted(calls.items()):
        for call in its_calls:
            other_rank, other = seen.setdefault((call.group_name, call.number), (rank, call))
            if not call.agrees_with(other):
                clashes.append((call.number, f"rank {other_rank} called {other}, rank {rank} called {call}"))
    return min(clashes)[1] if clashes else None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
