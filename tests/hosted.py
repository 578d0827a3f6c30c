"""What the tests run on emulated hosts; apart from them, so that no rank has to import pytest."""

import os
import time

import torch
import torch.distributed as dist


def place_and_count(num_bytes: int) -> tuple:
    """Where this rank is, a sum over all ranks, what its host sent for one all-reduce of `num_bytes`, whose
    process it is, and its network namespace.
    """
    from dpcourse.measure.card import CardCounter

    tensor = torch.ones(num_bytes // 4)
    dist.barrier()
    counter = CardCounter()
    dist.barrier()
    dist.all_reduce(tensor)
    dist.barrier()
    sent = counter.sent_since_last()
    names = ("GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
    place = [int(os.environ[name]) for name in names]
    return place, tensor[0].item(), sent, os.getuid(), os.readlink("/proc/self/ns/net")


def failing() -> None:
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 2:
        raise KeyError("of rank 2")
    dist.all_reduce(torch.ones(1))


def waiting() -> None:
    if dist.get_rank() == 1:
        while True:
            time.sleep(1)
    dist.all_reduce(torch.ones(1))
