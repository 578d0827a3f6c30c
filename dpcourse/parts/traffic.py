"""What each rank of a run moved, measured beside expected."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from dpcourse import strategies
from dpcourse.ledger import (
    BETWEEN_HOSTS,
    CARD_COUNT,
    COUNTS,
    HOST_COUNT,
    INSIDE_HOSTS,
    KERNEL_COUNT,
    LINK_COUNT,
    TRAFFIC_PHASES,
    Difference,
    Transfer,
    difference,
    select,
    total,
)
from dpcourse.parts.base import Part, texts
from dpcourse.show import is_reference
from dpcourse.tables import Table, bytes_text
from dpcourse.theory.crossing import sent_between_hosts
from dpcourse.theory.links import num_rounds
from dpcourse.theory.wire import ideal_sent_bytes

# What the kernel counts beyond a formula are the backend's headers: a share of a large message, more than
# half of a small one, and of many small ones so many bytes for each of their rounds (gloo's are 288).
HEADER_SHARE, HEADER_BYTES, ROUND_HEADER_BYTES = 0.005, 2000, 300
IDEAL_SHARE = 0.001  # below it, expected and ideal read alike


class TrafficPart(Part):
    """The collectives of the start and of one step, and what the kernel counted on each rank's sockets.

    Printed, it is rank 0's table; `table(rank)` is any rank's.
    """

    @property
    def measured(self) -> list[Transfer]:
        return [transfer for record in self.run.records for transfer in record.transfers]

    @property
    def expected(self) -> list[Transfer]:
        return list(self.run.expected_transfers)

    def num_collectives(self, rank: int | None = None) -> int:
        """Count the collectives of one step."""
        rank = self.chosen(rank)
        return len([t for t in _collectives(self.measured, rank) if t.phase != "init"])

    def payload_bytes(self, rank: int | None = None) -> int:
        """Add up the payload of one step's collectives."""
        rank = self.chosen(rank)
        return sum(t.payload_bytes for t in _collectives(self.measured, rank) if t.phase != "init")

    def sent_bytes(self, rank: int | None = None) -> float | None:
        """Give what the kernel counted on a rank's sockets in one step; None where it does not count.

        Of a dry run: what the calls that were made would have sent.
        """
        rank = self.chosen(rank)
        counted = self.sent_rows(rank)
        if not counted and self.run.world_size > 1:
            return None
        return sum(t.sent_bytes or 0 for t in counted if t.phase != "init")

    def sent_rows(self, rank: int | None = None) -> list[Transfer]:
        """List the rows of a rank that say what was sent: the kernel's counts, or a dry run's calls."""
        rank = self.chosen(rank)
        if self.run.is_trained:
            return select(self.measured, collective=KERNEL_COUNT, rank=rank)
        return select(self.measured, rank=rank)

    def expected_sent_bytes(self, rank: int | None = None) -> float:
        """Add up what the formulas say a rank sends in one step."""
        rank = self.chosen(rank)
        return sum(t.sent_bytes or 0 for t in select(self.expected, rank=rank) if t.phase != "init")

    def ideal_sent_bytes(self, rank: int | None = None) -> float:
        """Add up what the expected collectives of one step cost at their best, on average over the ranks."""
        rank = self.chosen(rank)
        step = [t for t in select(self.expected, rank=rank) if t.phase != "init"]
        return sum(ideal_sent_bytes(t.collective, t.payload_bytes, len(t.group)) for t in step)

    def sent_per_parameter_byte(self, rank: int | None = None) -> float | None:
        """Give the bytes a rank sends in one step for each byte of the model's parameters."""
        rank = self.chosen(rank)
        sent = self.sent_bytes(rank)
        return None if sent is None else sent / self.run.parameter_bytes

    def between_hosts(self, host: int = 0) -> float | None:
        """Add up what a host's ranks sent to other hosts in one step; None without emulated hosts."""
        return self._sent_by_host(host, BETWEEN_HOSTS)

    def inside_hosts(self, host: int = 0) -> float | None:
        """Add up what a host's ranks sent to each other in one step; None without emulated hosts."""
        return self._sent_by_host(host, INSIDE_HOSTS)

    def _sent_by_host(self, host: int, way: str) -> float | None:
        counted = select(self.measured, collective=HOST_COUNT, unit=way)
        rows = [t for t in counted if t.phase != "init" and t.rank in self._ranks_of(host)]
        return sum(t.sent_bytes or 0 for t in rows) if rows else None

    def expected_between_hosts(self, host: int = 0) -> float | None:
        """Add up what a host's ranks should send to other hosts in one step; None where nobody knows.

        A tree's or a star's list does not say who sends to whom.
        """
        links, ranks = self.run.links, self._ranks_of(host)
        if links is None:
            return None
        direct = strategies.find(self.run.strategy).direct_collectives
        step = [t for t in self.expected if t.phase != "init" and t.rank in ranks]
        parts = [sent_between_hosts(t, links.host_of, direct) for t in step]
        return None if None in parts else sum(part for part in parts if part is not None)

    def _ranks_of(self, host: int) -> list[int]:
        links = self.run.links
        return [rank for rank in range(self.run.world_size) if links and links.host_of(rank) == host]

    def hosts_table(self) -> Table:
        """Lay out what each emulated host sent to others and inside: its ranks' count, expected, its card's.

        Raises ValueError for a run on a machine as it is.
        """
        if self.run.links is None:
            raise ValueError(
                "this run had no emulated hosts; give dc.train a cluster, such as "
                "cluster=dc.Cluster(hosts=2, ranks_per_host=2)"
            )
        columns = ["host", "sent", "by its ranks", "expected", "verdict", "by the card's own count"]
        rows = [row for host in range(self.run.links.hosts) for row in self._host_rows(host)]
        return Table(columns, rows, f"one step: {self.run.title}")

    def _host_rows(self, host: int) -> Iterator[list[Any]]:
        ranks = self._ranks_of(host)
        across = self.expected_between_hosts(host)
        whole = sum(self.expected_sent_bytes(rank) for rank in ranks)
        for way, formula in (
            (BETWEEN_HOSTS, across),
            (INSIDE_HOSTS, None if across is None else whole - across),
        ):
            sent = self._sent_by_host(host, way) or 0
            card = select(self.measured, collective=CARD_COUNT, unit=way, rank=ranks[0])
            yield [
                host,
                way,
                None if is_reference() and sent != formula else bytes_text(sent),  # headers may differ
                None if formula is None else bytes_text(formula),
                "" if formula is None else wire_verdict(sent, formula),
                bytes_text(total(card, "sent_bytes")) if card and not is_reference() else None,
            ]

    def is_exact(self) -> bool:
        """Tell whether every rank made the calls that were expected, each of its payload, and no other.

        Their order is the timeline's affair: collectives that are under way at once have none. Where a
        strategy does not list each call, the sums of payload have to agree.
        """
        measured = [t for t in self.measured if t.collective not in COUNTS]
        if strategies.find(self.run.strategy).lists_each_call:
            return Counter(map(_call, measured)) == Counter(map(_call, self.expected))
        keys = ["rank", "phase", "collective", "unit", "group"]
        return all(item.is_exact for item in difference(measured, self.expected, keys))

    def headlines(self) -> Iterator[list[Any]]:
        first = select(self.expected, rank=self.run.first_rank)
        payload = sum(t.payload_bytes for t in first if t.phase != "init")
        if payload or self.payload_bytes():
            item = Difference("", self.payload_bytes() if self.run.is_measured else None, payload)
            yield ["payload of its collectives", *texts(item), item.verdict]
        sent, formula = self.sent_bytes(), self.expected_sent_bytes()
        size = self.run.parameter_bytes
        each = [None if value is None else f"{value / size:.2f}" for value in (sent, formula)]
        judged = Difference("", sent, formula)
        headers = self._header_bytes([item for item in first if item.phase != "init"])
        verdict = wire_verdict(sent, formula, headers) if self.run.is_trained else judged.verdict
        yield ["bytes sent per parameter-byte", *each, verdict]
        yield from self._at_best()
        if (across := self.between_hosts()) is not None:
            known = self.expected_between_hosts()
            each = [None if value is None else f"{value / size:.2f}" for value in (across, known)]
            verdict = "" if known is None else wire_verdict(across, known)
            yield ["the same, of host 0 to other hosts", *each, verdict]

    def _at_best(self) -> Iterator[list[Any]]:
        """Set the ideal beside a backend that sends more. All ranks together: a root sends more by right."""
        ranks = self.ranks
        whole, ideal = (sum(map(sent, ranks)) for sent in (self.expected_sent_bytes, self.ideal_sent_bytes))
        if abs(whole - ideal) > IDEAL_SHARE * ideal:
            each = ideal / len(ranks) / self.run.parameter_bytes
            yield ["the same, each collective at its best", None, f"{each:.2f}", ""]

    def table(self, rank: int | None = None) -> Table:
        """Lay out one rank's collectives as recorded, and below each phase what the kernel counted."""
        rank = self.chosen(rank)
        rows = [
            row
            for phase in TRAFFIC_PHASES
            for row in [*self._recorded(phase, rank), *self._counted(phase, rank)]
        ]
        columns = ["phase", "collective", "unit", "measured", "expected", "verdict"]
        return Table(columns, rows, self._caption("traffic", rank))

    def _recorded(self, phase: str, rank: int) -> Iterator[list[Any]]:
        measured = [t for t in _collectives(self.measured, rank) if t.phase == phase]
        expected = select(self.expected, rank=rank, phase=phase)
        for item in difference(measured, expected, ["collective", "unit"]):
            yield [phase, *item.key, *texts(item), item.verdict]

    def _counted(self, phase: str, rank: int) -> Iterator[list[Any]]:
        counted = select(self.measured, collective=KERNEL_COUNT, rank=rank, phase=phase)
        expected = select(self.expected, rank=rank, phase=phase)
        formula, headers = total(expected, "sent_bytes"), self._header_bytes(expected)
        for transfer in counted if formula else []:
            sent = None if is_reference() else bytes_text(transfer.sent_bytes or 0)  # headers may differ
            verdict = wire_verdict(transfer.sent_bytes, formula, headers)
            yield [phase, "sent on the wire", "kernel count", sent, bytes_text(formula), verdict]
        for transfer in select(self.measured, collective=LINK_COUNT, rank=rank, phase=phase):
            text = bytes_text(transfer.sent_bytes or 0)
            yield [phase, "sent by the GPU", transfer.unit, text, None, "counted by its driver"]

    def _header_bytes(self, transfers: list[Transfer]) -> int:
        """Bound the headers of some collectives by their rounds."""
        rounds = (num_rounds(t.collective, len(t.group), self.run.backend) for t in transfers)
        return ROUND_HEADER_BYTES * sum(rounds)

    def plot(self) -> Any:
        """Draw what each rank sent in one step: the kernel's count solid, the formula as an outline."""
        from dpcourse.figures import traffic_bars

        return traffic_bars(self)


def wire_verdict(sent: float | None, formula: float, header_bytes: int = 0) -> str:
    """Judge a kernel count by a formula: headers come on top, so that it is a little more, never "exact".

    header_bytes: the most that the headers of many small messages come to.
    """
    if sent is None:
        return "no kernel count here"
    if sent == formula:
        return "exact"
    if not is_reference():
        return f"{sent / formula - 1:+.2%}" if formula else "expected none"
    is_near = abs(sent - formula) <= max(HEADER_SHARE * formula, HEADER_BYTES, header_bytes)
    return "formula and headers" if is_near else "off"


def _call(transfer: Transfer) -> tuple:
    """What two lists have to agree on about one call."""
    where = (transfer.rank, transfer.phase, transfer.group)
    return (*where, transfer.collective, transfer.unit, transfer.payload_bytes)


def _collectives(transfers: list[Transfer], rank: int) -> list[Transfer]:
    return [t for t in select(transfers, rank=rank) if t.collective not in COUNTS]
