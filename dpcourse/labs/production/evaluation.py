"""Script 7: a loss over batches of unequal size, on ranks that hold unequally many of them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dpcourse.labs.production.inside_rank import as_module, as_tensors
from dpcourse.labs.production.linear import Batch, Linear, make_batch, make_linear
from dpcourse.labs.production.outcomes import Outcomes
from dpcourse.labs.production.script import script
from dpcourse.labs.question import Case, Finding, Mistake

BATCH_SIZE = 4
Share = tuple[Linear, list[Batch]]


def _case(random: np.random.Generator, size: int, is_first: bool) -> tuple[Share, ...]:
    linear = make_linear(random)
    rows = [BATCH_SIZE * (1 + rank % 3) + 1 + (rank + size) % 3 for rank in range(size)]
    if not is_first:
        rows[int(random.integers(size))] = 0  # a rank may have nothing to evaluate
    return tuple((linear, _batches(random, number)) for number in rows)


def _batches(random: np.random.Generator, rows: int) -> list[Batch]:
    return [make_batch(random, min(BATCH_SIZE, rows - at)) for at in range(0, rows, BATCH_SIZE)]


def call(answer: Callable[..., Any], share: Share) -> dict[str, Any]:
    """In a rank: the loss that the answer gives; a tensor of one number is as good as a number."""
    import torch

    linear, batches = share
    loss = answer(as_module(linear), as_tensors(batches))
    is_tensor = type(loss) is torch.Tensor and loss.numel() == 1
    return {"loss": loss.item() if is_tensor else loss if type(loss) in (int, float) else type(loss).__name__}


def judge(case: Case, sent: list[Any]) -> Finding:
    """Every rank knows the mean loss over all samples of all ranks."""
    linear = case.inputs[0][0]
    ranks = [[(linear.loss(batch), len(batch[0])) for batch in batches] for _, batches in case.inputs]
    every = [pair for pairs in ranks for pair in pairs]
    means = [_mean(pairs) for pairs in ranks]
    numbers = {
        "mean_of_means": [np.mean([loss for loss, _ in pairs]) if pairs else np.nan for pairs in ranks],
        "mean_of_ranks": means,
        "by_batches": [np.mean([loss for loss, _ in every])],
        "dropped": [_mean([pair for pair in every if pair[1] == BATCH_SIZE])],
    }
    size = case.world_size
    wrong_ways = {name: [{"loss": float(np.mean(losses))}] * size for name, losses in numbers.items()}
    own = {"own_loss": [{"loss": loss} for loss in means]}
    return Outcomes([{"loss": _mean(every)}] * size, {**wrong_ways, **own}).judge(case.title, sent)


def _mean(pairs: list[tuple[float, int]]) -> float:
    """The mean over samples, from means over batches and their sizes."""
    number = sum(rows for _, rows in pairs)
    return sum(loss * rows for loss, rows in pairs) / number if number else float("nan")


def _row(share: Share, values: Any) -> tuple[Any, ...]:
    sizes = " ".join(str(len(inputs)) for inputs, _ in share[1])
    return sizes or "none", values["loss"]


_BROKEN = """\
@torch.no_grad()
def evaluate(model, batches):
    losses = [F.mse_loss(model(inputs), targets) for inputs, targets in batches]
    mean = torch.stack(losses).mean()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()
"""

EVALUATE = script(
    "evaluate",
    "The loss on all test samples",
    minutes=6,
    case=_case,
    call=call,
    judge=judge,
    columns=("samples in its batches", "the loss it gives"),
    row=_row,
    broken=_BROKEN,
    mistakes=(
        Mistake(
            "mean_of_means",
            "A mean of means of means: a batch of one sample counts as much as a full one, and a rank with"
            " few samples as much as one with many. Add up losses and samples, and divide once.",
        ),
        Mistake(
            "mean_of_ranks",
            "Within a rank each sample counts once, but ranks count alike, whatever they hold: the division"
            " has to wait until both sums are over all ranks.",
        ),
        Mistake(
            "by_batches",
            "All batches count alike: the smaller last ones weigh too much.",
        ),
        Mistake(
            "dropped",
            "The batches are equal now because the smaller ones were dropped: some test samples are judged by"
            " nobody, and which they are depends on the number of ranks.",
        ),
        Mistake(
            "own_loss",
            "Each rank gives the loss of its own samples: nothing was added up over ranks.",
        ),
        Mistake(
            "hang",
            "A rank without samples left the function before the all-reduce, and the others wait: it has to"
            " bring its zeros.",
        ),
        Mistake(
            "other",
            "This is not the mean over all samples of all ranks.",
        ),
    ),
)
