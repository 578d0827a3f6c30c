"""All-reduce in a binomial tree: sums go up to rank 0 in log2(n) rounds, the result comes down in as many.

The fewest messages that follow one another, each with the whole tensor: right for small ones, where a message
costs the same however little is in it. For large ones the links near the root are a bottleneck.
Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005
(reduce and broadcast by binomial trees).
"""

from typing import Any

import torch

from dpcourse.scratch.announce import announced
from dpcourse.scratch.messages import place_in, receive, send


@torch.no_grad()
def all_reduce(tensor: torch.Tensor, group: Any = None) -> None:
    """Replace a tensor by its sum over the ranks, in place."""
    rank, num_ranks = place_in(group)
    row = tensor.contiguous()
    distances = [1 << i for i in range((num_ranks - 1).bit_length())]
    with announced("all_reduce", tensor.nbytes, group, dtype=tensor.dtype):
        children = [d for d in distances if rank % (2 * d) == 0 and rank + d < num_ranks]
        for distance in children:
            row += receive(torch.empty_like(row), rank + distance, group)
        if rank:
            parent = rank & (rank - 1)  # without its lowest binary 1
            send(row, parent, group)
            receive(row, parent, group)
        for distance in reversed(children):
            send(row, rank + distance, group)
    if row is not tensor:
        tensor.copy_(row)
