"""Judging sums over ranks: do every rank's tensors hold them, and if not, what went wrong most likely?"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpcourse.labs.question import Finding, Target
from dpcourse.labs.tensors import first_difference, is_close, rounding_bound, wrong_kind

Tensors = list[np.ndarray]


@dataclass(frozen=True)
class Sums:
    """What each rank was given, its part of the exact result, and what it sent after the call.

    given: each rank's tensors as they went in. parts: the same shapes in float64; the result is their sum.
    held: what each rank says its tensors hold now. other: what it returned or put into the list instead.
    """

    title: str
    given: list[Tensors]
    parts: list[Tensors]
    held: list[Any]
    other: list[Any]

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return len(self.given)

    @cached_property
    def expected(self) -> Tensors:
        """The exact result, one float64 array a tensor."""
        return [np.sum(parts, axis=0) for parts in zip(*self.parts, strict=True)]

    @cached_property
    def bounds(self) -> Tensors:
        """How far rounding may take each number from it."""
        columns = zip(*self.parts, self.given[0], strict=True)
        return [rounding_bound(list(column[:-1]), column[-1].dtype) for column in columns]

    @cached_property
    def got(self) -> list[Tensors]:
        """The values that each rank's tensors hold."""
        return [[tensor["values"] for tensor in tensors] for tensors in self.held]

    @cached_property
    def is_right(self) -> list[list[bool]]:
        """For each rank and tensor: does it hold the result?"""
        return [self.matches(tensors) for tensors in self.got]

    def matches(self, tensors: Tensors, factor: float = 1.0) -> list[bool]:
        """For each tensor: is it `factor` times the result?"""
        goals = zip(tensors, self.expected, self.bounds, strict=True)
        return [is_close(tensor, goal * factor, bound * max(factor, 1.0)) for tensor, goal, bound in goals]

    def judge(self) -> Finding:
        """Exact types first, then every value on every rank."""
        if problem := self.wrong_kind():
            return problem
        where = self.first_difference()
        return Finding(self.mistake() if where else "", where, self.targets())

    def wrong_kind(self) -> Finding | None:
        """The first tensor whose type, dtype or shape is not the one given; None when all are."""
        for rank, (tensors, given) in enumerate(zip(self.held, self.given, strict=True)):
            if type(tensors) is not list or len(tensors) != len(given):
                return Finding(
                    "wrong_type", f"{self.title}: rank {rank}: expected a list of {len(given)} tensors"
                )
            for k, (tensor, own) in enumerate(zip(tensors, given, strict=True)):
                if wrong := wrong_kind(tensor, own.dtype, own.shape):
                    return Finding(wrong[0], f"{self.title}: rank {rank}, tensor {k}: {wrong[1]}")
        return None

    def first_difference(self) -> str:
        """Where the first number is off, in words; empty when none is."""
        for rank, tensors in enumerate(self.got):
            for k, goal in enumerate(zip(tensors, self.expected, self.bounds, strict=True)):
                if difference := first_difference(*goal):
                    return f"{self.title}: rank {rank}, tensor {k}, {difference}"
        return ""

    def targets(self) -> tuple[Target, ...]:
        """How many ranks hold the result, and how far the others are from it."""
        pairs = [pair for tensors in self.got for pair in zip(tensors, self.expected, strict=True)]
        distance = max(float(np.max(np.abs(tensor - goal))) for tensor, goal in pairs)
        bound = max(float(np.max(bound)) for bound in self.bounds)
        num_right = sum(all(tensors) for tensors in self.is_right)
        is_met = num_right == self.world_size
        return (
            Target("ranks that hold the result", str(self.world_size), str(num_right), is_met),
            Target("largest distance from it", f"rounding, {bound:.0e}", f"{distance:.1e}", is_met),
        )

    def mistake(self) -> str:
        """The likely mistake, from the most particular to the most general."""
        if any(np.isnan(tensor).any() for tensors in self.got for tensor in tensors):
            return "nan"
        if self.is_untouched():
            return "not_in_place" if self.stands_elsewhere() else "never_combined"
        if all(map(_is_multiple, self.got, self.given)):
            return "never_combined"
        if any(all(tensors) for tensors in self.is_right):
            return "only_some_ranks"
        if any(all(column) for column in zip(*self.is_right, strict=True)):
            return "only_some_tensors"
        if all(_same(tensors, self.given[0]) for tensors in self.got):
            return "copy_of_rank_0"
        return self.factor_mistake()

    def is_untouched(self) -> bool:
        """Whether every rank still holds what it was given."""
        return all(_same(*pair) for pair in zip(self.got, self.given, strict=True))

    def stands_elsewhere(self) -> bool:
        """Whether rank 0 returned the result, or put it into the list, in tensors of its own."""
        return any(
            type(tensors) is list
            and len(tensors) == len(self.expected)
            and not any(map(_wrong_shape, tensors, self.expected))
            and all(self.matches([tensor["values"] for tensor in tensors]))
            for tensors in self.other[0]
        )

    def factor_mistake(self) -> str:
        """The mistake that multiplies the result by a known factor, or `other`."""
        for mistake, factor in (("sum", self.world_size), ("divided_twice", 1 / self.world_size)):
            if all(all(self.matches(tensors, factor)) for tensors in self.got):
                return mistake
        return "other"


def _same(first: Tensors, second: Tensors) -> bool:
    return all(np.array_equal(*pair, equal_nan=True) for pair in zip(first, second, strict=True))


def _is_multiple(tensors: Tensors, given: Tensors) -> bool:
    """Whether a rank's tensors are what it was given, times one number."""
    factor = tensors[0].flat[0] / given[0].flat[0]
    return all(
        np.allclose(tensor, own * factor, rtol=1e-4) for tensor, own in zip(tensors, given, strict=True)
    )


def _wrong_shape(sent: Any, goal: np.ndarray) -> bool:
    array = sent.get("values") if type(sent) is dict else None
    return type(array) is not np.ndarray or wrong_kind(sent, array.dtype, goal.shape) is not None
