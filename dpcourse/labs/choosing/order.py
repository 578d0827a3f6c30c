"""Lab 09, second question: which question comes first?"""

from typing import Any

from dpcourse.labs.values import Before, order
from dpcourse.planning.decision import TREE, Answer, Node
from dpcourse.tables import Table

# Each question in the learner's words, and the key of it in the plan's table of decisions.
KEYS = {
    "Is there more than one card?": "several",
    "Does a whole copy fit?": "whole",
    "Does a whole copy fit with recomputation?": "whole-recomputed",
    "Do shards fit?": "sharded",
    "Do shards fit with recomputation?": "sharded-recomputed",
    "Are there several hosts?": "hosts",
    "Does one host hold the model?": "hybrid",
    "Do units fit that stay whole until backward?": "kept",
    "Does it fit with the optimizer in host memory?": "offload",
    "Does the largest layer fit a card?": "layer",
}
_CARD, _WHOLE, _AGAIN, _SHARDS, _SHARDS_AGAIN, _HOSTS, _HOST, _KEPT, _OFFLOAD, _LAYER = KEYS
RELATIONS = (
    Before(
        _CARD, _WHOLE, "With a single card there is nobody to have copies or shards with: ask that first."
    ),
    Before(
        _WHOLE, _AGAIN, "Recomputing costs a third more operations: ask for it where a copy fails without."
    ),
    Before(
        _AGAIN, _SHARDS, "A copy, recomputed or not, is less work than shards: those are asked for after it."
    ),
    Before(
        _SHARDS,
        _SHARDS_AGAIN,
        "Shards without recomputation are quicker: recompute only where they do not fit.",
    ),
    Before(
        _SHARDS_AGAIN,
        _HOSTS,
        "How shards lie over hosts is asked once they are known to fit, with recomputation or without.",
    ),
    Before(_HOSTS, _HOST, "On a single host there is nothing between hosts to save: ask for several first."),
    Before(
        _HOST,
        _KEPT,
        "Gathers that stay inside a host save more than one gather less that crosses: hosts come first.",
    ),
    Before(
        _SHARDS_AGAIN,
        _OFFLOAD,
        "Host memory is the slowest remedy of all: everything that stays on the cards is asked before it.",
    ),
    Before(_OFFLOAD, _LAYER, "Whether one layer fits decides what is left when nothing else does: last."),
)


def depth_of(key: str, node: Node = TREE, depth: int = 0) -> int | None:
    """Count the questions that the plan's table asks before this one, at least; None: it is not there."""
    if isinstance(node, Answer):
        return None
    if node.key.partition("+")[0] == key:
        return depth
    found = (depth_of(key, branch, depth + 1) for branch in (node.yes, node.no))
    return min((place for place in found if place is not None), default=None)


def measure_order(value: Any, ranks: int) -> Table:
    """The learner's order, with how many questions the plan's own table asks before each at least."""
    rows = [(place + 1, name, depth_of(KEYS[name])) for place, name in enumerate(value)]
    return Table(("yours", "question", "asked before it by the plan, at least"), rows)


ASK_IN_ORDER = order(
    "ask_in_order",
    "Which question comes first?",
    points=15,
    minutes=8,
    entry="questions",
    events=tuple(KEYS),
    relations=RELATIONS,
    measure=measure_order,
)
