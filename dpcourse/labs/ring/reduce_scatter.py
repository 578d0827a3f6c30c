"""Lab 04, first question: each rank ends with its own piece of the sum."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dpcourse.labs.inside import describe
from dpcourse.labs.question import Case, CodeQuestion, Finding, Target
from dpcourse.labs.ring.mistakes import REDUCE_SCATTER_MISTAKES
from dpcourse.labs.ring.picture import RingPicture
from dpcourse.labs.ring.traffic import Traffic, run_each, traffic_of
from dpcourse.labs.switch import Log
from dpcourse.labs.tensors import first_difference, is_close, rounding_bound, wrong_kind
from dpcourse.theory import ring


def shapes_for(size: int) -> tuple[tuple[int, ...], ...]:
    """Lengths that do not divide, one shorter than the ring, and more than one dim."""
    return ((2 * size + 1,), (size - 1,), (3, size))


def make_case(
    seed: int, size: int, shapes: tuple[tuple[int, ...], ...], last_dtype: Any = np.float32
) -> Case:
    """Random tensors of these shapes on every rank; the last is of a dtype of its own."""
    random = np.random.default_rng([seed, size, 4])
    dtypes = [*[np.float32] * (len(shapes) - 1), last_dtype]
    inputs = tuple(
        [
            np.asarray(random.standard_normal(shape), dtype)
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]
        for _ in range(size)
    )
    return Case(f"{size} ranks", inputs)


def cases(seed: int, sizes: tuple[int, ...]) -> tuple[Case, ...]:
    """One run for each world size, of three tensors."""
    return tuple(make_case(seed, size, shapes_for(size), np.float64) for size in sizes)


def call(answer: Callable[..., Any], tensors: list[np.ndarray]) -> list[Any]:
    """In a rank: the piece that the answer gives for each tensor, and the tensor after it."""
    import torch

    def one(array: np.ndarray) -> list[Any]:
        tensor = torch.from_numpy(array.copy())
        return [describe(answer(tensor)), describe(tensor)]

    return run_each(tensors, one)


def judge(case: Case, sent: list[Any], log: Log) -> Finding:
    """Each rank holds its piece of the sum, the tensors stay, and the messages are a ring's."""
    given = list(zip(*case.inputs, strict=True))
    traffics = traffic_of(
        log, [(arrays[0].size, arrays[0].itemsize) for arrays in given], ring.reduce_scatter_sent_exactly
    )
    finding = Finding()
    for arrays, traffic, by_rank in zip(given, traffics, zip(*sent, strict=True), strict=True):
        place = f"{case.title}, a tensor of {list(arrays[0].shape)}"
        finding = _judge_one(place, arrays, traffic, by_rank)
        if finding.mistake:
            break
    return finding


def _judge_one(place: str, given: tuple[np.ndarray, ...], traffic: Traffic, sent: tuple[Any, ...]) -> Finding:
    """The judge's finding on one tensor."""
    pieces = Pieces(given)
    for rank, (piece, after) in enumerate(sent):
        if wrong_kind(after, given[rank].dtype, given[rank].shape) or not np.array_equal(
            after["values"], given[rank]
        ):
            return Finding("changed_input", f"{place}: the tensor of rank {rank} is not what it was")
        if wrong := wrong_kind(piece, given[rank].dtype, pieces.of_sum[rank].shape):
            mistake = pieces.mistake([values for values, _ in sent]) or wrong[0]
            return Finding(mistake, f"{place}: rank {rank}: {wrong[1]}")
    got = [piece["values"] for piece, _ in sent]
    targets = pieces.targets(got)
    for rank, values in enumerate(got):
        if difference := first_difference(values, pieces.of_sum[rank], pieces.bounds[rank]):
            mistake = pieces.mistake([piece for piece, _ in sent]) or "other"
            return Finding(mistake, f"{place}: rank {rank}, {difference}", (*targets, *traffic.targets()))
    mistake = traffic.mistake()
    where = f"{place}: {traffic.where()}" if mistake else ""
    return Finding(mistake, where, (*targets, *traffic.targets()))


class Pieces:
    """The pieces of each rank's tensor and of the exact sum, cut as torch.tensor_split cuts."""

    def __init__(self, given: tuple[np.ndarray, ...]) -> None:
        size = len(given)
        self.own = [np.array_split(array.astype(np.float64).ravel(), size) for array in given]
        self.of_sum = [np.sum([own[k] for own in self.own], axis=0) for k in range(size)]
        terms = [np.array_split(array.ravel(), size) for array in given]
        self.bounds = [rounding_bound([own[k] for own in terms], given[0].dtype) for k in range(size)]

    def targets(self, got: list[np.ndarray]) -> tuple[Target, ...]:
        """How many ranks hold their piece of the sum."""
        right = [is_close(*row) for row in zip(got, self.of_sum, self.bounds, strict=True)]
        return (Target("ranks that hold their piece of the sum", str(len(got)), str(sum(right)), all(right)),)

    def mistake(self, sent: list[Any]) -> str:
        """What the ranks sent in place of their pieces of the sum; empty where it is nothing known."""
        size = len(self.own)
        known: dict[str, list[np.ndarray]] = {
            "not_summed": [self.own[rank][rank] for rank in range(size)],
            "whole_sum": [np.concatenate(self.of_sum)] * size,
            "mean": [piece / size for piece in self.of_sum],
            "own_lost": [self.of_sum[rank] - self.own[rank][rank] for rank in range(size)],
            "own_twice": [self.of_sum[rank] + self.own[rank][rank] for rank in range(size)],
        }
        for shift in range(1, size):
            known[f"shift {shift}"] = [self.of_sum[(rank + shift) % size] for rank in range(size)]
        for name, wanted in known.items():
            if all(map(_is_near, sent, wanted)):
                return "wrong_piece" if name.startswith("shift") else name
        return ""


def _is_near(sent: Any, wanted: np.ndarray) -> bool:
    array = sent.get("values") if type(sent) is dict else None
    if type(array) is not np.ndarray or array.size != wanted.size:
        return False
    return bool(np.allclose(array.ravel(), wanted, rtol=1e-3, atol=1e-5))


def draw(case: Case, sent: list[Any], log: Log) -> RingPicture:
    """What each rank brought and holds, and who sent how much to whom."""
    held = [values[0][0]["values"] for values in sent]
    wanted = Pieces(tuple(own[0] for own in case.inputs)).of_sum
    return RingPicture([own[0] for own in case.inputs], held, wanted, log)


REDUCE_SCATTER = CodeQuestion(
    name="reduce_scatter",
    title="Each rank its piece of the sum",
    points=25,
    minutes=20,
    cases=cases,
    call=call,
    judge=judge,
    draw=draw,
    example=lambda ranks: make_case(0, ranks, ((ranks + 1,),)),
    mistakes=REDUCE_SCATTER_MISTAKES,
    allowed=(),
)
