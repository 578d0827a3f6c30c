"""What a submission may use."""

import os
from dataclasses import asdict, dataclass
from typing import Any

# For a worker to import all that it forks from: seconds, but a machine that is busy is no reason to fail.
START_SECONDS = 300.0


@dataclass(frozen=True)
class Limits:
    """Seconds and bytes that one submission may use.

    run_seconds: the whole notebook. cell_seconds: one cell of it. case_seconds: one run of an answer on its
    ranks. output_bytes: what a cell may show before the rest is left out.
    """

    run_seconds: float = 300.0
    cell_seconds: float = 120.0
    case_seconds: float = 20.0
    output_bytes: int = 200_000

    def as_dict(self) -> dict[str, Any]:
        """The limits as JSON types."""
        return asdict(self)


def _most_memory() -> int:
    """4 GB, or half of a machine that has less than 8."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(4_000_000_000, total // 2)


@dataclass(frozen=True)
class Caps:
    """What students' code may take of the machine while it is kept apart.

    memory_bytes: address space of a process beyond that of its libraries (see capped.py), and real memory of
    all together. num_processes: threads count too, as the kernel counts them. file_bytes: one file.
    disk_bytes: all files together.
    """

    memory_bytes: int = _most_memory()
    num_processes: int = 400
    file_bytes: int = 500_000_000
    disk_bytes: int = 500_000_000

    def words(self) -> list[str]:
        """The limits that the kernel keeps from the start on, as `enter.py` takes them."""
        return [f"NPROC={self.num_processes}", f"FSIZE={self.file_bytes}", "CORE=0"]

    def as_dict(self) -> dict[str, Any]:
        """The limits as JSON types."""
        return asdict(self)
