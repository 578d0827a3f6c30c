"""Collectives through one main rank, which talks to each of the others: simple, and its link is the limit.

For an all-reduce the main rank receives n - 1 tensors and sends n - 1, while every other rank sends one and
receives one: with each rank that joins, the fullest link takes longer. nn.DataParallel has this shape.

`main` is the main rank's number within the group. Each function is called by all ranks of the group.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dpcourse.scratch.announce import announced
from dpcourse.scratch.messages import place_in, receive, send


@torch.no_grad()
def reduce(
    tensor: torch.Tensor, main: int = 0, group: Any = None, combine: Callable[..., Any] = torch.add
) -> None:
    """Add all ranks' tensors into the main rank's, in place; the others' stay as they are.

    combine: torch.maximum and the like in place of adding.
    """
    with announced("reduce", tensor.nbytes, group, dtype=tensor.dtype):
        if place_in(group)[0] != main:
            send(tensor, main, group)
        else:
            for other in _others(main, group):
                combine(tensor, receive(torch.empty_like(tensor), other, group), out=tensor)


@torch.no_grad()
def broadcast(tensor: torch.Tensor, main: int = 0, group: Any = None) -> None:
    """Overwrite all ranks' tensors with the main rank's."""
    with announced("broadcast", tensor.nbytes, group, dtype=tensor.dtype):
        if place_in(group)[0] != main:
            receive(tensor, main, group)
        else:
            for other in _others(main, group):
                send(tensor, other, group)


@torch.no_grad()
def all_reduce(tensor: torch.Tensor, main: int = 0, group: Any = None) -> None:
    """Replace a tensor by its sum over the ranks, in place: the main rank adds, then hands out the sum."""
    with announced("all_reduce", tensor.nbytes, group, dtype=tensor.dtype):
        reduce(tensor, main, group)
        broadcast(tensor, main, group)


@torch.no_grad()
def scatter(
    piece: torch.Tensor, pieces: Sequence[torch.Tensor] | None = None, main: int = 0, group: Any = None
) -> None:
    """Fill each rank's `piece` with its own of the main rank's `pieces`, which may differ in size."""
    rank = place_in(group)[0]
    with announced("scatter", whole_bytes(piece, pieces, group), group, dtype=piece.dtype):
        if rank != main:
            receive(piece, main, group)
        else:
            pieces = _one_a_rank(pieces, group)
            piece.copy_(pieces[main])
            for other in _others(main, group):
                send(pieces[other], other, group)


@torch.no_grad()
def gather(
    piece: torch.Tensor, pieces: Sequence[torch.Tensor] | None = None, main: int = 0, group: Any = None
) -> None:
    """Fill the main rank's `pieces` with each rank's own `piece`."""
    rank = place_in(group)[0]
    with announced("gather", whole_bytes(piece, pieces, group), group, dtype=piece.dtype):
        if rank != main:
            send(piece, main, group)
        else:
            pieces = _one_a_rank(pieces, group)
            pieces[main].copy_(piece)
            for other in _others(main, group):
                receive(pieces[other], other, group)


def _others(main: int, group: Any) -> list[int]:
    return [rank for rank in range(place_in(group)[1]) if rank != main]


def _one_a_rank(pieces: Sequence[torch.Tensor] | None, group: Any) -> Sequence[torch.Tensor]:
    num_ranks = place_in(group)[1]
    if pieces is None or len(pieces) != num_ranks:
        found = "none" if pieces is None else len(pieces)
        raise ValueError(
            f"the main rank needs one piece for each of the {num_ranks} ranks, and was given {found}; "
            "give pieces=[...] with as many tensors as the group has ranks"
        )
    return pieces


def whole_bytes(piece: torch.Tensor, pieces: Sequence[torch.Tensor] | None, group: Any) -> int:
    """The main rank knows all pieces; another one takes them for as large as its own."""
    return sum(p.nbytes for p in pieces) if pieces else piece.nbytes * place_in(group)[1]
