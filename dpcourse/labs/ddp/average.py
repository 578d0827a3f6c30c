"""Lab 03, second question: the naive way, gradients averaged when backward is over."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dpcourse.labs.ddp.chains import UNUSED, Share, awkward_models
from dpcourse.labs.ddp.means import judge_means
from dpcourse.labs.ddp.mistakes import AVERAGE_MISTAKES
from dpcourse.labs.question import Case, CodeQuestion, Finding
from dpcourse.labs.switch import Log
from dpcourse.tables import Table


def cases(seed: int, sizes: tuple[int, ...]) -> tuple[Case, ...]:
    """One run for each world size, of three models."""
    return tuple(_case(seed, size) for size in sizes)


def _case(seed: int, size: int) -> Case:
    random = np.random.default_rng([seed, size, 32])
    return Case(f"{size} ranks", tuple(zip(*awkward_models(random, size), strict=True)))


def call(answer: Callable[..., Any], shares: tuple[Share, ...]) -> list[Any]:
    """In a rank: the gradients of each model after its backward pass and the call."""
    from dpcourse.labs import plug
    from dpcourse.labs.ddp.module import Layers, meet

    found = []
    for share in shares:
        plug.note(f"model {share.chain.title}")
        model = Layers(share.chain)
        model.backward(share, 0)
        answer(model)
        meet()
        found.append(model.gradients())
    return found


def judge(case: Case, sent: list[Any], log: Log) -> Finding:
    """After every call each rank holds the mean."""
    finding = Finding()
    for shares, by_rank in zip(zip(*case.inputs, strict=True), zip(*sent, strict=True), strict=True):
        place = f"{case.title}, {shares[0].chain.title}"
        finding = judge_means(place, shares, 0, list(by_rank))
        if finding.mistake:
            break
    return finding


def name_deadlock(log: Log) -> str:
    """Where only some ranks used a layer, those that skip its collective leave the others waiting."""
    models = [event.what for event in log.events if event.what.startswith("model ")]
    return "unused" if models and models[-1] == f"model {UNUSED}" else "hang"


def draw(case: Case, sent: list[Any], log: Log) -> Table:
    """A gradient of the plain model on each rank, before and after, and the all-reduces that it made."""
    name = "layers.3.bias"
    goal = np.mean([shares[0].gradients(0)[name] for shares in case.inputs], axis=0)
    rows = [
        (
            rank,
            _text(shares[0].gradients(0)[name]),
            _text(own[0]["gradients"][name].get("values", np.zeros(0))),
            _text(goal),
            _num_calls(log, rank),
        )
        for rank, (shares, own) in enumerate(zip(case.inputs, sent, strict=True))
    ]
    columns = ("rank", "its gradient", "after your call", "mean over ranks", "all-reduces in three models")
    return Table(columns, rows, f"The gradient of {name}, a plain model")


def _num_calls(log: Log, rank: int) -> int:
    return sum(words.startswith("call all_reduce") for words in log.notes(rank))


def _text(array: np.ndarray) -> str:
    return " ".join(f"{number:.4g}" for number in array)


AVERAGE_GRADIENTS = CodeQuestion(
    name="average_gradients",
    title="The naive way",
    points=20,
    minutes=10,
    cases=cases,
    call=call,
    judge=judge,
    draw=draw,
    example=lambda ranks: _case(0, ranks),
    mistakes=AVERAGE_MISTAKES,
    witnesses=("dpcourse.labs.ddp.module",),
    allowed=("all_reduce", "broadcast"),
    name_deadlock=name_deadlock,
)
