"""How long a collective takes on a link with a latency and a bandwidth, and where latency becomes the wall.

Sources: Hockney, The communication challenge for MPP, 1994 (time = latency + bytes / bandwidth), and Culler
et al., LogP, 1993; the rounds are those of Patarasuk and Yuan, 2009 (ring) and of Thakur, Rabenseifner and
Gropp, Optimization of collective communication operations in MPICH, 2005 (halving and doubling, trees).
"""

import math
from dataclasses import dataclass

from dpcourse.ledger import Transfer
from dpcourse.theory import halving_doubling, wire


@dataclass(frozen=True)
class Link:
    """What joins a rank to its peers: seconds until a message begins to arrive, bytes in a second."""

    latency_seconds: float
    bytes_per_second: float

    def __post_init__(self) -> None:
        if not (self.latency_seconds >= 0 and self.bytes_per_second > 0):  # nan is neither
            raise ValueError(
                f"there is no link of {self.bytes_per_second} bytes per second and {self.latency_seconds} "
                "seconds of latency; give a bandwidth above 0 and a latency of 0 or more"
            )


def num_rounds(collective: str, num_ranks: int, backend: str | None = None) -> int:
    """Count the messages that follow one another: 2(n - 1) of a ring's all-reduce, log2 n in a tree.

    backend: who carries it out, as in `wire.sent_bytes`: gloo's reduce-scatter is an all-reduce, and all but
    gloo pass a broadcast on from rank to rank. None: the ideal.
    """
    if num_ranks == 1:
        return 0
    if collective in ("send", "recv"):
        return 1
    if collective == "all_reduce" or (backend in wire.BY_GLOO and collective == wire.REDUCE_SCATTER):
        return 2 * (num_ranks - 1)
    is_passed_on = collective == "broadcast" and backend not in (None, *wire.BY_GLOO)
    if collective in ("all_gather", wire.REDUCE_SCATTER) or is_passed_on:
        return num_ranks - 1
    return (num_ranks - 1).bit_length()


def sent_bytes(transfer: Transfer) -> float:
    """Give what this rank sends; where the list does not say it, the ideal."""
    if transfer.sent_bytes is not None:
        return transfer.sent_bytes
    return wire.ideal_sent_bytes(transfer.collective, transfer.payload_bytes, len(transfer.group))


def transfer_seconds(transfer: Transfer, link: Link, backend: str | None = None) -> float:
    """Give the time of one collective: a latency for each round, and the bytes that this rank sends.

    backend: as for `num_rounds`. A group of one takes no time.
    """
    rounds = num_rounds(transfer.collective, len(transfer.group), backend)
    return _seconds(rounds, sent_bytes(transfer), link)


def ring_seconds(payload_bytes: int, num_ranks: int, link: Link) -> float:
    """Give the time of a ring's all-reduce: 2(n - 1) latencies and 2S(n - 1)/n bytes."""
    sent = wire.ideal_sent_bytes("all_reduce", payload_bytes, num_ranks)
    return _seconds(num_rounds("all_reduce", num_ranks), sent, link)


def halving_doubling_seconds(payload_bytes: int, num_ranks: int, link: Link) -> float:
    """Give the time of an all-reduce by halving and doubling: a ring's bytes in 2 log2 n rounds.

    For a number of ranks that is no power of two it is rank 0's time, which takes in another rank's whole
    tensor before it begins, and sends it the result.
    """
    sent = halving_doubling.all_reduce_sent_bytes(payload_bytes, 1, num_ranks, rank=0)
    is_folded = num_ranks & (num_ranks - 1) != 0
    rounds = halving_doubling.num_messages(num_ranks, rank=0) + is_folded
    return _seconds(rounds, sent + is_folded * payload_bytes, link)


def star_seconds(payload_bytes: int, num_ranks: int, link: Link) -> float:
    """Give the time of an all-reduce through a main rank: n - 1 payloads into its link, then n - 1 out.

    The others' messages arrive one behind the other, so that each way costs one latency.
    """
    rounds = 2 if num_ranks > 1 else 0
    return _seconds(rounds, 2 * (num_ranks - 1) * payload_bytes, link)


def tree_seconds(payload_bytes: int, num_ranks: int, link: Link) -> float:
    """Give the time of an all-reduce up and down a binomial tree: the whole payload 2 log2 n times.

    Where n is no power of two the longest way is a message shorter, and the root's link as full.
    """
    sent = 2 * (num_ranks - 1).bit_length() * payload_bytes
    return _seconds(2 * (num_ranks.bit_length() - 1), sent, link)


def latency_wall(payload_bytes: int, link: Link) -> int:
    """Find from how many ranks on a ring's all-reduce spends more time on latency than on bytes.

    2(n - 1) latencies are more than the time of 2S(n - 1)/n bytes as soon as n is above S / (latency x
    bandwidth): the payload over what the link has in flight.
    Raises ValueError for a link without latency, which has no such number.
    """
    in_flight_bytes = link.latency_seconds * link.bytes_per_second
    if not in_flight_bytes:
        raise ValueError("on a link without latency no number of ranks is too large; give a latency above 0")
    ratio = round(payload_bytes / in_flight_bytes, 6)  # a whole one must not fall below itself in floats
    return max(2, math.floor(ratio) + 1)


def _seconds(rounds: int, sent_bytes: float, link: Link) -> float:
    return rounds * link.latency_seconds + sent_bytes / link.bytes_per_second
