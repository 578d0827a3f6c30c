"""Cut a batch over ranks by hand, and see how wrong a mean of means is."""

from typing import Any

from dpcourse.equivalence.weighting import split_error
from dpcourse.figures.canvas import Figure
from dpcourse.figures.split import split_bars
from dpcourse.widgets.controls import Control, number
from dpcourse.widgets.panel import explore

_SAMPLES_PER_RANK = 8


def cut(ranks: int, last: int) -> Figure:
    """The picture for `ranks` ranks of 8 samples each, of which the last has only `last`."""
    return split_bars(split_error(ranks, [_SAMPLES_PER_RANK] * (ranks - 1) + [last]))


def split_explorer(ranks: int = 4, last: int = 2) -> Any:
    """Move the number of ranks and the size of the last rank's share; the picture follows."""

    def controls() -> dict[str, Control]:
        return {
            "ranks": number("Ranks", ranks, 2, 16),
            "last": number("Samples on the last rank", last, 1, 2 * _SAMPLES_PER_RANK),
        }

    return explore(cut, controls, ranks=ranks, last=last)
