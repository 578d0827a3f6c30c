"""How far a strategy scales on your own hosts and link: move them, and each strategy's wall moves."""

from typing import Any

from dpcourse.figures.canvas import Figure
from dpcourse.figures.scaling import scaling_lines
from dpcourse.scaling import MOST_RANKS, Link, Machine, scale
from dpcourse.theory.step import EXAMPLE_MACHINE
from dpcourse.widgets.controls import Control, number
from dpcourse.widgets.panel import explore

_GIGABIT, _MICROSECOND = 10**9 / 8, 1e-6
_MOST_PER_HOST = 16


def scaling_at(hosts: int, ranks_per_host: int, latency: int, rate: int) -> Figure:
    """The picture for hosts that are reached after `latency` us, with `rate` Gbit/s for each host.

    Raises ValueError for more ranks than the model was thought through for.
    """
    link = Link(latency * _MICROSECOND, rate * _GIGABIT)
    machine = Machine(link, EXAMPLE_MACHINE.intra, ranks_per_host)
    chosen, most = hosts * ranks_per_host, MOST_RANKS - MOST_RANKS % ranks_per_host
    if chosen > most:
        raise ValueError(
            f"{hosts:,} hosts of {ranks_per_host} ranks are {chosen:,} ranks; the model was thought through "
            f"up to {MOST_RANKS:,}: give fewer"
        )
    few = range(1, ranks_per_host + 1) if ranks_per_host <= 2 else (1, ranks_per_host)
    counts = {n for n in few if ranks_per_host % n == 0}
    counts |= {ranks_per_host * 2**k for k in range(18) if ranks_per_host * 2**k <= most} | {chosen, most}
    return scaling_lines(scale(machine=machine, ranks=sorted(counts)), mark=chosen)


def scaling_sliders(hosts: int = 64, ranks_per_host: int = 8, latency: int = 14, rate: int = 1600) -> Any:
    """Move the hosts, the ranks on each and the link between hosts; steps and walls follow, computed.

    latency: microseconds from host to host. rate: Gbit/s of each host's card, shared by its ranks.
    """

    def controls() -> dict[str, Control]:
        return {
            "hosts": number("Hosts", hosts, 1, MOST_RANKS, is_doubling=True),
            "ranks_per_host": number("Ranks per host", ranks_per_host, 1, _MOST_PER_HOST),
            "latency": number("Latency between hosts (us)", latency, 1, 1000, is_doubling=True),
            "rate": number("Rate of a host (Gbit/s)", rate, 1, 6400, is_doubling=True),
        }

    first = {"hosts": hosts, "ranks_per_host": ranks_per_host, "latency": latency, "rate": rate}
    return explore(scaling_at, controls, **first)
