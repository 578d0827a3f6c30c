"""Script 2: gradients accumulated over micro-batches, with no_sync where it does nothing."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dpcourse.labs.production.inside_rank import as_ddp, as_tensors, gradients_of
from dpcourse.labs.production.linear import Batch, Linear, make_batch, make_linear, total
from dpcourse.labs.production.outcomes import Outcomes
from dpcourse.labs.production.script import script, short
from dpcourse.labs.question import Case, Finding, Mistake, Target

Share = tuple[Linear, list[Batch]]


def _case(random: np.random.Generator, size: int, is_first: bool) -> tuple[Share, ...]:
    linear = make_linear(random)
    return tuple((linear, [make_batch(random, 2) for _ in range(3 + size % 2)]) for _ in range(size))


def call(answer: Callable[..., Any], share: Share) -> dict[str, Any]:
    """In a rank: the gradients after the call, the bytes all-reduced, forwards and backwards in order."""
    from dpcourse.measure.collectives import CollectiveMeter

    model, events = as_ddp(share[0]), list[str]()
    model.module.register_forward_hook(lambda *_: events.append("forward"))
    model.module.bias.register_post_accumulate_grad_hook(lambda _: events.append("backward"))
    batches = as_tensors(share[1])
    with CollectiveMeter() as meter:
        answer(model, batches)
        meter.mark("step")
    reduced = [seen.payload_bytes for seen in meter.transfers if seen.collective == "all_reduce"]
    return {**gradients_of(model.module), "reduced": reduced, "events": events}


def judge(case: Case, sent: list[Any]) -> Finding:
    """The mean over all micro-batches of all ranks, reduced once, one micro-batch in memory at a time."""
    finding = _outcomes(case).judge(case.title, sent)
    if finding.mistake:
        return finding
    once = 8 * (case.inputs[0][0].weight.size + case.inputs[0][0].bias.size)
    reduced = max(sum(values["reduced"]) for values in sent)
    is_met = reduced == once
    targets = (*finding.targets, Target("bytes all-reduced by a rank", str(once), str(reduced), is_met))
    micro_batches = len(case.inputs[0][1])
    if any(values["events"] != ["forward", "backward"] * micro_batches for values in sent):
        return Finding("held_together", f"{case.title}: {' '.join(sent[0]['events'])}", targets)
    where = f"{case.title}: {reduced} bytes were all-reduced; the gradient has {once}"
    return Finding(targets=targets) if is_met else Finding("still_reduced", where, targets)


def _outcomes(case: Case) -> Outcomes:
    size = case.world_size
    own = [[linear.gradient(batch) for batch in batches] for linear, batches in case.inputs]
    number = len(own[0])
    mean = total([gradient for gradients in own for gradient in gradients], 1 / size / number)
    first = total([gradients[0] for gradients in own], 1 / size / number)
    return Outcomes(
        [mean.values] * size,
        {
            "never_reduced": [total(gradients, 1 / number).values for gradients in own],
            "wrong_micro_batch": [
                total([first, total(gradients[1:], 1 / number)]).values for gradients in own
            ],
            "not_divided": [total([mean], number).values] * size,
        },
    )


def _row(share: Share, values: Any) -> tuple[Any, ...]:
    return short(values["weight"]), len(values["reduced"]), " ".join(values["events"])


_BROKEN = """\
def accumulate(model, micro_batches):
    last = len(micro_batches) - 1
    for number, (inputs, targets) in enumerate(micro_batches):
        loss = F.mse_loss(model(inputs), targets) / len(micro_batches)
        with model.no_sync() if number < last else nullcontext():
            loss.backward()
"""

ACCUMULATE = script(
    "accumulate",
    "A gradient accumulated over micro-batches",
    minutes=6,
    case=_case,
    call=call,
    judge=judge,
    columns=("its gradient", "all-reduces", "events"),
    row=_row,
    broken=_BROKEN,
    witnesses=("dpcourse.measure.collectives",),
    mistakes=(
        Mistake(
            "still_reduced",
            "The gradient is right, and is still all-reduced for every micro-batch. DDP decides at forward"
            " whether it will reduce: forward and backward both belong inside no_sync.",
        ),
        Mistake(
            "never_reduced",
            "Nothing is all-reduced any more: each rank holds the gradient of its own samples, and the"
            " models will drift apart. The last micro-batch has to communicate.",
        ),
        Mistake(
            "wrong_micro_batch",
            "The one all-reduce comes too early: what later micro-batches add to the gradient stays on its"
            " rank.",
        ),
        Mistake(
            "held_together",
            "One all-reduce, but all micro-batches are in memory at once: that is the big batch which"
            " accumulation was to avoid. Each forward is to be followed by its own backward.",
        ),
        Mistake(
            "not_divided",
            "The gradient is as many times too long as there are micro-batches: keep the loss divided.",
        ),
        Mistake(
            "other",
            "The gradient is not the mean over all micro-batches of all ranks.",
        ),
    ),
)
