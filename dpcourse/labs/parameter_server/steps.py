"""Lab 02: what two steps through a main rank come to, the right way and in the ways known to be wrong."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

LEARNING_RATE = 0.125
MAIN = 0
Weights = np.ndarray


def gradient(weights: Weights, rows: np.ndarray) -> Weights:
    """Of half the mean squared error of a linear model; a row is its features, then its target."""
    features, targets = rows[:, :-1], rows[:, -1]
    return features.T @ (features @ weights - targets) / len(rows)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Training:
    """Weights that all ranks begin with, and the batch of each step, cut into a share a rank."""

    weights: Weights
    batches: tuple[np.ndarray, ...]
    size: int

    def num_rows(self, step: int) -> list[int]:
        """How many rows each rank gets, as torch.tensor_split cuts."""
        return [len(share) for share in np.array_split(self.batches[step], self.size)]

    def after(self, shares: "Sharing", sign: float = -1, is_stale: bool = False) -> list[Weights]:
        """The main rank's weights after each step.

        shares: what each rank's gradient counts for. is_stale: workers compute with the weights that they
        began with.
        """
        first = weights = self.weights.astype(np.float64)
        found = []
        for batch in self.batches:
            parts = np.array_split(batch.astype(np.float64), self.size)
            held = [weights, *[first if is_stale else weights] * (self.size - 1)]
            gradients = [gradient(*pair) for pair in zip(held, parts, strict=True)]
            factors = shares([len(part) for part in parts])
            whole = sum(f * g for f, g in zip(factors, gradients, strict=True))
            weights = weights + sign * LEARNING_RATE * whole
            found.append(weights)
        return found


# From the ranks' numbers of rows what each gradient counts for.
Sharing = Callable[[list[int]], Sequence[float]]


def by_rows(rows: list[int]) -> list[float]:
    """The right way: in proportion to the rows."""
    return [num / sum(rows) for num in rows]


def ways(training: Training) -> dict[str, list[Weights]]:
    """What the known mistakes make of the weights."""
    return {
        "never_updated": training.after(lambda rows: [0.0] * len(rows)),
        "workers_never_updated": training.after(by_rows, is_stale=True),
        "own_lost": training.after(lambda rows: [0.0, *by_rows(rows)[1:]]),
        "only_own": training.after(lambda rows: [by_rows(rows)[0], *[0.0] * (len(rows) - 1)]),
        "only_own ": training.after(lambda rows: [1.0, *[0.0] * (len(rows) - 1)]),
        "mean_of_means": training.after(lambda rows: [1 / len(rows)] * len(rows)),
        "sum": training.after(lambda rows: [1.0] * len(rows)),
        "not_divided": training.after(lambda rows: [float(num) for num in rows]),
        "divided_by_ranks": training.after(lambda rows: [num / len(rows) for num in rows]),
        "uphill": training.after(by_rows, sign=+1),
    }
