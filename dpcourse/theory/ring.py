"""What one of n ranks sends in a ring, where each rank passes pieces of 1/n to its neighbour.

payload_bytes is the whole tensor: what is reduced, the result of an all-gather, the input of a reduce-
scatter. What a ring of unequal pieces sends to the byte stands in the functions that end in "_exactly": they
take elements, of which each rank has as many as torch.tensor_split gives it.
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


def reduce_scatter_sent_exactly(num_elements: int, element_bytes: int, num_ranks: int, rank: int) -> int:
    """A rank passes on every piece but its own, which is complete when it arrives."""
    return (num_elements - piece_elements(num_elements, num_ranks, rank)) * element_bytes


def all_gather_sent_exactly(num_elements: int, element_bytes: int, num_ranks: int, rank: int) -> int:
    """A rank passes on every piece but its next neighbour's, who has it from the start."""
    neighbour = (rank + 1) % num_ranks
    return (num_elements - piece_elements(num_elements, num_ranks, neighbour)) * element_bytes


def all_reduce_sent_exactly(num_elements: int, element_bytes: int, num_ranks: int, rank: int) -> int:
    """A reduce-scatter, then an all-gather of the finished pieces."""
    return reduce_scatter_sent_exactly(
        num_elements, element_bytes, num_ranks, rank
    ) + all_gather_sent_exactly(num_elements, element_bytes, num_ranks, rank)


def piece_elements(num_elements: int, num_ranks: int, rank: int) -> int:
    """Elements in a rank's piece: as many for each, and one more for the first where some are left over."""
    return num_elements // num_ranks + (rank < num_elements % num_ranks)
