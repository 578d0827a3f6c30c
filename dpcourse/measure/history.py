"""A step's changes of memory played again: totals by owner after each change, thinned out to be kept."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from dpcourse.ledger import OWNERS, Moment

MOST_MOMENTS = 300  # of a rank: more than a figure is wide in dots to tell apart


@dataclass(frozen=True)
class Change:
    """A storage that came, went or was resized: its bytes from this moment on (0: gone)."""

    seconds: float  # on time.perf_counter's clock
    serial: int
    num_bytes: int


@dataclass(frozen=True)
class History:
    """What was live when a step began, and all changes since; storages are named by serial numbers.

    owners: whose a storage is, for as long as it lives; what nobody owns is "other".
    ends: the phases, with the number of changes that there were when each ended.
    """

    started_seconds: float
    at_start: Mapping[int, int]
    changes: tuple[Change, ...]
    owners: Mapping[int, str]
    ends: tuple[tuple[str, int], ...]

    def live_at(self, place: int) -> dict[int, int]:
        """Give the bytes of each storage after so many changes."""
        return dict(self.at_start) | {change.serial: change.num_bytes for change in self.changes[:place]}

    @cached_property
    def columns(self) -> dict[str, list[int]]:
        """For each owner, its bytes at the start and after each change."""
        columns: dict[str, list[int]] = {owner: [0] for owner in OWNERS}
        for serial, num_bytes in self.at_start.items():
            columns[self._owner(serial)][0] += num_bytes
        live = dict(self.at_start)
        for change in self.changes:
            for column in columns.values():
                column.append(column[-1])
            columns[self._owner(change.serial)][-1] += change.num_bytes - live.get(change.serial, 0)
            live[change.serial] = change.num_bytes
        return {owner: column for owner, column in columns.items() if any(column)}

    @cached_property
    def totals(self) -> list[int]:
        return [sum(values) for values in zip(*self.columns.values(), strict=True)] or [0]

    @property
    def fullest(self) -> int:
        """The number of changes after which most was held, the first time."""
        return _place_of_most(self.totals)

    def moments(self, rank: int, at_most: int = MOST_MOMENTS) -> Iterator[Moment]:
        """Give moments in order of time, each with what was held from then on, up to `at_most` of them.

        The first and the last, the fullest, the maximum of each owner and the end of each phase are always
        there; of the others, those with the most and the least in each stretch of the step.
        """
        for place in sorted(self._needed() | self._spread(at_most - len(self._needed()))):
            held = {owner: column[place] for owner, column in self.columns.items() if column[place]}
            yield Moment(self._seconds(place), self._phase(place), held, rank)

    def _needed(self) -> set[int]:
        most = {_place_of_most(column) for column in self.columns.values()}
        ends = {place for _, place in self.ends}
        return {0, len(self.totals) - 1, self.fullest} | most | ends

    def _spread(self, num_places: int) -> set[int]:
        """Choose places evenly, in pairs of the most and the least held."""
        num_all = len(self.totals)
        if num_all <= num_places:
            return set(range(num_all))
        stretch = -(-num_all // max(1, num_places // 2))
        places: set[int] = set()
        for begin in range(0, num_all, stretch):
            inside = range(begin, min(begin + stretch, num_all))
            places |= {max(inside, key=self.totals.__getitem__), min(inside, key=self.totals.__getitem__)}
        return places

    def _seconds(self, place: int) -> float:
        return self.changes[place - 1].seconds - self.started_seconds if place else 0.0

    def _phase(self, place: int) -> str:
        """The phase that was under way: what was held when a phase ended belongs to it."""
        names = [name for name, _ in self.ends]
        ended = bisect_left([end for _, end in self.ends], place)
        return names[min(ended, len(names) - 1)]

    def _owner(self, serial: int) -> str:
        return self.owners.get(serial, "other")


def _place_of_most(column: list[int]) -> int:
    return max(range(len(column)), key=column.__getitem__)
