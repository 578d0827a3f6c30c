"""What one rank puts on the wire for a collective: in the ideal, and as a backend really does it."""

from dpcourse.theory import ring, tree

REDUCE_SCATTER = "reduce_scatter"
BY_GLOO = ("gloo", "staged")  # backends whose collectives gloo carries out


def ideal_sent_bytes(collective: str, payload_bytes: int, num_ranks: int) -> float:
    """Count what a rank has to send at least, on average over the ranks.

    An all-reduce: 2(n - 1)/n of its payload; a reduce-scatter or an all-gather: half of that; a broadcast, a
    reduce, a scatter or a gather: every rank but one passes on, or gets, one payload; a message: itself.
    Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
    """
    if num_ranks == 1:
        return 0.0
    if collective in ("send", "recv"):
        return float(payload_bytes) if collective == "send" else 0.0
    if collective == "all_reduce":
        return ring.all_reduce_sent_bytes(payload_bytes, num_ranks)
    return payload_bytes * (num_ranks - 1) / num_ranks


def sent_bytes(backend: str, collective: str, payload_bytes: int, num_ranks: int, position: int) -> float:
    """Count what a rank sends for a collective on this backend.

    position: the rank's place in the group, counted from the collective's root. gloo carries out a
    reduce-scatter as an all-reduce, of which each rank keeps its part: twice the ideal.
    Source: ProcessGroupGloo.cpp and gloo/broadcast.cc of torch 2.13; checked by the kernel's counters.
    """
    if num_ranks > 1 and collective == "broadcast":
        if backend in BY_GLOO:
            return tree.broadcast_sent_bytes(payload_bytes, num_ranks, position)
        return float(payload_bytes if position < num_ranks - 1 else 0)  # passed on from rank to rank
    if backend in BY_GLOO and collective == REDUCE_SCATTER:
        return ideal_sent_bytes("all_reduce", payload_bytes, num_ranks)
    return ideal_sent_bytes(collective, payload_bytes, num_ranks)
