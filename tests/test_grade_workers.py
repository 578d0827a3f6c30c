"""The grader believes only its own worker: no other process can reply, and no odd reply gets through."""

import json
import os
import socket
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from dpcourse.grade import workers
from dpcourse.grade.batch import Here, grade_all
from dpcourse.grade.enclosure import from_words
from dpcourse.grade.grading import Plan
from dpcourse.grade.intake import Submission, find_submissions
from dpcourse.grade.isolation import NO_ISOLATION
from dpcourse.grade.limits import Limits
from dpcourse.grade.merge import Release
from dpcourse.grade.outputs import write_outputs
from dpcourse.grade.record import Book
from dpcourse.grade.worker import Server
from dpcourse.grade.workers import Desk, Stopped, Worker, WorkerLost
from dpcourse.labs.verdict import Verdict
from dpcourse.ranks import service
from tests.conftest import processes_marked, wait_until
from tests.submissions import LAB, LABS, one_answer
from tests.test_grade_execute import notebook

pytestmark = pytest.mark.long

STATE = {"num_left": 0, "is_worn": False}
SHARD = LAB.question("shard_batch")


def execute(**cells: str) -> dict:
    request = {"do": "execute", "notebook": notebook(**cells), "limits": Limits().as_dict()}
    return request | {"lab": LAB.name, "verdicts": []}


def descriptors(pid: int) -> set[str]:
    found = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            found.add(os.readlink(path))
    return found


@pytest.fixture(scope="module")
def worker():
    worker = Worker()
    yield worker
    worker.stop()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_no_process_of_students_code_holds_the_workers_channel(worker):
    number = psutil.Process(worker.process.pid).cmdline()[-1]
    channel = os.readlink(f"/proc/{worker.process.pid}/fd/{number}")
    assert channel.startswith("socket:")
    below = psutil.Process(worker.process.pid).children(recursive=True)
    assert below  # the fork server: ranks are forked from it and hold no more than it does
    assert not any(channel in descriptors(process.pid) for process in below)
    look = "import subprocess\nprint(subprocess.getoutput(f'ls -l /proc/{__import__(\"os\").getpid()}/fd'))"
    text = json.dumps(worker.ask(execute(look=look), 60)["notebook"])
    assert "socket:" in text
    assert channel not in text


def test_processes_left_behind_are_counted_and_a_request_past_its_time_ends_everything(worker):
    daemon = "import subprocess\n_ = subprocess.Popen(['sleep', '600'], start_new_session=True)"
    assert worker.ask(execute(daemon=daemon), 60)["num_left"] >= 1
    below = psutil.Process(worker.process.pid).children(recursive=True)
    with pytest.raises(WorkerLost, match=r"stopped: no result within 1 s"):
        worker.ask(execute(sleep="import time\ntime.sleep(100)"), 1)
    assert wait_until(lambda: not any(process.is_running() for process in below))
    assert not worker.folder.exists()


def test_a_worker_is_no_other_for_a_run_that_was_ending_while_it_started(tmp_path, monkeypatch):
    """A leader taken for one of those kept would be missed for ever: each request would cost a worker."""
    leaders = []

    def launch(*_, **__):
        mine, theirs = socket.socketpair()
        with theirs:
            service.request(theirs, True, lambda: None)
        leaders.append(mine)
        assert wait_until(psutil.Process(service.current().pid).children)

    for name, value in {"_enclosing": (), "_modules": (), "_current": None}.items():
        monkeypatch.setattr(service, name, value)
    monkeypatch.setattr("dpcourse.ranks.launch.launch", launch)
    try:
        server = Server(from_words("none", str(tmp_path)))
        leaders[0].close()
        assert wait_until(lambda: not psutil.Process(service.current().pid).children())
        assert server.wholeness.is_whole()
    finally:
        service.close()


CROWD = """
import os
os.makedirs("shut/inside")
os.chmod("shut", 0)
number = 0
while True:
    number += 1
    open(f"file_{number % 1000}", "w").close()
"""


@pytest.mark.parametrize("reached", ["dpcourse-grade-*", "dpcourse-grade-*/*/file_9"])
def test_a_grader_killed_while_a_worker_starts_or_works_leaves_no_process_and_no_folder(reached, tmp_path):
    mark = f"dpcourse-{uuid.uuid4().hex}"
    request = json.dumps(execute(crowd=CROWD))
    code = (
        f"import json\nfrom dpcourse.grade.workers import Worker\nWorker().ask(json.loads({request!r}), 100)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path), "MARK": mark}
    grader = subprocess.Popen([sys.executable, "-c", code], env=environment)
    try:
        assert wait_until(lambda: list(tmp_path.glob(reached)), seconds=50)
    finally:
        grader.kill()
        grader.wait()
    assert wait_until(lambda: not processes_marked(mark), seconds=20), processes_marked(mark)
    assert list(tmp_path.iterdir()) == []


# --- replies ---

# A worker that does nothing but send what stands in REPLY; %NONCE% becomes the request's nonce.
PUPPET = """
import json, os, socket, sys
channel = socket.socket(fileno=int(sys.argv[2]))
for line in channel.makefile("rb"):
    request = json.loads(line)
    text = {start!r} if request["do"] == "start" else os.environ["REPLY"]
    channel.sendall(text.replace("%NONCE%", request["nonce"]).encode() + b"\\n")
"""


@pytest.fixture
def puppet(monkeypatch):
    """Let every worker send the same reply, whatever it is asked."""
    code = PUPPET.format(start=json.dumps({**STATE, "nonce": "%NONCE%"}))

    def replies(reply: object) -> Desk:
        monkeypatch.setattr(workers, "_COMMAND", (sys.executable, "-S", "-c", code))
        monkeypatch.setenv("REPLY", reply if isinstance(reply, str) else json.dumps(reply))
        desks.append(Desk())
        return desks[-1]

    desks: list[Desk] = []
    yield replies
    for desk in desks:
        desk.close()


def reply(**verdict: object) -> dict:
    right = Verdict("shard_batch", "right", 20, 20).as_dict()
    return {**STATE, "nonce": "%NONCE%", "verdict": {**right, **verdict}}


def without(data: dict, name: str) -> dict:
    return {key: value for key, value in data.items() if key != name}


BAD = {
    "not JSON": ("{", "not JSON"),
    "nested without end": ("[" * 100_000, "not JSON"),
    "a list": ("[]", "not an answer to this request"),
    "no nonce": (without(reply(), "nonce"), "not an answer to this request"),
    "a guessed nonce": ({**reply(), "nonce": "0" * 32}, "not an answer to this request"),
    "no state": (without(reply(), "is_worn"), "without the worker's own state"),
    "no verdict": (without(reply(), "verdict"), "no verdict"),
    "a text for a verdict": ({**reply(), "verdict": "right"}, "no verdict"),
    "a field too many": (reply(bonus=3), "no verdict"),
    "a message that is none": (reply(message=[1]), "no verdict"),
    "another question": (reply(question="combine_weighted"), "a verdict on another question"),
    "another maximum": (reply(points=30, max_points=30), "a verdict on another question"),
    "more points than there are": (reply(points=99), "a verdict that contradicts itself"),
    "points for a wrong answer": (reply(status="wrong"), "a verdict that contradicts itself"),
    "no such status": (reply(status="perfect", points=0), "a verdict that contradicts itself"),
    "a target that is none": (reply(targets=[{"name": "x"}]), "a verdict that contradicts itself"),
}


def plan() -> Plan:
    return Plan(Release.read(LAB, LABS), Limits(), is_run=False)


def here() -> Here:
    return Here(NO_ISOLATION, 1)


def graded(submissions: list[Submission], book: Book) -> dict[str, dict]:
    grade_all(submissions, plan(), book, here(), lambda done: None)
    write_outputs(book)
    return {record["student"]: record for record in book.all_records()}


def class_of(folder: Path, *students: str) -> list[Submission]:
    folder.mkdir()
    for student in students:
        (folder / f"{student}.ipynb").write_text(json.dumps(one_answer()))
    return find_submissions([folder], LAB)


@pytest.mark.parametrize("what", BAD)
def test_a_reply_that_is_none_makes_no_points_and_the_batch_goes_on(what, puppet, tmp_path):
    sent, why = BAD[what]
    puppet(sent)
    records = graded(class_of(tmp_path / "in", "ann", "ben"), Book(tmp_path / "out", LAB))
    assert [record["points"] for record in records.values()] == [0, 0]
    verdicts = records["ben"]["questions"]
    assert verdicts[0]["status"] == "failed"
    assert verdicts[0]["message"] == f"the grader's worker sent no valid reply: {why}"


def test_an_honest_reply_counts_for_the_question_it_is_about_and_for_no_other(puppet, tmp_path):
    puppet(reply())
    record = graded(class_of(tmp_path / "in", "ann"), Book(tmp_path / "out", LAB))["ann"]
    assert [verdict["points"] for verdict in record["questions"]] == [20, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "no account of the run"),
        ({"problem": "", "cells_not_run": [1], "notebook": {"cells": []}}, "no account of the run"),
        ({"problem": "", "cells_not_run": [], "notebook": {"cells": [3]}}, "no notebook"),
    ],
)
def test_a_run_without_an_account_of_it_is_none(fields, why, puppet, tmp_path):
    puppet({**STATE, "nonce": "%NONCE%", **fields})
    book = Book(tmp_path / "out", LAB)
    submissions = class_of(tmp_path / "in", "ann")
    grade_all(submissions, Plan(Release.read(LAB, LABS), Limits()), book, here(), lambda done: None)
    assert book.read("ann")["run"]["problem"] == f"the grader's worker sent no valid reply: {why}"


def test_a_run_that_ended_early_names_the_cell_that_never_ran(puppet, tmp_path):
    account = {"problem": "", "cells_not_run": ["score"], "notebook": {"cells": []}}
    puppet({**STATE, "nonce": "%NONCE%", **account})
    book = Book(tmp_path / "out", LAB)
    submissions = class_of(tmp_path / "in", "ann")
    grade_all(submissions, Plan(Release.read(LAB, LABS), Limits()), book, here(), lambda done: None)
    assert book.read("ann")["run"]["problem"] == "the run ended early: cell score never ran"


def test_a_submission_that_grading_breaks_on_gets_a_record_and_the_next_is_graded(
    puppet, tmp_path, monkeypatch
):
    from dpcourse.grade import grading

    def merge_or_break(release, cells):
        broken.append(len(broken))
        if broken == [0]:
            raise KeyError("what no one thought of")
        return merge(release, cells)

    broken: list[int] = []
    merge = grading.merge
    monkeypatch.setattr(grading, "merge", merge_or_break)
    puppet(reply())
    submissions, book = class_of(tmp_path / "in", "ann", "ben"), Book(tmp_path / "out", LAB)
    records = graded(submissions, book)
    assert records["ann"]["problem"] == "could not be graded: KeyError: 'what no one thought of'"
    assert (records["ann"]["points"], records["ben"]["points"]) == (0, 20)
    assert "could not be graded" in (tmp_path / "out" / "grades.csv").read_text()
    assert "could not be graded" in book.report_path("ann").read_text()
    assert graded(submissions, book)["ann"]["points"] == 20  # tried again, since it never is up to date


def test_a_closed_desk_answers_nothing(puppet):
    desk = puppet(reply())
    desk.close()
    with pytest.raises(Stopped):
        desk.ask({"do": "judge"}, 5, dict)
    assert desk.worker is None
