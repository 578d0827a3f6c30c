"""Lab 06, first question: a unit that gathers, computes, frees, and reduce-scatters its gradient."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpcourse.labs.fsdp.books import Books
from dpcourse.labs.fsdp.mistakes import UNIT_MISTAKES
from dpcourse.labs.fsdp.steps import LEARNING_RATE, NUM_STEPS, Layers, train
from dpcourse.labs.question import Case, CodeQuestion, Finding, Target
from dpcourse.labs.switch import Log
from dpcourse.labs.tensors import first_difference, is_close, wrong_kind
from dpcourse.tables import Table

# Weights whose lengths do not divide by most numbers of ranks; the last is shorter than four ranks.
SHAPES = ((5, 3), (7, 5), (3, 7), (1, 3))
_NUM_SAMPLES = 4
# What the steps may round, in eps of what a number could be if nothing cancelled.
_NUM_ROUNDINGS = 100


def make_case(seed: int, size: int) -> Case:
    """The same layers on every rank, and samples of its own for each step."""
    random = np.random.default_rng([seed, size, 6])
    weights = [(0.4 * random.standard_normal(shape)).astype(np.float32) for shape in SHAPES]
    batch_shape = (_NUM_SAMPLES, SHAPES[0][1])
    inputs = tuple(
        (weights, [random.standard_normal(batch_shape).astype(np.float32) for _ in range(NUM_STEPS)])
        for _ in range(size)
    )
    return Case(f"{size} ranks", inputs)


def cases(seed: int, sizes: tuple[int, ...]) -> tuple[Case, ...]:
    """One run for each world size."""
    return tuple(make_case(seed, size) for size in sizes)


def call(answer: Callable[..., Any], own: tuple[Layers, list[np.ndarray]]) -> dict[str, Any]:
    """In a rank: the training, with the answer's units."""
    return train(answer, *own)


def gradients_of(weights: Layers, batch: np.ndarray) -> Layers:
    """What backward finds for sum(output ** 2) / 2, a mean over the samples."""
    outputs = [batch]
    for weight in weights:
        outputs.append(outputs[-1] @ weight.T)
    gradient, found = outputs.pop(), []
    for weight in reversed(weights):
        inputs = outputs.pop()
        found.append(gradient.T @ inputs / len(batch))
        gradient = gradient @ weight
    return found[::-1]


@dataclass(frozen=True)
class Outcome:
    """The shards after the steps, beside those of a training on one process."""

    case: Case
    got: list[list[np.ndarray]]  # a rank's shards

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.case.world_size

    @cached_property
    def weights(self) -> Layers:
        """What the layers begin with."""
        return [weight.astype(np.float64) for weight in self.case.inputs[0][0]]

    @cached_property
    def batches(self) -> list[list[np.ndarray]]:
        """For each step the samples of every rank."""
        return [[own[1][step].astype(np.float64) for own in self.case.inputs] for step in range(NUM_STEPS)]

    @cached_property
    def exact(self) -> list[list[np.ndarray]]:
        """Each rank's shards, as they should be."""
        return self.shards(self.trained())

    @cached_property
    def path(self) -> list[Layers]:
        """The weights that each step begins with."""
        found = [self.weights]
        for batches in self.batches:
            found.append(self._moved(found[-1], found[-1], batches, 1.0))
        return found[:-1]

    def trained(self, factor: float = 1.0, is_stale: bool = False) -> Layers:
        """The weights after training on all samples; is_stale: all steps compute with the first weights."""
        weights = first = self.weights
        for batches in self.batches:
            weights = self._moved(weights, first if is_stale else weights, batches, factor)
        return weights

    def _moved(self, weights: Layers, seen: Layers, batches: list[np.ndarray], factor: float) -> Layers:
        """The weights after a step of all ranks, whose layers computed with those that they have `seen`."""
        by_rank = [gradients_of(seen, batch) for batch in batches]
        means = [np.mean(gradients, axis=0) for gradients in zip(*by_rank, strict=True)]
        return [w - LEARNING_RATE * factor * mean for w, mean in zip(weights, means, strict=True)]

    def shards(self, weights: Layers) -> list[list[np.ndarray]]:
        """Cut weights as the ranks should: flat, zeros at the end, one equal shard a rank."""
        rows = [np.append(weight.ravel(), np.zeros(-weight.size % self.size)) for weight in weights]
        return [[np.split(row, self.size)[rank] for row in rows] for rank in range(self.size)]

    @cached_property
    def bounds(self) -> list[list[np.ndarray]]:
        """How far rounding may take each number: a share of what it could be if nothing cancelled."""
        reach = [np.abs(weight) for weight in self.weights]
        for weights, batches in zip(self.path, self.batches, strict=True):
            large = [np.abs(weight) for weight in weights]
            by_rank = [gradients_of(large, np.abs(batch)) for batch in batches]
            means = [np.mean(gradients, axis=0) for gradients in zip(*by_rank, strict=True)]
            reach = [most + LEARNING_RATE * mean for most, mean in zip(reach, means, strict=True)]
        share = _NUM_ROUNDINGS * float(np.finfo(np.float32).eps)
        return [[share * shard for shard in shards] for shards in self.shards(reach)]

    def is_like(self, goals: list[list[np.ndarray]]) -> bool:
        """Whether all shards are these."""
        rows = zip(self.got, goals, self.bounds, strict=True)
        return all(all(map(is_close, *row)) for row in rows)

    def num_right(self) -> int:
        """The ranks whose shards are all right."""
        rows = zip(self.got, self.exact, self.bounds, strict=True)
        return sum(all(map(is_close, *row)) for row in rows)

    def difference(self) -> str:
        """Where the first number is off, in words."""
        for rank, rows in enumerate(zip(self.got, self.exact, self.bounds, strict=True)):
            for unit, row in enumerate(zip(*rows, strict=True)):
                if difference := first_difference(*row):
                    return f"rank {rank}, the shard of unit {unit}, {difference}"
        return ""

    def mistake(self) -> str:
        """What went wrong most likely."""
        if _are_near(self.got, self.shards(self.weights)):
            return "never_moved"
        if self.is_like(self.shards(self.trained(self.size))):
            return "sum"
        if self.is_like(self.shards(self.trained(1 / self.size))):
            return "divided_twice"
        if self.is_like(self.shards(self.trained(is_stale=True))):
            return "stale"
        turned = (self.exact[1:] + self.exact[:1], self.exact[-1:] + self.exact[:-1])
        is_shifted = any(_are_near(self.got, goals) for goals in turned)
        return "wrong_shard" if is_shifted else self._mistake_of_gradient()

    def _mistake_of_gradient(self) -> str:
        """Whether the first shard that moved wrongly followed its own rank's samples."""
        shards = [own[-1] for own in self.shards(self.trained_alone())]
        last = [own[-1] for own in self.got]
        return "own_gradient" if all(map(_is_near, last, shards)) else "other"

    def trained_alone(self) -> Layers:
        """The weights where every shard follows its own rank's samples."""
        weights = self.weights
        for batches in self.batches:
            shards = [
                self.shards(
                    [
                        w - LEARNING_RATE * gradient
                        for w, gradient in zip(weights, gradients_of(weights, batch), strict=True)
                    ]
                )[owner]
                for owner, batch in enumerate(batches)
            ]
            weights = [
                np.concatenate(rows)[: weight.size].reshape(weight.shape)
                for weight, rows in zip(weights, zip(*shards, strict=True), strict=True)
            ]
        return weights


def _are_near(got: list[list[np.ndarray]], goals: list[list[np.ndarray]]) -> bool:
    return all(all(map(_is_near, *pair)) for pair in zip(got, goals, strict=True))


def _is_near(got: np.ndarray, goal: np.ndarray) -> bool:
    return bool(np.allclose(got, goal, rtol=1e-4, atol=1e-5))


def judge(case: Case, sent: list[Any], log: Log) -> Finding:
    """Whole where it computes and nowhere else, two gathers and a reduce-scatter, the right shards."""
    books = Books(case.title, SHAPES, [values["lines"] for values in sent], log)
    if problem := books.problem():
        return Finding(problem[0], f"{case.title}: {problem[1]}")
    if wrong := _wrong_kind(case, sent):
        return Finding(wrong[0], f"{case.title}: {wrong[1]}")
    outcome = Outcome(case, [[found["values"] for found in values["shards"]] for values in sent])
    right = outcome.num_right()
    name = "ranks with the shards of a training on one process"
    target = Target(name, str(case.world_size), str(right), right == case.world_size)
    targets = (target, *books.targets())
    if held := books.mistake_of_memory():
        return Finding(held[0], f"{case.title}: {held[1]}", targets)
    if where := outcome.difference():
        return Finding(outcome.mistake(), f"{case.title}: {where}", targets)
    mistake = books.mistake_of_traffic()
    return Finding(mistake, f"{case.title}: {books.where()}" if mistake else "", targets)


def _wrong_kind(case: Case, sent: list[Any]) -> tuple[str, str] | None:
    for rank, values in enumerate(sent):
        for unit, (found, shape) in enumerate(zip(values["shards"], SHAPES, strict=True)):
            num_in_shard = -(-shape[0] * shape[1] // case.world_size)
            if wrong := wrong_kind(found, np.float32, (num_in_shard,)):
                return wrong[0], f"rank {rank}, the shard of unit {unit}: {wrong[1]}"
    return None


def draw(case: Case, sent: list[Any], log: Log) -> Table:
    """The diary of the first step on rank 0: what happened, what was there, and what was sent for it."""
    books = Books(case.title, SHAPES, [values["lines"] for values in sent], log)
    columns = ("moment", "bytes held", "of them shards", "so whole", "sent for it")
    return Table(columns, books.diary(), f"One step on rank 0 of {case.world_size}, {len(SHAPES)} units")


UNIT = CodeQuestion(
    name="unit",
    title="A unit that gathers, computes, frees",
    points=40,
    minutes=25,
    cases=cases,
    call=call,
    judge=judge,
    draw=draw,
    example=lambda ranks: make_case(0, ranks),
    mistakes=UNIT_MISTAKES,
    entry="Unit",
    witnesses=("dpcourse.labs.held",),
    allowed=("all_reduce", "reduce_scatter", "all_gather", "broadcast"),
)
