"""The wrong answers that every check must refuse, each with its own mistake's message.

They are made of right ones, so they stand here and not in the package: learners have the package.
"""

from dpcourse.labs.production.script import IMPORTS
from dpcourse.labs.question import CodeQuestion, Question
from dpcourse.labs.values.functions import ASKED
from tests.wrong_answers import (
    choose,
    crossing,
    ddp,
    ddp_buckets,
    equivalence,
    fsdp,
    jobs,
    memory_ledger,
    parameter_server,
    ring,
    step,
    traffic_ledger,
    zero_gradients,
    zero_optimizer,
)
from tests.wrong_answers.production import MENDS

_OF_QUESTIONS = {
    "shard_batch": equivalence.SHARD_BATCH,
    "combine_gradients": equivalence.COMBINE_GRADIENTS,
    "combine_weighted": equivalence.COMBINE_WEIGHTED,
    "star_step": parameter_server.STAR_STEP,
    "same_start": ddp.SAME_START,
    "average_gradients": ddp.AVERAGE_GRADIENTS,
    "buckets": ddp_buckets.BUCKETS,
    "reduce_scatter": ring.REDUCE_SCATTER,
    "all_gather": ring.ALL_GATHER,
    "all_reduce": ring.ALL_REDUCE,
    "sharded_optimizer": zero_optimizer.SHARDED_OPTIMIZER,
    "sharded_gradients": zero_gradients.SHARDED_GRADIENTS,
    "unit": fsdp.UNIT,
    "memory_bytes": memory_ledger.MEMORY_BYTES,
    "traffic_bytes": traffic_ledger.TRAFFIC_BYTES,
    "hybrid": crossing.HYBRID,
    "step_seconds": step.STEP_SECONDS,
    "choose": choose.CHOOSE,
    "jobs": jobs.JOBS,
}

_ASKS = """import dpcourse as dc


def {}(**job):
    return dc.expect("ddp", num_params=1, ranks=2).sent_bytes()
"""


def wrong_answers(question: Question) -> dict[str, str]:
    """The source of a wrong answer by the name of the mistake in it.

    Those of numbers, matches and orders follow from the question's own goals; a script to mend is wrong as it
    is handed out, and is its first mistake.
    """
    found = {mistake.name: mistake.source for mistake in question.mistakes if mistake.source}
    if isinstance(question, CodeQuestion) and question.handed_out:
        found[question.mistakes[0].name] = IMPORTS + question.handed_out
        found |= {name: IMPORTS + text for name, text in MENDS[question.name].items()}
    if question.kind == "function":
        found[ASKED.name] = _ASKS.format(question.entry)
    return found | _OF_QUESTIONS.get(question.name, {})
