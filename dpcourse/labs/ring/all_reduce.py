"""Lab 04, third question: the sum on every rank, in place, with the same bits."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dpcourse.labs.inside import describe
from dpcourse.labs.question import Case, CodeQuestion, Finding, Target
from dpcourse.labs.ring.mistakes import ALL_REDUCE_MISTAKES
from dpcourse.labs.ring.picture import RingPicture
from dpcourse.labs.ring.reduce_scatter import make_case, shapes_for
from dpcourse.labs.ring.traffic import Traffic, run_each, traffic_of
from dpcourse.labs.sums import Sums
from dpcourse.labs.switch import Log
from dpcourse.theory import ring

# Of what Sums finds in place of its result, which here is a sum and not a mean.
_NAMES = {"sum": "other", "divided_twice": "mean", "not_in_place": "not_in_place"}


def cases(seed: int, sizes: tuple[int, ...]) -> tuple[Case, ...]:
    """One run for each world size, of three tensors."""
    return tuple(make_case(seed, size, shapes_for(size), np.float64) for size in sizes)


def call(answer: Callable[..., Any], tensors: list[np.ndarray]) -> list[Any]:
    """In a rank: what each tensor holds after the call, and what the call returned.

    The rows of a matrix do not lie one behind the other: its columns do.
    """
    import torch

    def one(array: np.ndarray) -> list[Any]:
        tensor = torch.from_numpy(np.array(array, order="F"))
        returned = answer(tensor)
        return [describe(tensor), describe(returned)]

    return run_each(tensors, one)


def judge(case: Case, sent: list[Any], log: Log) -> Finding:
    """Every rank's own tensor holds the sum, all of them the same bits, and the messages are a ring's."""
    given = list(zip(*case.inputs, strict=True))
    sizes = [(arrays[0].size, arrays[0].itemsize) for arrays in given]
    finding = Finding()
    rows = zip(
        given,
        traffic_of(log, sizes, ring.all_reduce_sent_exactly, halves=2),
        zip(*sent, strict=True),
        strict=True,
    )
    for arrays, traffic, by_rank in rows:
        finding = _judge_one(f"{case.title}, a tensor of {list(arrays[0].shape)}", arrays, traffic, by_rank)
        if finding.mistake:
            break
    return finding


def _judge_one(place: str, given: tuple[np.ndarray, ...], traffic: Traffic, sent: tuple[Any, ...]) -> Finding:
    sums = Sums(
        place,
        [[array] for array in given],
        [[array.astype(np.float64)] for array in given],
        [[held] for held, _ in sent],
        [[[returned]] for _, returned in sent],
    )
    finding = sums.judge()
    if finding.mistake in ("wrong_type", "wrong_dtype", "wrong_shape"):
        return finding
    is_same = all(np.array_equal(own[0], sums.got[0][0]) for own in sums.got)
    bits = Target("ranks with the same bits", "all", "all" if is_same else "not all", is_same)
    targets = (*finding.targets, bits, *traffic.targets())
    if finding.mistake:
        return Finding(_NAMES.get(finding.mistake, finding.mistake), finding.where, targets)
    if not is_same:
        return Finding("different_bits", f"{place}: ranks differ in the last bits", targets)
    mistake = traffic.mistake()
    return Finding(mistake, f"{place}: {traffic.where()}" if mistake else "", targets)


def draw(case: Case, sent: list[Any], log: Log) -> RingPicture:
    """What each rank brought and holds, and who sent how much to whom."""
    held = [values[0][0]["values"] for values in sent]
    wanted = [np.sum([own[0] for own in case.inputs], axis=0)] * case.world_size
    return RingPicture([own[0] for own in case.inputs], held, wanted, log)


ALL_REDUCE = CodeQuestion(
    name="all_reduce",
    title="The sum on every rank",
    points=25,
    minutes=10,
    cases=cases,
    call=call,
    judge=judge,
    draw=draw,
    example=lambda ranks: make_case(0, ranks, ((ranks + 1,),)),
    mistakes=ALL_REDUCE_MISTAKES,
    allowed=(),
)
