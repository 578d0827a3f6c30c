"""Several runs side by side: one table, one figure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dpcourse.run import Run
from dpcourse.show import Shown, is_reference
from dpcourse.tables import Table, seconds_text


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """Several runs side by side: one table, one figure."""

    runs: tuple[Run, ...]

    def table(self) -> Table:
        columns = ["run", "held per parameter", "sent per parameter-byte", "collectives", "last loss"]
        rows = [_comparison_row(run) for run in self.runs]
        if is_reference():
            return Table(columns, rows)
        times = [[seconds_text(run.median_step_seconds) if run.is_trained else None] for run in self.runs]
        return Table([*columns, "step"], [row + time for row, time in zip(rows, times, strict=True)])

    def plot(self) -> Any:
        from dpcourse.figures import compare_bars

        return compare_bars(self.runs)

    def __str__(self) -> str:
        return str(self.table())

    def to_html(self) -> str:
        return self.table().to_html()


def compare(runs: Iterable[Run]) -> Comparison:
    """Lay runs side by side: what rank 0 of each holds, sends and takes, and where the loss went.

    What comes back prints a table and draws itself with `.plot()`.

    Raises ValueError for no run at all, TypeError for what is no list of runs.
    """
    runs = tuple(runs) if isinstance(runs, Iterable) else (runs,)
    for item in runs:
        if not isinstance(item, Run):
            raise TypeError(f"compare was given {item!r}; give it a list of what dc.train returned")
    if not runs:
        raise ValueError("compare was given no run; give it a list of what dc.train returned")
    return Comparison(runs)


def _comparison_row(run: Run) -> list[Any]:
    sent = run.traffic.sent_per_parameter_byte()
    return [
        run.title,
        f"{run.memory.bytes_per_parameter():.2f}",
        None if sent is None else f"{sent:.2f}",
        run.traffic.num_collectives(),
        f"{run.mean_losses[-1]:.{2 if is_reference() else 4}f}" if run.is_trained else None,
    ]
