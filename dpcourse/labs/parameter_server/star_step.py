"""Lab 02, first question: a training step through a main rank, made of send and receive."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dpcourse.labs.inside import describe
from dpcourse.labs.parameter_server.mistakes import STAR_STEP_MISTAKES
from dpcourse.labs.parameter_server.steps import LEARNING_RATE, MAIN, Training, by_rows, ways
from dpcourse.labs.parameter_server.traffic import COMPUTES, FORGOTTEN, STEP, StarTraffic, traffic_of
from dpcourse.labs.question import Case, CodeQuestion, Finding, Target
from dpcourse.labs.switch import Log
from dpcourse.labs.tensors import first_difference, is_close, wrong_kind
from dpcourse.tables import Table
from dpcourse.theory import ring

_TOLERANCE = {"float32": 1e-4, "float64": 1e-10}  # of numbers near 1; a test holds mistakes further away
_MEET = 93  # tag of the lab's own messages, which are empty


def make_case(seed: int, size: int, dtype: str = "float32") -> Case:
    """Two steps of a linear model with four weights; neither batch divides by the number of ranks."""
    random = np.random.default_rng([seed, size, 21])
    sizes = (3 * size + 1, 2 * size + 1)
    batches = tuple(random.standard_normal((num, 5)).astype(dtype) + 1 for num in sizes)
    training = Training(random.standard_normal(4).astype(dtype), batches, size)
    return Case(f"{size} ranks", ((training, True), *[(_unseen(training), False)] * (size - 1)))


def _unseen(training: Training) -> Training:
    """The same for a worker: of the batches it knows only how many rows they have."""
    batches = tuple(np.full_like(batch, np.nan) for batch in training.batches)
    return Training(training.weights, batches, training.size)


def cases(seed: int, sizes: tuple[int, ...]) -> tuple[Case, ...]:
    """One run for each world size; the last in float64."""
    return tuple(make_case(seed, size, "float64" if size == sizes[-1] else "float32") for size in sizes)


def call(answer: Callable[..., Any], own: tuple[Training, bool]) -> list[Any]:
    """In a rank: the weights after each step, and what the answer returned."""
    import torch

    from dpcourse.labs import plug

    training, is_main = own
    weights, found = torch.from_numpy(training.weights.copy()), []
    for array in training.batches:
        plug.note(STEP)
        batch = torch.from_numpy(array.copy() if is_main else array[:0].copy())
        returned = answer(weights, batch, len(array), gradient_of, LEARNING_RATE)
        if plug.num_forgotten():
            plug.note(FORGOTTEN)
        found.append([describe(weights), describe(returned)])
    return found


def gradient_of(weights: Any, rows: Any) -> Any:
    """What the answer computes gradients with. A worker goes on when all workers are here."""
    import torch.distributed as dist

    from dpcourse.labs import plug

    plug.note(f"{COMPUTES}{len(rows)}")
    if dist.get_rank() != MAIN:
        _meet()
    features, targets = rows[:, :-1], rows[:, -1]
    return features.T @ (features @ weights - targets) / len(rows)


def _meet() -> None:
    import torch
    import torch.distributed as dist

    first, others = 1, range(2, dist.get_world_size())
    if dist.get_rank() != first:
        dist.send(torch.empty(0), first, tag=_MEET)
        dist.recv(torch.empty(0), first, tag=_MEET)
        return
    for other in others:
        dist.recv(torch.empty(0), other, tag=_MEET)
    for other in others:
        dist.send(torch.empty(0), other, tag=_MEET)


def judge(case: Case, sent: list[Any], log: Log) -> Finding:
    """The main rank's weights after each step, then who computed what, and who sent how much to whom."""
    training: Training = case.inputs[0][0]
    dtype, shape = training.weights.dtype, training.weights.shape
    held = [step[0] for step in sent[MAIN]]
    for step, tensor in enumerate(held):
        if wrong := wrong_kind(tensor, dtype, shape):
            return Finding(wrong[0], f"{case.title}: the main rank, step {step + 1}: {wrong[1]}")
    steps = traffic_of(log, training)
    got = [tensor["values"] for tensor in held]
    goals, bound = training.after(by_rows), np.full(shape, _TOLERANCE[dtype.name])
    targets = (_value_target(got, goals, bound), *steps[-1].targets())
    for step, (values, goal) in enumerate(zip(got, goals, strict=True)):
        if difference := first_difference(values, goal, bound):
            where = f"{case.title}: the main rank's weights after step {step + 1}, {difference}"
            return Finding(_mistake(training, got, sent, steps), where, targets)
    for step, own in enumerate(steps):
        if mistake := own.mistake():
            return Finding(mistake, f"{case.title}, step {step + 1}: {own.where()}", targets)
    return Finding(targets=targets)


def _value_target(got: list[Any], goals: list[Any], bound: Any) -> Target:
    num = sum(is_close(values, goal, bound) for values, goal in zip(got, goals, strict=True))
    return Target("steps after which the weights are right", str(len(got)), str(num), num == len(got))


def _mistake(training: Training, got: list[Any], sent: list[Any], steps: list[StarTraffic]) -> str:
    """Who computed too little, a known wrong way that explains both steps, or none."""
    bound = np.full(got[0].shape, _TOLERANCE[training.weights.dtype.name])
    if np.isnan(got).any():
        return "nan"
    if _is_elsewhere(training, sent[MAIN], bound):
        return "not_in_place"
    if steps[0].num_computed() < sum(steps[0].num_rows):
        return "rows_lost" if all(steps[0].computed[1:]) else "idle_workers"
    for name, wrong in ways(training).items():
        if all(is_close(values, goal, bound) for values, goal in zip(got, wrong, strict=True)):
            return name.strip()
    return "other"


def _is_elsewhere(training: Training, own: list[Any], bound: Any) -> bool:
    """Whether the main rank returned the right weights of the first step, and kept its own."""
    values = own[0][1].get("values")
    goal = training.after(by_rows)[0]
    is_kept = np.array_equal(own[0][0]["values"], training.weights)
    return is_kept and values is not None and values.shape == goal.shape and is_close(values, goal, bound)


def draw(case: Case, sent: list[Any], log: Log) -> Table:
    """Your star counted, rank by rank, beside what a rank of a ring sends for the same gradient."""
    training: Training = case.inputs[0][0]
    step = traffic_of(log, training)[0]
    each, count = training.weights.itemsize, training.weights.size
    rows = [
        (
            rank,
            step.computed[rank],
            step.sent(rank),
            step.received(rank),
            ring.all_reduce_sent_exactly(count, each, training.size, rank),
        )
        for rank in range(training.size)
    ]
    columns = ("rank", "rows computed", "bytes sent", "bytes received", "a ring's rank sends")
    return Table(columns, rows, f"One step of your star, {count * each} bytes of weights")


STAR_STEP = CodeQuestion(
    name="star_step",
    title="A step through a main rank",
    points=45,
    minutes=25,
    cases=cases,
    call=call,
    judge=judge,
    draw=draw,
    example=lambda ranks: make_case(0, ranks),
    mistakes=STAR_STEP_MISTAKES,
    allowed=(),
    name_deadlock=lambda log: "in_turns" if _some_compute(log) else "hang",
)


def _some_compute(log: Log) -> bool:
    """Whether in the last step some workers compute, and others have nothing to compute with."""
    computing: set[int] = set()
    for event in log.events:
        if event.rank == MAIN and event.what == STEP:
            computing = set()
        elif event.rank != MAIN and event.what.startswith(COMPUTES):
            computing.add(event.rank)
    return 0 < len(computing) < log.world_size - 1
