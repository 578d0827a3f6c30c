"""A question answered by a function of plain values: called in one rank, on jobs that nobody has seen.

What it returns, numbers or a name, is held against what the package's own code says, and, where a job asks
for it, against a real run that is made while judging.
"""

import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from dpcourse.labs.inside import plain
from dpcourse.labs.question import Case, CodeQuestion, Finding, Mistake, Target
from dpcourse.labs.values.form import wrong_fields
from dpcourse.labs.values.numbers import as_float, is_near
from dpcourse.ranks.errors import RankError
from dpcourse.tables import Table

Values = Mapping[str, Any]  # by name: numbers, which may be a little off, or texts, which may not
_PACKAGE = __name__.partition(".")[0]
_MAX_SHOWN = 60  # characters of a text on a scorecard
ASKED = Mistake(
    "asks_the_course",
    "The function asks the course's own code for the answer: write the formula yourself.",
)


@dataclass(frozen=True)
class Job:
    """What the answer is called with, by name. setting: what the judge needs to know beside it."""

    title: str
    arguments: Mapping[str, Any]
    setting: Any = None
    is_run: bool = False


@dataclass(frozen=True)
class Judge:
    """Holds what a function returned for some jobs against what is right.

    goals: a job's numbers. wrong_ways: known mistakes, each with the numbers that it gives. measure: the
    numbers of a real run of a job with `is_run`. A number may be as far off as `relative_tolerance`.
    """

    goals: Callable[[Job], Values]
    wrong_ways: Mapping[str, Callable[[Job], Values]] = field(default_factory=dict)
    measure: Callable[[Job], Values] | None = None
    relative_tolerance: float = 0.01
    text: Callable[[float], str] = "{:,.6g}".format

    def __call__(self, case: Case, sent: list[Any]) -> Finding:
        """The finding: the form of every value, then the numbers, then the runs."""
        jobs, (reply,) = case.inputs[0], sent
        if reply["asked"] is not None:
            return Finding(ASKED.name, f"it calls {str(reply['asked'])[:60]}")
        goals = [self.goals(job) for job in jobs]
        values = [_named(value, goal) for value, goal in zip(reply["values"], goals, strict=True)]
        for job, value, goal in zip(jobs, values, goals, strict=True):
            if problem := wrong_fields(value, goal, _kinds(goal)):
                mistake = "wrong_type" if problem.mistake == "incomplete" else problem.mistake
                return Finding(mistake, f"{job.title}: {problem.where}")
        off = self._first_off(jobs, values, goals)
        num_right = sum(map(self._are_near, values, goals))
        within = f" within {100 * self.relative_tolerance:g} %" if (int, float) == _kinds(goals[0]) else ""
        count = Target(f"jobs right{within}", str(len(jobs)), str(num_right), not off)
        if not off:
            return Finding(targets=(count, *self._held_against_runs(jobs, values)))
        number, name = off
        where = f"{jobs[number].title}: {self._beside(name, values[number], goals[number])}"
        mistake = self._likely(jobs, values, number) or name
        return Finding(mistake, where, (count, *self._targets(jobs[number], values[number], goals[number])))

    def _first_off(self, jobs: Any, values: list[Values], goals: list[Values]) -> tuple[int, str] | None:
        """Which job's number is off first: the job's place, and the number's name."""
        for number in range(len(jobs)):
            for name, goal in goals[number].items():
                if not self._is_near(values[number][name], goal):
                    return number, name
        return None

    def _likely(self, jobs: Any, values: list[Values], first: int) -> str:
        """The wrong way that explains the numbers of all jobs; else one that explains the first job off."""
        for places in (range(len(jobs)), (first,)):
            for mistake, way in self.wrong_ways.items():
                if all(self._are_near(values[place], way(jobs[place])) for place in places):
                    return mistake
        return ""

    def _held_against_runs(self, jobs: Any, values: list[Values]) -> tuple[Target, ...]:
        targets: tuple[Target, ...] = ()
        for job, value in zip(jobs, values, strict=True):
            if job.is_run:
                measured = self.measured(job)
                targets += self._targets(job, value, measured, "a run: ")
                if not self._are_near(value, measured):
                    raise RuntimeError(f"{job.title}: the run gave {measured}, and the formula {value}")
        return targets

    def measured(self, job: Job) -> Values:
        """The numbers of a real run.

        Raises:
            RuntimeError: the run failed; that is not the answer's fault.
        """
        assert self.measure is not None
        try:
            return self.measure(job)
        except RankError as error:
            raise RuntimeError(f"{job.title}: the run to compare with failed: {error}") from error

    def _targets(self, job: Job, value: Values, wanted: Values, source: str = "") -> tuple[Target, ...]:
        return tuple(
            Target(
                f"{job.title}: {name}",
                f"{source}{self._text(goal)}",
                self._text(value[name]),
                self._is_near(value[name], goal),
            )
            for name, goal in wanted.items()
        )

    def _beside(self, name: str, value: Values, goal: Values) -> str:
        return f"{name}: expected {self._text(goal[name])}, got {self._text(value[name])}"

    def _is_near(self, value: Any, goal: Any) -> bool:
        return value == goal if type(goal) is str else is_near(value, goal, self.relative_tolerance)

    def _text(self, value: Any) -> str:
        return value[:_MAX_SHOWN] if type(value) is str else self.text(as_float(value))

    def _are_near(self, values: Values, goals: Values) -> bool:
        return all(self._is_near(values[name], goal) for name, goal in goals.items())

    def draw(self, case: Case, sent: list[Any]) -> Table:
        """The answer's values beside those of real runs, or the course's own where a job asks for no run."""
        rows: list[tuple[str, ...]] = []
        for job, value in zip(case.inputs[0], sent[0]["values"], strict=True):
            goal = self.goals(job)
            beside = self.measured(job) if job.is_run else goal
            named = _named(value, goal)
            rows += [
                (job.title, name, self._text(named[name]), self._text(number))
                for name, number in beside.items()
            ]
        source = "a run" if case.inputs[0][0].is_run else "the course"
        return Table(("job", "what", "your function", source), rows)


def function(
    name: str,
    title: str,
    *,
    points: int,
    minutes: int,
    jobs: Callable[[int, tuple[int, ...]], tuple[Job, ...]],
    example: Callable[[int], tuple[Job, ...]],
    judge: Judge,
    mistakes: tuple[Mistake, ...],
    entry: str = "",
) -> CodeQuestion:
    """Ask for a function of plain values that returns a number or a text, or a dict of several numbers.

    jobs(seed, sizes): what it is called with, for a seed and some numbers of ranks. example(ranks): the same
    for the picture. mistakes: those of the judge's wrong ways, and one for each number by its name.
    entry: the function's name, where it is not the question's.
    """
    return CodeQuestion(
        name,
        title,
        points,
        minutes,
        cases=lambda seed, sizes: (_case(jobs(seed, sizes)),),
        call=call,
        judge=judge,
        draw=judge.draw,
        example=lambda ranks: _case(example(ranks)),
        mistakes=(*mistakes, ASKED),
        entry=entry,
        kind="function",
    )


def _case(jobs: tuple[Job, ...]) -> Case:
    return Case(f"{len(jobs)} jobs", (jobs,))


def call(answer: Callable[..., Any], jobs: tuple[Job, ...]) -> dict[str, Any]:
    """In a rank: what the answer returns for each job, and which of the course's functions it asked."""
    watch, values = _Watch(), []
    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        for job in jobs:
            values.append(answer(**job.arguments))
            if sys.getprofile() is not watch:
                watch.asked = watch.asked or "sys.setprofile"
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return {"values": [plain(value) for value in values], "asked": watch.asked}


class _Watch:
    """Remembers the first function of this package that was called."""

    def __init__(self) -> None:
        self.asked: str | None = None

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        module = str(frame.f_globals.get("__name__"))
        if event == "call" and module.partition(".")[0] == _PACKAGE and self.asked is None:
            self.asked = f"{module}.{frame.f_code.co_name}"


def _kinds(goal: Values) -> tuple[type, ...]:
    return (str,) if str in map(type, goal.values()) else (int, float)


def _named(value: Any, goal: Values) -> Any:
    """A number that was asked for alone, under its name."""
    return {next(iter(goal)): value} if len(goal) == 1 and type(value) is not dict else value
