"""Grades submissions one after the other or side by side, and goes on where an earlier batch stopped."""

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from dpcourse.grade.by_hand import with_points
from dpcourse.grade.intake import Submission
from dpcourse.grade.isolation import NO_ISOLATION, Isolation
from dpcourse.grade.limits import Limits
from dpcourse.grade.merge import Merged, Release, merge
from dpcourse.grade.record import FORMAT, Book, write_whole
from dpcourse.grade.replies import read_run, read_verdict
from dpcourse.grade.report import write_report
from dpcourse.grade.workers import Desk, NotStarted, Stopped, WorkerLost
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
class Done:
    """How one submission went: its record, and the record before it if there was one."""

    record: dict[str, Any]
    before: dict[str, Any] | None
    is_new: bool


def grade_all(
    submissions: Sequence[Submission], plan: Plan, book: Book, jobs: int, on_done: Callable[[Done], None]
) -> None:
    """Grade what is not up to date yet; `on_done` is called for each as it is finished and written.

    Whatever one submission does, the next is graded; only files that can't be written end the batch.
    """
    desks, lock = threading.local(), threading.Lock()
    opened: list[Desk] = []

    def one(submission: Submission) -> None:
        if not hasattr(desks, "own"):
            desks.own = Desk(plan.isolation)
            opened.append(desks.own)
        try:
            done = grade_one(submission, plan, book, desks.own)
        except (Stopped, NotStarted, OSError):
            raise
        except Exception as error:  # whatever it is: it came from this submission and stays with it
            done = _set_aside(submission, plan, book, error)
        with lock:
            on_done(done)

    pool = ThreadPoolExecutor(jobs)
    try:
        for future in [pool.submit(one, submission) for submission in submissions]:
            future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for desk in opened:  # what is still under way, after an interrupt, ends with its worker
            desk.close()
        pool.shutdown()


def grade_one(submission: Submission, plan: Plan, book: Book, desk: Desk) -> Done:
    """The record of one submission, written with its report and notebook, unless it is up to date."""
    before = _before(submission, plan, book)
    current = before if before and before["fingerprint"] == plan.fingerprint(submission) else None
    is_complete = current is not None and (current["run"]["is_run"] or not plan.is_run)
    if current and (is_complete or submission.problem) and not plan.is_regrade and not plan.questions:
        return Done(_up_to_date(current, submission, plan, book), before, is_new=False)
    old = book.read_notebook(submission.student)
    kept = Kept(current, old) if current else None
    graded = _grade(submission, plan, kept, desk)
    record = with_points(_record(submission, plan, graded), before["by_hand"] if before else {})
    _write(record, graded.notebook, plan, book)
    return Done(record, before, is_new=True)


def _before(submission: Submission, plan: Plan, book: Book) -> dict[str, Any] | None:
    """The record there is of a submission, under the name it had before the roster gave it another, too."""
    before = book.read(submission.student)
    if before is None and submission.person:
        before = book.read(submission.sender.name)
        if before is None or before["fingerprint"] != plan.fingerprint(submission):
            return None
        notebook = book.read_notebook(before["student"])
        book.remove(before["student"])
        before = {**before, "student": submission.student}
        _write(before, notebook, plan, book)
    return before


def _up_to_date(record: dict[str, Any], submission: Submission, plan: Plan, book: Book) -> dict[str, Any]:
    """A record that stands, with who handed in and when as it is known now."""
    current = {**record, **_origin(submission)}
    if current != record:
        _write(current, book.read_notebook(submission.student), plan, book)
    return current


def _origin(submission: Submission) -> dict[str, Any]:
    """Who handed in, under which name, and when."""
    seconds = submission.modified_seconds
    return {
        "arrived": submission.arrived,
        "person": submission.person.as_dict() if submission.person else None,
        "submitted_at": datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else "",
    }


def _set_aside(submission: Submission, plan: Plan, book: Book, error: Exception) -> Done:
    """The record of a submission that grading broke on: no points, and what happened; never up to date."""
    before = book.read(submission.student)
    problem = f"could not be graded: {type(error).__name__}: {str(error)[:300]}"
    graded = _unanswered(replace(submission, problem=problem), plan, "failed")
    record = _record(replace(submission, problem=problem), plan, graded)
    record = {**with_points(record, before["by_hand"] if before else {}), "fingerprint": ""}
    _write(record, None, plan, book)
    return Done(record, before, is_new=True)


def _write(record: dict[str, Any], notebook: dict[str, Any] | None, plan: Plan, book: Book) -> None:
    if notebook is not None:
        text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True)
        write_whole(book.notebook_path(record["student"]), text + "\n")
    write_report(book, record, notebook)
    book.write(record)  # last: a record says that the rest is there


@dataclass(frozen=True)
class _Graded:
    """What one grading found out: the verdicts, how the notebook's run went, and the notebook after it."""

    verdicts: list[Verdict]
    run: dict[str, Any]
    notebook: dict[str, Any] | None
    notes: list[str]


def _grade(submission: Submission, plan: Plan, kept: Kept | None, desk: Desk) -> _Graded:
    if submission.problem:
        return _unanswered(submission, plan, "missing")
    merged = merge(plan.release, submission.cells)
    run, notebook = _run(merged, plan, kept, desk)
    return _Graded(_verdicts(merged, plan, kept, desk), run, notebook, [*submission.notes, *merged.notes])


def _unanswered(submission: Submission, plan: Plan, status: str) -> _Graded:
    """No points on any question, for the submission's problem."""
    questions = plan.release.lab.questions
    verdicts = [Verdict(q.name, status, 0, q.points, submission.problem) for q in questions]
    return _Graded(verdicts, dict(_NOT_RUN), None, list(submission.notes))


def _run(
    merged: Merged, plan: Plan, kept: Kept | None, desk: Desk
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    if kept and (plan.questions or not plan.is_run):
        return kept.record["run"], kept.notebook
    return _execute(merged, plan, desk) if plan.is_run else (dict(_NOT_RUN), None)


def _record(submission: Submission, plan: Plan, graded: _Graded) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "lab": plan.release.lab.name,
        "student": submission.student,
        "submission": submission.path,
        **_origin(submission),
        "by_hand": {},
        "fingerprint": plan.fingerprint(submission),
        "isolation": plan.isolation.as_dict(),
        "limits": plan.limits.as_dict(),
        "seed": plan.seed,
        "points": sum(verdict.points for verdict in graded.verdicts),
        "max_points": plan.release.lab.max_points,
        "problem": submission.problem,
        "notes": graded.notes,
        "run": graded.run,
        "questions": [verdict.as_dict() for verdict in graded.verdicts],
    }


def _execute(merged: Merged, plan: Plan, desk: Desk) -> tuple[dict[str, Any], dict[str, Any] | None]:
    request = {"do": "execute", "notebook": merged.notebook, "limits": plan.limits.as_dict()}
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
    seconds = len(GRADING_SIZES) * plan.limits.case_seconds + _START_SECONDS
    try:
        return desk.ask(request, seconds, lambda reply: read_verdict(reply, question))
    except WorkerLost as lost:
        return Verdict(question.name, "failed", 0, question.points, str(lost))
