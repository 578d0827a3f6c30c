"""Lab 04: an answer at work: what each rank brought and holds, and who sent how much to whom."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpcourse.figures.who_to_whom import who_to_whom
from dpcourse.labs.switch import Log
from dpcourse.show import Shown
from dpcourse.tables import Table

_COLUMNS = ("rank", "brings", "holds after your call", "is to hold", "messages sent", "bytes sent")


@dataclass(frozen=True, repr=False)
class RingPicture(Shown):
    """A table with a row a rank, and a square of boxes: sender by receiver."""

    brought: Sequence[np.ndarray]
    held: Sequence[np.ndarray]
    wanted: Sequence[np.ndarray]
    log: Log

    def _table(self) -> Table:
        columns = zip(self.brought, self.held, self.wanted, strict=True)
        rows = [
            (rank, *map(_text, arrays), len(self.log.sent(rank)), self.log.sent_bytes(rank))
            for rank, arrays in enumerate(columns)
        ]
        return Table(_COLUMNS, rows, "Your call on real ranks")

    def _figure(self) -> Any:
        ranks = range(self.log.world_size)
        sent = [
            [
                sum(event.num_bytes for event in self.log.sent(source) if event.peer == target)
                for target in ranks
            ]
            for source in ranks
        ]
        return who_to_whom(sent, "Who sent how many bytes to whom")

    def __str__(self) -> str:
        return f"{self._table()}\n{self._figure()}"

    def to_html(self) -> str:
        """The same as HTML."""
        return self._table().to_html() + self._figure().to_html()


def _text(array: np.ndarray) -> str:
    return " ".join(f"{number:.1f}" for number in array.ravel())
