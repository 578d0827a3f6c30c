"""What one of n ranks sends in a ring, where each rank passes pieces of 1/n to its neighbour.

payload_bytes is the whole tensor: what is reduced, the result of an all-gather, the input of a reduce-
scatter. What a ring of unequal pieces sends to the byte stands in the functions that end in "_exactly": they
take elements, of which each rank has as many as torch.tensor_split gives it.
Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Move:
    """One message of a ring's all-reduce: in a step (from 1 on) a rank sends its neighbour a piece."""

    step: int
    collective: str
    source: int
    target: int
    piece: int


def num_steps(num_ranks: int) -> int:
    """Count the steps of an all-reduce: n - 1 of its reduce-scatter, as many of its all-gather."""
    return 2 * (num_ranks - 1)


def moves(num_ranks: int) -> list[Move]:
    """List all messages of an all-reduce, step by step: in each step every rank sends one piece.

    In the reduce-scatter a rank begins with the piece before its own, and each step passes on what the last
    one brought, its own numbers added; the all-gather begins with its own piece, which is complete by then.
    """
    return [
        Move(
            step,
            "reduce_scatter" if step < num_ranks else "all_gather",
            rank,
            (rank + 1) % num_ranks,
            (rank - (step if step < num_ranks else step - num_ranks)) % num_ranks,
        )
        for step in range(1, num_steps(num_ranks) + 1)
        for rank in range(num_ranks)
    ]


def parts_after(step: int, num_ranks: int) -> list[list[int]]:
    """For each rank and piece, of how many ranks the numbers are in it once so many steps are done.

    A partial sum travels in a buffer of its own; here it counts as the rank's piece until the whole comes.
    """
    parts = [[1] * num_ranks for _ in range(num_ranks)]
    for at in range(1, step + 1):
        before = [row[:] for row in parts]
        for move in (move for move in moves(num_ranks) if move.step == at):
            come = before[move.source][move.piece]
            own = before[move.target][move.piece] if move.collective == "reduce_scatter" else 0
            parts[move.target][move.piece] = come + own
    return parts


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
