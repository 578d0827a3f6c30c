"""Grades submissions one after the other or side by side, and goes on where an earlier batch stopped."""

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from dpcourse.grade.by_hand import with_points
from dpcourse.grade.grading import Graded, Kept, Plan, grade, unanswered
from dpcourse.grade.intake import Submission
from dpcourse.grade.isolation import Isolation
from dpcourse.grade.record import FORMAT, Book, write_whole
from dpcourse.grade.report import write_report
from dpcourse.grade.workers import Desk, NotStarted, Stopped


@dataclass(frozen=True)
class Done:
    """How one submission went: its record, and the record before it if there was one."""

    record: dict[str, Any]
    before: dict[str, Any] | None
    is_new: bool


class Graders(Protocol):
    """Whoever grades: as many submissions at once as `jobs` says, until closed."""

    jobs: int

    def grade(self, submission: Submission, plan: Plan, kept: Kept | None) -> Graded:
        """Grade one submission; called on several threads."""

    def close(self) -> None:
        """End what is under way, now."""


class Here:
    """Graders on this machine: each thread has a worker of its own."""

    def __init__(self, isolation: Isolation, jobs: int) -> None:
        self.jobs, self._isolation = jobs, isolation
        self._own, self._desks = threading.local(), list[Desk]()

    def grade(self, submission: Submission, plan: Plan, kept: Kept | None) -> Graded:
        """Grade one submission on this thread's worker."""
        if not hasattr(self._own, "desk"):
            self._own.desk = Desk(self._isolation)
            self._desks.append(self._own.desk)
        return grade(submission, plan, kept, self._own.desk)

    def close(self) -> None:
        """End every worker."""
        for desk in self._desks:
            desk.close()


def grade_all(
    submissions: Sequence[Submission],
    plan: Plan,
    book: Book,
    graders: Graders,
    on_done: Callable[[Done], None],
) -> None:
    """Grade what is not up to date yet; `on_done` is called for each as it is finished and written.

    Whatever one submission does, the next is graded; only files that can't be written end the batch.
    """
    lock = threading.Lock()

    def one(submission: Submission) -> None:
        try:
            done = grade_one(submission, plan, book, graders)
        except (Stopped, NotStarted, OSError):
            raise
        except Exception as error:  # whatever it is: it came from this submission and stays with it
            done = _set_aside(submission, plan, book, error)
        with lock:
            on_done(done)

    pool = ThreadPoolExecutor(graders.jobs)
    try:
        for future in [pool.submit(one, submission) for submission in submissions]:
            future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        graders.close()  # what is still under way, after an interrupt, ends with its worker
        pool.shutdown()


def grade_one(submission: Submission, plan: Plan, book: Book, graders: Graders) -> Done:
    """The record of one submission, written with its report and notebook, unless it is up to date."""
    before = _before(submission, plan, book)
    current = before if before and before["fingerprint"] == plan.fingerprint(submission) else None
    is_complete = current is not None and (current["run"]["is_run"] or not plan.is_run)
    if current and (is_complete or submission.problem) and not plan.is_regrade and not plan.questions:
        return Done(_up_to_date(current, submission, book), before, is_new=False)
    old = book.read_notebook(submission.student)
    kept = Kept(current, old) if current else None
    graded = graders.grade(submission, plan, kept)
    record = with_points(_record(submission, plan, graded), before["by_hand"] if before else {})
    _write(record, graded.notebook, book)
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
        _write(before, notebook, book)
    return before


def _up_to_date(record: dict[str, Any], submission: Submission, book: Book) -> dict[str, Any]:
    """A record that stands, with who handed in and when as it is known now."""
    current = {**record, **_origin(submission)}
    if current != record:
        _write(current, book.read_notebook(submission.student), book)
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
    graded = unanswered(replace(submission, problem=problem), plan, "failed")
    record = _record(replace(submission, problem=problem), plan, graded)
    record = {**with_points(record, before["by_hand"] if before else {}), "fingerprint": ""}
    _write(record, None, book)
    return Done(record, before, is_new=True)


def _write(record: dict[str, Any], notebook: dict[str, Any] | None, book: Book) -> None:
    if notebook is not None:
        text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True)
        write_whole(book.notebook_path(record["student"]), text + "\n")
    write_report(book, record, notebook)
    book.write(record)  # last: a record says that the rest is there


def _record(submission: Submission, plan: Plan, graded: Graded) -> dict[str, Any]:
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
