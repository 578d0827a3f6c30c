"""What a plan runs on: cards with their memory and speed, how many on a host, and what joins them."""

from dataclasses import dataclass
from typing import Any

from dpcourse.checks import check_count, divided
from dpcourse.quantities import rate_text, read_bytes, read_rate
from dpcourse.strategies import check_name
from dpcourse.tables import bytes_text
from dpcourse.theory.hierarchy import Machine
from dpcourse.theory.links import Link

RANKS_PER_HOST = 8
_MOST_GPUS = 2**17  # every card is listed in every collective's group
# Latencies as in NCCL's own estimate of a ring (src/graph/tuning.cc).
_INSIDE_SECONDS, _BETWEEN_SECONDS = 3.4e-6, 14e-6
GB = 10**9
_OTHERWISE = ", or give hosts= or ranks_per_host="


@dataclass(frozen=True)
class Card:
    """A GPU as its maker describes it: memory, dense operations in a second, and what joins it to others.

    inside: bytes per second that it sends to another of its host (one direction of NVLink, or PCIe).
    between: that a host of eight usually sends to others; hosts differ, so it is an assumption.
    """

    name: str
    memory_bytes: int
    bf16_per_second: float
    fp32_per_second: float
    inside_bytes_per_second: float
    between_bytes_per_second: float


# Data sheets: dense operations without sparsity; fp32 as TF32 where the card has it.
CARDS = {
    card.name: card
    for card in (
        Card("v100-32gb", 32 * GB, 125e12, 15.7e12, 150e9, 50e9),
        Card("a100-40gb", 40 * GB, 312e12, 156e12, 300e9, 200e9),
        Card("a100-80gb", 80 * GB, 312e12, 156e12, 300e9, 200e9),
        Card("h100-80gb", 80 * GB, 989e12, 495e12, 450e9, 400e9),
        Card("h200-141gb", 141 * GB, 989e12, 495e12, 450e9, 400e9),
        Card("l4-24gb", 24 * GB, 121e12, 60e12, 32e9, 12.5e9),
        Card("l40s-48gb", 48 * GB, 362e12, 183e12, 32e9, 12.5e9),
        Card("rtx-4090-24gb", 24 * GB, 165e12, 82.6e12, 32e9, 12.5e9),
    )
}
DEFAULT_CARD = "a100-80gb"


@dataclass(frozen=True)
class Hardware:
    """Cards on hosts; `assumed` says what was not given."""

    num_gpus: int
    num_hosts: int
    capacity_bytes: int
    card: Card
    machine: Machine
    assumed: tuple[str, ...] = ()

    @property
    def ranks_per_host(self) -> int:
        return self.num_gpus // self.num_hosts

    def operations_per_second(self, dtype: str) -> float:
        return self.card.fp32_per_second if dtype == "float32" else self.card.bf16_per_second

    def __str__(self) -> str:
        shape = f"{self.num_gpus:,} card{'s'[: self.num_gpus > 1]} of {bytes_text(self.capacity_bytes)}"
        if self.num_hosts == 1:
            return shape
        return f"{shape} on {self.num_hosts:,} hosts of {self.ranks_per_host}"


def read_hardware(
    gpus: Any, gpu_memory: Any, gpu: Any, hosts: Any, ranks_per_host: Any, intra: Any, inter: Any
) -> Hardware:
    """Read what was asked for.

    Raises ValueError for numbers that are none, ranks that fill no hosts, memory without a unit, and a card
    that there is not.
    """
    check_count("gpus", gpus)
    if gpus > _MOST_GPUS:
        raise ValueError(f"gpus={gpus:,}: a plan is made for up to {_MOST_GPUS:,} cards; give fewer")
    num_hosts = _num_hosts(gpus, hosts, ranks_per_host)
    if gpu is not None:
        check_name("gpu", gpu, CARDS)
    card, assumed = CARDS[gpu or DEFAULT_CARD], []
    if gpu is None:
        assumed.append(f"speeds of an {DEFAULT_CARD} (give gpu= for another)")
    if gpu is None and gpu_memory is None:
        assumed.append(f"{bytes_text(card.memory_bytes)} a card (give gpu_memory=)")
    inside = _rate("intra", intra, card.inside_bytes_per_second)
    between = _rate("inter", inter, card.between_bytes_per_second)
    if intra is None and gpus > num_hosts:
        assumed.append(f"{rate_text(inside)} from card to card inside a host (give intra=)")
    if inter is None and num_hosts > 1:
        assumed.append(f"{rate_text(between)} out of each host (give inter=)")
    memory = card.memory_bytes if gpu_memory is None else read_bytes("gpu_memory", gpu_memory)
    machine = Machine(Link(_BETWEEN_SECONDS, between), Link(_INSIDE_SECONDS, inside), gpus // num_hosts)
    return Hardware(gpus, num_hosts, memory, card, machine, tuple(assumed))


def _rate(what: str, asked: Any, otherwise: float) -> float:
    return otherwise if asked is None else read_rate(what, asked)


def _num_hosts(gpus: int, hosts: Any, ranks_per_host: Any) -> int:
    """Find the hosts from any of the two numbers; alone, up to eight cards are taken to be on one host."""
    for what, asked in (("hosts", hosts), ("ranks_per_host", ranks_per_host)):
        if asked is not None:
            check_count(what, asked)
    if hosts is None:
        per_host = ranks_per_host or min(gpus, RANKS_PER_HOST)
        return divided("gpus", gpus, "ranks_per_host", per_host, _OTHERWISE)
    if ranks_per_host is not None and hosts * ranks_per_host != gpus:
        raise ValueError(
            f"gpus={gpus} were asked for, and hosts={hosts} with ranks_per_host={ranks_per_host} make "
            f"{hosts * ranks_per_host}; leave hosts or ranks_per_host out"
        )
    divided("gpus", gpus, "hosts", hosts, _OTHERWISE)
    return hosts
