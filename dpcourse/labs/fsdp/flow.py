"""Lab 06: a unit's flow in order, and why its gradients are reduce-scattered."""

from typing import Any

from dpcourse.labs import inside
from dpcourse.labs.switch import Plug, Switch
from dpcourse.labs.values import Before, order, pick
from dpcourse.ranks.launch import launch
from dpcourse.tables import Table

# --- the flow: events in order ---

EVENTS = (
    "gather for forward",
    "compute forward",
    "free after forward",
    "gather for backward",
    "compute backward",
    "free after backward",
    "reduce-scatter the gradient",
    "update the shard",
)
_GATHER, _FORWARD, _FREE, _AGAIN, _BACKWARD, _FREE_AGAIN, _REDUCE, _UPDATE = EVENTS
RELATIONS = (
    Before(
        _GATHER, _FORWARD, "A layer computes with its whole weight, and a rank has a shard: gather it first."
    ),
    Before(_FORWARD, _FREE, "The weight cannot go before the layer has computed with it."),
    Before(
        _FREE,
        _AGAIN,
        "The second gather is there because forward let go of the weight: between them other units compute.",
    ),
    Before(
        _AGAIN,
        _BACKWARD,
        "Backward needs the whole weight as well, to hand the gradient on to the layer below.",
    ),
    Before(_BACKWARD, _FREE_AGAIN, "Backward still computes with the weight: it goes afterwards."),
    Before(_BACKWARD, _REDUCE, "There is no gradient to reduce before backward has computed it."),
    Before(_REDUCE, _UPDATE, "The shard moves by the mean over all ranks, which the reduce-scatter brings."),
)
_TOLD = {
    "all_gather": (_GATHER, _AGAIN),
    "forward": (_FORWARD,),
    "release": (_FREE, _FREE_AGAIN),
    "backward": (_BACKWARD,),
    "reduce_scatter": (_REDUCE,),
}


def measure_flow(value: Any, ranks: int) -> Table:
    """The diary of a real unit, beside the order that was written."""
    from dpcourse.scratch.diary import diary_of_one_unit

    names = {what: iter(found) for what, found in _TOLD.items()}
    lines = launch(diary_of_one_unit, ranks=ranks, device="cpu")[0]
    told = [(next(names[what]), num_bytes) for what, num_bytes in lines]
    rows = [
        (what, num_bytes, wrote)
        for (what, num_bytes), wrote in zip([*told, (_UPDATE, 0)], value, strict=True)
    ]
    return Table(("a real unit", "bytes of its whole after it", "you wrote"), rows, f"{ranks} real ranks")


UNIT_FLOW = order(
    "unit_flow",
    "A unit's day",
    points=15,
    minutes=6,
    entry="flow",
    events=EVENTS,
    relations=RELATIONS,
    measure=measure_flow,
)

# --- why a reduce-scatter: a pick ---

REASON = "B"
_HINTS = {
    "A": "An all-reduce adds up just as exactly: DDP trains with it. What does a rank do with the result?",
    "C": "No whole gradient comes together anywhere under FSDP, and AdamW needs none: it treats each number"
    " by itself.",
    "D": "A reduce-scatter round a ring takes N - 1 messages, an all-reduce twice as many. It is a gain, and"
    " not the reason that the other half is not needed.",
}
_ELEMENTS = 1200


def measure_reason(value: Any, ranks: int) -> Table:
    """What each of the two sends on real ranks, and how much of what it brings a rank uses."""
    rows = [
        (name, sent_bytes(name, ranks), brought, _ELEMENTS // ranks)
        for name, brought in (("reduce_scatter", _ELEMENTS // ranks), ("all_reduce", _ELEMENTS))
    ]
    columns = ("", "bytes sent by a rank", "numbers that it gets", "numbers that its shard needs")
    return Table(columns, rows, f"A gradient of {_ELEMENTS} numbers on {ranks} real ranks; you wrote {value}")


def sent_bytes(name: str, ranks: int) -> int:
    """What a rank sends for one of the ring's collectives, as a switch counts it."""
    with Switch(ranks) as switch:
        launch(_reduce, name, per_rank=[(plug,) for plug in switch.plugs], ranks=ranks, device="cpu")
    return max(switch.log.sent_bytes(rank) for rank in range(ranks))


def _reduce(plug: Plug, name: str) -> None:
    import torch

    from dpcourse.scratch import ring

    inside.run_plugged(torch.ones(_ELEMENTS), plug, getattr(ring, name), _call)


def _call(collective: Any, tensor: Any) -> None:
    collective(tensor)


WHY_REDUCE_SCATTER = pick(
    "why_reduce_scatter",
    "Why a reduce-scatter?",
    points=10,
    minutes=4,
    entry="reason",
    goal=REASON,
    hints=_HINTS,
    measure=measure_reason,
)
