"""A step from 1 to 100,000 ranks, computed: where the wall stands for each way to move gradients, and why.

Nothing is measured here: theory/step.py has the times, and this file lays them out.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dpcourse.checks import check_choice, check_count
from dpcourse.quantities import rate_text
from dpcourse.show import Shown
from dpcourse.tables import Table, bytes_text, seconds_text
from dpcourse.theory import links, step
from dpcourse.theory.hierarchy import Machine
from dpcourse.theory.links import Link
from dpcourse.theory.step import EXAMPLE_MACHINE, EXAMPLE_WORK, MEBIBYTE, Point, Work, transformer_work

SHOWN = ("ring", "tree", "hierarchical", "fsdp", "hybrid")
MOST_RANKS = 100_000
RANKS = (*(2**exponent for exponent in range(17)), MOST_RANKS)

__all__ = ["Link", "Machine", "Scaling", "Work", "latency_walls", "scale", "transformer_work"]


@dataclass(frozen=True)
class Wall:
    """From how many ranks on a strategy stands before it; None where it never does up to 100,000.

    latency_from: latencies take longer than bytes. exposed_from: computation hides communication no more.
    half_from: less than half of the step is computation.
    """

    strategy: str
    latency_from: int | None
    exposed_from: int | None
    half_from: int | None
    why: str


@dataclass(frozen=True, repr=False)
class Scaling(Shown):
    """Steps of several strategies on ever more ranks: `.table()`, `.walls()`, `.plot()`, all computed."""

    work: Work
    machine: Machine
    strategies: tuple[str, ...]
    ranks: tuple[int, ...]
    is_strong: bool = False

    @property
    def title(self) -> str:
        kind = "one batch shared by all ranks" if self.is_strong else "as much work for every rank"
        return f"A step from {self.ranks[0]:,} to {self.ranks[-1]:,} ranks, computed: {kind}"

    def facts(self) -> str:
        """Say what the work and the machine are."""
        machine, work = self.machine, self.work
        return (
            f"{bytes_text(work.payload_bytes)} of gradients in {work.num_buckets} buckets or "
            f"{work.num_units} units, {seconds_text(work.seconds)} of computation; hosts of "
            f"{machine.ranks_per_host} ranks, {link_text(machine.inter)} between, "
            f"{link_text(machine.intra)} inside"
        )

    def point(self, strategy: str, num_ranks: int) -> Point:
        """One step, also of a strategy or a number of ranks that is not in the table."""
        return step.point(strategy, num_ranks, self.work, self.machine, self.is_strong)

    def points(self, strategy: str) -> list[Point]:
        return [self.point(strategy, num_ranks) for num_ranks in self.ranks]

    def wall(self, strategy: str) -> Wall:
        """Find from how many ranks on a strategy stands before its wall, and say why."""
        latency_from = self._first(strategy, _is_latency_longer)
        exposed_from = self._first(strategy, lambda point: not point.is_hidden)
        half_from = self._first(strategy, lambda point: point.efficiency < 0.5)
        most_ranks = MOST_RANKS - MOST_RANKS % self.machine.ranks_per_host
        why = self._why(self.point(strategy, half_from or most_ranks), half_from is not None)
        return Wall(strategy, latency_from, exposed_from, half_from, why)

    def _first(self, strategy: str, is_over: Callable[[Point], bool]) -> int | None:
        """Find the number of ranks from which on it is over, to the last: communication only grows.

        Not so from one host to two, where a slow card may put bytes in front of latencies again.
        """
        per_host = self.machine.ranks_per_host
        hosts = range(2 * per_host, MOST_RANKS + 1, per_host)
        found = bisect_left(hosts, True, key=lambda number: is_over(self.point(strategy, number)))
        if found:
            return hosts[found] if found < len(hosts) else None
        under = (n for n in range(per_host, 0, -1) if not is_over(self.point(strategy, n)))
        last_under = next(under, 0)
        return last_under + 1 if last_under < per_host else 2 * per_host

    def _why(self, at: Point, is_wall: bool) -> str:
        latency, moved = at.communication.latency_seconds, at.communication.bytes_seconds
        head = f"at {at.num_ranks:,} ranks latency takes {seconds_text(latency)}, bytes {seconds_text(moved)}"
        tail = f"computation {seconds_text(at.compute_seconds)}"
        if not is_wall:
            return f"no wall: {head}, {tail}, and {100 * at.efficiency:.0f} % of the step computes"
        return f"{self._cause(at)}: {head}, {tail}"

    def _cause(self, at: Point) -> str:
        two_hosts = self.point(at.strategy, min(at.num_ranks, 2 * self.machine.ranks_per_host))
        if self.is_strong and at.communication.seconds < 2 * two_hosts.communication.seconds:
            return "too little computation"
        return "latency" if _is_latency_longer(at) else "bandwidth"

    def table(self) -> Table:
        """Lay out how long a step takes, by strategy and number of ranks."""
        columns = ["ranks", "computation", *self.strategies]
        rows = []
        for num_ranks in self.ranks:
            points = [self.point(strategy, num_ranks) for strategy in self.strategies]
            times = [points[0].compute_seconds, *(point.step_seconds for point in points)]
            rows.append([num_ranks, *map(seconds_text, times)])
        return Table(columns, rows, self.title)

    def walls(self) -> Table:
        """Lay out where each strategy's wall stands, and why."""
        columns = ["strategy", "latency over bytes", "no longer hidden", "under 50 %", "why"]
        walls = [self.wall(strategy) for strategy in self.strategies]
        rows = [[w.strategy, w.latency_from, w.exposed_from, w.half_from, w.why] for w in walls]
        return Table(columns, rows, "from how many ranks on (a dash: not up to 100,000)")

    def plot(self) -> Any:
        """Draw a step's time against the number of ranks, one outline a strategy, with its wall."""
        from dpcourse.figures import scaling_lines

        return scaling_lines(self)

    def __str__(self) -> str:
        return f"{self.table()}\n{self.facts()}\n\n{self.walls()}"

    def to_html(self) -> str:
        return f"{self.table().to_html()}<p>{self.facts()}</p>{self.walls().to_html()}"


def scale(
    work: Work = EXAMPLE_WORK,
    machine: Machine = EXAMPLE_MACHINE,
    strategies: Sequence[str] = SHOWN,
    ranks: Sequence[int] = RANKS,
    is_strong: bool = False,
) -> Scaling:
    """Compute a step on ever more ranks, for several ways to move the gradients.

    Args:
        work: what a rank does, such as transformer_work(7e9, 4096, 140e12) of dpcourse.theory.step; machine:
            what joins the ranks, Machine(inter, intra, ranks_per_host) of dpcourse.theory.hierarchy with a
            Link(latency_seconds, bytes_per_second) each. Both are examples unless you give your own.
        strategies: "ring", "tree", "halving-doubling" and "hierarchical" say how DDP's buckets are
            all-reduced; "fsdp" shards over all ranks, "hybrid" inside each host.
        ranks: numbers of ranks, upwards; each fits one host or fills several.
        is_strong: the ranks share the work (strong scaling); else each does as much (weak scaling).

    Raises ValueError for a strategy that there is not, for ranks that fill no hosts, and for too many.
    """
    for strategy in strategies:
        check_choice("strategy", strategy, step.STRATEGIES)
    if not strategies or not ranks:
        raise ValueError("scale was given no strategy or no number of ranks; give one at least")
    for num_ranks in ranks:
        machine.num_hosts(num_ranks)
        if num_ranks > MOST_RANKS:
            raise ValueError(f"ranks has {num_ranks:,}; the model was thought through up to {MOST_RANKS:,}")
    return Scaling(work, machine, tuple(strategies), tuple(sorted(ranks)), is_strong)


def _is_latency_longer(at: Point) -> bool:
    return at.communication.latency_seconds > at.communication.bytes_seconds


# -- the claim that a ring's latency is the wall past about 512 ranks ----------------

_PAYLOADS = (MEBIBYTE, 25 * MEBIBYTE, 100 * MEBIBYTE, 10**9, 14 * 10**9)
_LINKS = (Link(30e-6, 1.25e9), Link(4e-6, 12.5e9), Link(5e-6, 25e9), Link(14e-6, 50e9))


def latency_walls(payloads: Iterable[int] = _PAYLOADS, joined_by: Iterable[Link] = _LINKS) -> Table:
    """Lay out from how many ranks on a ring's latency takes longer than its bytes, by payload and link.

    payloads: bytes that are all-reduced at once. joined_by: the links, a column each.
    It is the payload over what the link has in flight (latency times bandwidth), so "past 512" is true of one
    such quotient: 25 MiB, DDP's bucket, on 80 Gbit/s after 5 us; not of a smaller bucket or a faster link.
    """
    columns, payloads = list(joined_by), list(payloads)
    for size in payloads:
        check_count("payload_bytes", size)
    rows = [[bytes_text(size), *(links.latency_wall(size, link) for link in columns)] for size in payloads]
    caption = "ranks from which a ring's latency takes longer than its bytes"
    return Table(["all-reduced at once", *map(link_text, columns)], rows, caption)


def link_text(link: Link) -> str:
    """Write a link as "200 Gbit/s after 5 us"."""
    rate = "no limit" if math.isinf(link.bytes_per_second) else rate_text(link.bytes_per_second)
    return f"{rate} after {seconds_text(link.latency_seconds)}"
