"""Lab 04, second question: the pieces of all ranks become the whole, on each of them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dpcourse.labs.inside import describe
from dpcourse.labs.question import Case, CodeQuestion, Finding, Target
from dpcourse.labs.ring.mistakes import ALL_GATHER_MISTAKES
from dpcourse.labs.ring.picture import RingPicture
from dpcourse.labs.ring.traffic import Traffic, run_each, traffic_of
from dpcourse.labs.switch import Log
from dpcourse.labs.tensors import first_difference, wrong_kind
from dpcourse.theory import ring


def make_case(seed: int, size: int, lengths: tuple[int, ...], last_dtype: Any = np.float32) -> Case:
    """Pieces of random tensors of these lengths, each beside its length; the last of a dtype of its own."""
    random = np.random.default_rng([seed, size, 5])
    dtypes = [*[np.float32] * (len(lengths) - 1), last_dtype]
    wholes = [
        np.asarray(random.standard_normal(length), dtype)
        for length, dtype in zip(lengths, dtypes, strict=True)
    ]
    return Case(
        f"{size} ranks",
        tuple([(np.array_split(whole, size)[rank], len(whole)) for whole in wholes] for rank in range(size)),
    )


def cases(seed: int, sizes: tuple[int, ...]) -> tuple[Case, ...]:
    """One run for each world size, of three tensors."""
    return tuple(make_case(seed, size, (2 * size + 1, size - 1, 3 * size), np.float64) for size in sizes)


def call(answer: Callable[..., Any], pieces: list[tuple[np.ndarray, int]]) -> list[Any]:
    """In a rank: the whole that the answer gives for each piece."""
    import torch

    return run_each(pieces, lambda own: describe(answer(torch.from_numpy(own[0].copy()), own[1])))


def judge(case: Case, sent: list[Any], log: Log) -> Finding:
    """Every rank holds the whole, to the last bit, and the messages are a ring's."""
    given = list(zip(*case.inputs, strict=True))
    sizes = [(own[0][1], own[0][0].itemsize) for own in given]
    traffics = traffic_of(log, sizes, ring.all_gather_sent_exactly)
    finding = Finding()
    for own, traffic, by_rank in zip(given, traffics, zip(*sent, strict=True), strict=True):
        place = f"{case.title}, a tensor of {own[0][1]} numbers"
        finding = _judge_one(place, [piece for piece, _ in own], traffic, by_rank)
        if finding.mistake:
            break
    return finding


def _judge_one(place: str, pieces: list[np.ndarray], traffic: Traffic, sent: tuple[Any, ...]) -> Finding:
    whole = np.concatenate(pieces)
    for rank, values in enumerate(sent):
        if wrong := wrong_kind(values, whole.dtype, whole.shape):
            is_piece = wrong[0] == "wrong_shape" and np.array_equal(values["values"], pieces[rank])
            return Finding("only_own_piece" if is_piece else wrong[0], f"{place}: rank {rank}: {wrong[1]}")
    got = [values["values"] for values in sent]
    num_right = sum(np.array_equal(values, whole) for values in got)
    target = Target("ranks that hold the whole", str(len(got)), str(num_right), num_right == len(got))
    targets = (target, *traffic.targets())
    for rank, values in enumerate(got):
        if difference := first_difference(values, whole, np.zeros(whole.shape)):
            return Finding(_mistake(got, pieces), f"{place}: rank {rank}, {difference}", targets)
    mistake = traffic.mistake()
    return Finding(mistake, f"{place}: {traffic.where()}" if mistake else "", targets)


def _mistake(got: list[np.ndarray], pieces: list[np.ndarray]) -> str:
    """What the ranks hold in place of the whole."""
    size = len(pieces)
    rotated = [np.concatenate([pieces[(rank + k) % size] for k in range(size)]) for rank in range(size)]
    backwards = [np.concatenate([pieces[(rank - k) % size] for k in range(size)]) for rank in range(size)]
    if any(all(map(np.array_equal, got, orders)) for orders in (rotated, backwards)):
        return "rotated"
    cuts = np.cumsum([len(piece) for piece in pieces])[:-1]
    held = [[np.array_equal(*pair) for pair in zip(np.split(row, cuts), pieces, strict=True)] for row in got]
    others = [
        right for rank, row in enumerate(held) for k, right in enumerate(row) if k != rank and len(pieces[k])
    ]
    if not all(row[rank] for rank, row in enumerate(held)):
        return "other"
    return "some_pieces" if any(others) else "only_own_piece"


def draw(case: Case, sent: list[Any], log: Log) -> RingPicture:
    """What each rank brought and holds, and who sent how much to whom."""
    held = [values[0]["values"] for values in sent]
    wanted = [np.concatenate([own[0][0] for own in case.inputs])] * case.world_size
    return RingPicture([own[0][0] for own in case.inputs], held, wanted, log)


ALL_GATHER = CodeQuestion(
    name="all_gather",
    title="From pieces the whole",
    points=20,
    minutes=15,
    cases=cases,
    call=call,
    judge=judge,
    draw=draw,
    example=lambda ranks: make_case(0, ranks, (ranks + 1,)),
    mistakes=ALL_GATHER_MISTAKES,
    allowed=(),
)
