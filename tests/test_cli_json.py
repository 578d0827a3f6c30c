"""`--json`: one document on stdout and all words on stderr, from each command; and their help."""

import contextlib
import json
import types
from pathlib import Path

import pytest

from dpcourse import cli
from dpcourse.course import Outcome
from dpcourse.doctor.finding import Finding
from dpcourse.doctor.report import Report

WITH_JSON = ("plan", "run", "course", "doctor", "reset", "release", "grade")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("notebooks", "labs"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "03_ddp.ipynb").write_text('{"cells": []}')
    monkeypatch.setenv("DPCOURSE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("command", WITH_JSON)
def test_each_help_teaches_by_examples_and_names_json_and_exit_codes(command, capsys):
    with contextlib.suppress(SystemExit):
        assert cli.main([command, "--help"]) == 0
    said = capsys.readouterr().out
    for words in ("examples:\n", f"  dpcourse {command} ", "--json", "exit codes:", "130"):
        assert words in said, words
    assert max(map(len, said.splitlines())) <= 115


def test_reset_says_what_became_of_each_copy(home, capsys):
    cli.main(["lab", "--copies-only"])
    (home / "my" / "labs" / "03_ddp.ipynb").write_text("mine")
    capsys.readouterr()
    assert cli.main(["reset", "03", "labs/03", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"what": "reset", "name": "notebooks/03_ddp.ipynb", "kept_as": ""},
        {"what": "reset", "name": "labs/03_ddp.ipynb", "kept_as": "labs/03_ddp.mine.ipynb"},
    ]


def test_reset_of_a_wrong_name_prints_no_document(home, capsys):
    assert cli.main(["reset", "03", "99", "--json"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("dpcourse reset: '99' is not in the course")


@pytest.mark.parametrize("problem", ["", "the kernel died"])
def test_course_says_what_became_of_each_notebook(home, monkeypatch, capsys, problem):
    def told(path: Path, course: object, on_cell: object) -> Outcome:
        print("a word")
        return Outcome(path.stem, "DDP", 1.5, 2, 2, problem)

    monkeypatch.setattr("dpcourse.course.run_notebook", told)
    assert cli.main(["course", "--json"]) == (1 if problem else 0)
    said = capsys.readouterr()
    (document,) = json.loads(said.out)
    assert document["name"] == "03_ddp"
    assert document["is_good"] is (not problem)
    assert "a word\n" in said.err
    assert "notebooks passed; see" in said.err
    assert "03_ddp: 2 s, 2 of 2 checks passed" in said.err


@pytest.mark.parametrize("is_there", [True, False])
def test_doctor_gives_its_report_and_the_same_exit_code(monkeypatch, capsys, is_there):
    finding = Finding("Python", "3.11", is_there=is_there, is_needed=True)
    report = Report({"Python and packages": [finding]}, (), True, 0.1)
    monkeypatch.setattr("dpcourse.doctor.command.examine", lambda is_quick: report)
    assert cli.main(["doctor", "--quick", "--json"]) == (0 if is_there else 1)
    said = capsys.readouterr()
    assert json.loads(said.out)["can_run"] is is_there
    assert "What each chapter will use here" in said.err


def test_grade_gives_its_summary(tmp_path, monkeypatch, capsys):
    record = {"lab": "01_equivalence", "student": "ada", "points": 80.0, "max_points": 100.0, "problem": ""}
    done = types.SimpleNamespace(record=record, is_new=True, before=None)
    monkeypatch.setattr(
        "dpcourse.grade.batch.grade_all", lambda found, plan, book, jobs, on_done: on_done(done)
    )
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "ada.ipynb").write_text("{}")
    asked = [
        "grade",
        "01",
        str(tmp_path / "in"),
        "--out",
        str(tmp_path / "out"),
        "--isolation",
        "none",
        "--json",
    ]
    assert cli.main(asked) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["lab"] == "01_equivalence"
    assert document["submissions"] == [
        {"student": "ada", "points": 80.0, "max_points": 100.0, "problem": "", "is_new": True, "changed": ""}
    ]
    assert document["grades"] == str(tmp_path / "out" / "grades.csv")
    assert document["isolation"]["kind"] == "none"


def test_grade_that_is_asked_wrongly_prints_no_document(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    asked = [
        "grade",
        "01",
        str(tmp_path / "in"),
        "--out",
        str(tmp_path / "out"),
        "--isolation",
        "some",
        "--json",
    ]
    assert cli.main(asked) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "there is no isolation 'some'" in said.err


@pytest.mark.parametrize("command", [["course"], ["reset", "03"], ["release", "out.zip"]])
def test_an_interrupt_is_one_line_and_130(home, monkeypatch, capsys, command):
    def interrupted(*_: object, **words: object) -> None:
        raise KeyboardInterrupt

    for name in ("course.run_course", "workspace.Workspace.reset", "handout.command.release_files"):
        monkeypatch.setattr(f"dpcourse.{name}", interrupted)
    assert cli.main([*command, "--json"]) == 130
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"dpcourse {command[0]}: interrupted\n")
