"""What the experiments give: a training run step by step, and the difference of two of them."""

from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from dpcourse.show import Shown, is_reference
from dpcourse.tables import Table

# One float32 operation errs by 6e-8 of its result. Over some tens of steps with weights below 1 such errors
# add up to 1e-7; a missing average moves weights by 1e-2. The line lies far from both.
ROUNDING = 1e-6


@dataclass(frozen=True, repr=False)
class Trajectory(Shown):
    """A training run: the loss of each step's global batch, and all parameters after 0, 1, ... steps.

    replicas holds, for each rank, an array (steps + 1, number of parameters); `parameters` is rank 0's.
    """

    title: str
    ranks: int
    losses: tuple[float, ...]
    replicas: tuple[np.ndarray, ...]

    @property
    def parameters(self) -> list[np.ndarray]:
        return list(self.replicas[0])

    @property
    def move(self) -> np.ndarray:
        """Where training went: the parameters at the end less those at the start, in float64."""
        start, end = (self.parameters[step].astype(np.float64) for step in (0, -1))
        return end - start

    def __str__(self) -> str:
        return f"{self.title}: the loss goes from {self.losses[0]:.2f} to {self.losses[-1]:.2f}"


@dataclass(frozen=True, repr=False)
class Difference(Shown):
    """How far two runs are apart after 0, 1, ... steps: the largest absolute difference of a parameter, and
    that of the loss on the next global batch (none after the last step, nor between replicas of one run)."""

    title: str
    parameters: tuple[float, ...]
    losses: tuple[float, ...] = ()

    @property
    def steps(self) -> tuple[int, ...]:
        """How many steps were taken at each entry, from 0: the horizontal axis of a picture."""
        return tuple(range(len(self.parameters)))

    @property
    def largest(self) -> float:
        """The largest difference of a parameter, over all steps."""
        return max(self.parameters)

    @property
    def is_rounding(self) -> bool:
        return self.largest <= ROUNDING

    @property
    def verdict(self) -> str:
        if self.largest == 0:
            return "equal bit for bit"
        return "equal to rounding" if self.is_rounding else "different"

    def __str__(self) -> str:
        return f"{self.title}: {self.verdict}{'' if self.largest == 0 else f' ({self._size_text()})'}"

    def _size_text(self) -> str:
        """How large: to two digits, or as a class that is the same on every machine."""
        if not is_reference():
            return f"parameters differ by up to {self.largest:.1e}"
        if self.is_rounding:
            return f"no parameter differs by more than {ROUNDING:.0e}"
        return f"a parameter differs by {'more' if self.largest > 1e-3 else 'less'} than 0.001"

    def table(self) -> Table:
        """Every step as a row; only the verdict in the reference configuration."""
        if is_reference():
            return Table(("compared", "verdict"), [(self.title, self.verdict)])
        losses = [f"{loss:.1e}" for loss in self.losses]
        rows = [
            (str(step), f"{parameter:.1e}", loss)
            for step, parameter, loss in zip_longest(self.steps, self.parameters, losses)
        ]
        return Table(("after step", "largest difference of a parameter", "of the loss"), rows, self.title)

    def plot(self) -> Any:
        from dpcourse.figures import difference_lines

        return difference_lines([self])


def difference(first: Trajectory, second: Trajectory) -> Difference:
    """Compare two runs step by step.

    In exact arithmetic N ranks equal one rank with the same global batch (the chapter on data parallelism,
    section 2). In floating point the additions come in another order, so differences near 1e-8 are right.

    Raises:
        ValueError: the runs have different numbers of steps or of parameters.
    """
    left, right = (run.replicas[0].astype(np.float64) for run in (first, second))
    if left.shape != right.shape:
        raise ValueError(
            f"the first run has {_shape(left)} and the second {_shape(right)}; "
            "train both with the same steps and the same model"
        )
    parameters = np.abs(left - right).max(axis=1)
    losses = np.abs(np.subtract(first.losses, second.losses))
    title = f"{first.title} against {second.title}"
    return Difference(title, tuple(parameters.tolist()), tuple(losses.tolist()))


def _shape(parameters: np.ndarray) -> str:
    return f"{parameters.shape[0] - 1} steps of {parameters.shape[1]:,} parameters"


def replica_difference(run: Trajectory) -> Difference:
    """Compare the ranks of one run: the largest distance of a parameter between two ranks, step by step."""
    replicas = np.stack(run.replicas).astype(np.float64)
    spread = (replicas.max(axis=0) - replicas.min(axis=0)).max(axis=1)
    return Difference(f"the replicas of {run.title}", tuple(spread.tolist()))


def move_difference(first: Trajectory, second: Trajectory) -> float:
    """Say how far two runs end apart, as a share of how far the second moved: 0 is equal, 0.3 is 30 % off."""
    return float(np.linalg.norm(first.move - second.move) / np.linalg.norm(second.move))


def share_text(share: float) -> str:
    """Write a relative difference in percent, "30 %"; where it is rounding, its power of ten alone."""
    if share == 0:
        return "0"
    if share < 1e-4 and is_reference():
        return "below 0.01 %"
    if share < ROUNDING:
        return f"{share:.0e}"
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"
