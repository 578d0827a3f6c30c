"""Whole tensors given away to ranks: what happens where a system does not cut tensors into equal shards."""

from collections.abc import Sequence


def largest_first(sizes: Sequence[int], num_ranks: int) -> list[list[int]]:
    """Give each tensor, the largest first, to the rank that has least so far; ties go to the lower rank.

    sizes: numbers of elements. Returns for each rank the places in `sizes` that it got, in that order. The
    fullest rank has at most 4/3 of the best that any way of giving them away can do, which is no help where
    one table outweighs the rest: the best is then that table.
    Source: _partition_parameters in torch/distributed/optim/zero_redundancy_optimizer.py; for the bound
    Graham, Bounds on multiprocessing timing anomalies, 1969.
    """
    given: list[list[int]] = [[] for _ in range(num_ranks)]
    loads = [0] * num_ranks
    for place in sorted(range(len(sizes)), key=lambda place: sizes[place], reverse=True):
        rank = loads.index(min(loads))
        given[rank].append(place)
        loads[rank] += sizes[place]
    return given
