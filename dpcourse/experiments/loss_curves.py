"""Losses of several runs, step by step: the same as the first run's, or from which step on they differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpcourse.experiments.base import Experiment, stable_table
from dpcourse.tables import Table


@dataclass(frozen=True, repr=False)
class LossCurves(Experiment):
    """Named runs of one training; the first is what the others are held to."""

    runs: Mapping[str, Sequence[float]]

    @property
    def first(self) -> Sequence[float]:
        return next(iter(self.runs.values()))

    def differences(self, name: str) -> list[float]:
        """How far each step's loss is from the first run's."""
        return [abs(a - b) for a, b in zip(self.runs[name], self.first, strict=True)]

    def differs_from(self, name: str) -> int | None:
        """The first step, counted from 1, whose loss is another than the first run's; None where none is."""
        return next((step for step, apart in enumerate(self.differences(name), start=1) if apart), None)

    def table(self) -> Table:
        columns = ["run", "steps", "equal to the first run's", "differs from step", "largest difference"]
        return stable_table(columns, [self._row(name) for name in self.runs], 4, "losses, step by step")

    def _row(self, name: str) -> list[Any]:
        apart = self.differences(name)
        return [name, len(apart), apart.count(0), self.differs_from(name), f"{max(apart):.1e}"]

    def words(self) -> str:
        equal = [name for name in list(self.runs)[1:] if self.differs_from(name) is None]
        other = [name for name in list(self.runs)[1:] if name not in equal]
        said = [f"Equal to the last bit: {', '.join(equal)}."] if equal else []
        return " ".join(
            [*said, *(f"{name}: others from step {self.differs_from(name)} on." for name in other)]
        )

    def plot(self) -> Any:
        """Draw the losses over the steps."""
        from dpcourse.figures import loss_lines

        return loss_lines(self)


def loss_curves(runs: Mapping[str, Sequence[float]]) -> LossCurves:
    """Hold the losses of runs to those of the first.

    Args:
        runs: for each run a name and its losses, one a step; all of the same length.

    Raises:
        ValueError: no runs, a run without steps, or runs of unlike length.
    """
    lengths = {name: len(losses) for name, losses in runs.items()}
    if not lengths or len(set(lengths.values())) > 1 or 0 in lengths.values():
        raise ValueError(
            f"losses of runs as long as each other were asked for, and these have {lengths} steps"
        )
    return LossCurves({name: tuple(losses) for name, losses in runs.items()})
