"""Runs an answer on real ranks and gives the verdict; the notebook and the grader use the same code.

The answer runs in the ranks only. Their values come back as JSON and npy, and are judged here.
"""

import ast
import linecache
from collections.abc import Callable
from typing import Any

import numpy as np

from dpcourse.labs import inside
from dpcourse.labs.inside import Source
from dpcourse.labs.question import Case, CodeQuestion, Finding, Question, ValueQuestion, message_of
from dpcourse.labs.switch import Log, Plug, Switch
from dpcourse.labs.verdict import Verdict
from dpcourse.ranks.errors import RankError
from dpcourse.ranks.launch import launch

CHECK_SIZES = (2, 3, 4)
_MAX_DETAILS = 4000  # characters of a traceback on a scorecard


def check(
    question: Question,
    answer: Any,
    *,
    seed: int = 0,
    sizes: tuple[int, ...] = CHECK_SIZES,
    deadline_seconds: float = 20,
) -> Verdict:
    """The verdict on `answer`: a function or value, or the `Source` of the cell that defines it."""
    if isinstance(answer, Source) and (wrong := _syntax_error(answer)):
        return Verdict(question.name, "raised", 0, question.points, wrong[0], "syntax", wrong[1])
    try:
        if isinstance(question, CodeQuestion):
            finding = _judge_code(question, answer, seed, sizes, deadline_seconds)
        else:
            finding = question.judge_value(_value_of(answer, deadline_seconds))
    except RankError as error:
        return verdict_of_error(question, error)
    except Tampered as changed:
        finding = changed.finding
    return _verdict(question, finding)


def _syntax_error(answer: Source) -> tuple[str, str] | None:
    """What keeps the text from being Python, and where; nothing is run to find out."""
    try:
        ast.parse(answer.text, answer.filename)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "text", None) or ""
        number = getattr(error, "lineno", None)
        message = f"The cell is not valid Python: {getattr(error, 'msg', error)}"
        return message, f"line {number} of the cell: {line.strip()}" if number else ""
    return None


def _judge_code(
    question: CodeQuestion, answer: Any, seed: int, sizes: tuple[int, ...], deadline_seconds: float
) -> Finding:
    if not isinstance(answer, Source) and not callable(answer):
        return Finding("not_a_function", f"expected a function, got {type(answer).__name__}")
    finding = Finding()
    for case in question.cases(seed, sizes):
        finding = judged(question, case, *run_case(question, case, answer, deadline_seconds))
        if finding.mistake:
            return finding
    if question.allowed is None:
        return finding
    return _judge_under_lies(question, answer, seed, sizes, deadline_seconds) or finding


def _judge_under_lies(
    question: CodeQuestion, answer: Any, seed: int, sizes: tuple[int, ...], deadline_seconds: float
) -> Finding | None:
    """What is wrong with an answer that stays right where all messages are changed on their way.

    Its result comes from somewhere else: another way between the ranks, or inputs that it knew.
    """
    case = question.cases(seed + 1, sizes[:1])[0]  # others: it could have kept the result of the first
    try:
        with np.errstate(all="ignore"):
            sent = run_case(question, case, answer, deadline_seconds, is_lying=True)
            is_right = not judged(question, case, *sent).mistake
    except RankError:
        return None
    where = f"{case.title}: the result was right, and every number that came in a message was not"
    return Finding("not_by_messages", where) if is_right else None


def judged(question: CodeQuestion, case: Case, values: list[Any], *log: Log) -> Finding:
    """The judge's finding; values of a form that no honest run sends are refused, not crashed on."""
    for seen in log:
        if problem := _forbidden(question, case, seen):
            return problem
    try:
        return question.judge(case, values, *log)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        return Finding("no_answer", f"{case.title}: the values sent are no answer ({type(error).__name__})")


def _forbidden(question: CodeQuestion, case: Case, log: Log) -> Finding | None:
    """What the switch saw that no right answer does, whether or not the answer hid the error it got."""
    ruled_out = [call for call in log.calls() if call[1] not in (question.allowed or ())]
    if ruled_out:
        return Finding("forbidden", f"{case.title}: rank {ruled_out[0][0]} called {ruled_out[0][1]}")
    if log.deadlock:
        return Finding(question.name_deadlock(log), f"{case.title}: {log.deadlock}")
    if log.broken:
        return Finding("no_answer", f"{case.title}: {log.broken}")
    return None


class Tampered(Exception):
    """An answer has put functions of its own in the place of others; `finding` says of which."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.finding = Finding("tampered", where)


def run_case(
    question: CodeQuestion, case: Case, answer: Any, deadline_seconds: float, is_lying: bool = False
) -> tuple[Any, ...]:
    """The values that the ranks of one case send, and the switch's log where messages pass through it.

    Each rank is sent its own input only. is_lying: have the switch change all messages on their way.

    Raises:
        Tampered: the answer has changed what tells the judge about it.
    """
    if isinstance(answer, Source):
        _remember_lines(answer)
    work = (answer, question.call, question.witnesses)
    if question.allowed is None:
        return (_unsealed(case, _launch(inside.run_code, case, [], deadline_seconds, *work)),)
    with Switch(case.world_size, is_lying) as switch:
        try:
            sent = _launch(inside.run_plugged, case, switch.plugs, deadline_seconds, *work, question.allowed)
            return _unsealed(case, sent), switch.log
        except RankError as error:
            is_known = switch.log.deadlock or switch.log.broken
            if error.exception_name not in ("Forbidden", "Deadlock") and not is_known:
                raise
            return [], switch.log


def _unsealed(case: Case, sent: list[Any]) -> list[Any]:
    """The values of all ranks, where none of them names something that was changed."""
    for rank, pair in enumerate(sent):
        if type(pair) is not list or len(pair) != 2 or pair[1] != "":
            what = str(pair[1])[:100] if type(pair) is list and len(pair) == 2 else "sent something else"
            raise Tampered(f"{case.title}: rank {rank} {what}")
    return [values for values, _ in sent]


def _launch(
    function: Callable[..., Any], case: Case, plugs: list[Plug], deadline_seconds: float, *args: Any
) -> list[Any]:
    own = [(values, *plugs[rank : rank + 1]) for rank, values in enumerate(case.inputs)]
    return launch(
        function,
        *args,
        per_rank=own,
        ranks=case.world_size,
        device="cpu",  # that is where the tensors of every case lie
        deadline_seconds=deadline_seconds,
        plain=True,
        env={"CUDA_VISIBLE_DEVICES": ""},  # FSDP2 would shard onto cards that it sees
    )


def _value_of(answer: Any, deadline_seconds: float) -> Any:
    if not isinstance(answer, Source):
        return inside.plain(answer)
    _remember_lines(answer)
    return launch(
        inside.run_value, answer, ranks=1, device="cpu", deadline_seconds=deadline_seconds, plain=True
    )[0]


def _remember_lines(answer: Source) -> None:
    """Let tracebacks show the answer's lines in this process too."""
    lines = answer.text.splitlines(keepends=True)
    linecache.cache[answer.filename] = (len(answer.text), None, lines, answer.filename)


def _verdict(question: Question, finding: Finding) -> Verdict:
    if finding.mistake == "incomplete":
        return Verdict(question.name, "unanswered", 0, question.points, message=finding.where)
    status = "hang" if finding.mistake == "hang" else "wrong" if finding.mistake else "right"
    message = message_of(question, finding.mistake) or _GENERAL.get(finding.mistake, "")
    points = 0 if finding.mistake else question.points
    return Verdict(
        question.name,
        status,
        points,
        question.points,
        message,
        finding.mistake,
        finding.where,
        finding.targets,
    )


_GENERAL = {
    "not_a_function": "Give the function itself, without calling it.",
    "no_answer": "What the ranks sent is not what this question asks for.",
    "not_by_messages": (
        "The result did not come by the messages that your ranks sent: it was there by another way, or from"
        " numbers that a rank was not given."
    ),
    "tampered": (
        "Your code reaches for what a check sees of it: it replaces a function of the course's or of"
        " PyTorch's, looks at frames or at all objects, or starts a program. No right answer needs that."
    ),
    "forbidden": "The task rules this collective out: make it yourself, of send and receive.",
    "hang": "Nobody can go on: every rank waits for a message that nobody is left to send or to receive.",
}


def verdict_of_error(question: Question, error: RankError) -> Verdict:
    """What a failed run says about the answer; only a run that ended by itself can be right."""
    if error.exception_name == "NotImplementedError":
        return Verdict(question.name, "unanswered", 0, question.points)
    status = {"mismatch": "hang", "unsendable": "wrong"}.get(error.kind, error.kind)
    mistake = _mistake_of_error(question, status, error)
    message = message_of(question, mistake)
    summary, details = error.summary[:500], error.detail[:_MAX_DETAILS]
    return Verdict(question.name, status, 0, question.points, message, mistake, summary, details=details)


def _mistake_of_error(question: Question, status: str, error: RankError) -> str:
    """How the run failed; a barrier that mends no hang has a message of its own, where there is one."""
    if status != "hang":
        return error.kind
    is_barrier = " barrier #" in error.summary and message_of(question, "barrier")
    return "barrier" if is_barrier else "hang"


def show_example(question: Question, answer: Any, *, ranks: int, deadline_seconds: float = 20) -> Any:
    """A picture of the answer at work on a small example, or the verdict that says why there is none."""
    try:
        if isinstance(question, ValueQuestion):
            # The outcome before an answer is whole would give it away.
            finding = question.judge_value(answer)
            if finding.mistake in ("incomplete", "wrong_type"):
                return _verdict(question, finding)
            return question.measure(answer, ranks)
        case = question.example(ranks)
        return _drawn(question, case, *run_case(question, case, answer, deadline_seconds))
    except RankError as error:
        return verdict_of_error(question, error)
    except Tampered as changed:
        return _verdict(question, changed.finding)


def _drawn(question: CodeQuestion, case: Case, values: list[Any], *log: Log) -> Any:
    finding = judged(question, case, values, *log)
    no_picture = ("wrong_type", "wrong_dtype", "wrong_shape", "no_answer", "forbidden")
    if not values or finding.mistake in no_picture:
        return _verdict(question, finding)
    try:
        return question.draw(case, values, *log)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        if not finding.mistake:
            raise
        return _verdict(question, finding)
