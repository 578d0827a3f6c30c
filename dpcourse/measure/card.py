"""Bytes that passed an emulated host's card and its loopback, as the kernel counts them for each interface.

All ranks of a host share both, and headers and confirmations count too: a witness beside the count of each
rank's sockets (wire.py).
"""

from pathlib import Path

from dpcourse.ledger import BETWEEN_HOSTS, INSIDE_HOSTS
from dpcourse.ranks.links import CARD, LOOPBACK

_TABLE = Path("/proc/net/dev")  # of the network namespace of whoever reads it
_SENT_COLUMN = 8


def read_card() -> dict[str, int]:
    """Give the bytes sent since the host was made: by its card to other hosts, by its loopback inside."""
    rows = dict(line.split(":") for line in _TABLE.read_text().splitlines() if ":" in line)
    sent = {name.strip(): int(counts.split()[_SENT_COLUMN]) for name, counts in rows.items()}
    return {BETWEEN_HOSTS: sent[CARD], INSIDE_HOSTS: sent[LOOPBACK]}


class CardCounter:
    """Counts what a host sends from one reading to the next."""

    def __init__(self) -> None:
        self._before = read_card()

    def sent_since_last(self) -> dict[str, int]:
        before, self._before = self._before, read_card()
        return {way: count - before[way] for way, count in self._before.items()}
