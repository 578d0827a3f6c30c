"""Script 4: an optimizer made before the model was sharded."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dpcourse.labs.production.inside_rank import as_module, as_tensors
from dpcourse.labs.production.linear import Batch, Linear, make_batch, make_linear, total
from dpcourse.labs.production.outcomes import Outcomes
from dpcourse.labs.production.script import script, short
from dpcourse.labs.question import Case, Finding, Mistake, Target

OUTPUTS, RATE = 6, 0.125
Share = tuple[Linear, list[Batch]]


def _case(random: np.random.Generator, size: int, is_first: bool) -> tuple[Share, ...]:
    linear = make_linear(random, OUTPUTS)
    return tuple((linear, [make_batch(random, 4, OUTPUTS) for _ in range(2)]) for _ in range(size))


def call(answer: Callable[..., Any], share: Share) -> dict[str, Any]:
    """In a rank: the parameters after two steps, and how many numbers the rank and its optimizer hold."""
    from torch.nn.functional import mse_loss

    model = as_module(share[0])
    made = answer(model, RATE)
    for inputs, targets in as_tensors(share[1]):
        made.zero_grad()
        mse_loss(model(inputs), targets).backward()
        made.step()
    own = list(model.parameters())
    listed = [parameter for group in made.param_groups for parameter in group["params"]]
    whole = {name: _whole(value.detach()) for name, value in model.named_parameters()}
    return {**whole, "held": _count(own), "stepped": _count(listed)}


def _whole(parameter: Any) -> Any:
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter.clone()


def _count(parameters: list[Any]) -> int:
    """How many numbers of these parameters this rank holds."""
    local = [getattr(parameter, "_local_tensor", parameter) for parameter in parameters]
    return sum(tensor.numel() for tensor in local)


def judge(case: Case, sent: list[Any]) -> Finding:
    """Sharded, trained, and with an optimizer that holds the shard and nothing else."""
    finding = _outcomes(case).judge(case.title, sent)
    if finding.mistake == "no_answer":
        return finding
    linear = case.inputs[0][0]
    whole, held = linear.weight.size + linear.bias.size, sum(values["held"] for values in sent)
    target = Target("numbers held by all ranks together", str(whole), str(held), whole == held)
    targets = (*finding.targets, target)
    if held != whole:
        return Finding("not_sharded", f"{case.title}: {held} numbers, the model has {whole}", targets)
    kept = [(rank, v) for rank, v in enumerate(sent) if v["stepped"] != v["held"]]
    if not finding.mistake and kept:
        rank, values = kept[0]
        where = f"rank {rank} holds {values['held']} numbers, its optimizer {values['stepped']}"
        return Finding("keeps_old", f"{case.title}: {where}", targets)
    return Finding(finding.mistake, finding.where, targets)


def _outcomes(case: Case) -> Outcomes:
    first = linear = case.inputs[0][0]
    for step in range(len(case.inputs[0][1])):
        gradients = [linear.gradient(batches[step]) for _, batches in case.inputs]
        linear = linear.moved(total(gradients, 1 / case.world_size), -RATE)
    size = case.world_size
    return Outcomes([linear.values] * size, {"trains_nothing": [first.values] * size})


def _row(share: Share, values: Any) -> tuple[Any, ...]:
    return short(share[0].weight), short(values["weight"]), values["held"], values["stepped"]


_BROKEN = """\
def prepare(model, learning_rate):
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    fully_shard(model)
    return optimizer
"""

PREPARE = script(
    "prepare",
    "Two steps of a sharded model",
    minutes=5,
    case=_case,
    call=call,
    judge=judge,
    columns=("its weight", "after two steps", "numbers it holds", "in its optimizer"),
    row=_row,
    broken=_BROKEN,
    mistakes=(
        Mistake(
            "trains_nothing",
            "After two steps nothing has moved: the optimizer holds the parameters from before sharding,"
            " which no gradient reaches any more. fully_shard replaces them.",
        ),
        Mistake(
            "not_sharded",
            "It trains because it is no longer sharded: every rank holds the whole model again, which is"
            " what does not fit.",
        ),
        Mistake(
            "keeps_old",
            "It trains, but the optimizer still holds the old parameters beside the new ones: the whole"
            " model stays in memory on each rank.",
        ),
        Mistake(
            "other",
            "The parameters move, but not as two steps on the batches of all ranks would move them.",
        ),
    ),
)
