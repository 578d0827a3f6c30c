"""Script 8: a loss scaled once too often, by ranks and by micro-batches."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dpcourse.labs.production.inside_rank import as_ddp, as_tensors, gradients_of
from dpcourse.labs.production.linear import Batch, Linear, make_batch, make_linear, total
from dpcourse.labs.production.outcomes import Outcomes, holds
from dpcourse.labs.production.script import script, short
from dpcourse.labs.question import Case, Finding, Mistake, Target

Share = tuple[Linear, list[Batch]]


def _case(random: np.random.Generator, size: int, is_first: bool) -> tuple[Share, ...]:
    linear = make_linear(random)
    # 5 or 7: neither is a number of ranks or a multiple of one, so that a factor tells where it comes from.
    number = 7 if size % 5 == 0 else 5
    return tuple((linear, [make_batch(random, 2) for _ in range(number)]) for _ in range(size))


def call(answer: Callable[..., Any], share: Share) -> dict[str, Any]:
    """In a rank: the gradients after the call."""
    model = as_ddp(share[0])
    answer(model, as_tensors(share[1]))
    return gradients_of(model.module)


def judge(case: Case, sent: list[Any]) -> Finding:
    """The gradient of the mean loss over all micro-batches of all ranks; else what factor it is off by."""
    own = [linear.gradient(batch) for linear, batches in case.inputs for batch in batches]
    size, number = case.world_size, len(case.inputs[0][1])
    mean = total(own, 1 / len(own))
    finding = Outcomes([mean.values] * size).judge(case.title, sent)
    if finding.mistake == "no_answer":
        return finding
    factor = float(np.sum(sent[0]["weight"] * mean.weight) / np.sum(mean.weight**2))
    target = Target("times the true gradient", "1.00", f"{factor:.2f}", not finding.mistake)
    targets = (*finding.targets, target)
    if not finding.mistake:
        return Finding(targets=targets)
    if not all(holds(values, total([mean], factor).values) for values in sent):
        return Finding("other", finding.where, targets)
    named = {"both": size * number, "by_ranks": size, "by_micro_batches": number, "twice": 1 / size}
    likely = [name for name, times in named.items() if abs(factor / times - 1) < 1e-9]
    where = f"{case.title}, {number} micro-batches: {factor:.4g} times the true gradient"
    return Finding([*likely, "by_hand"][0], where, targets)


def _row(share: Share, values: Any) -> tuple[Any, ...]:
    return len(share[1]), short(values["weight"])


_BROKEN = """\
def backward(model, micro_batches):
    for inputs, targets in micro_batches:
        loss = F.mse_loss(model(inputs), targets)
        (loss * dist.get_world_size()).backward()
"""

BACKWARD = script(
    "backward",
    "A gradient over micro-batches and ranks",
    minutes=5,
    case=_case,
    call=call,
    judge=judge,
    columns=("micro-batches", "its gradient"),
    row=_row,
    broken=_BROKEN,
    mistakes=(
        Mistake(
            "both",
            "The gradient is too long by the number of ranks times the number of micro-batches. Backward"
            " adds to .grad; DDP's all-reduce takes the mean already.",
        ),
        Mistake(
            "by_ranks",
            "Half mended: the gradient is still too long by the number of ranks. DDP divides by it for you,"
            " so that nothing is to be made up for.",
        ),
        Mistake(
            "by_micro_batches",
            "Half mended: the gradient is still too long by the number of micro-batches, since each backward"
            " adds another mean.",
        ),
        Mistake(
            "twice",
            "Too short by the number of ranks: DDP has divided by it, and the script does so once more.",
        ),
        Mistake(
            "by_hand",
            "The direction is right and the length is not: a number that was fitted by hand holds for one"
            " number of ranks and micro-batches. Write down where each factor comes from.",
        ),
        Mistake(
            "other",
            "The gradient points elsewhere: not every micro-batch of every rank counts alike.",
        ),
    ),
)
