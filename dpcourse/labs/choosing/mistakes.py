"""Lab 09, the dozen jobs: classes of mistakes, and a wrong answer for each.

The answer that the wrong ones are made of is for tests alone: what is right is asked of `dc.plan`.
"""

from dpcourse.labs.question import Mistake
from dpcourse.labs.values.form import INCOMPLETE

ENTRY = "choices"
_ANSWER: dict[str, tuple[str, float]] = {
    "A": ("single", 16),
    "B": ("offload", 48),
    "C": ("ddp", 48),
    "D": ("kept", 14),
    "E": ("ddp", 56),
    "F": ("full", 26),
    "G": ("hybrid", 60),
    "H": ("full", 17.5),
    "I": ("none", 800),
    "J": ("ddp", 16),
    "K": ("full", 10.25),
    "L": ("kept+recompute", 26.03),
}


def answer(**changed: tuple[str, float]) -> str:
    """An answer with some jobs' strategy and number changed."""
    chosen = {
        job: {"take": take, "states_gb": states} for job, (take, states) in {**_ANSWER, **changed}.items()
    }
    return f"{ENTRY} = {chosen!r}"


JOB_MISTAKES = (
    INCOMPLETE,
    Mistake(
        "wrong_type",
        "Write for each job a dict with take, one of the names in the task, and states_gb, a plain number.",
        answer(A=("plain", 16)),
    ),
    Mistake(
        "does_not_fit",
        "What you take does not fit the card. Add up its fullest moment: states, what is whole for a while,"
        " activations, a gigabyte of margin.",
        answer(F=("kept", 26)),
    ),
    Mistake(
        "slower",
        "It fits, but a step takes longer than need be: what crosses the slow cable, or is computed twice,"
        " where"
        " something else fits as well?",
        answer(J=("full", 1)),
    ),
    Mistake(
        "more_than_needed",
        "It fits and is as quick, but something that is less work does too: shards are medicine for a full"
        " card.",
        answer(C=("kept", 6)),
    ),
    Mistake(
        "gives_up",
        "There is a way left: go through all questions before you leave the cards, or give up.",
        answer(H=("offload", 17.5)),
    ),
    Mistake(
        "cannot_be_had",
        "That is no choice for this job: one card has no copies and no shards, one host no hybrid, and where"
        " something can be had it is not none.",
        answer(D=("hybrid", 14)),
    ),
    Mistake(
        "sends_more",
        "It fits and is as quick, but more is sent than need be: stay inside a host where one holds the"
        " model, and"
        " keep until backward what was gathered where that fits.",
        answer(D=("full", 14)),
    ),
    Mistake(
        "whole_states",
        "The strategy is right, and this is a whole copy's states: over how many ranks are they shared?",
        answer(G=("hybrid", 480)),
    ),
    Mistake(
        "shared_by_all",
        "The strategy is right, and this number is shared out over all cards: whole copies share nothing,"
        " and a"
        " hybrid shares inside a host.",
        answer(G=("hybrid", 7.5)),
    ),
    Mistake(
        "number",
        "The strategy is right and its number is not: the recipe's bytes for each parameter (a frozen one"
        " has but"
        " its own), over the ranks of one copy.",
        answer(K=("full", 68)),
    ),
)
