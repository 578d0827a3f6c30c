"""Bytes that this process put on the wire, as the kernel counts them for each of its TCP sockets.

Linux keeps the counters (TCP_INFO) and lets a process read its own without privileges. Elsewhere there are
none, and the count is None.
"""

import os
import socket
import stat
import struct
import sys
import time
from dataclasses import dataclass

from dpcourse.ledger import BETWEEN_HOSTS, INSIDE_HOSTS

# Positions in struct tcp_info, include/uapi/linux/tcp.h (all since Linux 4.19).
_NOT_SENT, _ACKED, _SENT, _RETRANSMITTED = 144, 120, 200, 208
_INFO_BYTES = 216
_SETTLE_SECONDS = 1.0


@dataclass(frozen=True)
class SocketCount:
    """One socket's counters: bytes sent (repeats left out), confirmed by the peer, and still queued.

    is_inside: the other end has the same address, and so is on the same host.
    """

    sent_bytes: int
    acked_bytes: int
    queued_bytes: int
    is_inside: bool


def is_available() -> bool:
    """Tell whether this system counts bytes for each socket."""
    return sys.platform == "linux"


def read_sockets() -> dict[int, SocketCount]:
    """Read the counters of all TCP sockets of this process, by the socket's inode."""
    counts = {}
    for entry in os.listdir("/proc/self/fd"):
        found = _read_descriptor(int(entry))
        if found is not None:
            counts[found[0]] = found[1]
    return counts


def _read_descriptor(descriptor: int) -> tuple[int, SocketCount] | None:
    """Read one descriptor's counters; None where it is no TCP socket, or closed since it was listed."""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISSOCK(status.st_mode):
            return None
        with socket.socket(fileno=os.dup(descriptor)) as sock:
            if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
                return None
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
            is_inside = _has_peer_here(sock)
    except OSError:
        return None
    return (status.st_ino, _parse(info, is_inside)) if len(info) == _INFO_BYTES else None


def _has_peer_here(sock: socket.socket) -> bool:
    try:
        return sock.getpeername()[0] == sock.getsockname()[0]
    except OSError:  # it listens, or has lost its peer: nothing is sent on it
        return True


def _parse(info: bytes, is_inside: bool) -> SocketCount:
    acked, sent, retransmitted = (
        struct.unpack_from("=Q", info, place)[0] for place in (_ACKED, _SENT, _RETRANSMITTED)
    )
    return SocketCount(sent - retransmitted, acked, struct.unpack_from("=I", info, _NOT_SENT)[0], is_inside)


class WireCounter:
    """Counts what this process sends from one reading to the next.

    A socket that was seen once is never dropped: a sum over the sockets of the moment comes out too small,
    even negative, when one is closed or missed.
    """

    def __init__(self) -> None:
        self._sent: dict[int, int] = {}
        self._leads_elsewhere: dict[int, bool] = {}
        self._total = self._read_settled() if is_available() else 0
        self._elsewhere = self._sent_elsewhere()

    def sent_since_last(self) -> int | None:
        """Read all sockets again and count the bytes sent since the last reading; None off Linux."""
        if not is_available():
            return None
        before, self._total = self._total, self._read_settled()
        return self._total - before

    def sent_by_host_since_last(self) -> dict[str, int]:
        """Read and count the same, divided by where it went; nothing off Linux."""
        whole = self.sent_since_last()
        if whole is None:
            return {}
        before, self._elsewhere = self._elsewhere, self._sent_elsewhere()
        between = self._elsewhere - before
        return {BETWEEN_HOSTS: between, INSIDE_HOSTS: whole - between}

    def _sent_elsewhere(self) -> int:
        return sum(count for inode, count in self._sent.items() if self._leads_elsewhere[inode])

    def _read_settled(self) -> int:
        """Read until the kernel has nothing left to send: what still waits is not counted as sent."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while self._read_all() and time.monotonic() < deadline:
            os.sched_yield()
        return sum(self._sent.values())

    def _read_all(self) -> int:
        """Note each socket's count; give the bytes that still wait to be sent."""
        counts = read_sockets()
        if self._sent.keys() - counts.keys():  # missed in one reading, or closed: look once more
            counts |= read_sockets()
        self._sent |= {inode: count.sent_bytes for inode, count in counts.items()}
        for (
            inode,
            count,
        ) in counts.items():  # a socket that was closed by its peer no longer says where it led
            self._leads_elsewhere.setdefault(inode, not count.is_inside)
        return sum(count.queued_bytes for count in counts.values())
