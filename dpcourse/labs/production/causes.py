"""Lab 10, last question: each script's cause, named; the run shows which of them say anything at all."""

from typing import Any

from dpcourse.labs.production.clipping import CLIP
from dpcourse.labs.production.damaged import TRAIN
from dpcourse.labs.production.epochs import TRAIN_EPOCHS
from dpcourse.labs.production.evaluation import EVALUATE
from dpcourse.labs.production.metrics import SUM_METRICS
from dpcourse.labs.production.prefix import LOAD_CHECKPOINT
from dpcourse.labs.production.quiet import ACCUMULATE
from dpcourse.labs.production.resuming import STOP_AND_RESUME
from dpcourse.labs.production.saving import SAVE
from dpcourse.labs.production.scaling import BACKWARD
from dpcourse.labs.production.script import IMPORTS
from dpcourse.labs.production.seeds import START
from dpcourse.labs.production.sharding import PREPARE
from dpcourse.labs.values import match
from dpcourse.tables import Table

SCRIPTS = (
    TRAIN_EPOCHS,
    START,
    EVALUATE,
    SUM_METRICS,
    ACCUMULATE,
    BACKWARD,
    CLIP,
    TRAIN,
    PREPARE,
    SAVE,
    LOAD_CHECKPOINT,
    STOP_AND_RESUME,
)

GOALS = {
    "train_epochs": "a seed that never changes",
    "start": "a seed that is the same for all",
    "evaluate": "unequal parts that count alike",
    "sum_metrics": "the same collective for different things",
    "accumulate": "a choice that was made earlier, at forward",
    "backward": "a factor for what is done already",
    "clip": "a part taken for the whole",
    "train": "a decision made by one rank alone",
    "prepare": "objects that were replaced meanwhile",
    "save": "a collective behind a condition on the rank",
    "load_checkpoint": "a wrapper that is part of the names",
    "stop_and_resume": "state that was left behind",
}
# Named for many a hang and drift, and the cause of none of the twelve.
NO_CAUSES = ("a parameter that gets no gradient", "rounding", "a slow network")

_HINTS = {
    "train_epochs": "The sampler seeds its shuffle with seed + epoch. What stays the same in this script?",
    "start": "Weights and masks come from one generator. Who has the same one?",
    "evaluate": "Look at the last batch of each rank, and at what it weighs in the result.",
    "sum_metrics": "Every rank calls all_reduce equally often at first. What does each bring to the second"
    " call?",
    "accumulate": "no_sync is there, in the right micro-batches, and comes too late. When does DDP ask?",
    "backward": "Who divides by the number of ranks, and who adds up the micro-batches?",
    "clip": "Whose norm is it?",
    "train": "All call the same line; one leaves it out, for a reason that only it knows.",
    "prepare": "What does the optimizer hold after fully_shard?",
    "save": "It hangs whenever the model is sharded, whatever the data look like. Who calls the gather?",
    "load_checkpoint": "The tensors are right. What is not?",
    "stop_and_resume": "Weights and momentum are there. What else changes from step to step?",
}


def measure(value: Any, ranks: int) -> Table:
    """Every broken script run on two ranks: does it hang, raise, or end as if all were well?"""
    from dpcourse.labs.check import check
    from dpcourse.labs.inside import Source

    said = {"hang": "it hangs", "raised": "it raises an error", "wrong": "nothing: it ends"}
    rows = []
    for question in SCRIPTS:
        broken = Source(IMPORTS + question.handed_out, question.entry)
        verdict = check(question, broken, sizes=(2,))
        rows.append((question.name, said.get(verdict.status, verdict.status), value[question.name]))
    return Table(("script", "what it says, on 2 ranks", "the cause, you wrote"), rows, "The broken scripts")


CAUSES = match(
    "causes",
    "The cause, named",
    points=30,
    minutes=8,
    entry="causes",
    noun="script",
    options=tuple(sorted([*GOALS.values(), *NO_CAUSES])),
    goals=GOALS,
    hints=_HINTS,
    measure=measure,
)
