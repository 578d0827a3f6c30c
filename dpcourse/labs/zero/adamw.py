"""Lab 05: what AdamW on one process would do, in float64, and how far bf16 may be from it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

# eps is as large as the gradients, so that a sum in the place of a mean shows: a small one would hide it.
OPTIONS: dict[str, Any] = {"lr": 0.002, "betas": (0.9, 0.95), "eps": 0.5, "weight_decay": 0.1}
_BITS = 8  # of a bf16 number's digits
# The mean gradient may be rounded to bf16 before it is used: half a spacing of it in each of Adam's means,
# which together move a step by at most this part of the learning rate.
_DRIFT = 2.0**-7


def updated(start: np.ndarray, gradients: Sequence[np.ndarray], forgets: bool = False) -> np.ndarray:
    """The numbers after a step of AdamW for each gradient; forgets: with new states at each step."""
    lr, (beta1, beta2), eps = OPTIONS["lr"], OPTIONS["betas"], OPTIONS["eps"]
    number, first, second = start.astype(np.float64), 0.0, 0.0
    for count, gradient in enumerate(gradients, 1):
        age = 1 if forgets else count
        first, second = (0.0, 0.0) if forgets else (first, second)
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        number = number * (1 - lr * OPTIONS["weight_decay"])
        root = np.sqrt(second / (1 - beta2**age))
        number = number - lr * (first / (1 - beta1**age)) / (root + eps)
    return np.asarray(number)


def bound(exact: np.ndarray, num_steps: int) -> np.ndarray:
    """How far a bf16 number may be from the exact one: half a spacing, and what rounded means move it."""
    _, exponents = np.frexp(exact)
    half_spacing = 2.0 ** (exponents - _BITS - 1)
    return half_spacing * 1.001 + num_steps * OPTIONS["lr"] * _DRIFT


def in_bf16(array: np.ndarray) -> np.ndarray:
    """The numbers cut off to those that bf16 has."""
    bits = np.asarray(array, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return np.asarray(bits.view(np.float32))
