"""What one of n ranks sends in an all-reduce by recursive halving and doubling, to the byte.

Ranks beyond the largest power of two hand over the whole tensor and get the result.
Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005.
"""


def all_reduce_sent_bytes(num_elements: int, element_bytes: int, num_ranks: int, rank: int) -> int:
    """Of n = 2^k ranks each sends 2(n - 1)/n of the tensor, as in a ring.

    Of any other number, with p the power of two below: rank p and those above send the whole tensor once;
    their partners, n - p in number, send 2(p - 1)/p of it and once the whole; the rest 2(p - 1)/p.
    """
    power = 1 << (num_ranks.bit_length() - 1)
    if rank >= power:
        return num_elements * element_bytes
    folded = num_elements if rank + power < num_ranks else 0
    return (_halved_and_doubled(num_elements, power, rank) + folded) * element_bytes


def num_messages(num_ranks: int, rank: int) -> int:
    """Count the messages that a rank sends, one after the other: each costs the network's latency."""
    power = 1 << (num_ranks.bit_length() - 1)
    if rank >= power:
        return 1
    return 2 * (power.bit_length() - 1) + (rank + power < num_ranks)


def _halved_and_doubled(num_elements: int, power: int, rank: int) -> int:
    """At each distance a rank gives one half of what it has, and later the half it kept: all it had."""
    sent, distance = 0, power // 2
    while distance:
        sent += num_elements
        upper = num_elements // 2
        num_elements = upper if rank & distance else num_elements - upper
        distance //= 2
    return sent
