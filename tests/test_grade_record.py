"""Records are whole or absent, grades.csv is safe to open, and a report holds nothing active."""

import csv
import io
import json
import os

import pytest

from dpcourse.grade.record import Book, file_key, grades_csv, write_whole
from dpcourse.grade.report import report_html
from dpcourse.labs.verdict import Verdict
from tests.submissions import LAB, solved

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"


def record(student: str = "ann", **fields) -> dict:
    verdicts = [
        Verdict(question.name, "right", question.points, question.points) for question in LAB.questions
    ]
    return {
        "format": 2,
        "lab": LAB.name,
        "student": student,
        "submission": "lab.ipynb",
        "arrived": "lab",
        "person": None,
        "submitted_at": "2026-01-02T03:04:05+00:00",
        "by_hand": {},
        "fingerprint": "f",
        "isolation": {"kind": "none", "meaning": "not kept apart"},
        "limits": {"run_seconds": 1, "cell_seconds": 1, "case_seconds": 1, "output_bytes": 1},
        "seed": 1,
        "points": 100,
        "max_points": 100,
        "problem": "",
        "notes": [],
        "run": {"is_run": True, "problem": "", "cells_not_run": [], "num_left": 0},
        "questions": [verdict.as_dict() for verdict in verdicts],
        **fields,
    }


def test_a_record_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    book = Book(tmp_path, LAB)
    book.write(record())
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        book.write(record(points=3))
    assert book.read("ann")["points"] == 100
    assert [path.name for path in (tmp_path / "records").iterdir()] == ["ann.json"]


def test_the_cases_of_a_batch_are_its_own_and_stay(tmp_path):
    seed = Book(tmp_path / "a", LAB).seed()
    assert Book(tmp_path / "a", LAB).seed() == seed
    assert Book(tmp_path / "b", LAB).seed() != seed
    (tmp_path / "a" / "seed").write_text("x")
    assert seed != Book(tmp_path / "a", LAB).seed() == Book(tmp_path / "a", LAB).seed()


def test_writing_the_same_again_leaves_the_file_alone(tmp_path):
    assert write_whole(tmp_path / "a" / "b", "text")
    before = (tmp_path / "a" / "b").stat().st_mtime_ns
    assert not write_whole(tmp_path / "a" / "b", "text")
    assert (tmp_path / "a" / "b").stat().st_mtime_ns == before


def test_a_file_that_is_no_record_counts_as_none(tmp_path):
    book = Book(tmp_path, LAB)
    wrong = [{"format": 99}, {"format": 1, "lab": LAB.name}, record(questions=[]), record(run={})]
    wrong += [record(questions=[{"question": "shard_batch"}] * 5), record(notes=3), record(fingerprint=None)]
    for text in ("", "{", "[]", *map(json.dumps, wrong)):
        write_whole(book.record_path("ann"), text)
        assert book.read("ann") is None


def test_names_become_file_names_of_their_own():
    names = ["ann", "Zoë", "Zoé", "../../etc/passwd", "a/b", "a_b", "", "=1+1", "x" * 300]
    keys = [file_key(name) for name in names]
    assert len(set(keys)) == len(names)
    assert all("/" not in key and not key.startswith(".") and len(key) < 80 for key in keys)


def test_grades_are_quoted_and_free_of_formulas():
    text = grades_csv(LAB, [record('=HYPERLINK("x"),"y"'), record("line\nbreak", notes=["+1", "two"])])
    rows = list(csv.DictReader(io.StringIO(text)))
    assert rows[0]["student"] == '\'=HYPERLINK("x"),"y"'
    assert rows[1]["student"] == "line break"
    assert rows[1]["notes"] == "'+1; two"
    assert (rows[0]["points"], rows[0]["combine_weighted"], rows[0]["isolation"]) == ("100", "30", "none")


def test_a_report_has_no_active_content_and_the_scorecard_on_top():
    notebook = solved(shard_batch=HOSTILE)
    outputs = [
        {"output_type": "display_data", "data": {"text/html": HOSTILE, "text/plain": HOSTILE}},
        {
            "output_type": "display_data",
            "data": {"image/svg+xml": HOSTILE, "application/javascript": HOSTILE},
        },
        {"output_type": "display_data", "data": {"image/png": "' onload='alert(3)"}},
        {"output_type": "stream", "text": HOSTILE},
        {"output_type": "error", "traceback": [HOSTILE]},
    ]
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = outputs
    verdict = Verdict("shard_batch", "raised", 0, 20, HOSTILE, HOSTILE, HOSTILE, details=HOSTILE)
    page = report_html(
        record(HOSTILE, notes=[HOSTILE], problem=HOSTILE, questions=[verdict.as_dict()]), LAB, notebook
    )
    assert "<script" not in page
    assert "<img src=x" not in page
    assert "onload" not in page
    assert "default-src 'none'" in page
    assert page.index("of 100 points") < page.index("<pre")


def test_a_report_shows_a_picture_and_cuts_a_flood():
    import base64

    picture = base64.b64encode(b"\x89PNG\r\n" + bytes(10)).decode()
    notebook = solved()
    cell = next(cell for cell in notebook["cells"] if cell["id"] == "shard_batch")
    cell["outputs"] = [
        {"output_type": "display_data", "data": {"image/png": picture}},
        {"output_type": "stream", "text": "x" * 100_000},
    ]
    page = report_html(record(), LAB, notebook)
    assert f"data:image/png;base64,{picture}" in page
    assert "80000 more characters" in page
