"""Lab 03, first question: every rank begins with rank 0's parameters and buffers."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dpcourse.labs.ddp.chains import Chain, make_chain, numbers
from dpcourse.labs.ddp.mistakes import START_MISTAKES
from dpcourse.labs.inside import describe
from dpcourse.labs.question import Case, CodeQuestion, Finding, Target
from dpcourse.labs.switch import Log
from dpcourse.labs.tensors import first_difference, wrong_kind
from dpcourse.tables import Table

_SEEN, _BATCHES = "layers.0.seen", "layers.0.batches"  # the buffers

# What a rank begins with: a chain of its own, and two buffers of the first layer.
Start = tuple[Chain, np.ndarray, np.ndarray]


def make_case(seed: int, size: int, dtype: str = "float32") -> Case:
    """A chain with a frozen weight and a tied one, with other numbers on each rank."""
    random = np.random.default_rng([seed, size, 31])
    return Case(f"{size} ranks", tuple(_start(random, rank, dtype) for rank in range(size)))


def _start(random: np.random.Generator, rank: int, dtype: str) -> Start:
    chain = make_chain(random, "", (3, 3, 3, 3), dtype, frozen=("layers.1.weight",), tied=(0, 2))
    seen, batches = numbers(random, (3,), "float32") + 10 * rank, np.array(5 + rank)
    moved = [weight + 10 * rank for weight in chain.weights]
    return (
        Chain("", tuple(moved), tuple(bias + 10 * rank for bias in chain.biases), chain.frozen, chain.tied),
        seen,
        batches,
    )


def cases(seed: int, sizes: tuple[int, ...]) -> tuple[Case, ...]:
    """One run for each world size; in the last one the parameters are float64."""
    return tuple(make_case(seed, size, "float64" if size == sizes[-1] else "float32") for size in sizes)


def call(answer: Callable[..., Any], start: Start) -> dict[str, Any]:
    """In a rank: what the model's own tensors hold after the call, and what stands in the model now."""
    import torch

    from dpcourse.labs.ddp.module import Layers

    model = Layers(start[0])
    model.layers[0].register_buffer("seen", torch.from_numpy(start[1].copy()))
    model.layers[0].register_buffer("batches", torch.from_numpy(start[2].copy()))
    own = dict([*model.named_parameters(), *model.named_buffers()])
    answer(model)
    now = dict([*model.named_parameters(), *model.named_buffers()])
    return {
        "held": {name: describe(tensor.data) for name, tensor in own.items()},
        "now": {name: describe(tensor.data) for name, tensor in now.items()},
    }


def tensors_of(start: Start) -> dict[str, np.ndarray]:
    """Parameters and buffers by name."""
    return {**start[0].parameters(), _SEEN: start[1], _BATCHES: start[2]}


def judge(case: Case, sent: list[Any], log: Log) -> Finding:
    """Every tensor of every rank is rank 0's, in place."""
    given = [tensors_of(start) for start in case.inputs]
    for rank, own in enumerate(sent):
        for name, array in given[0].items():
            if wrong := wrong_kind(own["held"][name], array.dtype, array.shape):
                return Finding(wrong[0], f"{case.title}: rank {rank}, {name}: {wrong[1]}")
    got = [{name: own["held"][name]["values"] for name in given[0]} for own in sent]
    num_right = sum(_are_equal(own, given[0]) for own in got)
    targets = (Target("ranks with rank 0's numbers", str(len(got)), str(num_right), num_right == len(got)),)
    for rank, own in enumerate(got):
        for name, goal in given[0].items():
            if difference := first_difference(own[name], goal, np.zeros(goal.shape)):
                where = f"{case.title}: rank {rank}, {name}, {difference}"
                return Finding(_mistake(given, got, sent, case.inputs[0][0]), where, targets)
    return Finding(targets=targets)


def _mistake(given: list[Any], got: list[Any], sent: list[Any], chain: Chain) -> str:
    """What the ranks hold in place of rank 0's numbers."""
    if all(map(_are_equal, got, given)):
        is_elsewhere = all(
            np.array_equal(sent[-1]["now"][name]["values"], goal) for name, goal in given[0].items()
        )
        return "not_in_place" if is_elsewhere else "never_sent"
    if any(all(_are_equal(own, start) for own in got) for start in given[1:]):
        return "from_another_rank"
    if not _are_equal(got[0], given[0]):
        return "rank_0_changed"
    wrong = {name for own in got for name, goal in given[0].items() if not np.array_equal(own[name], goal)}
    if wrong <= {_SEEN, _BATCHES}:
        return "buffers_left"
    if wrong <= set(chain.frozen):
        return "frozen_left"
    return "only_some_ranks" if any(_are_equal(own, given[0]) for own in got[1:]) else "other"


def _are_equal(first: Any, second: Any) -> bool:
    return all(np.array_equal(first[name], second[name]) for name in second)


def draw(case: Case, sent: list[Any], log: Log) -> Table:
    """Three numbers of each rank, before and after."""
    rows = [
        (rank, *(_text(tensors[name]) for name in ("layers.0.bias", _SEEN) for tensors in (before, after)))
        for rank, (before, after) in enumerate(
            (tensors_of(start), {name: item["values"] for name, item in own["held"].items()})
            for start, own in zip(case.inputs, sent, strict=True)
        )
    ]
    columns = ("rank", "a bias, before", "after your call", "a buffer, before", "after your call ")
    return Table(columns, rows, "A parameter and a buffer of each rank")


def _text(array: np.ndarray) -> str:
    return " ".join(f"{number:g}" for number in array.ravel())


SAME_START = CodeQuestion(
    name="same_start",
    title="All begin as rank 0",
    points=10,
    minutes=5,
    cases=cases,
    call=call,
    judge=judge,
    draw=draw,
    example=lambda ranks: make_case(0, ranks),
    mistakes=START_MISTAKES,
    allowed=("broadcast", "all_reduce"),
)
