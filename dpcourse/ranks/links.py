"""Emulated hosts: which ranks share a host, and how fast the hosts' cards are."""

import ipaddress
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from dpcourse.checks import check_choice, check_count, divided
from dpcourse.quantities import rate_text, read_rate, read_seconds
from dpcourse.show import is_reference
from dpcourse.tables import seconds_text
from dpcourse.theory.links import Link

KINDS = ("kernel", "paced")
NETWORK = ipaddress.ip_network("10.77.0.0/24")  # of the emulated hosts, in a namespace of their own
_NO_NETEM = "latency was asked for, and this kernel has no netem, which delays packets"
MOST_HOSTS = NETWORK.num_addresses - 2
CARD, LOOPBACK = "eth0", "lo"  # what joins a host to the others, and its own ranks to one another
DEFAULT_INTER = "1gbit"
# What the kernel's token bucket keeps: it lets 32 kB pass at once, and counts bytes per second in 32 bits.
KERNEL_BYTES_PER_SECOND = (125e3, 2.0**32 - 1)
EXPLANATIONS = {
    "kernel": "each host a network namespace, its card's rate kept by the kernel",
    "paced": "one network, on which each message is held to its host's rate and latency in user space",
}


@dataclass(frozen=True)
class Links:
    """What joins the ranks of emulated hosts; rank r is on host r // ranks_per_host.

    kind: "kernel" or "paced", see EXPLANATIONS. Each host has one card, which its ranks share and which sends
    and receives at the rate of `inter` at once; within a host `intra` holds. None is as fast as the machine
    goes.
    """

    kind: str
    hosts: int
    ranks_per_host: int
    inter_bytes_per_second: float | None
    intra_bytes_per_second: float | None
    latency_seconds: float = 0.0

    @property
    def inter(self) -> Link:
        """The link between two hosts; it alone has the latency."""
        return Link(self.latency_seconds, self.inter_bytes_per_second or math.inf)

    @property
    def intra(self) -> Link:
        """The link between two ranks of a host."""
        return Link(0.0, self.intra_bytes_per_second or math.inf)

    def host_of(self, rank: int) -> int:
        return rank // self.ranks_per_host

    def address_of(self, host: int) -> str:
        """Give a host's address where it has one of its own (kernel links)."""
        return str(NETWORK[host + 1])

    def crosses(self, ranks: Iterable[int]) -> bool:
        """Tell whether ranks are on more than one host."""
        return len({self.host_of(rank) for rank in ranks}) > 1

    @property
    def title(self) -> str:
        """Say hosts and kind, as a figure's title does."""
        return f"{self.hosts} x {self.ranks_per_host} ranks ({self.kind} links)"

    def __str__(self) -> str:
        """Say hosts, rates and kind, as a record does."""
        text = f"{self.hosts} x {self.ranks_per_host} ranks"
        if self.hosts > 1:
            rate = self.inter_bytes_per_second
            text += f", {rate_text(rate) if rate else 'no limit'} between hosts"
            text += f" after {seconds_text(self.latency_seconds)}" if self.latency_seconds else ""
        if self.intra_bytes_per_second:
            text += f", {rate_text(self.intra_bytes_per_second)} inside"
        return f"{text} ({self.kind} links)"


def read_shape(ranks: Any, hosts: Any, ranks_per_host: Any) -> tuple[int, int]:
    """Find how many hosts and ranks on each are asked for, from any two of three numbers.

    Raises ValueError for numbers that are none, and for ranks that do not divide.
    """
    for what, asked in (("ranks", ranks), ("hosts", hosts), ("ranks_per_host", ranks_per_host)):
        if asked is not None:
            check_count(what, asked)
    if hosts is None:
        hosts = divided("ranks", ranks, "ranks_per_host", ranks_per_host) if ranks and ranks_per_host else 1
    if ranks_per_host is None:
        ranks_per_host = divided("ranks", ranks, "hosts", hosts) if ranks else 2 if hosts == 1 else 1
    if ranks not in (None, hosts * ranks_per_host):
        raise ValueError(
            f"ranks={ranks} were asked for, and hosts={hosts} with ranks_per_host={ranks_per_host} make "
            f"{hosts * ranks_per_host}; leave one of the three out"
        )
    if hosts > MOST_HOSTS:
        raise ValueError(
            f"hosts={hosts}: the emulated network has {MOST_HOSTS} addresses; ask for at most as many, or "
            "compute beyond (dpcourse.scaling)"
        )
    return hosts, ranks_per_host


def make_links(shape: tuple[int, int], inter: Any, intra: Any, latency: Any, kind: str | None) -> Links:
    """Read rates and latency, and choose the kind: kernel links where they work, else paced ones.

    Paced ones in the reference configuration, whose words have to be the same on every machine.
    Raises ValueError for what cannot be had, with the reason and the way out.
    """
    if kind is None and is_reference():
        kind = "paced"
    if kind is not None:
        check_choice("links", kind, (*KINDS, None))
    hosts, ranks_per_host = shape
    if hosts == 1 and (inter is not None or latency is not None):
        asked = f"inter={inter!r}" if inter is not None else f"latency={latency!r}"
        raise ValueError(
            f"{asked} is between hosts, and there is one host; ask for hosts=2 or more, or for intra="
        )
    rates = (
        read_rate("inter", DEFAULT_INTER if inter is None else inter) if hosts > 1 else None,
        None if intra is None else read_rate("intra", intra),
    )
    seconds = 0.0 if latency is None else read_seconds("latency", latency)
    links = Links(kind or "kernel", hosts, ranks_per_host, *rates, seconds)
    missing = "" if kind == "paced" else _missing(links)
    if kind == "kernel" and missing:
        raise ValueError(
            f'links="kernel" was asked for, and they do not work here: {missing}. Ask for links="paced", or '
            "leave links out" + (", or leave latency out" if missing == _NO_NETEM else "")
        )
    return replace(links, kind="paced") if missing else links


def _missing(links: Links) -> str:
    """Say why there can be no such kernel links; nothing where there can."""
    from dpcourse.network.probe import kernel_links

    least, most = KERNEL_BYTES_PER_SECOND
    for rate in (links.inter_bytes_per_second, links.intra_bytes_per_second):
        if rate is not None and not least <= rate <= most:
            kept = f"{rate_text(least)} to {rate_text(most)}"
            return f"they keep rates from {kept}, and {rate_text(rate)} was asked for"
    found = kernel_links()
    return found.problem or ("" if found.has_latency or not links.latency_seconds else _NO_NETEM)
