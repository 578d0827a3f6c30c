"""The two things that everything here is made of: send and receive, between ranks of one group.

Ranks are counted within the group, from 0. Two messages from one rank to another arrive in the order in
which they were sent, so that collectives never mix as long as all ranks start them in the same order.
"""

from typing import Any

import torch
import torch.distributed as dist


def place_in(group: Any = None) -> tuple[int, int]:
    """Give this rank's number in a group, and how many ranks the group has."""
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(
            f"rank {dist.get_rank()} called a collective of a group that it is not in; "
            "only the ranks that new_group was given may call it"
        )
    return rank, dist.get_world_size(group)


def send(tensor: torch.Tensor, to: int, group: Any = None) -> None:
    """Send a tensor; return when its memory may change again."""
    dist.send(tensor.contiguous(), group_dst=to, group=group)


def receive(tensor: torch.Tensor, source: int, group: Any = None) -> torch.Tensor:
    """Fill a tensor with what `source` sends, and give it back. Its size and dtype must be the sender's."""
    row = tensor.contiguous()  # itself where its numbers lie in a row, else a copy
    dist.recv(row, group_src=source, group=group)
    return tensor if row is tensor else tensor.copy_(row)


def exchange(outgoing: torch.Tensor, to: int, incoming: torch.Tensor, source: int, group: Any = None) -> None:
    """Send and receive at once. One after the other would hang: all would send, and nobody would receive."""
    for message in start([(outgoing, to)], [(incoming, source)], group):
        message.wait()


def start(
    outgoing: list[tuple[torch.Tensor, int]], incoming: list[tuple[torch.Tensor, int]], group: Any = None
) -> list[dist.Work]:
    """Start many messages at once, each a tensor and the rank it goes to or comes from.

    The tensors must stay as they are until the works that are returned have been waited for.
    """
    sends = [dist.P2POp(dist.isend, tensor, group=group, group_peer=to) for tensor, to in outgoing]
    receives = [dist.P2POp(dist.irecv, tensor, group=group, group_peer=source) for tensor, source in incoming]
    # Receives first: gloo tells a sender that it may start on the connection that our message to it takes.
    # Behind that message the news would wait for all of it, and two ranks would send in turns.
    return dist.batch_isend_irecv([*receives, *sends]) if sends or receives else []
