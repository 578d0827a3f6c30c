"""A class: whose a submission is, what other systems read, a glance at all, points by hand, feedback."""

import csv
import io
import os
import zipfile
from pathlib import Path

import pytest

from dpcourse.grade import main
from dpcourse.grade.exports import EXPORTS, nbgrader_csv
from dpcourse.grade.feedback import feedback_zip
from dpcourse.grade.intake import find_submissions
from dpcourse.grade.outputs import write_outputs
from dpcourse.grade.record import Book
from dpcourse.grade.report import write_report
from dpcourse.grade.roster import read_roster
from dpcourse.grade.senders import Sender, sender_of
from dpcourse.grade.summary import page, summarise
from dpcourse.labs.verdict import Verdict
from tests.submissions import LAB, one_answer, solved
from tests.test_grade_record import record

ROSTER = """student_id,first name,last name,email
ada1,Ada,Lovelace,ada@example.org
émile2,Émile,Borel,borel@example.org
grace3,Grace,Hopper,grace@example.org
"""
CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section,Lab 01
    Points Possible,,,,,100
"Lovelace, Ada",1234,S1,ada1,A,
"Borel, Émile",1235,S2,emile2,A,
"""


def roster(tmp_path: Path, text: str = ROSTER, encoding: str = "utf-8"):
    (tmp_path / "class.csv").write_bytes(text.encode(encoding))
    return read_roster(tmp_path / "class.csv")


def hand_in(path: Path, notebook: dict, days_ago: int = 0) -> None:
    import json

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook))
    os.utime(path, (1.7e9 - 86400 * days_ago,) * 2)


def class_zip(path: Path, *names: str) -> Path:
    import json

    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, json.dumps(solved()) if name.endswith(".ipynb") else "words")
    return path


# --- whose it is ---


@pytest.mark.parametrize(
    ("name", "sender"),
    [
        ("Ada Lovelace_1234_assignsubmission_file_", Sender("Ada Lovelace", "1234", "moodle")),
        ("Ada Lovelace_1234_assignsubmission_file_lab 01", Sender("Ada Lovelace", "1234", "moodle")),
        ("O'Neil-Smith, Zoë_7_assignsubmission_file", Sender("O'Neil-Smith, Zoë", "7", "moodle")),
        ("lovelaceada_1234_56789_lab01-1", Sender("lovelaceada", "1234", "canvas")),
        ("lovelaceada_LATE_1234_56789_lab", Sender("lovelaceada", "1234", "canvas", is_late=True)),
        ("ada_lab_01", Sender("ada_lab_01")),
    ],
)
def test_names_that_a_system_gave_say_who_handed_in(name, sender):
    assert sender_of(name) == sender


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("ada1", "ada1"),
        ("Ada Lovelace_99_assignsubmission_file_", "ada1"),
        ("lovelaceada_99_5_lab", "ada1"),
        ("ADA@example.org", "ada1"),
        ("lab 01 (ada1)", "ada1"),
        ("borelemile_99_5_lab", "émile2"),
        ("Émile Borel", "émile2"),
        ("somebody", None),
    ],
)
def test_a_submission_is_found_on_the_roster_by_id_mail_or_name(name, key, tmp_path):
    found = roster(tmp_path).find(sender_of(name))
    assert (found.key if found else None) == key


def test_two_of_one_name_are_not_guessed_between(tmp_path):
    two = roster(tmp_path, "id,name\n1001,Ada Byron\n1002,Ada Byron\n")
    assert two.find(Sender("Ada Byron")) is None
    assert two.find(Sender("Ada Byron", "1002", "moodle")).key == "1002"


def test_canvas_own_gradebook_is_a_roster(tmp_path):
    found = roster(tmp_path, CANVAS)
    assert [student.key for student in found.students] == ["S1", "S2"]
    assert found.students[0].name == "Ada Lovelace"
    assert found.find(sender_of("borelemile_1235_5_lab")).canvas_id == "1235"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_rosters_are_read_as_programs_write_them(encoding, delimiter, tmp_path):
    found = roster(tmp_path, ROSTER.replace(",", delimiter), encoding)
    assert [student.last_name for student in found.students] == ["Lovelace", "Borel", "Hopper"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no students"),
        ("student_id\n", "has no students"),
        ("colour,shape\nred,round\n", "line 2: no student in it"),
        ("student_id\nada\nada\n", "has 'ada' twice"),
        ('student_id,name\n"ada,Ada', "is no table of values"),
    ],
)
def test_a_roster_that_is_none_is_refused_in_words(text, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        roster(tmp_path, text)


def test_everyone_on_the_roster_has_a_row_and_the_newer_of_two_counts(tmp_path):
    folder = tmp_path / "in"
    hand_in(folder / "ada1.ipynb", solved(), days_ago=3)
    hand_in(folder / "Ada Lovelace.ipynb", one_answer(), days_ago=1)
    hand_in(folder / "grace3.ipynb", solved())
    hand_in(folder / "stranger.ipynb", solved())
    found = find_submissions([folder], LAB, roster(tmp_path))
    assert [item.student for item in found] == ["ada1", "émile2", "grace3", "stranger"]
    assert found[0].path == "Ada Lovelace.ipynb"
    assert "an older submission, ada1, was left out" in found[0].notes
    assert found[1].problem == "no submission"
    assert "fits nobody on the roster" in found[3].notes


def test_a_zip_file_of_a_class_is_one_submission_for_each_sender(tmp_path):
    moodle = class_zip(
        tmp_path / "moodle.zip",
        "Ada Lovelace_11_assignsubmission_file_/lab.ipynb",
        "Ada Lovelace_11_assignsubmission_file_/scratch.txt",
        "Grace Hopper_12_assignsubmission_file_/sub/lab (1).ipynb",
    )
    canvas = class_zip(
        tmp_path / "canvas.zip", "borelemile_LATE_13_77_lab.ipynb", "turingalan_14_78_lab.ipynb"
    )
    found = find_submissions([moodle, canvas], LAB)
    assert [item.student for item in found] == ["Ada Lovelace", "Grace Hopper", "borelemile", "turingalan"]
    assert [item.problem for item in found] == [""] * 4
    assert found[2].notes == ("handed in late, by its name",)
    assert all(item.modified_seconds for item in found)


def test_a_zip_file_of_one_student_stays_one_submission(tmp_path):
    found = find_submissions([class_zip(tmp_path / "ada.zip", "lab.ipynb", "sub/notes.txt")], LAB)
    assert [item.student for item in found] == ["ada"]


# --- what other systems read ---


def people() -> list[dict]:
    ada = {"first_name": "Ada", "last_name": "Lovelace", "email": "a@b", "section": "A", "canvas_id": "7"}
    absent = record("émile2", points=0, problem="no submission", arrived="", submitted_at="")
    return [
        record("ada1", person=ada, arrived="Ada Lovelace_11_assignsubmission_file_"),
        record('=HYPERLINK("x")', points=40),
        absent,
    ]


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_nbgraders_columns_are_those_of_its_own_export():
    found = rows(nbgrader_csv(LAB, people()))
    assert list(found[0])[:4] == ["assignment", "duedate", "timestamp", "student_id"]
    assert list(found[0])[4:7] == ["last_name", "first_name", "email"]
    assert list(found[0])[7:] == ["raw_score", "late_submission_penalty", "score", "max_score"]
    assert (found[0]["student_id"], found[0]["last_name"], found[0]["score"]) == ("ada1", "Lovelace", "100")
    assert found[2]["timestamp"] == ""


def test_moodle_and_canvas_find_their_own_names_again():
    moodle, canvas = (rows(EXPORTS[name](LAB, people())) for name in ("moodle.csv", "canvas.csv"))
    assert (moodle[0]["Identifier"], moodle[0]["Grade"]) == ("Participant 11", "100")
    assert moodle[2]["Feedback comments"] == "no submission"
    assert (canvas[0]["Student"], canvas[0][LAB.title]) == ("Points Possible", "100")
    assert (canvas[1]["Student"], canvas[1]["ID"]) == ("Lovelace, Ada", "7")


@pytest.mark.parametrize("name", EXPORTS)
def test_no_cell_is_a_formula(name):
    for row in csv.reader(io.StringIO(EXPORTS[name](LAB, people()))):
        assert not any(cell.startswith(("=", "+", "@")) for cell in row)


# --- the class at a glance ---


def with_mistake(student: str, mistake: str) -> dict:
    question = LAB.questions[0]
    wrong = Verdict(question.name, "wrong", 0, question.points, "told", mistake)
    kept = record(student)["questions"][1:]
    return record(student, questions=[wrong.as_dict(), *kept], points=80)


def test_the_summary_counts_and_names_the_most_common_mistake():
    class_of = [
        with_mistake("a", "dropped_last"),
        with_mistake("b", "dropped_last"),
        with_mistake("c", "uneven"),
    ]
    first = summarise(LAB, [*class_of, *people()])[0]
    assert (first.num_right, first.num_wrong, first.mistake, first.num_mistaken) == (2, 3, "dropped_last", 2)
    assert first.mean_points == 8
    text = page(LAB, [*class_of, *people()])
    assert "The last rows are on no rank" in text
    assert "No submission: émile2" in text
    assert "<script" not in text
    assert text.count("<img alt=") == 1


def test_a_class_that_handed_in_nothing_has_a_page_too():
    assert "0 submissions; median none" in page(LAB, [])


# --- feedback, and points by hand ---


def graded(tmp_path: Path, *records: dict) -> Book:
    book = Book(tmp_path / "out", LAB)
    for one in records:
        write_report(book, one, None)
        book.write(one)
    return book


def test_feedback_goes_back_under_the_name_that_came(tmp_path):
    book = graded(tmp_path, *people(), record("evil", arrived="../../evil"))
    with zipfile.ZipFile(io.BytesIO(feedback_zip(book, book.all_records()))) as archive:
        names = archive.namelist()
    assert "Ada Lovelace_11_assignsubmission_file_/01_equivalence.html" in names
    assert not any(".." in name for name in names)
    assert len(names) == 3  # nothing for who handed nothing in
    assert feedback_zip(book, book.all_records()) == feedback_zip(book, book.all_records())


def give(tmp_path: Path, *words: str) -> int:
    return main(["01", "--out", str(tmp_path / "out"), "--give", *words])


def test_points_by_hand_stand_in_record_report_and_grades_with_their_reason(tmp_path, capsys):
    book = graded(tmp_path, with_mistake("ann", "dropped_last"))
    write_outputs(book)
    assert give(tmp_path, "ann", "shard_batch", "15", "<b>unclear</b> task") == 0
    assert capsys.readouterr().out == "ann: 95 of 100 points, shard_batch 15 by hand\n"
    found = rows((tmp_path / "out" / "grades.csv").read_text())[0]
    assert (found["points"], found["shard_batch"]) == ("95", "15")
    assert "15 points by hand: <b>unclear</b> task" in found["notes"]
    report = book.report_path("ann").read_text()
    assert "shard_batch: 15 points by hand: &lt;b&gt;unclear&lt;/b&gt; task" in report
    assert "95 of 100 points" in report


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ann", "shard_batch", "21", "why"), "it has from 0 to 20"),
        (("ann", "shard_batch", "many", "why"), "'many' is no number"),
        (("ann", "shard_batch", "nan", "why"), "it has from 0 to 20"),
        (("ann", "shard_batch", "5", " "), "give the reason"),
        (("ann", "shard", "5", "why"), "no question 'shard'"),
        (("bob", "shard_batch", "5", "why"), "no grade of 'bob' .* there is: ann"),
    ],
)
def test_points_that_cannot_be_given_are_refused_in_words(words, said, tmp_path, capsys):
    import re

    graded(tmp_path, record("ann"))
    assert give(tmp_path, *words) == 2
    assert re.search(said, capsys.readouterr().err)


def test_without_submissions_it_says_what_to_name(tmp_path, capsys):
    assert main(["01", "--out", str(tmp_path / "out")]) == 2
    assert "name what was handed in" in capsys.readouterr().err
