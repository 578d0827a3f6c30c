"""What the parts of a run have in common: each shows its table."""

from typing import TYPE_CHECKING

from dpcourse.ledger import Difference
from dpcourse.show import Shown
from dpcourse.tables import Table, bytes_text

if TYPE_CHECKING:
    from dpcourse.run import RankRecord, Run


class Part(Shown):
    """One part of a run; it shows its table."""

    def __init__(self, run: "Run") -> None:
        self.run = run

    @property
    def ranks(self) -> list[int]:
        """The ranks that have a record: all of a run's, one of a dry run's."""
        return [record.rank for record in self.run.records]

    def record(self, rank: int) -> "RankRecord":
        return self.run.records[self.ranks.index(rank)]

    def chosen(self, rank: int | None) -> int:
        """Give the rank that is asked for; None is the first that has a record.

        Raises ValueError for a rank without a record.
        """
        ranks = self.ranks
        if rank is not None and rank not in ranks:
            there = f"rank {ranks[0]} alone has one" if len(ranks) == 1 else f"give one from 0 to {ranks[-1]}"
            raise ValueError(f"rank {rank} has no record in this run; {there}")
        return ranks[0] if rank is None else rank

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
