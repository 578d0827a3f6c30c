"""Script 5: one rank skips a batch, and the others wait for it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dpcourse.labs.production.inside_rank import as_ddp, as_tensors, parameters_of
from dpcourse.labs.production.linear import Batch, Linear, make_batch, make_linear, total
from dpcourse.labs.production.outcomes import Outcomes
from dpcourse.labs.production.script import script, short
from dpcourse.labs.question import Case, Finding, Mistake

RATE, NUM_BATCHES = 0.125, 4
Share = tuple[Linear, list[Batch]]


def _case(random: np.random.Generator, size: int, is_first: bool) -> tuple[Share, ...]:
    linear = make_linear(random)
    lists = [[make_batch(random, 3) for _ in range(NUM_BATCHES)] for _ in range(size)]
    lists[int(random.integers(size))][int(random.integers(1, NUM_BATCHES - 1))][0][1, 2] = np.nan
    return tuple((linear, batches) for batches in lists)


def call(answer: Callable[..., Any], share: Share) -> dict[str, Any]:
    """In a rank: the parameters after training on its batches."""
    import torch

    model = as_ddp(share[0])
    answer(model, torch.optim.SGD(model.parameters(), lr=RATE), as_tensors(share[1]))
    return parameters_of(model.module)


def _is_damaged(batch: Batch) -> bool:
    return bool(np.isnan(batch[0]).any())


def judge(case: Case, sent: list[Any]) -> Finding:
    """All ranks took the same steps, and none of them on a damaged batch."""
    finding = _outcomes(case).judge(case.title, sent)
    if finding.mistake != "other":
        return finding
    if any(np.isnan(values["weight"]).any() for values in sent):
        return Finding("nan", finding.where, finding.targets)
    is_equal = all(np.array_equal(values["weight"], sent[0]["weight"]) for values in sent)
    return finding if is_equal else Finding("drifted", finding.where, finding.targets)


def _outcomes(case: Case) -> Outcomes:
    size = case.world_size
    rounds = list(zip(*(batches for _, batches in case.inputs), strict=True))
    whole = [batches for batches in rounds if not any(map(_is_damaged, batches))]
    repaired = [[(np.nan_to_num(inputs), targets) for inputs, targets in batches] for batches in rounds]
    clean = [[batch for batch in batches if not _is_damaged(batch)] for _, batches in case.inputs]
    moved_up = [[own[step] for own in clean if step < len(own)] for step in range(NUM_BATCHES)]
    left = [[batch for batch in batches if not _is_damaged(batch)] for batches in rounds]
    wrong_ways = {
        "others_stepped": (left, size),
        "others_weighed": (left, None),
        "repaired": (repaired, size),
        "moved_up": (moved_up, size),
    }
    return Outcomes(
        [_trained(case, whole, size).values] * size,
        {name: [_trained(case, *way).values] * size for name, way in wrong_ways.items()},
    )


def _trained(case: Case, rounds: list[Any], divisor: int | None) -> Linear:
    """The parameters after one step on each round; its gradients are added and divided by `divisor`."""
    linear: Linear = case.inputs[0][0]
    for batches in rounds:
        gradients = [linear.gradient(batch) for batch in batches]
        linear = linear.moved(total(gradients, 1 / (divisor or len(gradients))), -RATE)
    return linear


def _row(share: Share, values: Any) -> tuple[Any, ...]:
    damaged = [str(number) for number, batch in enumerate(share[1]) if _is_damaged(batch)]
    return ", ".join(damaged) or "none", short(share[0].weight), short(values["weight"])


_BROKEN = """\
def train(model, optimizer, batches):
    for inputs, targets in batches:
        if inputs.isnan().any():
            continue
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()
"""

TRAIN = script(
    "train",
    "Training around a damaged batch",
    minutes=8,
    case=_case,
    call=call,
    judge=judge,
    columns=("damaged batches", "its weight", "after training"),
    row=_row,
    broken=_BROKEN,
    mistakes=(
        Mistake(
            "hang",
            "A rank that skips a batch alone skips its all-reduce as well, and from there on it is one"
            " collective behind. Whether to skip is a decision that all ranks have to make together.",
        ),
        Mistake(
            "barrier",
            "A barrier does not stand in for an all-reduce: a rank that waits in the one never meets a rank"
            " that waits in the other. What is missing is an agreement on whether to skip.",
        ),
        Mistake(
            "moved_up",
            "No hang, but from the damaged batch on the ranks' batches are paired differently, and the last"
            " step lacks a rank. join() lets a rank end early; it does not make ranks skip the same batch.",
        ),
        Mistake(
            "others_stepped",
            "The damaged rank took part with zeros: the others' mean is divided by a rank that gave nothing."
            " The task asks that no rank take this step.",
        ),
        Mistake(
            "others_weighed",
            "The other ranks took the step without the damaged one, with the right mean over themselves. The"
            " task asks that no rank take it: the steps would else be of different batch sizes.",
        ),
        Mistake(
            "repaired",
            "The ranks meet again because the damaged batch is trained on, with zeros in the place of what"
            " was lost: the model learns from data that nobody measured.",
        ),
        Mistake(
            "nan",
            "The damaged batch was trained on: one all-reduce later every rank's parameters are nan.",
        ),
        Mistake(
            "drifted",
            "Ranks end with different parameters: a step was taken with a gradient that was never averaged.",
        ),
        Mistake(
            "other",
            "All ranks end with the same parameters, and these are not those of training on the whole"
            " batches.",
        ),
    ),
)
