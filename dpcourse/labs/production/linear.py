"""A linear model worked out by numpy: what the judge holds training on ranks against."""

from dataclasses import dataclass

import numpy as np

Batch = tuple[np.ndarray, np.ndarray]  # inputs of [rows, 3], targets of [rows, outputs]
NUM_INPUTS = 3


@dataclass(frozen=True)
class Linear:
    """Weight [outputs, 3] and bias [outputs] of an nn.Linear, in float64; or their gradients."""

    weight: np.ndarray
    bias: np.ndarray

    def error(self, batch: Batch) -> np.ndarray:
        """What it gives less what it should give, one row a sample."""
        inputs, targets = batch
        return inputs @ self.weight.T + self.bias - targets

    def loss(self, batch: Batch) -> float:
        """The mean squared error, as F.mse_loss has it."""
        return float(np.mean(self.error(batch) ** 2))

    def gradient(self, batch: Batch) -> "Linear":
        """The gradient of the loss."""
        error = self.error(batch)
        return Linear(2 * error.T @ batch[0] / error.size, 2 * error.sum(axis=0) / error.size)

    def moved(self, direction: "Linear", factor: float) -> "Linear":
        """The parameters after a step of `factor` times the direction."""
        return Linear(self.weight + factor * direction.weight, self.bias + factor * direction.bias)

    @property
    def values(self) -> dict[str, np.ndarray]:
        """The parameters by the names that nn.Linear gives them."""
        return {"weight": self.weight, "bias": self.bias}


def total(gradients: list[Linear], factor: float = 1.0) -> Linear:
    """The sum of gradients, times a factor."""
    weight = np.sum([gradient.weight for gradient in gradients], axis=0)
    return Linear(factor * weight, factor * np.sum([gradient.bias for gradient in gradients], axis=0))


def make_linear(random: np.random.Generator, outputs: int = 1) -> Linear:
    """Random parameters."""
    return Linear(random.standard_normal((outputs, NUM_INPUTS)), random.standard_normal(outputs))


def make_batch(random: np.random.Generator, rows: int, outputs: int = 1) -> Batch:
    """Random samples."""
    return random.standard_normal((rows, NUM_INPUTS)), random.standard_normal((rows, outputs))
