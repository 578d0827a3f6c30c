"""Collectives in a ring: each rank hears from the one before it and speaks to the one after it, no one else.

Nobody is the bottleneck: every rank sends (n - 1)/n of the tensor for a reduce-scatter, as much for an
all-gather, and twice that for an all-reduce, however many ranks there are.
Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.

A tensor is cut into one piece a rank, as torch.tensor_split cuts it: where its length does not divide, the
first pieces have one number more; where it is shorter than the ring, the last pieces are empty.
"""

from collections.abc import Callable
from typing import Any

import torch

from dpcourse.scratch.announce import announced
from dpcourse.scratch.messages import exchange, place_in, receive, start


@torch.no_grad()
def reduce_scatter(
    tensor: torch.Tensor, group: Any = None, unit: str = "", combine: Callable[..., Any] = torch.add
) -> torch.Tensor:
    """Add a tensor up over the ranks and give this rank its piece of the sum, flat. The tensor stays.

    A partial sum travels round the ring once. Piece k starts at rank k + 1, each rank that it passes adds
    its own numbers, and at rank k it is complete. combine: torch.maximum and the like in place of adding.
    """
    rank, num_ranks = place_in(group)
    pieces = tensor.flatten().tensor_split(num_ranks)
    with announced("reduce_scatter", tensor.nbytes, group, unit, tensor.dtype):
        partial = pieces[rank - 1].clone()
        for step in range(2, num_ranks + 1):
            mine = pieces[(rank - step) % num_ranks]
            received = torch.empty_like(mine)
            _pass_on(partial, received, group)
            partial = combine(received, mine, out=received)
    return partial


@torch.no_grad()
def all_gather(piece: torch.Tensor, group: Any = None, num_elements: int | None = None) -> torch.Tensor:
    """Join the ranks' pieces, in order of rank, into one flat tensor on each of them.

    num_elements: how long the whole is, where the pieces are those of a tensor that does not divide; None
    for equal pieces.
    """
    if num_elements is None:
        num_elements = piece.numel() * place_in(group)[1]
    whole = piece.new_empty(num_elements)
    all_gather_into(whole, piece, group)
    return whole


@torch.no_grad()
def all_gather_into(whole: torch.Tensor, piece: torch.Tensor, group: Any = None, unit: str = "") -> None:
    """Fill `whole`, a tensor in one row, with the ranks' pieces. `piece` may be a part of it."""
    rank, num_ranks = place_in(group)
    pieces = whole.view(-1).tensor_split(num_ranks)
    if piece.numel() != pieces[rank].numel():
        raise ValueError(
            f"rank {rank} of {num_ranks} has {pieces[rank].numel()} of {whole.numel()} numbers, and was "
            f"given a piece of {piece.numel()}; cut the tensor with torch.tensor_split, and say num_elements"
        )
    with announced("all_gather", whole.nbytes, group, unit, whole.dtype):
        pieces[rank].copy_(piece.flatten())
        for step in range(num_ranks - 1):
            _pass_on(pieces[(rank - step) % num_ranks], pieces[(rank - step - 1) % num_ranks], group)


@torch.no_grad()
def all_reduce(
    tensor: torch.Tensor, group: Any = None, unit: str = "", combine: Callable[..., Any] = torch.add
) -> None:
    """Replace a tensor by its sum over the ranks, in place: reduce-scatter it, then all-gather the pieces.

    Each piece is summed in one place only, so that all ranks end with the same bits.
    """
    row = tensor.contiguous()  # itself where its numbers lie in a row, else a copy
    with announced("all_reduce", tensor.nbytes, group, unit, tensor.dtype):
        all_gather_into(row, reduce_scatter(row, group, combine=combine), group)
    if row is not tensor:
        tensor.copy_(row)


@torch.no_grad()
def broadcast(tensor: torch.Tensor, source: int = 0, group: Any = None) -> None:
    """Overwrite all ranks' tensors with the one of `source`, a rank's number within the group.

    Each rank passes on what it hears, all but the last; in pieces, so that no rank waits for the whole.
    """
    rank, num_ranks = place_in(group)
    row = tensor.contiguous()
    sends = []
    with announced("broadcast", tensor.nbytes, group, dtype=tensor.dtype):
        for piece in row.view(-1).tensor_split(num_ranks):
            if rank != source:
                receive(piece, (rank - 1) % num_ranks, group)
            if (rank + 1) % num_ranks != source:
                sends += start([(piece, (rank + 1) % num_ranks)], [], group)
        for message in sends:
            message.wait()
    if row is not tensor:
        tensor.copy_(row)


def _pass_on(outgoing: torch.Tensor, incoming: torch.Tensor, group: Any) -> None:
    rank, num_ranks = place_in(group)
    exchange(outgoing, (rank + 1) % num_ranks, incoming, (rank - 1) % num_ranks, group)
