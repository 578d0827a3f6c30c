"""Ranks that torchrun has started, on one machine or on several: this process is one of them.

How it joins the others stands in meeting.py.
"""

import os
from dataclasses import dataclass

_VARIABLES = {
    "rank": "RANK",
    "world_size": "WORLD_SIZE",
    "local_rank": "LOCAL_RANK",
    "ranks_per_host": "LOCAL_WORLD_SIZE",
    "host": "GROUP_RANK",
    "hosts": "GROUP_WORLD_SIZE",
    "port": "MASTER_PORT",
}


@dataclass(frozen=True)
class Member:
    """This process's place among the ranks that torchrun started; they meet at `master`."""

    rank: int
    world_size: int
    local_rank: int
    ranks_per_host: int
    host: int
    hosts: int
    port: int
    master: str

    @property
    def everyone(self) -> range:
        return range(self.world_size)

    @property
    def ranks_here(self) -> range:
        """The ranks on this host; torchrun numbers them host by host."""
        first = self.rank - self.local_rank
        return range(first, first + self.ranks_per_host)


def num_ranks() -> int | None:
    """How many ranks torchrun has started; None where it has started none."""
    member = found()
    return member.world_size if member else None


def found() -> Member | None:
    """Read this process's place from its environment; None where torchrun has not started it.

    Raises ValueError for an environment that torchrun would not have made.
    """
    environ = os.environ
    if not all(name in environ for name in (*_VARIABLES.values(), "MASTER_ADDR", "TORCHELASTIC_RUN_ID")):
        return None
    try:
        numbers = {field: int(environ[name]) for field, name in _VARIABLES.items()}
    except ValueError:
        said = ", ".join(f"{name}={environ[name]!r}" for name in _VARIABLES.values())
        raise ValueError(
            f"the environment says {said}, not all of them numbers; start with torchrun"
        ) from None
    return Member(**numbers, master=environ["MASTER_ADDR"])
