"""Lab 02, third and fourth question: the star's three flaws, each by its cause, and DDP's answers."""

from typing import Any

from dpcourse.labs.values import match
from dpcourse.tables import Table, bytes_text

LOCK, CARD, LINK = "one process", "one full card", "one busy link"
CAUSES = (LOCK, CARD, LINK)
FLAWS = {
    "card 0 is out of memory, and the others are half empty": CARD,
    "two threads take twice as long as one": LOCK,
    "with twice the cards the main card sends twice as much": LINK,
    "with many small layers the cards wait for Python": LOCK,
    "a larger vocabulary wants a smaller batch, though seven cards have room": CARD,
    "beyond four cards a step hardly gets shorter, however large the layers": LINK,
}
_FLAW_HINTS = {
    "card 0 is out of memory, and the others are half empty": "What does card 0 hold that no other holds?",
    "two threads take twice as long as one": "How many threads of one Python may run its code at a time?",
    "with twice the cards the main card sends twice as much": "Who sends a copy to each of the others?",
    "with many small layers the cards wait for Python": (
        "Kernels are short, so launching them counts. Who launches them for all cards?"
    ),
    "a larger vocabulary wants a smaller batch, though seven cards have room": (
        "Outputs are one number for each word and token. Where are those of all cards gathered?"
    ),
    "beyond four cards a step hardly gets shorter, however large the layers": (
        "Large layers hide the lock. What is there more of with every card, at one place?"
    ),
}
ANSWERS = {
    "a process for each card": LOCK,
    "every rank computes the loss of its own rows": CARD,
    "every rank has an optimizer of its own": CARD,
    "copies stay, so that only gradients travel": LINK,
    "gradients go round a ring": LINK,
}
_ANSWER_HINTS = {
    "a process for each card": "Each process has a Python of its own: what does that undo?",
    "every rank computes the loss of its own rows": "Then whose outputs need not be gathered, and where?",
    "every rank has an optimizer of its own": "Which card held all optimizer states before?",
    "copies stay, so that only gradients travel": "What went out from the main card in every step?",
    "gradients go round a ring": "2(N - 1) models at one place become 2(N - 1)/N at each.",
}


def measure_flaws(value: Any, ranks: int) -> Table:
    """The star on so many real ranks: what the main rank holds and sends beside another one."""
    return _star_and("dp", ranks, "A star")


def measure_answers(value: Any, ranks: int) -> Table:
    """DDP on so many real ranks: the same counts, alike on all."""
    return _star_and("ddp", ranks, "DDP")


def _star_and(strategy: str, ranks: int, name: str) -> Table:
    from dpcourse.training import train

    run = train(strategy, ranks=ranks, device="cpu", steps=2)
    rows = [
        (
            f"rank {rank}",
            bytes_text(run.traffic.sent_bytes(rank=rank) or 0),
            run.memory.bytes_per_parameter("step", rank=rank),
        )
        for rank in range(ranks)
    ]
    return Table(("", "sends in a step", "bytes a parameter, after the step"), rows, f"{name}, real ranks")


THREE_FLAWS = match(
    "three_flaws",
    "Three flaws, by their cause",
    points=15,
    minutes=5,
    entry="three_flaws",
    noun="observation",
    options=CAUSES,
    goals=FLAWS,
    hints=_FLAW_HINTS,
    measure=measure_flaws,
)
DDP_ANSWERS = match(
    "ddp_answers",
    "DDP's answers",
    points=10,
    minutes=5,
    entry="ddp_answers",
    noun="sentence",
    options=CAUSES,
    goals=ANSWERS,
    hints=_ANSWER_HINTS,
    measure=measure_answers,
)
