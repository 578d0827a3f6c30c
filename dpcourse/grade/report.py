"""The page for one submission: scorecard on top, then the answers and what they showed; no active content."""

import base64
import binascii
import re
from html import escape
from typing import Any

from dpcourse.grade.by_hand import points_of, words
from dpcourse.grade.record import Book, write_whole
from dpcourse.labs.question import LabSpec
from dpcourse.labs.verdict import Verdict, verdict_html

_MAX_TEXT = 20_000  # characters of one output
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1f24; background: #fff;
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin: 0 }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem }
.points { font-size: 2.2rem; font-weight: 700; margin: .5rem 0 }
.bar { height: .6rem; background: #e3e6ea }
.bar div { height: 100%; background: #0b6e4f }
.problem { border-left: 5px solid #a4390d; padding: .4rem 1rem; background: #fdf3ee }
table { border-collapse: collapse }
td, th { padding: .2rem .9rem .2rem 0; text-align: left; vertical-align: top }
td.number { text-align: right; font-variant-numeric: tabular-nums }
pre { font: 13px/1.45 ui-monospace, monospace; background: #f5f6f8; padding: .7rem 1rem;
  white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0 }
pre.shown { background: #fff; border-left: 3px solid #cfd5dc }
pre.error { border-left-color: #a4390d }
.quiet { color: #5b6470; font-size: .9rem }
img { max-width: 100% }
"""


def report_html(record: dict[str, Any], lab: LabSpec, notebook: dict[str, Any] | None) -> str:
    """The whole page as text; every word that a submission could have written is escaped."""
    verdicts = [Verdict.from_dict(item) for item in record["questions"]]
    body = [_head(record, lab), _table(verdicts, lab, points_of(record, record["by_hand"])), _remarks(record)]
    body += [_question(verdict, lab, notebook) for verdict in verdicts]
    body += [_other_cells(lab, notebook), _conditions(record)]
    title = escape(f"{record['student']}: {lab.name}")
    return (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        "<meta name='viewport' content='width=device-width'>"
        f"<title>{title}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def write_report(book: Book, record: dict[str, Any], notebook: dict[str, Any] | None) -> None:
    """Write the page for a record, with the notebook as it ran."""
    write_whole(book.report_path(record["student"]), report_html(record, book.lab, notebook))


def _head(record: dict[str, Any], lab: LabSpec) -> str:
    share = record["points"] / record["max_points"]
    return (
        f"<h1>{escape(record['student'])}</h1>"
        f"<div class='quiet'>Lab {escape(lab.name)}: {escape(lab.title)}</div>"
        f"<div class='points'>{record['points']:g} of {record['max_points']:g} points</div>"
        f"<div class='bar'><div style='width:{share:.1%}'></div></div>"
    )


def _table(verdicts: list[Verdict], lab: LabSpec, points: dict[str, float]) -> str:
    rows = "".join(
        f"<tr><td>{escape(lab.question(verdict.question).title)}</td><td>{escape(verdict.status)}</td>"
        f"<td class='number'>{points[verdict.question]:g}</td>"
        f"<td class='number'>{verdict.max_points:g}</td></tr>"
        for verdict in verdicts
    )
    head = "<tr><th>question</th><th>result</th><th>points</th><th>of</th></tr>"
    return f"<h2>Questions</h2><table>{head}{rows}</table>"


def _remarks(record: dict[str, Any]) -> str:
    problems = [text for text in (record["problem"], record["run"]["problem"]) if text]
    left = record["run"]["num_left"]
    notes = [*words(record), *record["notes"]] + (
        [f"processes left behind, and ended: {left}"] if left else []
    )
    parts = [f"<p class='problem'>{escape(text)}</p>" for text in problems]
    parts += ["<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"] if notes else []
    return "".join(parts)


def _question(verdict: Verdict, lab: LabSpec, notebook: dict[str, Any] | None) -> str:
    cells = {cell.get("id"): cell for cell in (notebook or {"cells": []})["cells"]}
    shown = [cells[name] for name in (verdict.question, f"run_{verdict.question}") if name in cells]
    title = escape(lab.question(verdict.question).title)
    return f"<h2>{title}</h2>{verdict_html(verdict)}{''.join(map(_cell, shown))}"


def _cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    return f"<pre>{escape(source)}</pre>{''.join(map(_output, cell.get('outputs', [])))}"


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return _image("".join(data["image/png"]))
    if output["output_type"] == "error":
        return _pre("\n".join(map(str, output.get("traceback", []))), "shown error")
    return _pre("".join(output.get("text", data.get("text/plain", ""))), "shown")


def _pre(text: str, kind: str) -> str:
    text = _ANSI.sub("", text)
    note = f"\n[{len(text) - _MAX_TEXT} more characters]" if len(text) > _MAX_TEXT else ""
    return f"<pre class='{kind}'>{escape(text[:_MAX_TEXT] + note)}</pre>" if text.strip() else ""


def _image(text: str) -> str:
    try:
        data = base64.b64decode(text, validate=False)
    except (binascii.Error, ValueError):
        return _pre("[a picture that could not be read]", "shown")
    if not data.startswith(b"\x89PNG"):
        return _pre("[a picture that is no PNG]", "shown")
    text = base64.b64encode(data).decode()
    return f"<img alt='picture shown by the cell above' src='data:image/png;base64,{text}'>"


def _other_cells(lab: LabSpec, notebook: dict[str, Any] | None) -> str:
    """The rest of the notebook's code cells, folded away."""
    if notebook is None:
        return ""
    names = {question.name for question in lab.questions}
    answers = names | {f"run_{name}" for name in names}
    cells = [
        cell for cell in notebook["cells"] if cell["cell_type"] == "code" and cell.get("id") not in answers
    ]
    inside = "".join(map(_cell, cells))
    return (
        f"<h2>The other cells of the run</h2><details><summary>{len(cells)} cells</summary>{inside}</details>"
    )


def _conditions(record: dict[str, Any]) -> str:
    limits = record["limits"]
    return (
        f"<h2>How this was graded</h2><p class='quiet'>Isolation {escape(record['isolation']['kind'])}: "
        f"{escape(record['isolation']['meaning'])}. Limits: {limits['run_seconds']:g} s for the notebook, "
        f"{limits['cell_seconds']:g} s for a cell, {limits['case_seconds']:g} s for a run of an answer on "
        f"its ranks, {limits['output_bytes']:,} bytes shown by a cell. Points come from fresh ranks that ran "
        "the answer cells' source, judged outside of them; the notebook's own run makes none, and its checks "
        "show these verdicts.</p>"
    )
