"""Bandwidth as benchmarks of collectives report it: one figure for the link, whatever the collective.

The algorithm's bandwidth is payload over time, and falls with the number of ranks though the links stay as
they are. Times the factor it is what each link really carried: the bus bandwidth.
Source: doc/PERFORMANCE.md of nccl-tests. A factor times the payload is what a ring's rank sends: ring.py.
"""

from dpcourse.theory import wire


def bus_factor(collective: str, num_ranks: int) -> float:
    """Give what a rank sends for each byte of payload: 2(n - 1)/n of an all-reduce, (n - 1)/n of its halves.

    collective: "all_reduce", "all_gather", "reduce_scatter" or "broadcast"; a group of one sends nothing.
    """
    if collective == "broadcast":
        return float(num_ranks > 1)
    return wire.ideal_sent_bytes(collective, 1, num_ranks)


def bus_bandwidth(collective: str, payload_bytes: float, seconds: float, num_ranks: int) -> float:
    """Give bytes per second that each link carried, from the payload and the time of a collective."""
    return bus_factor(collective, num_ranks) * payload_bytes / seconds


def bytes_on_all_wires(collective: str, payload_bytes: int, num_ranks: int) -> float:
    """Add up what all ranks send for one collective."""
    return num_ranks * wire.ideal_sent_bytes(collective, payload_bytes, num_ranks)
