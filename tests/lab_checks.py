"""What the tests of every lab ask: its solutions, the mutants that pass, and the wrong answers it knows."""

import json
from pathlib import Path

from dpcourse.labs.check import check, show_example
from dpcourse.labs.inside import Source
from dpcourse.labs.question import CodeQuestion, LabSpec, Mistake, Question
from tests.mutants import mutants
from tests.wrong_answers import wrong_answers

SOURCE = Path(__file__).parents[1] / "labs" / "source"
IMPORTS = "import torch\nimport torch.distributed as dist\n"


def code_questions(lab: LabSpec) -> list[CodeQuestion]:
    """The questions that a function answers."""
    return [question for question in lab.questions if isinstance(question, CodeQuestion)]


def known_mistakes(lab: LabSpec) -> list[tuple[Question, Mistake]]:
    """Each question with each of its mistakes."""
    return [(question, mistake) for question in lab.questions for mistake in question.mistakes]


def name_of(item: Question | Mistake) -> str:
    """A test's id."""
    return item.name.replace(" ", "_").replace(",", "")


def source_of(name: str) -> dict:
    """The notebook with a lab's solutions."""
    return json.loads((SOURCE / f"{name}.ipynb").read_text(encoding="utf-8"))


def solution(lab: LabSpec, name: str) -> str:
    """The answer cell of a question in the lab's source, with the imports of every lab before it."""
    return IMPORTS + "".join(
        next(cell["source"] for cell in source_of(lab.name)["cells"] if cell["id"] == name)
    )


def assert_refused(question: Question, mistake: Mistake) -> None:
    """The mistake's wrong answer gets its name and its message, no point, and a place where it shows."""
    verdict = check(question, Source(wrong_answers(question)[mistake.name], question.entry))
    assert (verdict.mistake, verdict.message, verdict.points) == (mistake.name, mistake.message, 0), verdict
    assert verdict.where


def assert_passes(question: CodeQuestion, source: str) -> None:
    """A right answer passes with another seed and other counts of ranks, and meets every target."""
    verdict = check(question, Source(IMPORTS + source, question.entry), seed=7, sizes=(2, 5))
    assert verdict.is_right, str(verdict)
    assert verdict.points == question.points
    assert all(target.is_met for target in verdict.targets)


def assert_messages_differ(question: Question) -> None:
    """Every mistake of a question has a message of its own."""
    messages = [mistake.message for mistake in question.mistakes]
    assert all(messages)
    assert len(set(messages)) == len(messages)


def assert_unanswered(question: CodeQuestion) -> None:
    """What was handed out makes no points, and is told as what it is, not as a mistake."""

    def stub(*arguments: object, **options: object) -> None:
        raise NotImplementedError

    assert check(question, stub).status == "unanswered"
    assert show_example(question, stub, ranks=2).status == "unanswered"


def passing(question: CodeQuestion, source: str) -> list[str]:
    """What was changed in the mutants of a right answer that a check takes for right."""
    return [
        what
        for what, mutant in mutants(source)
        if check(question, Source(mutant, question.entry), deadline_seconds=10).is_right
    ]
