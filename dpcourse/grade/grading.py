"""Grades one submission: runs its notebook for the report, and asks for a verdict on each answer."""

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

from dpcourse.grade.intake import Submission
from dpcourse.grade.isolation import NO_ISOLATION, Isolation
from dpcourse.grade.limits import Limits
from dpcourse.grade.merge import Merged, Release, merge
from dpcourse.grade.record import FORMAT
from dpcourse.grade.replies import read_run, read_verdict
from dpcourse.grade.workers import Desk, WorkerLost
from dpcourse.labs.question import Question
from dpcourse.labs.verdict import Verdict

GRADING_SIZES = (2, 3, 4, 5)
_START_SECONDS = 60.0  # a kernel, or the modules of a first rank
_NOT_RUN = {"is_run": False, "problem": "", "cells_not_run": [], "num_left": 0}


@dataclass(frozen=True)
class Plan:
    """What to grade, and how: everything that decides a grade beside the submission itself."""

    release: Release
    limits: Limits
    isolation: Isolation = NO_ISOLATION
    seed: int = 1
    questions: tuple[str, ...] = ()
    is_regrade: bool = False
    is_run: bool = True

    def fingerprint(self, submission: Submission) -> str:
        """Equal for equal submissions graded in the same way; a record that has it is up to date."""
        notebook = json.dumps(self.release.notebook, sort_keys=True)
        parts = [
            submission.digest,
            notebook,
            self.isolation.kind,
            str(self.seed),
            str(self.limits.as_dict()),
            str(FORMAT),
        ]
        return sha256("\0".join(parts).encode()).hexdigest()


@dataclass(frozen=True)
class Kept:
    """What an earlier grading in the same way has left: kept where only a part of it is done again."""

    record: dict[str, Any]
    notebook: dict[str, Any] | None


@dataclass(frozen=True)
class Graded:
    """What one grading found out: the verdicts, how the notebook's run went, and the notebook after it."""

    verdicts: list[Verdict]
    run: dict[str, Any]
    notebook: dict[str, Any] | None
    notes: list[str]


def grade(submission: Submission, plan: Plan, kept: Kept | None, desk: Desk) -> Graded:
    if submission.problem:
        return unanswered(submission, plan, "missing")
    merged = merge(plan.release, submission.cells)
    verdicts = _verdicts(merged, plan, kept, desk)
    run, notebook = _run(merged, verdicts, plan, kept, desk)
    return Graded(verdicts, run, notebook, [*submission.notes, *merged.notes])


def unanswered(submission: Submission, plan: Plan, status: str) -> Graded:
    """No points on any question, for the submission's problem."""
    questions = plan.release.lab.questions
    verdicts = [Verdict(q.name, status, 0, q.points, submission.problem) for q in questions]
    return Graded(verdicts, dict(_NOT_RUN), None, list(submission.notes))


def _run(
    merged: Merged, verdicts: list[Verdict], plan: Plan, kept: Kept | None, desk: Desk
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    if kept and (plan.questions or not plan.is_run):
        return kept.record["run"], kept.notebook
    return _execute(merged, verdicts, plan, desk) if plan.is_run else (dict(_NOT_RUN), None)


def _execute(
    merged: Merged, verdicts: list[Verdict], plan: Plan, desk: Desk
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    request = {
        "do": "execute",
        "lab": plan.release.lab.name,
        "verdicts": [verdict.as_dict() for verdict in verdicts],
        "notebook": merged.notebook,
        "limits": plan.limits.as_dict(),
    }
    try:
        run, notebook = desk.ask(request, plan.limits.run_seconds + _START_SECONDS, read_run)
    except WorkerLost as lost:
        return {**_NOT_RUN, "is_run": True, "problem": str(lost)}, merged.notebook
    if run["cells_not_run"] and not run["problem"]:
        run["problem"] = f"the run ended early: cell {run['cells_not_run'][0]} never ran"
    return run, notebook


def _verdicts(merged: Merged, plan: Plan, kept: Kept | None, desk: Desk) -> list[Verdict]:
    """A verdict on each question; those that were not asked for keep the one they have."""
    old = [Verdict.from_dict(item) for item in kept.record["questions"]] if kept and plan.questions else []
    verdicts = {verdict.question: verdict for verdict in old if verdict.question not in plan.questions}
    return [
        verdicts.get(question.name) or _judge(question, merged, plan, desk)
        for question in plan.release.lab.questions
    ]


def _judge(question: Question, merged: Merged, plan: Plan, desk: Desk) -> Verdict:
    answer = merged.answers[question.name]
    if answer.problem:
        return Verdict(question.name, "missing", 0, question.points, answer.problem)
    request = {
        "do": "judge",
        "lab": plan.release.lab.name,
        "question": question.name,
        "source": asdict(merged.source(question.name, question.entry)),
        "seed": plan.seed,
        "sizes": GRADING_SIZES,
        "limits": plan.limits.as_dict(),
    }
    # A case for each size, and one more under lies for a right answer made of messages.
    seconds = (len(GRADING_SIZES) + 1) * plan.limits.case_seconds + _START_SECONDS
    try:
        return desk.ask(request, seconds, lambda reply: read_verdict(reply, question))
    except WorkerLost as lost:
        return Verdict(question.name, "failed", 0, question.points, str(lost))
