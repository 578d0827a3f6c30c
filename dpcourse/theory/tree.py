"""What a rank sends when a tensor spreads in a binomial tree: its holders double in each round."""


def broadcast_sent_bytes(payload_bytes: int, num_ranks: int, rank: int, root: int = 0) -> int:
    """Count the copies that this rank passes on: the root sends most, the last to receive none.

    In round i a rank below 2**i (counted from the root) sends to the rank 2**i above it, where there is one.
    Source: gloo/broadcast.cc, which torch's gloo backend uses.
    """
    position = (rank - root) % num_ranks
    rounds = range((num_ranks - 1).bit_length())
    return payload_bytes * sum(position < 2**i and position + 2**i < num_ranks for i in rounds)


def all_reduce_sent_bytes(payload_bytes: int, num_ranks: int, rank: int) -> int:
    """Count what a rank sends where sums go up a binomial tree to rank 0 and the result comes down again.

    Every rank but the root sends its sum once; the way down is the broadcast's, from the same root.
    """
    to_parent = payload_bytes if rank else 0
    children = range((num_ranks - 1).bit_length())
    passed_on = sum(rank % (2 << i) == 0 and rank + (1 << i) < num_ranks for i in children)
    return to_parent + payload_bytes * passed_on
