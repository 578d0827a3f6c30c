"""In a rank: how long an all-reduce takes that all ranks begin together, and whether its sum is right."""

import time
from typing import Any


def seconds_of(all_reduce: Any, tensor: Any, group: Any = None) -> float:
    """Time one all-reduce of a tensor that each rank fills with its own number.

    Raises RuntimeError for a wrong sum.
    """
    import torch.distributed as dist

    rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
    tensor.fill_(rank)
    dist.barrier(group)
    start = time.perf_counter()
    all_reduce(tensor, group=group)
    seconds = time.perf_counter() - start
    if not (tensor == num_ranks * (num_ranks - 1) / 2).all():
        raise RuntimeError(f"{all_reduce.__module__} gave a wrong sum on {num_ranks} ranks")
    return seconds
