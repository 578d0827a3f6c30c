"""What a submission may use, and what stands between its code and the grader's machine."""

from dataclasses import asdict, dataclass
from typing import Any

# How strongly students' code is kept apart. Only "none" is there yet.
ISOLATION = {
    "none": "students' code ran as the grader's user, with its files and network; time and output limited",
}
COMING = ("bwrap", "user")


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
