"""What one of n ranks sends where everything goes through a main rank.

The main rank's link is the bottleneck: it carries n - 1 tensors in each direction for an all-reduce, where
a ring's fullest link carries less than two.
Source: the chapter on data parallelism, section 3 (nn.DataParallel).
"""


def reduce_sent_bytes(payload_bytes: int, num_ranks: int, rank: int, main: int = 0) -> int:
    """Each rank but the main one sends its tensor."""
    return 0 if rank == main else payload_bytes


def broadcast_sent_bytes(payload_bytes: int, num_ranks: int, rank: int, main: int = 0) -> int:
    """The main rank sends a copy to each other rank."""
    return payload_bytes * (num_ranks - 1) if rank == main else 0


def all_reduce_sent_bytes(payload_bytes: int, num_ranks: int, rank: int, main: int = 0) -> int:
    """A reduce, then a broadcast: n - 1 tensors from the main rank, one from each other."""
    return reduce_sent_bytes(payload_bytes, num_ranks, rank, main) + broadcast_sent_bytes(
        payload_bytes, num_ranks, rank, main
    )


def scatter_sent_bytes(piece_bytes: list[int], rank: int, main: int = 0) -> int:
    """The main rank sends every piece but its own."""
    return sum(piece_bytes) - piece_bytes[main] if rank == main else 0


def gather_sent_bytes(piece_bytes: list[int], rank: int, main: int = 0) -> int:
    """Each rank but the main one sends its piece."""
    return 0 if rank == main else piece_bytes[rank]
