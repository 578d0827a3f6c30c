"""Script 1: samples dealt to ranks, epoch after epoch, in an order that never changes."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dpcourse.labs.production.script import script
from dpcourse.labs.question import Case, Finding, Mistake, Target

BATCH_SIZE, NUM_EPOCHS, RESUMED_EPOCH, BATCHES = 3, 4, 2, 2


def _case(random: np.random.Generator, size: int, is_first: bool) -> tuple[Any, ...]:
    names = 1000 + random.permutation(1000)[: size * BATCHES * BATCH_SIZE]
    return (names.tolist(),) * size


def call(answer: Callable[..., Any], samples: list[int]) -> dict[str, Any]:
    """In a rank: the samples of each batch, in a whole run and in one resumed from the third epoch."""
    seen: dict[str, list[Any]] = {"whole": [], "resumed": []}
    for name, first_epoch in (("whole", 0), ("resumed", RESUMED_EPOCH)):
        batches = seen[name]
        answer(samples, BATCH_SIZE, first_epoch, NUM_EPOCHS, lambda b, into=batches: into.append(b.tolist()))
    return seen


def judge(case: Case, sent: list[Any]) -> Finding:
    """Each epoch draws each sample once, in an order of its own that a resumed run draws as well."""
    mistake, where = next(_problems(case, sent), ("", ""))
    orders = [tuple(_epoch(values["whole"], epoch)) for epoch in range(NUM_EPOCHS) for values in sent[:1]]
    num_orders, target = len(set(orders)), "orders that rank 0 saw"
    targets = (Target(target, str(NUM_EPOCHS), str(num_orders), num_orders == NUM_EPOCHS),)
    return Finding(mistake, f"{case.title}: {where}" if where else "", targets)


def _problems(case: Case, sent: list[Any]) -> Iterator[tuple[str, str]]:
    """What is wrong, the most telling first."""
    samples = case.inputs[0]
    for rank, values in enumerate(sent):
        for name, epochs in (("whole", NUM_EPOCHS), ("resumed", NUM_EPOCHS - RESUMED_EPOCH)):
            if list(map(len, values[name])) != [BATCH_SIZE] * BATCHES * epochs:
                drawn, share = sum(map(len, values[name])), BATCHES * BATCH_SIZE * epochs
                yield (
                    "wrong_share",
                    f"rank {rank} drew {drawn} samples in {epochs} epochs; its share is {share}",
                )
    for epoch in range(NUM_EPOCHS):
        count = Counter(sample for values in sent for sample in _epoch(values["whole"], epoch))
        missing, doubled = sum(count[s] == 0 for s in samples), sum(count[s] > 1 for s in samples)
        if missing or doubled:
            yield (
                "ranks_disagree",
                f"epoch {epoch}: {missing} samples drawn by nobody, {doubled} more than once",
            )
    yield from _wrong_orders(sent)


def _wrong_orders(sent: list[Any]) -> Iterator[tuple[str, str]]:
    for rank, values in enumerate(sent):
        orders = [_epoch(values["whole"], epoch) for epoch in range(NUM_EPOCHS)]
        again = [(a, b) for b in range(NUM_EPOCHS) for a in range(b) if orders[a] == orders[b]]
        if again:
            is_one = again == [(0, 1)]
            epochs = f"rank {rank}: epoch {again[0][1]} has the order of epoch {again[0][0]}"
            yield "told_late" if is_one else "same_order", epochs
        if _epoch(values["resumed"], 0) != orders[RESUMED_EPOCH]:
            yield (
                "another_run",
                f"rank {rank}: resumed in epoch {RESUMED_EPOCH}, it drew another order than before",
            )


def _epoch(batches: list[list[int]], epoch: int) -> list[int]:
    """The samples of one epoch, in order."""
    return [sample for batch in batches[epoch * BATCHES : (epoch + 1) * BATCHES] for sample in batch]


def _row(samples: list[int], values: Any) -> list[str]:
    firsts = [_epoch(values["whole"], epoch)[:3] for epoch in range(NUM_EPOCHS)]
    return [" ".join(map(str, first)) for first in firsts]


_BROKEN = """\
def train_epochs(samples, batch_size, first_epoch, num_epochs, train_step):
    sampler = DistributedSampler(samples)
    loader = DataLoader(samples, batch_size=batch_size, sampler=sampler)
    for epoch in range(first_epoch, num_epochs):
        for batch in loader:
            train_step(batch)
"""

TRAIN_EPOCHS = script(
    "train_epochs",
    "The first three samples of each epoch",
    minutes=6,
    case=_case,
    call=call,
    judge=judge,
    columns=tuple(f"epoch {epoch}" for epoch in range(NUM_EPOCHS)),
    row=_row,
    broken=_BROKEN,
    mistakes=(
        Mistake(
            "same_order",
            "Epochs come in one order: the sampler's shuffle is seeded with an epoch, and nobody tells it"
            " which.",
        ),
        Mistake(
            "told_late",
            "The second epoch repeats the first: the sampler is told its epoch only after it has dealt it.",
        ),
        Mistake(
            "another_run",
            "A resumed run draws another order than the run it goes on with: count epochs from the start of"
            " the training, not from the start of this process.",
        ),
        Mistake(
            "ranks_disagree",
            "The order changes, but each rank shuffles for itself: the shares overlap, and some samples are"
            " drawn by nobody. All ranks must deal from one and the same order.",
        ),
        Mistake(
            "wrong_share",
            "A rank drew more or less than its share: without the DistributedSampler every rank trains on all"
            " samples, and N ranks do the work of one.",
        ),
    ),
)
