"""A class graded for real: right, wrong, broken and hostile submissions, in two batches for the whole file.

One batch runs the notebook too, the other gives verdicts only; both have short limits. What can happen in a
notebook's run is in test_grade_execute, and what can become of a worker in test_grade_workers.
"""

import csv
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

from dpcourse.labs.verdict import Verdict
from tests.conftest import processes_marked, wait_until
from tests.submissions import LAB, make_class

RUN = ("right",)
LIMITS = ("--limit-seconds", "150", "--cell-seconds", "60", "--case-seconds", "6")
MAX = LAB.max_points


@dataclass(frozen=True)
class Class:
    """The folders of one class, and the mark that all processes of its batches carry."""

    folder: Path
    out: Path
    mark: str

    def command(self, *paths: Path, options: tuple[str, ...] = ()) -> list[str]:
        main = "import sys; from dpcourse.grade import main; sys.exit(main())"
        named = [str(path) for path in paths]
        fixed = ["--out", str(self.out), "--isolation", "none"]
        return [sys.executable, "-c", main, LAB.name, *named, *fixed, *LIMITS, *options]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "DPCOURSE_TEST_MARK": self.mark, "TMPDIR": str(self.out.parent)}

    def finished(self) -> list[Path]:
        return list((self.out / "records").glob("*.json"))

    def grade(self, *paths: Path, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
        command = self.command(*paths, options=options)
        return subprocess.run(command, capture_output=True, text=True, timeout=400, env=self.environment)

    def record(self, student: str) -> dict:
        records = [json.loads(path.read_text()) for path in (self.out / "records").iterdir()]
        return next(record for record in records if record["student"] == student)

    def verdict(self, student: str, question: str) -> Verdict:
        found = next(item for item in self.record(student)["questions"] if item["question"] == question)
        return Verdict.from_dict(found)

    def notebook(self, student: str) -> dict:
        return json.loads((self.out / "notebooks" / f"{student}.ipynb").read_text())


@pytest.fixture(scope="session")
def ran(tmp_path_factory) -> Class:
    """The class when only the submissions of `RUN` are graded, their notebooks run."""
    return _graded_once(tmp_path_factory, "run", ())


@pytest.fixture(scope="session")
def graded(ran, tmp_path_factory) -> Class:
    """The whole class, graded; the others are judged only."""
    return _graded_once(tmp_path_factory, "in", ("--verdicts-only", "--jobs", "2"))


def _graded_once(tmp_path_factory, folder: str, options: tuple[str, ...]) -> Class:
    """Grade one folder of the class, once, however many pytest workers there are."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (base / "class.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mark = base / "class" / "mark"
        if not mark.exists():
            _make_class(base / "class")
        everything = Class(base / "class" / "in", base / "class" / "out", mark.read_text())
        if not (base / f"{folder}.done").exists():
            done = everything.grade(base / "class" / folder, options=options)
            assert done.returncode == 0, done.stderr[-3000:]
            (base / f"{folder}.done").touch()
    return everything


def _make_class(base: Path) -> None:
    mark = f"dpcourse-{uuid.uuid4().hex}"
    make_class(base / "in", mark)
    (base / "run").mkdir()
    for name in RUN:
        shutil.move(base / "in" / f"{name}.ipynb", base / "run")
    (base / "mark").write_text(mark)


pytestmark = [pytest.mark.timeout(400), pytest.mark.long]


def test_a_run_that_comes_to_its_end_has_no_problem(ran):
    assert ran.record("right")["run"] == {
        "is_run": True,
        "problem": "",
        "cells_not_run": [],
        "num_left": 0,
    }


def test_executed_notebooks_hold_the_score_as_scrap_data(ran):
    cells = ran.notebook("right")["cells"]
    bundles = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    scraps = [b[name]["data"] for b in bundles for name in b if name.startswith("application/scrapbook")]
    assert [scrap["points"] for scrap in scraps] == [MAX]


def test_every_submission_has_a_row_and_the_same_maximum(graded):
    rows = list(csv.DictReader((graded.out / "grades.csv").open()))
    assert len(rows) == len(list((graded.out / "records").iterdir())) == len(POINTS)
    assert {row["max_points"] for row in rows} == {str(MAX)}
    assert {row["isolation"] for row in rows} == {"none"}


POINTS = {
    "right": 100,
    "unsolved": 0,
    "usual mistakes": 0,
    "same shard": 10,
    "syntax error": 10,
    "dead kernel": 10,
    "endless": 0,
    "exits": 10,
    "daemon": 10,
    "forger": 10,
    "foreign kernel": 10,
    "=zip": 10,
    'Zoë "Z" O\'Neil': 10,
    "no check": 10,
    "text": 0,
    "in R": 0,
    "cut off": 0,
    "not json": 0,
    "empty folder": 0,
}


@pytest.mark.parametrize("student", POINTS)
def test_points(graded, student):
    record = graded.record(student)
    assert (record["points"], record["max_points"]) == (POINTS[student], MAX)


@pytest.mark.parametrize(
    ("question", "mistake"),
    [
        ("shard_batch", "dropped_last"),
        ("combine_gradients", "sum"),
        ("combine_weighted", "mean_of_means"),
        ("learning_rate", "multiplied"),
        ("optimizers", "AdamW"),
    ],
)
def test_the_usual_mistakes_are_named(graded, question, mistake):
    assert graded.verdict("usual mistakes", question).mistake == mistake


@pytest.mark.parametrize(
    ("student", "question", "status", "words"),
    [
        ("unsolved", "shard_batch", "unanswered", ""),
        ("unsolved", "learning_rate", "unanswered", "still None"),
        ("same shard", "combine_gradients", "hang", "rank 1 waits in all_reduce"),
        ("syntax error", "shard_batch", "raised", "expected ':'"),
        ("dead kernel", "combine_gradients", "died", "SIGKILL"),
        ("endless", "combine_gradients", "deadline", "deadline of 6 s"),
        ("endless", "combine_weighted", "deadline", "deadline of 6 s"),
        ("exits", "shard_batch", "exited", "sys.exit(0)"),
        ("exits", "combine_gradients", "exited", "exit code 0"),
        ("exits", "combine_weighted", "failed", "the grader's worker was ended"),
        ("exits", "optimizers", "wrong", "expected a dict"),
        ("daemon", "shard_batch", "raised", "File too large"),
        ("endless", "learning_rate", "exited", "sys.exit(0)"),
        ("daemon", "combine_gradients", "wrong", ""),
        ("forger", "combine_gradients", "wrong", "nothing was combined"),
        ("forger", "combine_weighted", "unanswered", ""),
        ("text", "learning_rate", "missing", "its cell was turned into text"),
        ("in R", "shard_batch", "missing", "written in R"),
        ("not json", "shard_batch", "missing", "not JSON"),
    ],
)
def test_what_becomes_of_an_answer_is_named(graded, student, question, status, words):
    verdict = graded.verdict(student, question)
    assert (verdict.status, verdict.points) == (status, 0)
    assert words in str(verdict)


def test_nothing_of_any_submission_is_left_running(graded):
    assert wait_until(lambda: not processes_marked(graded.mark)), processes_marked(graded.mark)


def test_no_temporary_file_is_left(graded):
    assert sorted(path.name for path in graded.out.parent.iterdir()) == ["in", "mark", "out", "run"]


def test_reports_hold_the_points_the_isolation_and_nothing_active(graded):
    for path in (graded.out / "reports").iterdir():
        page = path.read_text()
        assert "of 100 points" in page
        assert "Isolation none" in page
        assert "<script" not in page
    assert len(list((graded.out / "reports").iterdir())) == len(POINTS)


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_a_second_run_changes_nothing(graded):
    before = state(graded.out)
    done = graded.grade(graded.folder, options=("--verdicts-only",))
    assert "0 graded, 18 up to date" in done.stdout
    assert state(graded.out) == before


def test_only_one_question_of_one_student_is_graded_again_and_changes_are_listed(graded, tmp_path):
    again = Class(graded.folder, tmp_path / "out", graded.mark)
    shutil.copytree(graded.out, again.out)
    path = next(path for path in (again.out / "records").iterdir() if "same_shard" in path.name)
    record = json.loads(path.read_text())
    record["points"] += 20
    record["questions"][0].update(points=20, status="right")
    path.write_text(json.dumps(record))
    options = ("--only", "same shard", "--question", "shard_batch", "--regrade", "--verdicts-only")
    done = again.grade(graded.folder, options=options)
    assert "changed: same shard: 30 to 10 (shard_batch 20 to 0)" in done.stdout
    assert "1 graded" in done.stdout
    assert again.record("same shard") == graded.record("same shard")


@pytest.mark.labs
def test_a_batch_interrupted_and_killed_leaves_nothing_and_goes_on_where_it_was(graded, tmp_path):
    names = ("foreign kernel", "same shard", "usual mistakes")
    cut = Class(tmp_path / "in", tmp_path / "out", f"dpcourse-{uuid.uuid4().hex}")
    cut.folder.mkdir()
    cut.out.mkdir()
    shutil.copy2(graded.out / "seed", cut.out)  # else each has cases of its own
    for name in names:
        shutil.copy2(graded.folder / f"{name}.ipynb", cut.folder)  # a record has the time of the file
    assert stop(cut, signal.SIGINT, num_records=1) == 130
    assert stop(cut, signal.SIGKILL, num_records=2) == -signal.SIGKILL
    num_finished = len(cut.finished())
    done = cut.grade(cut.folder, options=("--verdicts-only",))
    assert f"{3 - num_finished} graded, {num_finished} up to date" in done.stdout
    for name in names:
        assert cut.record(name) == graded.record(name)


def stop(cut: Class, number: signal.Signals, num_records: int) -> int:
    """Send a signal to a batch that has so many records, and see that nothing of it stays; the exit code."""
    command = cut.command(cut.folder, options=("--verdicts-only",))
    nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    batch = subprocess.Popen(command, env=cut.environment, **nowhere)
    assert wait_until(lambda: len(cut.finished()) >= num_records, seconds=100)
    batch.send_signal(number)
    code = batch.wait(timeout=20)
    assert wait_until(lambda: not processes_marked(cut.mark)), processes_marked(cut.mark)
    assert not list(Path(cut.environment["TMPDIR"]).glob("dpcourse-grade-*"))
    return code


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--isolation", "jail"), "there is no isolation 'jail'; there is: bwrap, user, none"),
        (("--jobs", "0"), "--jobs 0: give a number from 1 on"),
        (("--cell-seconds", "0"), "--cell-seconds: give a number of seconds above 0"),
        (("--only", "nobody"), "no submission of 'nobody'; there are: "),
        (("--question", "shard"), "has no question 'shard'; it has shard_batch"),
        (("--labs", "/nowhere"), "there is no /nowhere/01_equivalence.ipynb"),
    ],
)
def test_a_request_that_cannot_be_met_is_one_line(options, words, tmp_path, capsys):
    from dpcourse.grade import main

    make_class(tmp_path / "in", "none")
    request = [
        LAB.name,
        str(tmp_path / "in"),
        "--out",
        str(tmp_path / "out"),
        "--isolation",
        "none",
        *options,
    ]
    assert main(request) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_weaker_isolation_must_be_asked_for_by_name(tmp_path, capsys, monkeypatch):
    from dpcourse.grade import main, room

    monkeypatch.setattr(room, "program", lambda: "")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "ann.ipynb").write_text("{}")
    assert main([LAB.name, str(tmp_path / "in"), "--out", str(tmp_path / "out")]) == 2
    assert "isolation 'bwrap' does not work here: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, capsys):
    from dpcourse.grade import main

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "ann.ipynb").write_text("no notebook")
    (tmp_path / "out").write_text("a file where the folder should be")
    assert main([LAB.name, str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--isolation", "none"]) == 1
    assert "stopped: " in capsys.readouterr().err
