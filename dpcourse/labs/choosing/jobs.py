"""Lab 09, last question: a strategy for a dozen jobs, judged by `dc.plan` at the moment of judging."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from dpcourse.labs.choosing.mistakes import JOB_MISTAKES
from dpcourse.labs.question import Finding, Target, ValueQuestion
from dpcourse.labs.values.form import shown, wrong_fields
from dpcourse.labs.values.numbers import as_float, is_near
from dpcourse.planning.decision import DDP, FAMILIES, FULL, OFFLOAD, RECOMPUTED, SINGLE, TIE
from dpcourse.planning.ranking import Row, smallest_of
from dpcourse.tables import Table, bytes_text, seconds_text

NONE = "none"
OPTIONS = (*FAMILIES, *(f"{family}{RECOMPUTED}" for family in FAMILIES if family != OFFLOAD), NONE)
RELATIVE_TOLERANCE = 0.02
_STATES = ("parameters", "gradients", "optimizer")

_A100 = {"gpu": "a100-80gb", "recipe": "mixed-adam"}
# What the plan is asked for each job; the words of the task are held to these by a test.
JOBS: Mapping[str, tuple[Any, Mapping[str, Any]]] = {
    "A": (1e9, {"gpus": 1, "gpu_memory": "24GB", "recipe": "mixed-adam"}),
    "B": (3e9, {"gpus": 1, "gpu_memory": "24GB", "recipe": "mixed-adam"}),
    "C": (3e9, {"gpus": 8, **_A100}),
    "D": (7e9, {"gpus": 8, **_A100}),
    "E": (7e9, {"gpus": 8, **_A100, "recipe": "pure-bf16"}),
    "F": (13e9, {"gpus": 8, **_A100, "gpu": "a100-40gb"}),
    "G": (30e9, {"gpus": 64, **_A100}),
    "H": (70e9, {"gpus": 64, **_A100}),
    "I": (400e9, {"gpus": 8, "gpu_memory": "24GB", "recipe": "mixed-adam"}),
    "J": (1e9, {"gpus": 16, **_A100, "inter": "10 Gbit/s"}),
    "K": (34e9, {"gpus": 8, **_A100, "trainable": 1e9}),
    "L": ("llama-2-13b", {"gpus": 8, **_A100, "sequence_length": 4096, "micro_batch": 2}),
}


@dataclass(frozen=True)
class Verdict:
    """What the plan says of one job: its answer, why, and the rows that it chose from."""

    take: str
    because: str
    rows: Mapping[str, Row]
    quickest_seconds: float
    capacity_bytes: float

    @property
    def states_gb(self) -> float:
        """States on a card when the optimizer steps; where they leave the cards, what they would take."""
        everything_shared = FULL if FULL in self.rows else SINGLE
        row = self.rows[everything_shared if self.take in (OFFLOAD, NONE) else self.take]
        held = row.memory.moments[-1].num_bytes
        return sum(held.get(part, 0) for part in _STATES) / 1e9


@cache
def verdict(job: str) -> Verdict:
    """Ask `dc.plan`, once in a process."""
    from dpcourse.planning.selection import plan

    model, asked = JOBS[job]
    made = plan(model, **asked)
    facts, last = made.facts, made.path.steps[-1]
    because = f"{last.question.text} {'Yes' if last.is_yes else 'No'}: {last.because}"
    take = made.path.answer.candidate or NONE
    return Verdict(take, because, smallest_of(made.rows), facts.quickest(), facts.capacity_bytes)


# --- the judge ---


def judge_jobs(value: Any) -> Finding:
    """Each job's strategy, then its number; the first job that is off decides."""
    if problem := _wrong_form(value):
        return problem
    first, num_taken, num_counted = Finding(), 0, 0
    for job in JOBS:
        found, take, states = verdict(job), value[job]["take"], value[job]["states_gb"]
        taken = _of_take(job, take, found)
        counted = _of_number(job, states, found)
        num_taken, num_counted = num_taken + (taken is None), num_counted + (counted is None)
        if not first.mistake and (wrong := taken or counted):
            first = wrong
    targets = (
        Target("strategies as planned", str(len(JOBS)), str(num_taken), num_taken == len(JOBS)),
        Target("numbers within 2 %", str(len(JOBS)), str(num_counted), num_counted == len(JOBS)),
    )
    return Finding(first.mistake, first.where, targets)


def _wrong_form(value: Any) -> Finding | None:
    if type(value) is not dict or set(value) != set(JOBS):
        return Finding("wrong_type", f"expected a dict with {', '.join(JOBS)}")
    for job, wanted in value.items():
        if problem := wrong_fields(wanted, ("take", "states_gb"), (str, int, float)):
            return Finding(problem.mistake, f"{job}: {problem.where}")
        if type(wanted["take"]) is not str or wanted["take"] not in OPTIONS:
            return Finding("wrong_type", f"{job}: take is {shown(wanted['take'])}")
        if type(wanted["states_gb"]) is str:
            return Finding("wrong_type", f"{job}: states_gb is {shown(wanted['states_gb'])}")
    return None


def _of_take(job: str, take: str, found: Verdict) -> Finding | None:
    """Why a strategy is not the one to take, with the plan's own numbers."""
    if take == found.take:
        return None
    if take in (OFFLOAD, NONE) and found.take != NONE:
        return Finding("gives_up", f"{job}: {_fit_text(found.take, found)}")
    if take == NONE or take not in found.rows:
        return Finding("cannot_be_had", f"{job}: {take} is not to be had here")
    row = found.rows[take]
    if not row.fits:
        return Finding("does_not_fit", f"{job}: {_fit_text(take, found)}")
    seconds = row.time.seconds
    if seconds > (1 + TIE) * found.quickest_seconds:
        quickest = seconds_text(found.quickest_seconds)
        return Finding(
            "slower", f"{job}: {take} takes {seconds_text(seconds)} a step, where {quickest} can be had"
        )
    if found.take.partition("+")[0] in (SINGLE, DDP):
        return Finding("more_than_needed", f"{job}: {_fit_text(take, found)}; {_fit_text(found.take, found)}")
    sent, least = (bytes_text(found.rows[name].time.sent_bytes) for name in (take, found.take))
    return Finding("sends_more", f"{job}: {take} sends {sent} a step, {found.take} {least}")


def _fit_text(take: str, found: Verdict) -> str:
    row = found.rows[take]
    verb = "takes" if row.fits else "would take"
    return f"{take} {verb} {bytes_text(row.peak_bytes)} of {bytes_text(found.capacity_bytes)}"


def _of_number(job: str, states_gb: float, found: Verdict) -> Finding | None:
    """Why the states on a card are not what was written."""
    goal = found.states_gb
    if is_near(states_gb, goal, RELATIVE_TOLERANCE):
        return None
    num_cards = JOBS[job][1]["gpus"]
    ways = {"whole_states": _whole_gb(found), "shared_by_all": _whole_gb(found) / num_cards}
    named = (name for name, wrong in ways.items() if is_near(states_gb, wrong, RELATIVE_TOLERANCE))
    return Finding(next(named, "number"), f"{job}: states_gb is {as_float(states_gb):g}")


def _whole_gb(found: Verdict) -> float:
    """The states of a whole copy."""
    row = found.rows[DDP if DDP in found.rows else SINGLE]
    return sum(row.memory.moments[-1].num_bytes.get(part, 0) for part in _STATES) / 1e9


def measure_jobs(value: Any, ranks: int) -> Table:
    """What the plan takes for each job and why, beside what the learner wrote."""
    rows = [
        (
            job,
            found.take,
            f"{found.states_gb:.2f}",
            value[job]["take"],
            f"{as_float(value[job]['states_gb']):.2f}",
            found.because,
        )
        for job, found in ((job, verdict(job)) for job in JOBS)
    ]
    columns = ("job", "the plan", "GB of states", "you", "GB, you wrote", "the question that decided")
    return Table(columns, rows, "dc.plan, asked now")


CHOOSE_FOR_JOBS = ValueQuestion(
    name="jobs",
    title="A dozen jobs",
    points=45,
    minutes=25,
    entry="choices",
    kind="choice",
    judge_value=judge_jobs,
    measure=measure_jobs,
    mistakes=JOB_MISTAKES,
)
