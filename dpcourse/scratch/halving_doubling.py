"""All-reduce by recursive halving and doubling: 2 log2(n) messages a rank where a ring takes 2(n - 1).

Ranks meet in pairs. First they halve: each keeps half of what it has, gives the other half away, and adds
what it gets; distances of n/2, n/4, ..., 1. Then they double: the same pairs in reverse give each other what
they have finished. The bytes are those of a ring; the messages are fewer, which counts where each is small.

That works for a power of two. Ranks beyond the largest one fold in: they hand all they have to a partner, sit
out, and get the result, so that the partners send the tensor once more, and those beyond send it once.
Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005
(Rabenseifner's all-reduce; his ranks fold in with halves, which saves bytes, and ours with all they have).
"""

from typing import Any

import torch

from dpcourse.scratch.announce import announced
from dpcourse.scratch.messages import exchange, place_in, receive, send


@torch.no_grad()
def all_reduce(tensor: torch.Tensor, group: Any = None) -> None:
    """Replace a tensor by its sum over the ranks, in place."""
    rank, num_ranks = place_in(group)
    power = 1 << (num_ranks.bit_length() - 1)  # the largest power of two up to num_ranks
    row = tensor.contiguous()
    with announced("all_reduce", tensor.nbytes, group, dtype=tensor.dtype):
        if rank >= power:
            send(row, rank - power, group)
            receive(row, rank - power, group)
        else:
            has_partner = rank + power < num_ranks
            if has_partner:
                row += receive(torch.empty_like(row), rank + power, group)
            _halve_and_double(row.view(-1), rank, power, group)
            if has_partner:
                send(row, rank + power, group)
    if row is not tensor:
        tensor.copy_(row)


def _halve_and_double(mine: torch.Tensor, rank: int, num_ranks: int, group: Any) -> None:
    steps = []
    distance = num_ranks // 2
    while distance:
        partner = rank ^ distance  # the rank whose number differs in this one binary digit
        lower, upper = mine.tensor_split(2)
        kept, given = (upper, lower) if rank & distance else (lower, upper)
        received = torch.empty_like(kept)
        exchange(given, partner, received, partner, group)
        kept += received
        steps.append((partner, kept, given))
        mine = kept
        distance //= 2
    for partner, kept, given in reversed(steps):
        exchange(kept, partner, given, partner, group)
