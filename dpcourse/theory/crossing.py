"""How much of what a rank sends goes to another host, from the collective's pattern and the ranks' hosts.

Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009 (who
speaks to whom in a ring); checked by the counters of emulated hosts' cards.
"""

from collections.abc import Callable, Collection

from dpcourse.ledger import Transfer
from dpcourse.theory.hierarchy import RING_COLLECTIVES


def sent_between_hosts(
    transfer: Transfer, host_of: Callable[[int], int], direct: Collection[str] = ()
) -> float | None:
    """Count the bytes of one collective that this rank sends to other hosts.

    In a ring (gloo's collectives too) a rank speaks to the next of its group alone: all that it sends
    crosses, or nothing. What is sent to each other rank directly crosses in proportion. None where nobody
    knows: a tree's or a star's list does not say who sends to whom.

    direct: names of the collectives in which each rank sends to each other one.
    """
    if transfer.sent_bytes is None:
        return None
    if not transfer.sent_bytes:
        return 0.0
    host, others = host_of(transfer.rank), [rank for rank in transfer.group if rank != transfer.rank]
    if transfer.collective in direct:
        return transfer.sent_bytes * sum(host_of(other) != host for other in others) / len(others)
    if transfer.collective not in RING_COLLECTIVES:
        return None
    place = transfer.group.index(transfer.rank)
    following = transfer.group[(place + 1) % len(transfer.group)]
    return transfer.sent_bytes if host_of(following) != host else 0.0
