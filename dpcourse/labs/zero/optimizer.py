"""Lab 05, first question: every rank updates its slice, with AdamW's states for that slice alone."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpcourse.labs.inside import describe
from dpcourse.labs.question import Case, CodeQuestion, Finding, Target
from dpcourse.labs.switch import Log
from dpcourse.labs.tensors import first_difference, is_close, wrong_kind
from dpcourse.labs.zero.adamw import OPTIONS, bound, in_bf16, updated
from dpcourse.labs.zero.mistakes import OPTIMIZER_MISTAKES
from dpcourse.tables import Table

NUM_STEPS = 6
STATE_BYTES = 12  # master, first and second moment, in fp32
FROZEN = 1  # which of the parameters is not trained
_BIG = 1 << 18  # numbers of the parameter that process memory is looked at with


def make_case(seed: int, size: int, num_big: int = 0) -> Case:
    """Five parameters whose numbers do not divide by the ranks, one of them frozen, and six gradients."""
    random = np.random.default_rng([seed, size, 51])
    shapes: list[tuple[int, ...]] = [(7, 2 * size + 1), (4,), (), (size - 1,), (31,)]
    num_trained = sum(int(np.prod(shape)) for k, shape in enumerate(shapes) if k != FROZEN)
    shapes[-1] = (31 + size - num_trained % size + 1,)
    start = [_spread(random, shape) for shape in shapes]
    inputs = tuple(
        {
            "start": start,
            "gradients": [[_dyadic(random, shape) for shape in shapes] for _ in range(NUM_STEPS)],
            "num_big": num_big,
        }
        for _ in range(size)
    )
    return Case(f"{size} ranks", inputs)


def _spread(random: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers between 1/64 and 2: to the large ones a single step is lost in bf16."""
    sign = random.choice([-1.0, 1.0], shape)
    return in_bf16(sign * 2.0 ** random.uniform(-6, 1, shape))


def _dyadic(random: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Sixteenths: five of them add up without rounding in bf16, in any order."""
    return np.asarray(random.integers(-40, 41, shape) / 16.0, np.float32)


def cases(seed: int, sizes: tuple[int, ...]) -> tuple[Case, ...]:
    """One run for each world size; in the first, process memory is looked at too."""
    return tuple(make_case(seed, size, 0 if k else _BIG) for k, size in enumerate(sizes))


def call(answer: Callable[..., Any], own: dict[str, Any]) -> dict[str, Any]:
    """In a rank: the parameters after the steps, and what the rank holds beside them and the gradients."""
    import torch

    from dpcourse.labs import plug

    _warm_up()
    found: dict[str, Any] = {"grown": _grown(answer, own["num_big"]) if own["num_big"] else None}
    parameters = [torch.nn.Parameter(torch.from_numpy(array).bfloat16()) for array in own["start"]]
    parameters[FROZEN].requires_grad_(False)
    gradients = [[torch.from_numpy(array).bfloat16() for array in arrays] for arrays in own["gradients"]]
    plug.note("begin")
    found["held"] = _steps(answer, parameters, gradients)
    found["dtypes"] = [str(parameter.dtype) for parameter in parameters]
    found["parameters"] = [describe(parameter.detach().float()) for parameter in parameters]
    return found


def _warm_up() -> None:
    """What torch loads at the first step of an optimizer is not the answer's."""
    import torch

    parameter = torch.ones(2, requires_grad=True)
    parameter.grad = torch.ones(2)
    torch.optim.AdamW([parameter]).step()


def _steps(answer: Any, parameters: list[Any], gradients: list[list[Any]]) -> dict[str, int]:
    """Take a step for each row of gradients; the bytes that are held afterwards, and are not the lab's."""
    from dpcourse.labs.held import Held

    held = Held()
    optimizer = answer(list(parameters), **OPTIONS)
    for row in gradients:
        if any(_is_unlike(*pair) for pair in zip(parameters, row, strict=True)):
            break  # the judge says what it has become
        for parameter, gradient in zip(parameters, row, strict=True):
            parameter.grad = gradient if parameter.requires_grad else None
        optimizer.step()
    lent = [gradient for row in gradients for gradient in row]
    return held.by_dtype(without=[*parameters, *lent])


def _is_unlike(parameter: Any, gradient: Any) -> bool:
    return bool(parameter.shape != gradient.shape or parameter.dtype != gradient.dtype)


def _grown(answer: Any, num_big: int) -> list[int] | None:
    """Tensors' bytes after a step with one large parameter, and by how much the process has grown."""
    import torch

    from dpcourse.measure.process import malloc_bytes

    parameters = [torch.nn.Parameter(torch.ones(num_big, dtype=torch.bfloat16)) for _ in range(2)]
    parameters[FROZEN].requires_grad_(False)
    gradients = [[torch.ones(num_big, dtype=torch.bfloat16)] * 2]
    before = malloc_bytes()
    optimizers: list[Any] = []  # what the answer makes lives on until the process has been looked at

    def keeping(*arguments: Any, **options: Any) -> Any:
        optimizers.append(answer(*arguments, **options))
        return optimizers[-1]

    held = _steps(keeping, parameters, gradients)
    after = malloc_bytes()
    return None if before is None or after is None else [sum(held.values()), after - before]


@dataclass(frozen=True)
class Outcome:
    """What the ranks hold after the steps, beside what AdamW on one process would."""

    case: Case
    got: list[list[np.ndarray]]  # a rank's parameters

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.case.world_size

    @cached_property
    def start(self) -> np.ndarray:
        """All trained numbers in a row, as they were at first."""
        return _row(self.case.inputs[0]["start"])

    @cached_property
    def gradients(self) -> list[list[np.ndarray]]:
        """For each rank its gradients in a row, a row a step."""
        return [[_row(step) for step in own["gradients"]] for own in self.case.inputs]

    @cached_property
    def exact(self) -> np.ndarray:
        """What the numbers should be."""
        return self.after([sum(rows) / self.size for rows in zip(*self.gradients, strict=True)])

    def after(self, gradients: list[Any], forgets: bool = False) -> np.ndarray:
        """What they would be with these gradients."""
        return updated(self.start, gradients, forgets)

    @cached_property
    def rows(self) -> list[np.ndarray]:
        """Each rank's trained numbers in a row."""
        return [_row(parameters) for parameters in self.got]

    def is_after(self, gradients: list[Any], forgets: bool = False) -> bool:
        """Whether rank 0's numbers are what these gradients lead to."""
        goal = self.after(gradients, forgets)
        return is_close(self.rows[0], goal, bound(goal, NUM_STEPS))

    def right(self, row: np.ndarray) -> np.ndarray:
        """For each number of a rank: is it right?"""
        return np.asarray(np.abs(row - self.exact) <= bound(self.exact, NUM_STEPS))

    def mistake(self) -> str:
        """What went wrong most likely."""
        moved = [row != self.start for row in self.rows]
        if not any(map(np.any, moved)):
            return "not_in_place"
        if any(not np.array_equal(row, self.rows[0]) for row in self.rows):
            is_somewhere = np.any([self.right(row) for row in self.rows], axis=0)
            return "no_gather" if is_somewhere.all() else "ranks_differ"
        means = [sum(rows) / self.size for rows in zip(*self.gradients, strict=True)]
        if self.is_after([mean * self.size for mean in means]):
            return "sum"
        if self.is_after(means, forgets=True):
            return "forgets"
        return self._mistake_of_numbers(moved[0])

    def _mistake_of_numbers(self, moved: np.ndarray) -> str:
        by_owner = [self.after(own) for own in self.gradients]
        near = [np.abs(self.rows[0] - goal) <= bound(goal, NUM_STEPS) for goal in by_owner]
        if np.any(near, axis=0).all():
            return "own_gradient"
        if self.right(self.rows[0])[moved].all():
            return "never_moved"
        size = np.abs(self.start)
        is_lost = not moved[size >= 1].any() and moved[size < 0.1].all()
        return "lost_steps" if is_lost else "other"


def _row(arrays: list[np.ndarray]) -> np.ndarray:
    """The trained ones of a list of arrays, in a row."""
    return np.concatenate([array.ravel() for k, array in enumerate(arrays) if k != FROZEN])


def judge(case: Case, sent: list[Any], log: Log) -> Finding:
    """The numbers of AdamW on every rank, states for a slice only, and an all-reduce's bytes."""
    for rank, values in enumerate(sent):
        for k, (found, array) in enumerate(zip(values["parameters"], case.inputs[0]["start"], strict=True)):
            if wrong := wrong_kind(found, np.float32, array.shape):
                return Finding(wrong[0], f"{case.title}: rank {rank}, parameter {k}: {wrong[1]}")
            if values["dtypes"][k] != "torch.bfloat16":
                return Finding("wrong_dtype", f"{case.title}: parameter {k} is {values['dtypes'][k]}"[:200])
    outcome = Outcome(case, [[found["values"] for found in values["parameters"]] for values in sent])
    books = Books(case, len(outcome.start), [values["held"] for values in sent], log)
    targets = (_values_target(outcome), *books.targets())
    if where := _difference(outcome):
        return Finding(outcome.mistake(), f"{case.title}: {where}", targets)
    frozen = case.inputs[0]["start"][FROZEN]
    if any(not np.array_equal(parameters[FROZEN], frozen) for parameters in outcome.got):
        return Finding("frozen_moved", f"{case.title}: parameter {FROZEN} is frozen, and has moved", targets)
    mistake = books.mistake() or _hidden(case, sent)
    return Finding(mistake, f"{case.title}: {books.where()}" if mistake else "", targets)


def _values_target(outcome: Outcome) -> Target:
    is_right = [bool(outcome.right(row).all()) for row in outcome.rows]
    name = "ranks with the parameters of AdamW on one process"
    return Target(name, str(outcome.size), str(sum(is_right)), all(is_right))


def _difference(outcome: Outcome) -> str:
    for rank, row in enumerate(outcome.rows):
        if difference := first_difference(row, outcome.exact, bound(outcome.exact, NUM_STEPS)):
            return f"rank {rank}, of all trained numbers in a row {difference}"
        if not np.array_equal(row, outcome.rows[0]):
            return f"rank {rank} holds other bits than rank 0"
    return ""


def _hidden(case: Case, sent: list[Any]) -> str:
    """Whether a process has grown by more than its tensors: states may lie in something else."""
    for values in sent:
        if values["grown"] is not None:
            held, grown = values["grown"]
            saved = STATE_BYTES * _BIG * (1 - 1 / case.world_size)
            if grown - held > saved / 2 or held > STATE_BYTES * _BIG / case.world_size + saved / 2:
                return "hidden"
    return ""


@dataclass(frozen=True)
class Books:
    """What each rank holds for its optimizer, and what it sent."""

    case: Case
    num_trained: int
    by_dtype: list[dict[str, int]]
    log: Log

    @property
    def held(self) -> list[int]:
        """Each rank's bytes, of all dtypes."""
        return [sum(found.values()) for found in self.by_dtype]

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.case.world_size

    @property
    def slice_size(self) -> int:
        """The numbers in a slice, with zeros at the end."""
        return -(-self.num_trained // self.size)

    @property
    def num_parameters(self) -> int:
        """How many tensors are trained."""
        return len(self.case.inputs[0]["start"]) - 1

    @property
    def state_bytes(self) -> int:
        """AdamW's for a slice."""
        return STATE_BYTES * self.slice_size

    @property
    def slack_bytes(self) -> int:
        """Who cuts each parameter by itself has a padding each, and a count of steps each."""
        return (STATE_BYTES + 8) * self.num_parameters

    @property
    def sent_bytes(self) -> int:
        """Two bytes a number, once round the ring for the gradients and once for the parameters."""
        return 2 * NUM_STEPS * (self.size - 1) * 2 * self.slice_size

    @property
    def most_sent(self) -> int:
        """The busiest rank's bytes, after the large parameter's turn."""
        return max(self._sent(rank) for rank in range(self.size))

    def _sent(self, rank: int) -> int:
        own = [event for event in self.log.events if event.rank == rank]
        begin = max((k for k, event in enumerate(own) if event.what == "begin"), default=0)
        return sum(event.num_bytes for event in own[begin:] if event.what == "send")

    def is_sent_right(self) -> bool:
        """Whether no rank sends more, but for a padding of each parameter."""
        slack = 2 * NUM_STEPS * (self.size - 1) * 2 * self.num_parameters
        return self.most_sent <= self.sent_bytes + slack

    def is_held_right(self) -> bool:
        """Whether every rank holds states for its slice: no more, and no less."""
        least = STATE_BYTES * (self.num_trained // self.size - self.num_parameters)
        return max(self.held) <= self.state_bytes + self.slack_bytes and min(self.held) >= least

    def targets(self) -> tuple[Target, ...]:
        """State bytes and sent bytes."""
        most, sent = max(self.held, key=lambda num_bytes: abs(num_bytes - self.state_bytes)), self.most_sent
        return (
            Target(
                "bytes held for the optimizer by a rank",
                f"{self.state_bytes:,}",
                f"{most:,}",
                self.is_held_right(),
            ),
            Target(
                "bytes sent by a rank in all steps",
                f"{self.sent_bytes:,}",
                f"{sent:,}",
                self.is_sent_right(),
            ),
        )

    def mistake(self) -> str:
        """What is held or sent that should not be."""
        if not self.is_held_right():
            return self._mistake_of_held()
        if not self.is_sent_right():
            is_all_reduced = any(name == "all_reduce" for _, name in self.log.calls())
            return "all_reduced" if is_all_reduced else "too_many_bytes"
        return ""

    def _mistake_of_held(self) -> str:
        others = self.num_trained - self.slice_size
        if max(self.held) <= self.state_bytes + self.slack_bytes:
            return "holds_less"
        most = max(found.get("float32", 0) for found in self.by_dtype)
        for name, each in (("unsharded", STATE_BYTES), ("moments_whole", 8), ("masters_whole", 4)):
            if abs(most - self.state_bytes - each * others) <= self.slack_bytes:
                return name
        return "holds_more"

    def where(self) -> str:
        """The numbers, in words."""
        held = ", ".join(f"{num_bytes:,}" for num_bytes in self.held)
        return f"the ranks hold {held} bytes, and the busiest sent {self.most_sent:,}"


def draw(case: Case, sent: list[Any], log: Log) -> Table:
    """What each rank holds and sent, beside what an optimizer that is not cut up would."""
    outcome = Outcome(case, [[found["values"] for found in values["parameters"]] for values in sent])
    books = Books(case, len(outcome.start), [values["held"] for values in sent], log)
    rows: list[tuple[Any, ...]] = [
        (rank, f"{outcome.right(row).mean():.0%}", sum(values["held"].values()), books._sent(rank))
        for rank, (values, row) in enumerate(zip(sent, outcome.rows, strict=True))
    ]
    rows.append(("wanted", "100%", books.state_bytes, books.sent_bytes))
    rows.append(("AdamW under DDP", "100%", STATE_BYTES * books.num_trained, books.sent_bytes))
    columns = ("rank", "numbers as on one process", "bytes held for the optimizer", "bytes sent")
    return Table(columns, rows, f"{books.num_trained} trained numbers, {NUM_STEPS} steps")


SHARDED_OPTIMIZER = CodeQuestion(
    name="sharded_optimizer",
    title="An optimizer, cut up",
    points=35,
    minutes=25,
    cases=cases,
    call=call,
    judge=judge,
    draw=draw,
    example=lambda ranks: make_case(0, ranks),
    mistakes=OPTIMIZER_MISTAKES,
    entry="ShardedAdamW",
    allowed=("all_reduce", "reduce_scatter", "all_gather", "broadcast"),
    witnesses=("dpcourse.labs.held", "dpcourse.measure.process"),
)
