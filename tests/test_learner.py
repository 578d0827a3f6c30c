"""A learner's record: one readable file that two notebooks may write at once, and that nothing spoils."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import dpcourse as dc
from dpcourse import learner
from dpcourse.course_progress import Chapter, Progress, questions_of
from dpcourse.workspace import STATE, course_root

ROOT = Path(__file__).parents[1]


@pytest.fixture
def file(monkeypatch, tmp_path):
    path = tmp_path / "mine" / "progress.json"
    monkeypatch.setenv("DPCOURSE_PROGRESS", str(path))
    return path


def kept(path):
    return json.loads(path.read_text())


# -- where it is -----------------------------------------------------------------


def test_in_my_it_lies_beside_the_copies_and_elsewhere_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.delenv("DPCOURSE_PROGRESS", raising=False)
    notebooks = tmp_path / "my" / "notebooks"
    notebooks.mkdir(parents=True)
    monkeypatch.chdir(notebooks)
    dc.predict("a question", 1, measured=1)
    assert learner.record_file() is None
    assert not list(tmp_path.rglob("*progress*"))
    (tmp_path / "my" / STATE).write_text("{}")
    dc.predict("a question", 1, measured=1)
    assert kept(tmp_path / "my" / "progress.json")["predictions"]["a question"]["is_right"]


@pytest.mark.parametrize(
    ("name", "value"), [("DPCOURSE_REFERENCE", "1"), ("DPCOURSE_PROGRESS", "off"), ("DPCOURSE_PROGRESS", "")]
)
def test_nothing_is_written_in_the_reference_configuration_nor_when_it_is_off(name, value, file, monkeypatch):
    monkeypatch.setenv(name, value)
    dc.predict("a question", 1, measured=1)
    learner.keep_check("01_equivalence", "shard_batch", "right", 40, 40)
    assert not file.parent.exists()
    assert "Nothing is kept here" in str(dc.progress())


# -- what is in it ---------------------------------------------------------------


def test_the_first_guess_stays_and_later_ones_stand_beside_it(file):
    for guess in (16, 20, 20):
        dc.predict("a question", guess, formula=16, measured=20)
    row = kept(file)["predictions"]["a question"]
    assert (row["guess"], row["changed_to"]) == (16, [20])
    assert (row["formula"], row["measured"], row["is_right"]) == (16, 20, False)
    assert row["locked_at"] <= row["revealed_at"]


def test_a_question_without_a_guess_is_not_kept(file):
    dc.predict("a question", measured=20)
    assert not file.exists()


def test_a_check_counts_its_tries_and_stays_right(file, monkeypatch):
    lab = dc.lab("01")
    for answer in (lambda *_: None, _right, lambda *_: None):
        monkeypatch.setattr(
            "dpcourse.labs.check.check", lambda question, given, **_: _verdict(question, given)
        )
        lab.check("shard_batch", answer)
    row = kept(file)["checks"]["01_equivalence/shard_batch"]
    assert (row["status"], row["points"], row["num_tries"]) == ("right", row["max_points"], 3)


def _right(*_):
    pass


def _verdict(question, answer):
    from dpcourse.labs.verdict import Verdict

    is_right = answer is _right
    points = question.points if is_right else 0
    return Verdict(question.name, "right" if is_right else "wrong", points, question.points)


def test_an_unanswered_question_is_no_try(file, monkeypatch):
    from dpcourse.labs.verdict import Verdict

    unanswered = Verdict("shard_batch", "unanswered", 0, 40)
    monkeypatch.setattr("dpcourse.labs.check.check", lambda *_, **__: unanswered)
    dc.lab("01").check("shard_batch", None)
    assert not file.exists()


# -- what could spoil it ---------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ("[" * 100_000, "recursion"),
        ("[]", "it is no record of dpcourse"),
        ('{"kind": "dpcourse run", "format": 1}', "it is no record of dpcourse"),
        ('{"kind": "dpcourse progress", "format": 1}', "its learner is no text"),
        (
            '{"kind": "dpcourse progress", "format": 1, "learner": "a", "predictions": []}',
            "its predictions are no",
        ),
        (
            '{"kind": "dpcourse progress", "format": 1, "learner": "", "predictions": {}, "checks": [1]}',
            "its checks are no",
        ),
    ],
)
def test_a_broken_file_is_kept_aside_and_said(text, why, file, capsys):
    file.parent.mkdir()
    file.write_text(text)
    dc.predict("a question", 1, measured=1)
    said = capsys.readouterr().out
    assert why in said
    assert "it is kept as progress.mine.json, and a new one begins" in said
    assert (file.parent / "progress.mine.json").read_text() == text
    assert "a question" in kept(file)["predictions"]


def test_bytes_that_are_no_text_are_kept_aside_when_they_are_shown(file):
    file.parent.mkdir()
    file.write_bytes(b"\xff\xfe")
    assert "could not be read" in dc.progress().words()
    assert (file.parent / "progress.mine.json").exists()


def test_a_newer_format_is_left_alone(file, capsys):
    file.parent.mkdir()
    newer = {"kind": learner.KIND, "format": 99, "learner": "a", "predictions": {}, "checks": {}}
    file.write_text(json.dumps(newer))
    dc.predict("a question", 1, measured=1)
    assert "written by a newer dpcourse (format 99): update this one" in capsys.readouterr().out
    assert kept(file) == newer
    assert "newer dpcourse" in str(dc.progress())


def test_a_folder_that_cannot_be_written_stops_no_run(file, capsys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dpcourse.learner.write_whole", full)
    assert dc.predict("a question", 1, measured=1).is_right
    assert "Your progress was not kept: [Errno 28] No space left on device" in capsys.readouterr().out


def test_a_file_that_is_held_too_long_is_said(file, capsys, monkeypatch):
    from filelock import FileLock

    monkeypatch.setattr("dpcourse.learner._LOCK_SECONDS", 0.05)
    file.parent.mkdir()
    with FileLock(file.with_name(".progress.json.lock"), is_singleton=False):
        dc.predict("a question", 1, measured=1)
    assert "another program holds" in capsys.readouterr().out


def test_two_notebooks_that_write_at_once_lose_nothing(file):
    code = (
        "import sys, dpcourse as dc\n"
        "for number in range(40): dc.predict(f'{sys.argv[1]} {number}', number, measured=number)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, name]) for name in "abc"]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    rows = kept(file)["predictions"]
    assert len(rows) == 120
    assert all("revealed_at" in row for row in rows.values())


# -- what is shown ---------------------------------------------------------------


def chapters_of(shown):
    return {chapter.name: chapter for chapter in shown.chapters}


def test_chapters_have_the_questions_that_their_notebooks_ask(file):
    chapters = chapters_of(dc.progress())
    notebooks = sorted((course_root() / "notebooks").glob("*.ipynb"))
    assert list(chapters) == [notebook.stem for notebook in notebooks]
    start = chapters["00_start_here"]
    assert start.questions[0] == "After the all-reduce"
    text = (ROOT / "notebooks" / "00_start_here.ipynb").read_text()
    assert len(start.questions) == text.count("dc.predict(")
    assert chapters["01_equivalence"].lab == "01_equivalence"
    assert len(chapters["01_equivalence"].lab_questions) == len(dc.lab("01").spec.questions)


def test_the_next_step_follows_what_is_done(file):
    shown = dc.progress()
    start, second = shown.chapters[:2]
    assert shown.next_step == "Open 00_start_here and make its first prediction: After the all-reduce."
    dc.predict(start.questions[0], 6, measured=6)
    after = dc.progress()
    left = len(start.questions) - 1
    assert f"Go on with 00_start_here: {left} of {left + 1} predictions are open" in after.next_step
    assert after.table().rows[0][:3] == ["00_start_here", f"1 of {left + 1}", 1]
    for question in start.questions:
        dc.predict(question, 1, measured=2)
    assert chapters_of(dc.progress())["00_start_here"].is_done
    assert f"Open {second.name}" in dc.progress().next_step
    dc.predict("a question of my own", 1, measured=1)
    assert "1 prediction of your own" in str(dc.progress())
    assert str(file) in str(dc.progress())


def test_a_chapter_s_lab_comes_after_its_predictions():
    chapter = Chapter("01_x", ("a",), ("a",), 0, "01_x", ("one", "two"), ("one",))
    assert chapter.next_step() == "Go on with the lab 01_x: two."
    assert Progress(None, (chapter,)).table().rows == [["01_x", "1 of 1", 0, "1 of 2", "begun"]]
    done = Chapter("01_x", ("a",), ("a",), 0)
    assert Progress(None, (done,)).next_step == "All that the course has is done."


def test_text_of_a_file_s_path_is_escaped():
    assert "&lt;b&gt;" in Progress(Path("<b>"), ()).to_html()


@pytest.mark.parametrize("text", ["", "{}", '{"cells": 3}', '{"cells": [{"cell_type": "code"}]}'])
def test_a_notebook_that_is_none_asks_nothing(text, tmp_path):
    path = tmp_path / "x.ipynb"
    path.write_text(text)
    assert list(questions_of(path)) == []


def test_cells_that_do_not_parse_are_passed_over(tmp_path):
    path = tmp_path / "x.ipynb"
    sources = [
        "%magic\ndc.predict('hidden')",
        "dc.predict(name)",
        "dc.predict('seen', 1)",
        "predict('not dc')",
    ]
    cells = [{"cell_type": "code", "source": [source]} for source in sources]
    path.write_text(json.dumps({"cells": cells}))
    assert list(questions_of(path)) == ["seen"]


def test_a_learner_is_a_random_number_that_stays(file):
    number = learner.learner_number()
    assert number == learner.learner_number() == kept(file)["learner"]
    assert len(number) == 16
