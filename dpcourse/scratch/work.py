"""Collectives that go on while the rank computes: start one, compute, and wait when its result is needed.

Each rank talks to each other one directly, all at once, with the operating system carrying the messages: no
thread is needed. As many bytes as in a ring, (n - 1)/n of the tensor, in n - 1 messages at a time.

Any number may be under way. All ranks must start them in the same order; they may wait in any.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from dpcourse.scratch.announce import announced
from dpcourse.scratch.messages import place_in, start


class Work:
    """A collective under way."""

    def __init__(self, messages: list[dist.Work], finish: Callable[[], torch.Tensor]) -> None:
        self._messages, self._finish = messages, finish
        self._result: torch.Tensor | None = None

    def wait(self) -> torch.Tensor:
        """Wait until it is complete; give its result, again when asked again."""
        if self._result is None:
            for message in self._messages:
                message.wait()
            self._result = self._finish()
            del self._messages, self._finish  # and with them the buffers
        return self._result


@torch.no_grad()
def start_all_gather(
    shard: torch.Tensor,
    group: Any = None,
    num_elements: int | None = None,
    into: torch.Tensor | None = None,
    unit: str = "",
) -> Work:
    """Start to join the ranks' shards; wait() gives the whole, flat. The shard must not change before.

    Args:
        num_elements: how long the whole is, where it does not divide (cut as torch.tensor_split cuts); None
            for equal shards.
        into: a tensor in one row to fill, which the shard may be a part of; None for a new one.
        unit: which parameters it is for.
    """
    rank, num_ranks = place_in(group)
    others = [other for other in range(num_ranks) if other != rank]
    shard = shard.flatten()
    if into is None:
        into = shard.new_empty(shard.numel() * num_ranks if num_elements is None else num_elements)
    whole = into
    pieces = whole.tensor_split(num_ranks)
    pieces[rank].copy_(shard)
    with announced("all_gather", whole.nbytes, group, unit, whole.dtype):
        messages = start(
            [(shard, other) for other in others], [(pieces[other], other) for other in others], group
        )
    return Work(messages, lambda: whole)


@torch.no_grad()
def start_reduce_scatter(tensor: torch.Tensor, group: Any = None, unit: str = "") -> Work:
    """Start to add a tensor up over the ranks; wait() gives this rank's piece of the sum, flat.

    The tensor must not change before. What the others send is added at the end, so that n - 1 pieces wait in
    memory: almost a second copy of the tensor, which a ring does not need.
    """
    rank, num_ranks = place_in(group)
    others = [other for other in range(num_ranks) if other != rank]
    pieces = tensor.flatten().tensor_split(num_ranks)
    received = {other: torch.empty_like(pieces[rank]) for other in others}
    with announced("reduce_scatter", tensor.nbytes, group, unit, tensor.dtype):
        messages = start([(pieces[other], other) for other in others], list(_swap(received)), group)
    terms = {**received, rank: pieces[rank]}
    return Work(messages, lambda: _sum([terms[source] for source in range(num_ranks)]))


def _swap(received: dict[int, torch.Tensor]) -> list[tuple[torch.Tensor, int]]:
    return [(tensor, source) for source, tensor in received.items()]


def _sum(terms: list[torch.Tensor]) -> torch.Tensor:
    """Add in order of rank, as every rank does, so that the result does not depend on who arrives first."""
    total = terms[0].clone()
    for term in terms[1:]:
        total += term
    return total
