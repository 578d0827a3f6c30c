"""What a lab asks, and what is said about an answer: nouns that the notebook and the grader share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """One run of an answer on real ranks; a rank is sent its own entry of `inputs` and no other."""

    title: str
    inputs: tuple[Any, ...]

    @property
    def world_size(self) -> int:
        """How many ranks the case runs on."""
        return len(self.inputs)


@dataclass(frozen=True)
class Mistake:
    """A class of wrong answers, and the message it gets.

    source: a wrong value that must get it, where one follows from the question's own goals. Wrong code is
    made of right code, which no learner's copy may hold: the tests have it.
    """

    name: str
    message: str
    source: str = ""


@dataclass(frozen=True)
class Target:
    """A number that an answer is held against, beside the number it reached."""

    name: str
    wanted: str
    measured: str
    is_met: bool


@dataclass(frozen=True)
class Finding:
    """What the judge saw in the values of one case; no mistake means that they are right."""

    mistake: str = ""
    where: str = ""
    targets: tuple[Target, ...] = ()


# judge(case, values); with the switch's log as a third argument where the question's messages pass through it
Judge = Callable[..., Finding]


def _hang(log: Any) -> str:
    return "hang"


@dataclass(frozen=True)
class CodeQuestion:
    """A function that the learner writes and that runs on real ranks.

    `cases(seed, sizes)` makes the runs; `call(answer, own_input)` uses the answer inside a rank and returns
    plain values; `judge(case, values)` looks at the values of all ranks, outside them.

    allowed: the collectives that the answer may call beside send and receive; None for all of gloo. Given,
    all messages pass through the judge's process, and `judge` and `draw` get the log, see
    `dpcourse.labs.switch`. name_deadlock: the mistake that makes all ranks wait, by the log.

    witnesses: the modules by which `call` sees what an answer does; they are loaded before it is.

    handed_out: the broken script that the learner is to mend, where that is the task; its check is no try.
    """

    name: str
    title: str
    points: int
    minutes: int
    cases: Callable[[int, tuple[int, ...]], tuple[Case, ...]]
    call: Callable[[Callable[..., Any], Any], Any]
    judge: Judge
    draw: Callable[..., Any]
    example: Callable[[int], Case]
    mistakes: tuple[Mistake, ...] = ()
    entry: str = field(default="")
    kind: str = "code"
    allowed: tuple[str, ...] | None = None
    name_deadlock: Callable[[Any], str] = _hang
    handed_out: str = ""
    witnesses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.entry:
            object.__setattr__(self, "entry", self.name)


@dataclass(frozen=True)
class ValueQuestion:
    """Numbers, matches or an order: a plain value that the learner writes down in a variable.

    `judge_value(value)` gives the finding; `measure(value, ranks)` runs the real thing beside it.
    """

    name: str
    title: str
    points: int
    minutes: int
    entry: str
    kind: str
    judge_value: Callable[[Any], Finding]
    measure: Callable[[Any, int], Any]
    mistakes: tuple[Mistake, ...] = ()


Question = CodeQuestion | ValueQuestion


@dataclass(frozen=True)
class LabSpec:
    """A lab: its name (the notebook's stem), its title and its questions in order."""

    name: str
    title: str
    questions: tuple[Question, ...]

    def __reduce__(self) -> Any:
        # Another process that grades has the same labs: only the name travels, not their functions.
        from dpcourse.labs import load

        return load, (self.name,)

    @property
    def max_points(self) -> int:
        """The points of all questions together."""
        return sum(question.points for question in self.questions)

    def question(self, name: str) -> Question:
        """The question called `name`.

        Raises:
            ValueError: the lab has none of that name.
        """
        for question in self.questions:
            if question.name == name:
                return question
        known = ", ".join(question.name for question in self.questions)
        raise ValueError(f"lab {self.name} has no question {name!r}; it has {known}")


def message_of(question: Question, mistake: str) -> str:
    """What the learner is told about `mistake`."""
    return next((item.message for item in question.mistakes if item.name == mistake), "")
