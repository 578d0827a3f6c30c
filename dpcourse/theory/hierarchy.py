"""Collectives on a machine of two levels: ranks on hosts, a link inside each host, a card for all its ranks.

A time has two parts: the latencies that follow one another, and the bytes on the link that is busiest with
them. That is exact where all links are alike. Where they are not, pieces wait less than this for the
narrowest link: the sum is an upper bound, and the larger of its two parts a lower one.
Sources: NCCL's own estimate of a ring and of a double tree (src/graph/tuning.cc: rounds inside and across,
bytes of the busiest); Sanders, Speck and Traeff, Two-tree algorithms for full bandwidth broadcast, reduction
and scan, 2009; Thakur, Rabenseifner and Gropp, 2005 (halving and doubling); Zhao et al., PyTorch FSDP, VLDB
2023, section 3.2.2 (hybrid sharding).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from dpcourse.checks import check_choice, check_count
from dpcourse.ledger import Transfer
from dpcourse.theory import links, wire
from dpcourse.theory.links import Link, num_rounds

RING_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")


@dataclass(frozen=True)
class Cost:
    """How long a collective takes: its latencies one after the other, and its bytes on the busiest link."""

    latency_seconds: float = 0.0
    bytes_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        return self.latency_seconds + self.bytes_seconds

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.latency_seconds + other.latency_seconds, self.bytes_seconds + other.bytes_seconds)

    def __mul__(self, times: int) -> "Cost":
        return Cost(times * self.latency_seconds, times * self.bytes_seconds)


@dataclass(frozen=True)
class Group:
    """Ranks that take part in one collective: how many, evenly on how many hosts.

    num_busy: how many ranks of a host take part in it or, at the same time, in another group's like it.
    """

    num_ranks: int
    num_hosts: int
    num_busy: int

    @property
    def num_on_host(self) -> int:
        return self.num_ranks // self.num_hosts

    @property
    def senders_across(self) -> float:
        """Count the ranks of a host whose next neighbour in the ring is on another host.

        One of a ring of all ranks in order; every rank where each has a ring of its own across the hosts.
        """
        return self.num_busy * self.num_hosts / self.num_ranks if self.num_hosts > 1 else 0.0

    def hops_across(self, num_hops: int) -> int:
        """Count the hops between hosts in a walk along the ring, from where there are most of them."""
        if self.num_hosts == 1:
            return 0
        laps, rest = divmod(num_hops, self.num_ranks)
        started = 1 + (rest - 1) // self.num_on_host if rest else 0
        return laps * self.num_hosts + min(started, self.num_hosts)


@dataclass(frozen=True)
class Machine:
    """Hosts of equally many ranks, rank r on host r // ranks_per_host.

    inter: what joins hosts; a host's card, which its ranks share, sends and receives at its rate at once.
    intra: what joins the ranks of a host; each rank has its own unless `shares_intra`, as with a loopback.

    Raises ValueError for a number of ranks that is none, and later for ranks that fill no hosts.
    """

    inter: Link
    intra: Link
    ranks_per_host: int
    shares_intra: bool = False

    def __post_init__(self) -> None:
        check_count("ranks_per_host", self.ranks_per_host)

    def num_hosts(self, num_ranks: int) -> int:
        """Count the hosts of a job; one that fits one host need not fill it."""
        check_count("ranks", num_ranks)
        if num_ranks > self.ranks_per_host and num_ranks % self.ranks_per_host:
            fewer = num_ranks - num_ranks % self.ranks_per_host
            raise ValueError(
                f"{num_ranks} ranks do not fill hosts of {self.ranks_per_host}; "
                f"ask for {fewer} or {fewer + self.ranks_per_host}"
            )
        return math.ceil(num_ranks / self.ranks_per_host)

    def everyone(self, num_ranks: int) -> Group:
        """All ranks of a job, in order."""
        hosts = self.num_hosts(num_ranks)
        return Group(num_ranks, hosts, num_ranks // hosts)

    def inside(self, num_ranks: int) -> Group:
        """The ranks of one host, in a job of so many."""
        on_host = self.everyone(num_ranks).num_on_host
        return Group(on_host, 1, on_host)

    def across(self, num_ranks: int) -> Group:
        """One rank of each host, while the host's other ranks are in groups of the same kind."""
        everyone = self.everyone(num_ranks)
        return Group(everyone.num_hosts, everyone.num_hosts, everyone.num_on_host)

    def group(self, ranks: Iterable[int]) -> Group:
        """The group of these ranks, where every rank of their hosts is in one like it."""
        ranks = tuple(ranks)
        num_hosts = len({rank // self.ranks_per_host for rank in ranks})
        return Group(len(ranks), num_hosts, max(self.ranks_per_host, len(ranks) // num_hosts))


# -- one collective ---------------------------------------------------------


def transfer_cost(transfer: Transfer, machine: Machine, backend: str | None = None) -> Cost:
    """Give the cost of one collective of a list, from the hosts that its group is on.

    A ring's bytes cross a card once for every rank of the host whose neighbour is elsewhere. Of a message, or
    of a tree, all that this rank sends is taken to go the longest way. backend: as for `links.num_rounds`.
    """
    group, sent = machine.group(transfer.group), links.sent_bytes(transfer)
    rounds = num_rounds(transfer.collective, group.num_ranks, backend)
    if transfer.collective in RING_COLLECTIVES:
        return _ring_walk(sent, rounds, group, machine)
    link = machine.inter if group.num_hosts > 1 else machine.intra
    if transfer.collective in ("send", "recv"):
        return Cost(rounds * link.latency_seconds, sent / link.bytes_per_second)
    across = min(rounds, _log2(group.num_hosts))
    latency = across * machine.inter.latency_seconds + (rounds - across) * machine.intra.latency_seconds
    return Cost(latency, sent / link.bytes_per_second)


def transfer_seconds(transfer: Transfer, link: Link | Machine, backend: str | None = None) -> float:
    """Give the time of one collective on a link that every rank has to itself, or on a machine of hosts."""
    if isinstance(link, Machine):
        return transfer_cost(transfer, link, backend).seconds
    return links.transfer_seconds(transfer, link, backend)


def ring_cost(
    collective: str, payload_bytes: float, group: Group, machine: Machine, backend: str | None = None
) -> Cost:
    """Give the cost of an all-reduce, an all-gather or a reduce-scatter that goes round a ring.

    Of the (n - 1) or 2(n - 1) hops that a piece makes, as many cross hosts as the ring does on its way.
    On gloo a reduce-scatter is an all-reduce.
    """
    check_choice("collective", collective, RING_COLLECTIVES)
    sent_for_each_byte = wire.sent_bytes(backend or "ring", collective, 1, group.num_ranks, position=0)
    sent = payload_bytes * sent_for_each_byte
    return _ring_walk(sent, num_rounds(collective, group.num_ranks, backend), group, machine)


def _ring_walk(sent_bytes: float, num_hops: int, group: Group, machine: Machine) -> Cost:
    """A piece waits for each hop's latency; each rank sends so many bytes to its next neighbour."""
    across = group.hops_across(num_hops)
    latency = across * machine.inter.latency_seconds + (num_hops - across) * machine.intra.latency_seconds
    inside = group.num_busy - group.senders_across
    if not machine.shares_intra:
        inside = min(inside, 1)
    return Cost(latency, _busiest(sent_bytes * group.senders_across, sent_bytes * inside, machine))


def _busiest(card_bytes: float, inside_bytes: float, machine: Machine) -> float:
    """The time of what a card sends, or of what a link inside does, whichever is longer."""
    return max(card_bytes / machine.inter.bytes_per_second, inside_bytes / machine.intra.bytes_per_second)


# -- an all-reduce over all ranks, in several ways ----------------------------


def all_reduce_cost(algorithm: str, payload_bytes: float, machine: Machine, num_ranks: int) -> Cost:
    """Give the cost of one all-reduce over all ranks of a job.

    algorithm: "ring", "tree", "halving-doubling" or "hierarchical".
    Raises ValueError for another, and for ranks that fill no hosts.
    """
    check_choice("algorithm", algorithm, tuple(ALL_REDUCES))
    if machine.num_hosts(num_ranks) * num_ranks == 1:
        return Cost()
    return ALL_REDUCES[algorithm](payload_bytes, machine, num_ranks)


def flat_ring(payload_bytes: float, machine: Machine, num_ranks: int) -> Cost:
    """One ring through all ranks in order: 2S(n - 1)/n bytes on each card, 2(n - 1) latencies."""
    return ring_cost("all_reduce", payload_bytes, machine.everyone(num_ranks), machine)


def double_tree(payload_bytes: float, machine: Machine, num_ranks: int) -> Cost:
    """Two binary trees over the hosts, half of the tensor in each; a chain through the ranks of a host.

    Up and down again: 2 log2 H latencies across and 2(R - 1) inside. A host is an inner node of one tree (it
    sends S/2 up and twice S/2 down) and a leaf of the other (S/2 up): 2S. The pieces are taken to be so small
    that filling the trees with them costs nothing, so this is the best that a tree can do.
    """
    everyone = machine.everyone(num_ranks)
    hosts, on_host = everyone.num_hosts, everyone.num_on_host
    latency = _log2(hosts) * machine.inter.latency_seconds + (on_host - 1) * machine.intra.latency_seconds
    inside = 2 * (on_host - 1) if machine.shares_intra else min(2, on_host - 1)
    return Cost(2 * latency, _busiest(min(2, hosts - 1) * payload_bytes, inside * payload_bytes, machine))


def halving_doubling(payload_bytes: float, machine: Machine, num_ranks: int) -> Cost:
    """Exchange halves with ranks ever nearer, then double back: log2 n latencies each way, but fuller cards.

    The largest halves go to the ranks farthest away, and every rank of a host has its own: R times a ring's
    bytes cross a card. Ranks beyond the largest power of two hand over whole tensors and get them back.
    """
    everyone = machine.everyone(num_ranks)
    power = 1 << (num_ranks.bit_length() - 1)
    cost = Cost()
    for distance in (1 << exponent for exponent in range(power.bit_length() - 1)):
        is_inside = everyone.num_hosts == 1 or everyone.num_on_host % (2 * distance) == 0
        cost += _exchange(payload_bytes * distance / power, is_inside, everyone.num_busy, machine)
    if num_ranks > power:
        handing = min(everyone.num_busy, num_ranks - power)
        cost += _exchange(payload_bytes, everyone.num_hosts == 1, handing, machine)
    return cost * 2


def hierarchical(payload_bytes: float, machine: Machine, num_ranks: int) -> Cost:
    """Reduce-scatter inside each host, all-reduce across hosts by every rank its own part, gather inside.

    R rings share a card, each with S/R: 2S(H - 1)/H bytes in all, 2(H - 1) latencies across.
    """
    inside, across = machine.inside(num_ranks), machine.across(num_ranks)
    return (
        ring_cost("reduce_scatter", payload_bytes, inside, machine)
        + ring_cost("all_reduce", payload_bytes / inside.num_ranks, across, machine)
        + ring_cost("all_gather", payload_bytes, inside, machine)
    )


ALL_REDUCES = {
    "ring": flat_ring,
    "tree": double_tree,
    "halving-doubling": halving_doubling,
    "hierarchical": hierarchical,
}


def _exchange(sent_bytes: float, is_inside: bool, num_busy: int, machine: Machine) -> Cost:
    """Ranks in pairs send each other so many bytes; so many ranks of each host do."""
    link = machine.intra if is_inside else machine.inter
    load = num_busy if machine.shares_intra or not is_inside else 1
    return Cost(link.latency_seconds, load * sent_bytes / link.bytes_per_second)


def _log2(number: int) -> int:
    """The rounds in which one becomes so many by doubling."""
    return (number - 1).bit_length()


# -- sharded units --------------------------------------------------------------


def gather_cost(
    payload_bytes: float,
    machine: Machine,
    num_ranks: int,
    is_hybrid: bool = False,
    backend: str | None = None,
) -> Cost:
    """Give the cost of gathering a unit that is sharded over all ranks or, in a hybrid, inside each host."""
    shards = machine.inside(num_ranks) if is_hybrid else machine.everyone(num_ranks)
    return ring_cost("all_gather", payload_bytes, shards, machine, backend)


def reduce_cost(
    payload_bytes: float,
    machine: Machine,
    num_ranks: int,
    is_hybrid: bool = False,
    backend: str | None = None,
) -> Cost:
    """Give the cost of averaging a unit's gradients into shards; a hybrid's shards are averaged across too.

    All R ranks of a host average their S/R across at once: 2S(H - 1)/H bytes on a card in all.
    """
    shards = machine.inside(num_ranks) if is_hybrid else machine.everyone(num_ranks)
    cost = ring_cost("reduce_scatter", payload_bytes, shards, machine, backend)
    if is_hybrid:
        shard_bytes = payload_bytes / shards.num_ranks
        cost += ring_cost("all_reduce", shard_bytes, machine.across(num_ranks), machine, backend)
    return cost
