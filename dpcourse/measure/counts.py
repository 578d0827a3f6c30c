"""What this rank sends, by every counter that there is here, as rows of a ledger.

Messages that gloo carries pass sockets, whose bytes the kernel counts (wire.py); NCCL's pass NVLink or PCIe,
where the driver counts them (gpu_links.py). On emulated hosts the same is divided by whether it went to
another host, and each host's card has a count of its own (card.py).
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.distributed as dist

from dpcourse.ledger import CARD_COUNT, HOST_COUNT, KERNEL_COUNT, LINK_COUNT, Transfer
from dpcourse.measure.card import CardCounter
from dpcourse.measure.gpu_links import GpuLinkCounter
from dpcourse.measure.wire import WireCounter
from dpcourse.ranks.links import Links


class GpuCounts:
    """What this rank's GPU sends: `since_last(phase)` at the end of each phase gives rows."""

    def __init__(self) -> None:
        self._counter = GpuLinkCounter(gpu_uuid())

    def since_last(self, phase: str) -> list[Transfer]:
        torch.cuda.synchronize()
        return _rows(LINK_COUNT, self._counter.sent_since_last(), phase)


class CpuCounts:
    """What this rank's sockets send: `since_last(phase)` at the end of each phase gives rows.

    It may compute on a GPU: what counts is that gloo, or the course's own ring, carries its messages.
    links: between emulated hosts; None for a machine as it is. Paced links are one network for the kernel,
    and their messages are counted where they are sent.
    """

    def __init__(self, links: Links | None = None) -> None:
        self._links, self._sockets = links, WireCounter()
        self._messages = _message_counter() if links and links.kind == "paced" else None

    def since_last(self, phase: str) -> list[Transfer]:
        by_way = self._sockets.sent_by_host_since_last()
        rows = _rows(KERNEL_COUNT, {"sockets": sum(by_way.values())} if by_way else {}, phase)
        if self._messages is not None:
            by_way = self._messages.sent_since_last()
        return rows + _rows(HOST_COUNT, by_way if self._links else {}, phase)


def gpu_uuid() -> str:
    """Give the UUID of the GPU that this rank computes on, as nvidia-smi writes it."""
    return f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"


def counts_of(links: Links | None = None) -> GpuCounts | CpuCounts:
    """Make the counters for what carries this rank's messages."""
    return GpuCounts() if dist.get_backend() == "nccl" else CpuCounts(links)


@contextmanager
def card_counted(links: Links | None, transfers: list[Transfer]) -> Iterator[None]:
    """Add rows with what this rank's host sends while this is open, if this is the host's first rank.

    Kernel links alone have cards. All ranks have to open it: nobody may send before or after.
    """
    if links is None or links.kind != "kernel":
        yield
        return
    dist.barrier()
    counter = CardCounter()
    yield
    dist.barrier()
    if os.environ["LOCAL_RANK"] == "0":
        transfers += _rows(CARD_COUNT, counter.sent_since_last(), "step")


def _message_counter():  # type: ignore[no-untyped-def]  # the network is imported where it is used alone
    from dpcourse.network.paced import SentCounter

    return SentCounter()


def _rows(name: str, sent: Mapping[str, int], phase: str) -> list[Transfer]:
    """One row for each way; none without another rank."""
    group = tuple(range(dist.get_world_size()))
    rank = dist.get_rank()
    rows = [Transfer(name, way, group, 0, size, phase, rank) for way, size in sent.items()]
    return rows if len(group) > 1 else []
