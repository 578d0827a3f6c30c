"""Hosts that the Linux kernel emulates: each a network namespace with a card of its own, on one switch.

A namespace is what a process sees as "the network". Here each host has a card called eth0, joined to a port
of a switch (a bridge) in one more namespace; the kernel lets no more bytes pass than the card's rate allows,
in either direction, and counts them. Ranks on one host talk over that host's loopback. No root is needed
where the system allows user namespaces, and nothing is to be cleared up: a namespace lasts as long as a
process is in it or holds its file.

Sources: namespaces(7), network_namespaces(7), veth(4), tc-tbf(8); pyroute2 speaks to the kernel.
"""

import contextlib
import ctypes
import errno
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from dpcourse.ranks.links import CARD, LOOPBACK, NETWORK, Links

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_SWITCH = "switch"
_LIMIT_HANDLE, _DELAY_HANDLE = 0x10000, 0x20000
# A queue that never drops: TCP keeps a few packets of each connection in it, and waits.
_QUEUE_BYTES = 1 << 26
# What passes at once before the rate is kept: little, so that a small message takes its time too. A larger
# packet would be dropped. Large packets are few: headers are 0.4 %, and a busy machine keeps the rate.
_PACKET_BYTES, _LEAST_BURST_BYTES, _BURST_SECONDS = 16_000, 32_000, 300e-6


class NoHostsError(RuntimeError):
    """This system lets no process make network namespaces, or a part of the kernel is missing."""


def make_hosts(links: Links) -> list[int]:
    """Make the hosts; give an open file for each host's namespace, which `enter` takes.

    The calling process must have one thread. It ends up in the switch's namespace.
    Raises NoHostsError.
    """
    hosts, switch = make_namespaces(links.hosts)
    _in_a_child(lambda: _furnish(hosts, switch, links))
    return (
        hosts  # the switch's file stays open: without it the cards would go once this process enters a host
    )


def make_namespaces(count: int) -> tuple[list[int], int]:
    """Make `count` bare namespaces and one for the switch; give an open file for each."""
    _leave_the_network()
    switch = _own_namespace()
    hosts = []
    for _ in range(count):
        _call("unshare", _NEW_NET)
        hosts.append(_own_namespace())
    enter(switch)
    return hosts, switch


def enter(namespace: int) -> None:
    """Move this thread into a network namespace, given as an open file."""
    _call("setns", namespace, _NEW_NET)


def _own_namespace() -> int:
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _leave_the_network() -> None:
    """Get a network namespace of one's own: as root at once, else as the root of a new user namespace."""
    if sys.platform != "linux":
        raise NoHostsError("network namespaces are Linux's own")
    try:
        _call("unshare", _NEW_NET)
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
        try:
            _call("unshare", _NEW_USER | _NEW_NET)
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"{user} {user} 1")
            _write("/proc/self/gid_map", f"{group} {group} 1")
        except OSError as error:
            raise NoHostsError(f"this user may make no namespaces ({_reason(error)})") from None
    except OSError as error:
        raise NoHostsError(f"no namespace can be made ({_reason(error)})") from None


def _reason(error: OSError) -> str:
    """Say why; the system's own words for its limit on namespaces speak of a disk."""
    return "the system's limit on them is reached" if error.errno == errno.ENOSPC else str(error.strerror)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _call(name: str, *arguments: int) -> None:
    """Call the C library; os.unshare and os.setns came with Python 3.12."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _in_a_child(work: Callable[[], None]) -> None:
    """Do `work` in a fork, so that nothing which a library opens or starts stays in this process."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        problem = ""
        try:
            work()
        except BaseException as error:
            problem = describe(error)
        with contextlib.suppress(OSError):
            os.write(writing, problem.encode()[:4000])
        os._exit(bool(problem))
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        problem = answer.read().decode(errors="replace")
    _, status = os.waitpid(pid, 0)
    if problem or status:
        raise NoHostsError(problem or f"the process that makes them ended with {status}")


def describe(error: BaseException) -> str:
    """Say in words what is missing."""
    if isinstance(error, ImportError):
        return f"the package pyroute2 cannot be imported ({error}); install it"
    step = getattr(error, "step", "")
    if step:
        return f"the kernel refused to make {step} ({error.__cause__})"
    return "".join(traceback.format_exception_only(error)).strip()


class _StepError(Exception):
    def __init__(self, step: str) -> None:
        super().__init__(step)
        self.step = step


@contextlib.contextmanager
def _making(step: str) -> Any:
    try:
        yield
    except Exception as error:
        raise _StepError(step) from error


def _furnish(hosts: list[int], switch: int, links: Links) -> None:
    """Give each host its card, address and rates, and join the cards."""
    from pyroute2 import IPRoute

    for number, host in enumerate(hosts):
        enter(host)
        with IPRoute() as ip:
            _furnish_host(ip, number, switch, links)
    enter(switch)
    with IPRoute() as ip, _making("a switch (a bridge)"):
        ip.link("add", ifname=_SWITCH, kind="bridge")
        bridge = _index(ip, _SWITCH)
        ip.link("set", index=bridge, state="up")
        for number in range(len(hosts)):
            port = _index(ip, _port(number))
            ip.link("set", index=port, master=bridge, state="up")
            _limit(ip, port, links.inter_bytes_per_second)


def _furnish_host(ip: Any, number: int, switch: int, links: Links) -> None:
    _without_ipv6()
    with _making("a card (veth)"):
        ip.link("add", ifname=CARD, kind="veth", peer={"ifname": _port(number), "net_ns_fd": switch})
    card, loopback = _index(ip, CARD), _index(ip, LOOPBACK)
    with _making("an address"):
        ip.addr("add", index=card, address=links.address_of(number), prefixlen=NETWORK.prefixlen)
        ip.link("set", index=loopback, state="up")
        ip.link("set", index=card, state="up")
    _limit(ip, loopback, links.intra_bytes_per_second)
    _limit(ip, card, links.inter_bytes_per_second, links.latency_seconds)


def _port(number: int) -> str:
    return f"port{number}"


def _index(ip: Any, name: str) -> int:
    return ip.link_lookup(ifname=name)[0]


def _limit(ip: Any, index: int, bytes_per_second: float | None, latency_seconds: float = 0.0) -> None:
    """Keep what leaves by an interface to a rate, by a token bucket, and delay it."""
    if bytes_per_second is None:
        return
    burst = max(_LEAST_BURST_BYTES, int(bytes_per_second * _BURST_SECONDS))
    with _making("a limited rate (tbf)"):
        ip.link("set", index=index, mtu=_PACKET_BYTES, gso_max_size=_PACKET_BYTES)
        rate = max(1, round(bytes_per_second))
        ip.tc("add", "tbf", index, _LIMIT_HANDLE, rate=rate, burst=burst, limit=_QUEUE_BYTES)
    if latency_seconds:
        with _making("a latency (netem)"):
            microseconds = max(1, round(1e6 * latency_seconds))
            queue = _QUEUE_BYTES // _PACKET_BYTES
            ip.tc("add", "netem", index, _DELAY_HANDLE, parent=_LIMIT_HANDLE, delay=microseconds, limit=queue)


def _without_ipv6() -> None:
    """A link-local address would be one more that a library could choose."""
    with contextlib.suppress(OSError):
        _write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1")
        _write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")
