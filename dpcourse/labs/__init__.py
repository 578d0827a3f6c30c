"""Labs: questions with their cases, judges and mistakes, used by the notebook and by the grader alike."""

import importlib
from pathlib import Path
from typing import Any

from dpcourse.checks import check_count
from dpcourse.labs.question import LabSpec
from dpcourse.learner import keep_check, was_checked
from dpcourse.show import Shown
from dpcourse.tables import Table

# Each lab and the package beside this file that holds it.
_PACKAGES = {
    "01_equivalence": "equivalence",
    "02_dataparallel": "parameter_server",
    "03_ddp": "ddp",
    "04_ring_all_reduce": "ring",
    "05_zero": "zero",
    "06_fsdp": "fsdp",
    "07_two_ledgers": "ledgers",
    "08_many_machines": "many_machines",
    "09_choosing": "choosing",
    "10_in_production": "production",
}
LAB_NAMES = tuple(
    name for name, package in _PACKAGES.items() if (Path(__file__).parent / package / "__init__.py").exists()
)


def load(name: str) -> LabSpec:
    """The lab called `name`; its number ("01") or the beginning of its name will do.

    Raises:
        ValueError: there is none of that name, or more than one that begins so.
    """
    found = [name] if name in LAB_NAMES else [known for known in LAB_NAMES if _is_meant(str(name), known)]
    if len(found) != 1:
        raise ValueError(f"there is no lab {name!r}; there are: {', '.join(LAB_NAMES)}")
    spec: LabSpec = importlib.import_module(f"{__name__}.{_PACKAGES[found[0]]}").LAB
    return spec


# Verdicts that were found outside of this process, by lab and question: set in a kernel of the grader's.
verdicts_given: dict[tuple[str, str], Any] = {}


def _is_meant(wanted: str, name: str) -> bool:
    """Whether `wanted` is the number of the lab `name`, with or without zeros, or begins its name."""
    if wanted.isdecimal():
        return wanted.lstrip("0") == name.partition("_")[0].lstrip("0")
    return wanted != "" and name.startswith(wanted)


def _is_handed_out(question: Any, answer: Any) -> bool:
    """Whether an answer is the script that the learner was given to mend."""
    import inspect

    script = getattr(question, "handed_out", "")
    try:
        return bool(script) and "".join(inspect.getsource(answer).split()) == "".join(script.split())
    except (OSError, TypeError):  # no function, or one without a source
        return False


def lab(name: str, *, ranks: int = 4, deadline_seconds: float = 20) -> "Lab":
    """A lab to work on: `run` shows an answer at work, `check` judges it, `score` adds up.

    `ranks` is how many ranks the pictures use; checks use 2, 3 and 4 whatever it says.

    Raises:
        ValueError: there is no such lab, or a number is none that a run could have.
    """
    from dpcourse.ranks.launch import check_deadline

    check_count("ranks", ranks)
    check_deadline(deadline_seconds)
    return Lab(load(name), ranks, deadline_seconds)


class Lab(Shown):
    """A lab in a notebook, with the verdicts of this session."""

    def __init__(self, spec: LabSpec, ranks: int, deadline_seconds: float) -> None:
        self.spec, self.ranks, self.deadline_seconds = spec, ranks, deadline_seconds
        self._verdicts: dict[str, Any] = {}
        self._tried: set[str] = set()

    def run(self, name: str, answer: Any) -> Any:
        """Show an answer at work on a small example, on real ranks; an error in it is shown, not raised.

        Raises ValueError for a question that the lab does not have.
        """
        from dpcourse.labs.check import show_example

        question = self.spec.question(name)
        return show_example(question, answer, ranks=self.ranks, deadline_seconds=self.deadline_seconds)

    def check(self, name: str, answer: Any) -> Any:
        """Give the verdict on an answer: points, where it first goes wrong, the likely mistake.

        Raises ValueError for a question that the lab does not have.
        """
        from dpcourse.labs.check import check

        question = self.spec.question(name)
        verdict = verdicts_given.get((self.spec.name, name)) or check(
            question, answer, deadline_seconds=self.deadline_seconds
        )
        self._verdicts[name] = verdict
        if verdict.status != "unanswered" and not _is_handed_out(question, answer):
            self._tried.add(name)
            keep_check(self.spec.name, name, verdict.status, verdict.points, verdict.max_points)
        return verdict

    def is_right(self, name: str) -> bool:
        """Whether the last check of the question found its answer right."""
        self.spec.question(name)
        return name in self._verdicts and self._verdicts[name].is_right

    def solution(self, name: str) -> Any:
        """A right answer to a question that you have tried; others are as right.

        Raises:
            ValueError: no check of the question has seen an answer, or this copy came without solutions.
        """
        from dpcourse.labs.solution import solution_of

        question = self.spec.question(name)
        if not self._is_tried(name):
            raise ValueError(
                f'{name}: try first. lab.check("{name}", ...) has not seen an answer of yours; after one,'
                " right or not, the solution is here"
            )
        return solution_of(self.spec.name, question)

    def _is_tried(self, name: str) -> bool:
        """Whether a check has seen an answer, in this session or, by the learner's record, before."""
        return name in self._tried or was_checked(self.spec.name, name)

    def score(self) -> Any:
        """All points so far; an executed notebook keeps them as scrap data."""
        from dpcourse.labs.verdict import Score, Verdict

        verdicts = [
            self._verdicts.get(question.name) or Verdict(question.name, "unanswered", 0, question.points)
            for question in self.spec.questions
        ]
        return Score(self.spec.name, tuple(verdicts))

    def _table(self) -> Table:
        rows = [(q.name, q.title, q.points, q.minutes) for q in self.spec.questions]
        rows.append(("together", "", self.spec.max_points, sum(q.minutes for q in self.spec.questions)))
        return Table(
            ("question", "what it asks", "points", "minutes"),
            rows,
            f"Lab {self.spec.name}: {self.spec.title}",
        )

    def __str__(self) -> str:
        return str(self._table())

    def to_html(self) -> str:
        """The questions as HTML."""
        return self._table().to_html()
