"""Lab 01, second and third question: gradients combined over ranks, plain and weighted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpcourse.labs.equivalence.mistakes import COMBINE_MISTAKES, WEIGHTED_MISTAKES
from dpcourse.labs.inside import describe_list
from dpcourse.labs.question import Case, CodeQuestion, Finding
from dpcourse.labs.sums import Sums, Tensors
from dpcourse.tables import Table

SHAPES = ((3, 4), (5,), ())


def make_gradients(random: np.random.Generator, last_dtype: Any = np.float32) -> Tensors:
    """Random gradients of three shapes, one of them a single number; float32, the last as asked for."""
    dtypes = (np.float32, np.float32, last_dtype)
    return [
        np.asarray(random.standard_normal(shape), dtype) for shape, dtype in zip(SHAPES, dtypes, strict=True)
    ]


def run_answer(answer: Callable[..., Any], gradients: Tensors, *numbers: int) -> dict[str, Any]:
    """In a rank: what the tensors hold after the call, and what the list holds and the call returned."""
    import torch

    held = [torch.from_numpy(gradient.copy()) for gradient in gradients]
    listed = list(held)
    returned = answer(listed, *numbers)
    return {"held": describe_list(held), "other": [describe_list(listed), describe_list(returned)]}


def _first_row(tensors: Any) -> str:
    """The first numbers of the second tensor, for a picture."""
    return " ".join(f"{number:.2f}" for number in np.ravel(tensors[1])[:3])


# --- combine_gradients ---


def gradient_cases(seed: int, sizes: tuple[int, ...]) -> tuple[Case, ...]:
    """One run for each world size, tensors of three shapes; the last tensor is float64 in the last run."""
    return tuple(
        _gradient_case(seed, size, np.float64 if size == sizes[-1] else np.float32) for size in sizes
    )


def _gradient_case(seed: int, size: int, last_dtype: Any = np.float32) -> Case:
    random = np.random.default_rng([seed, size, 1])
    return Case(f"{size} ranks", tuple(make_gradients(random, last_dtype) for _ in range(size)))


def judge_gradients(case: Case, sent: list[Any]) -> Finding:
    """Every rank's own tensors hold the mean over ranks."""
    parts = [[gradient.astype(np.float64) / case.world_size for gradient in own] for own in case.inputs]
    held, other = [values["held"] for values in sent], [values["other"] for values in sent]
    return Sums(case.title, list(case.inputs), parts, held, other).judge()


def draw_gradients(case: Case, sent: list[Any]) -> Table:
    """Three numbers of one gradient on each rank, before and after, beside their mean."""
    goal = _first_row([np.mean(tensors, axis=0) for tensors in zip(*case.inputs, strict=True)])
    rows = [
        (rank, _first_row(own), _first_row([tensor["values"] for tensor in values["held"]]), goal)
        for rank, (own, values) in enumerate(zip(case.inputs, sent, strict=True))
    ]
    return Table(
        ("rank", "its gradient", "after your call", "mean over ranks"), rows, "Three numbers of one gradient"
    )


COMBINE_GRADIENTS = CodeQuestion(
    name="combine_gradients",
    title="The mean over ranks, in place",
    points=25,
    minutes=10,
    cases=gradient_cases,
    call=run_answer,
    judge=judge_gradients,
    draw=draw_gradients,
    example=lambda ranks: _gradient_case(0, ranks),
    mistakes=COMBINE_MISTAKES,
)


# --- combine_weighted ---


@dataclass(frozen=True)
class Shard:
    """What a rank knows after its backward pass: mean gradients over its own terms, its rows, its terms."""

    gradients: Tensors
    num_rows: int
    num_terms: int


def weighted_cases(seed: int, sizes: tuple[int, ...]) -> tuple[Case, ...]:
    """One run for each world size: first every rank has terms, then one has none, and nan gradients."""
    return tuple(_weighted_case(seed, size) for size in sizes)


def _weighted_case(seed: int, size: int) -> Case:
    random = np.random.default_rng([seed, size, 2])
    full, with_empty = _shards(random, size), _shards(random, size)
    empty = int(random.integers(size))
    nothing = [np.full_like(gradient, np.nan) for gradient in with_empty[empty].gradients]
    with_empty[empty] = Shard(nothing, with_empty[empty].num_rows, 0)
    return Case(f"{size} ranks", tuple(list(pair) for pair in zip(full, with_empty, strict=True)))


def _shards(random: np.random.Generator, size: int) -> list[Shard]:
    # Rows fall while terms rise, so that weighing by the one is far from weighing by the other.
    num_rows = [4 + size - rank for rank in range(size)]
    num_terms = [5 + 11 * rank + int(random.integers(5)) for rank in range(size)]
    return [Shard(make_gradients(random), *numbers) for numbers in zip(num_rows, num_terms, strict=True)]


def call_weighted(answer: Callable[..., Any], shards: list[Shard]) -> list[Any]:
    """In a rank: the answer on each of its shards, one after the other."""
    return [run_answer(answer, shard.gradients, shard.num_rows, shard.num_terms) for shard in shards]


def judge_weighted(case: Case, sent: list[Any]) -> Finding:
    """Every rank holds the gradient of the mean over all terms of all ranks."""
    findings = []
    for number, shards in enumerate(zip(*case.inputs, strict=True)):
        findings.append(_judge_weighted(case.title, shards, [values[number] for values in sent]))
        if findings[-1].mistake:
            break
    return findings[-1]


def _judge_weighted(title: str, shards: tuple[Shard, ...], sent: list[Any]) -> Finding:
    num_terms = [shard.num_terms for shard in shards]
    given = [shard.gradients for shard in shards]
    held, other = [values["held"] for values in sent], [values["other"] for values in sent]
    sums = Sums(f"{title} with {num_terms} terms", given, _weigh(given, num_terms), held, other)
    finding = sums.judge()
    if finding.mistake not in ("other", "sum", "divided_twice"):
        return finding
    return Finding(_weighted_mistake(sums, shards) or finding.mistake, finding.where, finding.targets)


def _weigh(given: list[Tensors], weights: list[int], divisor: float | None = None) -> list[Tensors]:
    """Each rank's part of the weighted mean; a rank of weight 0 has none, whatever its gradients hold."""
    shares = [weight / (divisor or sum(weights)) for weight in weights]
    return [
        [gradient.astype(np.float64) * share if share else np.zeros(gradient.shape) for gradient in own]
        for own, share in zip(given, shares, strict=True)
    ]


def _weighted_mistake(sums: Sums, shards: tuple[Shard, ...]) -> str:
    """Which wrong weights give what the ranks hold; empty when none of the known ones do."""
    num_rows, num_terms = [shard.num_rows for shard in shards], [shard.num_terms for shard in shards]
    ones = [1] * len(shards)
    wrong_weights = {
        "mean_of_means": _weigh(sums.given, ones),
        "sum": _weigh(sums.given, ones, 1),
        "by_rows": _weigh(sums.given, num_rows),
        "not_divided": _weigh(sums.given, num_terms, 1),
        "divided_by_ranks": _weigh(sums.given, num_terms, len(shards)),
    }
    for mistake, parts in wrong_weights.items():
        if all(map(all, Sums(sums.title, sums.given, parts, sums.held, sums.other).is_right)):
            return mistake
    return ""


def draw_weighted(case: Case, sent: list[Any]) -> Table:
    """Rows, terms and three numbers of one gradient on each rank, before and after, beside the right ones."""
    shards = [own[0] for own in case.inputs]
    parts = _weigh([shard.gradients for shard in shards], [shard.num_terms for shard in shards])
    goal = _first_row([np.sum(tensors, axis=0) for tensors in zip(*parts, strict=True)])
    rows = [
        (rank, shard.num_rows, shard.num_terms, _first_row(shard.gradients), _first_row(_held(values)), goal)
        for rank, (shard, values) in enumerate(zip(shards, sent, strict=True))
    ]
    columns = ("rank", "rows", "terms", "its gradient", "after your call", "over all terms")
    return Table(columns, rows, "Three numbers of one gradient")


def _held(values: list[Any]) -> Tensors:
    return [tensor["values"] for tensor in values[0]["held"]]


COMBINE_WEIGHTED = CodeQuestion(
    name="combine_weighted",
    title="Weighted by the number of loss terms",
    points=30,
    minutes=15,
    cases=weighted_cases,
    call=call_weighted,
    judge=judge_weighted,
    draw=draw_weighted,
    example=lambda ranks: _weighted_case(0, ranks),
    mistakes=WEIGHTED_MISTAKES,
)
