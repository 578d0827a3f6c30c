"""What the parts of a run have in common: each shows its table."""

from typing import TYPE_CHECKING

from dpcourse.ledger import Difference
from dpcourse.show import Shown
from dpcourse.tables import Table, bytes_text

if TYPE_CHECKING:
    from dpcourse.run import Run


class Part(Shown):
    """One part of a run; it shows its table."""

    def __init__(self, run: "Run") -> None:
        self.run = run

    def table(self) -> Table:
        raise NotImplementedError

    def __str__(self) -> str:
        return str(self.table())

    def to_html(self) -> str:
        return self.table().to_html()

    def _caption(self, what: str, rank: int) -> str:
        return f"{what} of rank {rank} of {self.run.world_size}: {self.run.title}"


def texts(item: Difference) -> list[str | None]:
    return [None if value is None else bytes_text(value) for value in (item.measured, item.expected)]
