"""Script 6: rank 0 asks alone for the state of a model that lies in shards on all ranks."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dpcourse.labs.inside import describe
from dpcourse.labs.production.inside_rank import as_module
from dpcourse.labs.production.linear import Linear, make_linear
from dpcourse.labs.production.outcomes import Outcomes, wrong_form
from dpcourse.labs.production.script import script
from dpcourse.labs.question import Case, Finding, Mistake

OUTPUTS = 7


def _case(random: np.random.Generator, size: int, is_first: bool) -> tuple[Linear, ...]:
    return (make_linear(random, OUTPUTS),) * size


def call(answer: Callable[..., Any], linear: Linear) -> list[Any]:
    """In a rank: every state that it wrote, tensor by tensor."""
    from torch.distributed.fsdp import fully_shard

    written: list[Any] = []
    model = as_module(linear)
    fully_shard(model)
    answer(model, lambda state: written.append({name: describe(value) for name, value in state.items()}))
    return written


def judge(case: Case, sent: list[Any]) -> Finding:
    """Rank 0 wrote the whole state once, in plain tensors, and nobody else wrote."""
    writers = [rank for rank, states in enumerate(sent) if states]
    where = f"{case.title}: written by " + (", ".join(f"rank {rank}" for rank in writers) or "nobody")
    if not all(type(states) is list for states in sent):
        return Finding("no_answer", where)
    if not writers:
        return Finding("not_written", where)
    wholes = [_is_whole(state, case) for states in sent for state in states]
    if not all(wholes):
        return Finding("only_a_shard", f"{where}: {_kinds(sent[writers[0]][0])}")
    if writers != [0] or len(wholes) != 1:
        return Finding("all_write", where)
    values = {name: tensor["values"] for name, tensor in sent[0][0].items()}
    finding = Outcomes([case.inputs[0].values]).judge(case.title, [values])
    return finding


def _is_whole(state: dict[str, Any], case: Case) -> bool:
    values = {name: tensor.get("values") for name, tensor in state.items()}
    return not wrong_form(values, case.inputs[0].values)


def _kinds(state: dict[str, Any]) -> str:
    kinds = [f"{name} is a {tensor['type']} {tensor.get('shape', '')}" for name, tensor in state.items()]
    return ", ".join(kinds)[:200]


def _row(linear: Linear, states: Any) -> tuple[Any, ...]:
    return len(states), _kinds(states[0]) if states else "-"


_BROKEN = """\
def save(model, write):
    if dist.get_rank() == 0:
        options = StateDictOptions(full_state_dict=True)
        state = get_model_state_dict(model, options=options)
        write(state)
"""

SAVE = script(
    "save",
    "What each rank wrote",
    minutes=5,
    case=_case,
    call=call,
    judge=judge,
    columns=("states written", "what the first holds"),
    row=_row,
    broken=_BROKEN,
    mistakes=(
        Mistake(
            "hang",
            "Rank 0 waits in an all-gather: the other ranks' shards have to be asked for, and they had gone"
            " on. Gathering is a collective; only the writing belongs to rank 0.",
        ),
        Mistake(
            "barrier",
            "The others wait now, but in a barrier, and rank 0 in an all-gather: they still do not meet. A"
            " rank has to call the collective that is waited for.",
        ),
        Mistake(
            "only_a_shard",
            "No hang, since nothing was gathered: what was written is rank 0's slice, and the rest of the"
            " model is lost with the other ranks.",
        ),
        Mistake(
            "all_write",
            "Every rank writes the whole state: on one path they overwrite each other, on several the disk"
            " holds it N times.",
        ),
        Mistake(
            "not_written",
            "Nothing was written: rank 0 has to call `write` with the state.",
        ),
        Mistake(
            "other",
            "The state has the right form, and other numbers than the model.",
        ),
    ),
)
