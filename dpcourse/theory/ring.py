"""What one of n ranks sends in a ring, where each rank passes pieces of 1/n to its neighbour.

payload_bytes is the whole tensor: what is reduced, the result of an all-gather, the input of a reduce-
scatter.
Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
"""


def reduce_scatter_sent_bytes(payload_bytes: int, num_ranks: int) -> float:
    """Each rank passes on n - 1 of n pieces, adding its own numbers to each; one finished piece stays."""
    return payload_bytes * (num_ranks - 1) / num_ranks


def all_gather_sent_bytes(payload_bytes: int, num_ranks: int) -> float:
    """Each rank passes on n - 1 of n pieces, unchanged."""
    return payload_bytes * (num_ranks - 1) / num_ranks


def all_reduce_sent_bytes(payload_bytes: int, num_ranks: int) -> float:
    """A reduce-scatter, then an all-gather of the finished pieces: 2(n - 1)/n of the payload."""
    return reduce_scatter_sent_bytes(payload_bytes, num_ranks) + all_gather_sent_bytes(
        payload_bytes, num_ranks
    )
