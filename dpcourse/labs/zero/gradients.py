"""Lab 05, second question: in backward each gradient becomes a slice of the mean, and is let go."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpcourse.labs.inside import describe
from dpcourse.labs.question import Case, CodeQuestion, Finding, Target
from dpcourse.labs.switch import Log
from dpcourse.labs.tensors import first_difference, is_close, rounding_bound, wrong_kind
from dpcourse.labs.zero.gradient_mistakes import GRADIENT_MISTAKES
from dpcourse.tables import Table

NUM_PASSES = 2


def make_case(seed: int, size: int) -> Case:
    """Gradients of four parameters, which do not divide by the ranks, for two backward passes."""
    random = np.random.default_rng([seed, size, 52])
    shapes: list[tuple[int, ...]] = [(), (size - 1,), (7, 2 * size + 1), (5 * size + 2,)]
    dtypes = [np.float32, np.float32, np.float32, np.float64]
    inputs = tuple(
        [
            [np.asarray(random.standard_normal(s), d) for s, d in zip(shapes, dtypes, strict=True)]
            for _ in range(NUM_PASSES)
        ]
        for _ in range(size)
    )
    return Case(f"{size} ranks", inputs)


def cases(seed: int, sizes: tuple[int, ...]) -> tuple[Case, ...]:
    """One run for each world size."""
    return tuple(make_case(seed, size) for size in sizes)


def call(answer: Callable[..., Any], passes: list[list[np.ndarray]]) -> dict[str, Any]:
    """In a rank: the slices after all passes, and what was there whenever the answer had dealt with one."""
    import torch

    from dpcourse.labs import plug
    from dpcourse.labs.held import Held

    slices: dict[Any, Any] = {}
    wanted = [[torch.from_numpy(array.copy()) for array in arrays] for arrays in passes]
    parameters = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in wanted[0]]
    held, moments = Held(), []

    def arrived(parameter: Any) -> None:
        index = next(k for k, own in enumerate(parameters) if own is parameter)
        plug.note(f"gradient {index}")
        answer(parameter, slices)
        is_there = parameter.grad is not None
        moments.append([index, held.num_bytes(without=[loss, root]), is_there])

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(arrived)
    for gradients in wanted:
        loss = _loss(parameters, gradients)
        root = torch.ones_like(loss)
        loss.backward(root)
    return {"slices": [describe(slices.get(parameter)) for parameter in parameters], "moments": moments}


def _loss(parameters: list[Any], gradients: list[Any]) -> Any:
    """A loss whose gradients are these."""
    return sum((p * g).sum() for p, g in zip(parameters, gradients, strict=True))


@dataclass(frozen=True)
class Slices:
    """One parameter's gradients of all ranks and passes, and the slices that should come of them."""

    gradients: tuple[tuple[np.ndarray, ...], ...]  # a rank's, one a pass

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.gradients)

    @property
    def num_in_slice(self) -> int:
        """How many numbers a slice has, with the zeros at the end."""
        return -(-self.gradients[0][0].size // self.size)

    @property
    def slice_bytes(self) -> int:
        """Its bytes."""
        return self.num_in_slice * int(self.gradients[0][0].itemsize)

    def cut(self, array: np.ndarray) -> list[np.ndarray]:
        """One slice a rank."""
        row = array.astype(np.float64).ravel()
        padded = np.concatenate([row, np.zeros(self.num_in_slice * self.size - row.size)])
        return np.split(padded, self.size)

    @property
    def exact(self) -> list[np.ndarray]:
        """Each rank's slice of the mean, added up over the passes."""
        return self.cut(np.sum([self.mean(k) for k in range(NUM_PASSES)], axis=0))

    def mean(self, number: int) -> np.ndarray:
        """The mean gradient of one pass."""
        return np.mean([own[number].astype(np.float64) for own in self.gradients], axis=0)

    @property
    def bounds(self) -> list[np.ndarray]:
        """How far rounding may take each number."""
        terms = [gradient for own in self.gradients for gradient in own]
        return self.cut(rounding_bound(terms, terms[0].dtype))

    def mistake(self, got: list[np.ndarray]) -> str:
        """What the ranks hold in place of their slices of the mean."""
        exact = self.exact
        sums = [self.cut(np.sum(own, axis=0)) for own in self.gradients]
        twice = 2 * self.mean(0) + self.mean(1)  # the first gradient was still there at the second pass
        known = {
            "sum": [self.size * goal for goal in exact],
            "divided_twice": [goal / self.size for goal in exact],
            "not_reduced": [sums[rank][rank] for rank in range(self.size)],
            "overwrites": self.cut(self.mean(NUM_PASSES - 1)),
            "added_up": self.cut(twice),
            "slice_of_rank_0": [exact[0]] * self.size,
        }
        for name, goals in known.items():
            if all(np.allclose(*pair, rtol=1e-4, atol=1e-6) for pair in zip(got, goals, strict=True)):
                return name
        return "other"


def judge(case: Case, sent: list[Any], log: Log) -> Finding:
    """Slices of the mean on every rank, nothing but slices there at any moment, a reduce-scatter's bytes."""
    given = _given(case)
    books = Books(case.title, given, [values["moments"] for values in sent], log)
    if where := books.is_incomplete():
        return Finding("no_answer", f"{case.title}: {where}")
    by_parameter = list(zip(*[values["slices"] for values in sent], strict=True))
    kinds = [_wrong_kind(slices, own) for slices, own in zip(given, by_parameter, strict=True)]
    if problem := next((found for found in kinds if found), None):
        return Finding(problem[0], f"{case.title}, {problem[1]}", books.targets())
    return _judge_values(books, [[found["values"] for found in own] for own in by_parameter])


def _given(case: Case) -> list[Slices]:
    return [Slices(own) for own in zip(*map(_by_parameter, case.inputs), strict=True)]


def _by_parameter(passes: list[list[np.ndarray]]) -> list[tuple[np.ndarray, ...]]:
    return list(zip(*passes, strict=True))


def _wrong_kind(slices: Slices, sent: tuple[Any, ...]) -> tuple[str, str] | None:
    """What keeps the slices of one parameter from being compared."""
    gradient = slices.gradients[0][0]
    for rank, found in enumerate(sent):
        if wrong := wrong_kind(found, gradient.dtype, (slices.num_in_slice,)):
            place = f"a gradient of {list(gradient.shape)}: rank {rank}: {wrong[1]}"
            return _name_of(found, wrong[0], gradient), place
    return None


def _name_of(found: Any, mistake: str, gradient: np.ndarray) -> str:
    if mistake == "wrong_type" and found.get("type") == "NoneType":
        return "nothing_kept"
    is_whole = mistake == "wrong_shape" and gradient.size > 1 and found["values"].size == gradient.size
    return "whole" if is_whole else mistake


def _judge_values(books: "Books", got: list[list[np.ndarray]]) -> Finding:
    right = [
        all(map(is_close, own, slices.exact, slices.bounds))
        for slices, own in zip(books.given, got, strict=True)
    ]
    target = Target("parameters whose slices are right", str(len(got)), str(sum(right)), all(right))
    targets = (target, *books.targets())
    if books.kept:
        return Finding("keeps_gradient", f"{books.title}: {books.kept}", targets)
    for slices, own in zip(books.given, got, strict=True):
        for rank, row in enumerate(zip(own, slices.exact, slices.bounds, strict=True)):
            if difference := first_difference(*row):
                shape = list(slices.gradients[0][0].shape)
                where = f"{books.title}, a gradient of {shape}: rank {rank}, {difference}"
                return Finding(slices.mistake(own), where, targets)
    mistake = books.mistake()
    return Finding(mistake, f"{books.title}: {books.where()}" if mistake else "", targets)


@dataclass(frozen=True)
class Books:
    """What was there when each gradient had been dealt with, and what was sent for it."""

    title: str
    given: list[Slices]
    moments: list[list[list[Any]]]  # a rank's: which parameter, bytes held, whether its .grad is still there
    log: Log

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.moments)

    def is_incomplete(self) -> str:
        """What keeps the moments from being those of an honest run."""
        wanted = sorted([*range(len(self.given))] * NUM_PASSES)
        for rank, moments in enumerate(self.moments):
            if sorted(index for index, *_ in moments) != wanted:
                return f"rank {rank} dealt with other gradients than there are"
        return ""

    @property
    def kept(self) -> str:
        """The first gradient that was still there, in words."""
        for rank, moments in enumerate(self.moments):
            for index, _, is_there in moments:
                if is_there:
                    shape = list(self.given[index].gradients[0][0].shape)
                    return f"rank {rank}: .grad of {shape} is there after your call"
        return ""

    def wanted_bytes(self, rank: int) -> list[int]:
        """The slices that there are after each of a rank's moments."""
        seen: set[int] = set()
        sums = []
        for index, *_ in self.moments[rank]:
            seen.add(index)
            sums.append(sum(self.given[k].slice_bytes for k in seen))
        return sums

    @property
    def most_over(self) -> int:
        """By how many bytes the fullest moment of any rank exceeds its slices."""
        return max(
            held - wanted
            for rank in range(self.size)
            for (_, held, _), wanted in zip(self.moments[rank], self.wanted_bytes(rank), strict=True)
        )

    @property
    def wanted_sent(self) -> int:
        """What a rank of a ring sends to reduce and scatter all gradients."""
        return NUM_PASSES * (self.size - 1) * sum(slices.slice_bytes for slices in self.given)

    @property
    def most_sent(self) -> int:
        """What the busiest rank sent."""
        return max(self.log.sent_bytes(rank) for rank in range(self.size))

    def targets(self) -> tuple[Target, ...]:
        """Bytes beside the slices, and bytes on the switch."""
        over, sent, wanted = self.most_over, self.most_sent, self.wanted_sent
        is_cheap = sent <= wanted
        return (
            Target("bytes held beside the slices", "0", f"{max(over, 0):,}", over <= 0),
            Target("bytes sent by a rank", f"{wanted:,}", f"{sent:,}", is_cheap),
        )

    def mistake(self) -> str:
        """What is held or sent that should not be."""
        if self.most_over > 0:
            return "holds_more"
        if self.most_sent > self.wanted_sent:
            is_all_reduced = any(name == "all_reduce" for _, name in self.log.calls())
            return "all_reduced" if is_all_reduced else "too_many_bytes"
        return ""

    def where(self) -> str:
        """The numbers, in words."""
        held = ", ".join(f"{num_bytes:,}" for _, num_bytes, _ in self.moments[0])
        return f"rank 0 held {held} bytes after each gradient, and the busiest rank sent {self.most_sent:,}"


def draw(case: Case, sent: list[Any], log: Log) -> Table:
    """What rank 0 holds as one gradient after the other arrives, beside slices alone and whole gradients."""
    given = _given(case)
    books = Books(case.title, given, [values["moments"] for values in sent], log)
    whole: dict[int, int] = {}
    rows = []
    for (index, held, _), wanted in zip(books.moments[0], books.wanted_bytes(0), strict=True):
        gradient = given[index].gradients[0][0]
        whole[index] = gradient.nbytes
        rows.append((str(list(gradient.shape)), held, wanted, sum(whole.values())))
    columns = ("a gradient arrives", "bytes held after your call", "slices alone", "whole gradients, as DDP")
    return Table(columns, rows, f"Two backward passes on rank 0 of {case.world_size}")


SHARDED_GRADIENTS = CodeQuestion(
    name="sharded_gradients",
    title="Gradients that never pile up",
    points=30,
    minutes=15,
    cases=cases,
    call=call,
    judge=judge,
    draw=draw,
    example=lambda ranks: make_case(0, ranks),
    mistakes=GRADIENT_MISTAKES,
    entry="on_gradient",
    witnesses=("dpcourse.labs.held",),
    allowed=("all_reduce", "reduce_scatter", "all_gather", "broadcast"),
)
