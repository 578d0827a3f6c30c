"""The class at a glance: for each question how many had it right, and which mistake was most common."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import median
from typing import Any

from dpcourse.figures.class_summary import class_summary
from dpcourse.grade.by_hand import points_of
from dpcourse.labs.question import LabSpec, Question, message_of
from dpcourse.labs.verdict import HEADLINES
from dpcourse.tables import Table

Record = dict[str, Any]


@dataclass(frozen=True)
class QuestionSummary:
    """One question over the class: counts of its outcomes, and the mistake that was made most often."""

    name: str
    title: str
    num_right: int
    num_wrong: int
    num_unanswered: int
    mean_points: float
    max_points: float
    mistake: str
    num_mistaken: int
    message: str


def summarise(lab: LabSpec, records: Sequence[Record]) -> list[QuestionSummary]:
    """A summary of each question, over the records of all who handed something in."""
    handed_in = [record for record in records if record["problem"] != "no submission"]
    return [_of_question(question, handed_in) for question in lab.questions]


def _of_question(question: Question, records: Sequence[Record]) -> QuestionSummary:
    verdicts = [item for r in records for item in r["questions"] if item["question"] == question.name]
    statuses = Counter(item["status"] for item in verdicts)
    num_right = statuses["right"]
    num_unanswered = statuses["unanswered"] + statuses["missing"]
    points = [points_of(record, record["by_hand"])[question.name] for record in records]
    mistakes = Counter(item["mistake"] for item in verdicts if item["mistake"])
    mistake, count = mistakes.most_common(1)[0] if mistakes else ("", 0)
    return QuestionSummary(
        question.name,
        question.title,
        num_right,
        len(verdicts) - num_right - num_unanswered,
        num_unanswered,
        sum(points) / len(points) if points else 0.0,
        question.points,
        mistake,
        count,
        message_of(question, mistake) or HEADLINES.get(mistake, ""),
    )


def table_of(summaries: Sequence[QuestionSummary]) -> Table:
    """The summaries as a table."""
    rows = [
        (
            item.name,
            item.num_right,
            item.num_wrong,
            item.num_unanswered,
            f"{item.mean_points:.1f}",
            item.max_points,
            f"{item.mistake} ({item.num_mistaken})" if item.mistake else "",
        )
        for item in summaries
    ]
    columns = ("question", "right", "wrong", "unanswered", "mean points", "of", "most common mistake")
    return Table(columns, rows, "The class, question by question")


def page(lab: LabSpec, records: Sequence[Record]) -> str:
    """The summary as an HTML page of its own, without active content."""
    summaries = summarise(lab, records)
    absent = [record["student"] for record in records if record["problem"] == "no submission"]
    told = "".join(
        f"<li><code>{escape(item.name)}</code>, {item.num_mistaken} times: {escape(item.message)}</li>"
        for item in summaries
        if item.mistake
    )
    points = [record["points"] for record in records if record["student"] not in absent]
    median_points = f"{median(points):g}" if points else "none"
    missing = f"<p>No submission: {escape(', '.join(absent))}.</p>" if absent else ""
    return (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; img-src data:; "
        "style-src 'unsafe-inline'\">"
        f"<title>{escape(lab.name)}: the class</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(lab.title)}</h1>"
        f"<p>{len(points)} submissions; median {median_points} of {lab.max_points} points.</p>{missing}"
        f"{class_summary(summaries).to_html()}{table_of(summaries).to_html()}"
        f"<h2>What the most common mistakes are told</h2><ul>{told or '<li>No mistakes.</li>'}</ul>"
        "</body></html>\n"
    )


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#1b1f24;"
    "background:#fff}table{border-collapse:collapse}td,th{padding:.2em .8em;border-bottom:1px solid #ddd}"
)
