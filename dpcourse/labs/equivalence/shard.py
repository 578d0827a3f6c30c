"""Lab 01, first question: the rows of the global batch that a rank holds."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from dpcourse.labs.equivalence.mistakes import SHARD_MISTAKES
from dpcourse.labs.inside import describe
from dpcourse.labs.question import Case, CodeQuestion, Finding, Target
from dpcourse.labs.tensors import wrong_kind
from dpcourse.tables import Table


def cases(seed: int, sizes: tuple[int, ...]) -> tuple[Case, ...]:
    """One run for each world size: batches that divide, that do not, and one smaller than the ranks."""
    return tuple(case(seed, size, (3 * size, 4 * size - 1, 4 * size + 1, size - 1)) for size in sizes)


def case(seed: int, size: int, num_rows: tuple[int, ...]) -> Case:
    """One run on `size` ranks: a batch of random rows, two numbers each, for each entry of `num_rows`."""
    random = np.random.default_rng([seed, size])
    batches = [random.standard_normal((rows, 2)).astype(np.float32) for rows in num_rows]
    return Case(f"{size} ranks", tuple(batches for _ in range(size)))


def example(ranks: int) -> Case:
    """The case that the picture shows: one batch of ten rows."""
    return case(0, ranks, (10,))


def call(answer: Callable[..., Any], batches: list[np.ndarray]) -> list[Any]:
    """In a rank: its shard of each batch."""
    import torch
    import torch.distributed as dist

    rank, world_size = dist.get_rank(), dist.get_world_size()
    return [describe(answer(torch.from_numpy(batch.copy()), rank, world_size)) for batch in batches]


def judge(case: Case, sent: list[Any]) -> Finding:
    """Every row of every batch on exactly one rank, and shards as even as they can be."""
    findings = []
    for number, batch in enumerate(case.inputs[0]):
        findings.append(_judge_batch(batch, [shards[number] for shards in sent]))
        if findings[-1].mistake:
            break
    return findings[-1]


def _judge_batch(batch: np.ndarray, shards: list[Any]) -> Finding:
    place = f"a batch of {len(batch)} rows on {len(shards)} ranks"
    for rank, shard in enumerate(shards):
        if wrong := wrong_kind(shard, batch.dtype, (_num_rows(shard), *batch.shape[1:])):
            return Finding(wrong[0], f"{place}: rank {rank}: {wrong[1]}")
    rows_held = [_row_numbers(shard["values"], batch) for shard in shards]
    if any(-1 in rows for rows in rows_held):
        return Finding("altered_rows", f"{place}: a rank holds a row that is not in the batch")
    return _judge_rows(rows_held, len(batch), place)


def _num_rows(shard: Any) -> int:
    array = shard.get("values") if type(shard) is dict else None
    return array.shape[0] if type(array) is np.ndarray and array.ndim else 0


def _row_numbers(shard: np.ndarray, batch: np.ndarray) -> list[int]:
    """For each row of the shard its number in the batch; -1 when it is not there."""
    number_of = {row.tobytes(): number for number, row in enumerate(batch)}
    return [number_of.get(row.tobytes(), -1) for row in shard]


def _judge_rows(rows_held: list[list[int]], num_rows: int, place: str) -> Finding:
    count = Counter(row for rows in rows_held for row in rows)
    missing = [row for row in range(num_rows) if row not in count]
    doubled = [row for row in sorted(count) if count[row] > 1]
    unevenness = max(map(len, rows_held)) - min(map(len, rows_held))
    targets = (
        Target("rows that no rank holds", "0", str(len(missing)), not missing),
        Target("rows held more than once", "0", str(len(doubled)), not doubled),
        Target("largest shard less smallest", "at most 1", str(unevenness), unevenness <= 1),
    )
    mistake = _mistake(rows_held, missing, doubled, unevenness)
    shown = "; ".join(f"rank {rank} holds {rows}" for rank, rows in enumerate(rows_held))
    return Finding(mistake, f"{place}: {shown}" if mistake else "", targets)


def _mistake(rows_held: list[list[int]], missing: list[int], doubled: list[int], unevenness: int) -> str:
    num_rows = len(missing) + len({row for rows in rows_held for row in rows})
    if doubled and all(rows == rows_held[0] for rows in rows_held):
        return "same_shard" if missing else "whole_batch"
    if missing:
        is_tail = missing == list(range(num_rows - len(missing), num_rows)) and not doubled
        return "dropped_last" if is_tail else "dropped"
    if doubled:
        return "doubled"
    return "uneven" if unevenness > 1 else ""


def draw(case: Case, sent: list[Any]) -> Table:
    """Which rows of the first batch each rank holds."""
    batch = case.inputs[0][0]
    rows_held = [
        _row_numbers(np.atleast_2d(shards[0]["values"]), batch) if "values" in shards[0] else []
        for shards in sent
    ]
    rows = [(rank, " ".join(map(str, rows)), len(rows)) for rank, rows in enumerate(rows_held)]
    return Table(
        ("rank", "rows it holds", "how many"), rows, f"A batch of {len(batch)} rows, numbered from 0"
    )


SHARD_BATCH = CodeQuestion(
    name="shard_batch",
    title="The rank's rows of the global batch",
    points=20,
    minutes=10,
    cases=cases,
    call=call,
    judge=judge,
    draw=draw,
    example=example,
    mistakes=SHARD_MISTAKES,
)
