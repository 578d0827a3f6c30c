"""Comparing what ranks sent with what was expected: exact types first, then values within a bound."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Difference:
    """The first number that is off, in one tensor."""

    index: tuple[int, ...]
    expected: float
    got: float

    def __str__(self) -> str:
        at = f"index {self.index}" if self.index else "its only number"
        return f"{at}: expected {self.expected:.6g}, got {self.got:.6g}"


def wrong_kind(sent: Any, dtype: Any, shape: tuple[int, ...]) -> tuple[str, str] | None:
    """Why `sent` can't be compared, as (mistake, sentence); None when it is exactly such a tensor.

    The array itself is looked at, not what the rank says about it: an object that equals everything
    never comes this far.
    """
    if type(sent) is not dict or sent.get("type") != "Tensor" or type(sent.get("values")) is not np.ndarray:
        found = str(sent.get("type"))[:60] if type(sent) is dict else type(sent).__name__
        return "wrong_type", f"expected a torch.Tensor, got {found}"
    values = sent["values"]
    if values.dtype != np.dtype(dtype) or sent.get("dtype") != np.dtype(dtype).name:
        return "wrong_dtype", f"expected dtype {np.dtype(dtype).name}, got {str(sent.get('dtype'))[:20]}"
    if values.shape != shape:
        return "wrong_shape", f"expected shape {shape}, got {values.shape}"
    return None


def first_difference(got: np.ndarray, expected: np.ndarray, bound: np.ndarray) -> Difference | None:
    """The first number of `got` that is further than `bound` from `expected`; nan is always too far."""
    with np.errstate(invalid="ignore"):
        is_off = ~(np.abs(got.astype(np.float64) - expected) <= bound)
    if not is_off.any():
        return None
    index = tuple(int(axis) for axis in np.argwhere(is_off)[0])
    return Difference(index, float(expected[index]), float(got[index]))


def is_close(got: np.ndarray, expected: np.ndarray, bound: np.ndarray) -> bool:
    """Whether every number of `got` is within `bound` of `expected`."""
    return first_difference(got, expected, bound) is None


def rounding_bound(terms: list[np.ndarray], dtype: Any) -> np.ndarray:
    """How far a sum of `terms` may be from the exact one when it is added up in `dtype`, in any order.

    Each of the N - 1 additions and up to three scalings rounds by at most half an eps of what has been added
    so far, which is at most the sum of the absolute values: (N + 2) * eps * sum |term| is twice that.
    """
    magnitude = np.sum([np.abs(term.astype(np.float64)) for term in terms], axis=0)
    return (len(terms) + 2) * np.finfo(dtype).eps * magnitude
