"""Hostile answers in real sandboxes, by class of attack: a named result, nothing left behind, never a pass.

One warmed worker for each kind of isolation serves them all, and a new one only where an attack wears it out.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

import dpcourse
from dpcourse.grade import isolation, room, workers
from dpcourse.grade.limits import Caps, Limits
from dpcourse.grade.replies import read_run, read_verdict
from dpcourse.grade.workers import Desk, WorkerLost
from dpcourse.labs.verdict import Verdict
from tests import escapes
from tests.conftest import is_alive, processes_marked, wait_until
from tests.submissions import DAEMON, LAB, LABS, combine
from tests.test_grade_execute import notebook

pytestmark = [pytest.mark.labs, pytest.mark.long, pytest.mark.timeout(300)]
LIMITS = Limits(run_seconds=60, cell_seconds=30, case_seconds=6)
QUESTION = LAB.question("learning_rate")


def passage() -> list[str]:
    """What lets another user reach a Python in a private folder: the folder's owner's view of it, opened."""
    home = next((parent for parent in Path(sys.base_prefix).parents if not parent.stat().st_mode & 1), None)
    if home is None:
        return []
    ways = [path for path in reversed(Path(sys.base_prefix).parents) if path.is_relative_to(home)]
    opened = [word for path in ways[1:] for word in ("--perms", "0755", "--dir", str(path))]
    start = [room.program(), "--dev-bind", "/", "/", "--perms", "0755", "--tmpfs", str(home), *opened]
    return [*start, "--ro-bind", sys.base_prefix, sys.base_prefix, "--"]


def why_not(kind: str) -> str:
    """Why there is no isolation of this kind here, or nothing."""
    if kind == "bwrap" and (missing := isolation._missing(kind)):
        return missing
    if kind == "user" and os.getuid() != 0:
        return "only root can change to another user"
    if kind == "user" and passage() and not room.program():
        return "Python stands in a private folder"
    return ""


@dataclass
class Grader:
    """A desk whose worker is kept apart in one way, with what its answers must not reach."""

    isolation: isolation.Isolation
    desk: Desk
    wanted: dict

    def judge(self, text: str, question: str = QUESTION.name, ranks: int = 2) -> Verdict:
        """The verdict on an answer."""
        asked = LAB.question(question)
        source = {"text": text, "entry": asked.entry, "preamble": ""}
        request = {"do": "judge", "lab": LAB.name, "question": question, "source": source, "seed": 1}
        request |= {"sizes": (ranks,), "limits": LIMITS.as_dict()}
        try:
            return self.desk.ask(request, 100, lambda reply: read_verdict(reply, asked))
        except WorkerLost as lost:
            return Verdict(question, "failed", 0, asked.points, str(lost))

    def execute(self, **cells: str) -> tuple[dict, str]:
        """How the run of a notebook went, and the notebook after it as text."""
        request = {"do": "execute", "notebook": notebook(**cells), "limits": LIMITS.as_dict()}
        request |= {"lab": LAB.name, "verdicts": []}
        run, done = self.desk.ask(request, 150, read_run)
        return run, json.dumps(done)

    @property
    def worker_pid(self) -> int:
        return self.desk.worker.process.pid


@pytest.fixture(scope="module")
def private(tmp_path_factory) -> Path:
    """Solutions, submissions and results, as a grader has them."""
    folder = tmp_path_factory.mktemp("grader")
    folder.chmod(0o700)
    shutil.copytree(LABS / "source", folder / "labs" / "source")
    for name in ("submissions/ann.ipynb", "results/records/ann.json"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("private")
    return folder


@pytest.fixture(scope="module")
def wanted(private) -> Iterator[dict]:
    """What an answer looks for."""
    paths = [
        "labs/source/01_equivalence.ipynb",
        "submissions",
        "submissions/ann.ipynb",
        "results/records/ann.json",
    ]
    package, home = Path(dpcourse.__file__).parent, Path.home()
    folders = [package, sys.prefix, private, "/", "/etc", "/usr", "/proc/sys", home, package.parent]
    secret = f"secret-{uuid.uuid4().hex}"
    with socket.create_server(("127.0.0.1", 0)) as listening, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADER_TOKEN", secret)
        yield {
            "private": [str(private / path) for path in paths],
            "folders": list(map(str, folders)),
            "ports": [listening.getsockname()[1]],
            "secret": secret,
        }


@pytest.fixture(scope="module", params=["bwrap", "user"])
def grader(request, wanted, private) -> Iterator[Grader]:
    """A grader for each kind of isolation that this machine allows."""
    kind = request.param
    if reason := why_not(kind):
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch:
        if kind == "user":
            patch.setattr(isolation, "_TRIAL", (*passage(), *isolation._TRIAL))
            patch.setattr(workers, "_COMMAND", (*passage(), *workers._COMMAND))
        found = isolation.find(kind, [private])
        desk = Desk(found)
        yield Grader(found, desk, wanted)
        desk.close()


def found(verdict: Verdict) -> str:
    """What an answer of `escapes` found."""
    assert (verdict.status, verdict.points) == ("raised", 0), verdict
    return verdict.where.partition("found ")[2]


def test_the_look_finds_everything_where_nothing_is_kept_apart(wanted):
    code = escapes.answer(escapes.look(**wanted))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    seen = json.loads(done.stderr.partition("found ")[2])
    assert {name.split()[0] for name in seen} >= {"read", "write", "connect", "secret"}
    assert {name for name in seen if name.startswith("read")} == {
        f"read {path}" for path in wanted["private"]
    }


def test_ranks_reach_no_private_file_no_network_no_secret_and_write_nowhere_else(grader):
    seen = found(grader.judge(escapes.answer(escapes.look(**grader.wanted))))
    assert seen.startswith("nothing"), seen


def test_ranks_do_not_even_see_the_checkout_in_a_room(grader):
    if grader.isolation.kind != "bwrap":
        pytest.skip("another user sees what every user sees")
    paths = [LABS / "source", LABS, LABS.parent / ".git", "/etc/shadow", "/home", "/var", "/run", "/boot"]
    seen = found(
        grader.judge(escapes.answer(escapes.look(**{**grader.wanted, "private": list(map(str, paths))})))
    )
    assert seen.startswith("nothing"), seen


def test_a_notebook_reaches_no_more_than_ranks_do(grader):
    code = escapes.look(**grader.wanted)
    run, text = grader.execute(look=code + "\nprint('found', sorted(set(found)))")
    assert (run["problem"], run["cells_not_run"]) == ("", [])
    assert "found []" in text


def test_nothing_above_a_rank_can_be_taken_over(grader):
    seen = found(grader.judge(escapes.answer(escapes.TAKE_OVER)))
    allowed = set() if grader.isolation.kind == "bwrap" else {"sees the worker"}
    assert seen.startswith("nothing") or set(json.loads(seen)) <= allowed, seen


def test_nothing_above_a_kernel_can_be_taken_over(grader):
    _, text = grader.execute(look=escapes.TAKE_OVER + "\nprint('found', sorted(set(found)))")
    seen = text.partition("found [")[2].partition("]")[0]
    assert "found [" in text
    assert seen == "" or (seen == "'sees the worker'" and grader.isolation.kind == "user"), seen


def test_a_kernel_knows_nothing_of_the_one_before(grader):
    modules = "import dpcourse, os, sys\n"
    grader.execute(first=modules + "mine = dpcourse.mine = sys.mine = os.environ['mine'] = '1'")
    places = "globals(), vars(dpcourse), vars(sys), os.environ"
    look = f"print('found', [place for place in ({places}) if 'mine' in place])"
    assert "found []" in grader.execute(look=modules + look)[1]


def test_nothing_can_be_made_that_no_end_and_no_wiping_removes(grader):
    assert found(grader.judge(escapes.answer(escapes.LEAVE_MEMORY))).startswith("nothing")
    assert "found []" in grader.execute(look=escapes.LEAVE_MEMORY + "\nprint('found', found)")[1]


def test_without_isolation_all_of_that_can_be_made():
    code = escapes.answer(escapes.LEAVE_MEMORY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert sorted(json.loads(done.stderr.partition("found ")[2])) == ["a semaphore", "memory", "messages"]


def test_a_rank_that_ends_all_it_can_gets_no_points_and_the_next_is_judged(grader):
    verdict = grader.judge("import os, time\nos.kill(-1, 9)\ntime.sleep(60)")
    assert (verdict.status, verdict.points) in (("died", 0), ("failed", 0))
    assert grader.judge(right()).status == "right"


def test_a_kernel_that_ends_all_it_can_ends_itself_only(grader):
    with contextlib.suppress(WorkerLost):
        run, _ = grader.execute(end="import os, time\nos.kill(-1, 9)\ntime.sleep(60)")
        assert run["problem"] == "the kernel died in cell end"
    assert grader.judge(right()).status == "right"


def right() -> str:
    """The right answer, as the lab's source has it."""
    from tests.submissions import solved

    return next("".join(cell["source"]) for cell in solved()["cells"] if cell["id"] == QUESTION.name)


@pytest.mark.parametrize("attack", ["STOP_SERVER", "STARVE_SERVER"])
def test_harm_to_the_fork_server_is_ruled_out_or_noticed_before_the_next_submission(attack, grader):
    assert grader.judge(right()).status == "right"
    before = grader.desk.worker
    assert grader.judge(getattr(escapes, attack)).points == 0
    is_out_of_reach = grader.isolation.kind == "bwrap" and attack == "STOP_SERVER"
    assert (grader.desk.worker is before) == is_out_of_reach
    assert grader.judge(right()).status == "right"


def test_what_an_answer_leaves_running_is_gone(grader):
    mark = f"dpcourse-{uuid.uuid4().hex}"
    verdict = grader.judge(DAEMON.replace("{mark}", mark) + "derivation = 1")
    assert (verdict.status, verdict.points) == ("wrong", 0)
    assert wait_until(lambda: not processes_marked(mark)), processes_marked(mark)
    run, _ = grader.execute(daemon=DAEMON.replace("{mark}", mark))
    assert run["problem"] == ""
    assert wait_until(lambda: not processes_marked(mark)), processes_marked(mark)


def test_an_answer_may_map_what_is_allowed_beyond_its_libraries_whatever_torch_s_own_take(grader):
    code = escapes.MAP_MEMORY.replace("{num_bytes}", str(Caps().memory_bytes))
    assert found(grader.judge(escapes.answer(code))) == '["0.7 of it"]'
    assert "found ['0.7 of it']" in grader.execute(look=code + "\nprint('found', found)")[1]


def test_what_an_answer_leaves_on_disk_is_gone(grader):
    assert grader.judge(escapes.LEAVE_FILES).status == "wrong"
    seen = found(grader.judge(escapes.answer(escapes.LOOK_FOR_FILES)))
    assert seen.startswith("nothing"), seen


@pytest.mark.parametrize(
    ("text", "statuses", "words"),
    [
        ("derivation = list(range(10**10))", {"raised", "deadline"}, ""),
        ("derivation = bytes(6 * 10**9)", {"raised", "deadline"}, ""),
        (escapes.FORK_UNTIL_IT_FAILS, {"raised", "died", "deadline"}, ""),
        (escapes.FORK_BOMB, {"deadline", "failed", "died"}, ""),
        (escapes.FILL_DISK, {"raised", "died", "deadline"}, ""),
        ("open('big', 'wb').truncate(10 * 2**30)", {"raised"}, "File too large"),
        ("while True:\n    print('x' * 1000)", {"deadline"}, "deadline of 6 s"),
        ("derivation = 'x' * 500_000_000", {"wrong", "failed", "deadline"}, ""),
        ("derivation = input()", {"raised"}, "EOF"),
    ],
    ids=["list", "bytes", "forks", "bomb", "disk", "file", "flood", "text", "input"],
)
def test_exhaustion_reaches_a_limit_that_is_named(text, statuses, words, grader):
    verdict = grader.judge(text)
    assert verdict.points == 0
    assert verdict.status in statuses, verdict
    assert words in str(verdict)
    assert len(json.dumps(verdict.as_dict())) < 20_000
    below = [] if grader.desk.worker is None else psutil.Process(grader.worker_pid).children(recursive=True)
    assert len(below) < 10


def test_ranks_that_print_much_end_and_say_little(grader):
    body = "for _ in range(100_000):\n    print('x')\nreturn gradients"
    verdict = grader.judge(combine(body), "combine_gradients", ranks=4)
    assert (verdict.status, verdict.points) in (("wrong", 0), ("deadline", 0))
    assert len(json.dumps(verdict.as_dict())) < 20_000


def test_a_notebook_that_takes_too_much_is_stopped_and_its_output_cut(grader):
    run, text = grader.execute(
        long="print('x' * 20_000_000)", many="x = list(range(10**10))", last="print('here')"
    )
    assert len(text) < 1_000_000
    assert run["problem"] == ""
    assert "was left out" in text
    assert "MemoryError" in text
    assert "here" in text


GRADER = """
import sys
from dpcourse.grade import isolation, workers
passage, kind = sys.argv[2:], sys.argv[1]
isolation._TRIAL = (*passage, *isolation._TRIAL)
workers._COMMAND = (*passage, *workers._COMMAND)
worker = workers.Worker(isolation.find(kind))
print("started", flush=True)
worker.ask({request}, 100)
"""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder that other users may pass through."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@pytest.mark.parametrize("kind", ["bwrap", "user"])
def test_a_grader_killed_with_9_takes_its_rooms_along(kind, temporary):
    if reason := why_not(kind):
        pytest.skip(reason)
    cells = json.loads(json.dumps(notebook(loop="import time\ntime.sleep(600)")))
    code = GRADER.replace("{request}", repr({"do": "execute", "notebook": cells, "limits": LIMITS.as_dict()}))
    command = [sys.executable, "-c", code, kind, *(passage() if kind == "user" else [])]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    grader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert grader.stdout.readline() == "started\n"
        below = psutil.Process(grader.pid).children(recursive=True)
        assert len(below) >= 2  # a worker and the fork server of its ranks
    finally:
        grader.kill()
        grader.wait()
        grader.stdout.close()
    assert wait_until(lambda: not any(is_alive(process.pid) for process in below), seconds=20)
    assert wait_until(lambda: not list(temporary.iterdir()), seconds=20)


def guarded(code: str, caps: Caps, tmp_path: Path) -> str:
    """Why a guard with these caps ended the processes that `code` started, in a process of its own."""
    watch = (
        "import subprocess, sys, pathlib\n"
        "from dpcourse.grade.guard import Guard\n"
        "from dpcourse.grade.limits import Caps\n"
        f"with Guard({caps!r}, pathlib.Path({str(tmp_path)!r})) as guard:\n"
        f"    subprocess.run([sys.executable, '-c', {code!r}], timeout=30)\n"
        "print(guard.reason)"
    )
    done = subprocess.run(
        [sys.executable, "-c", watch], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    return done.stdout.strip()


def test_processes_that_hold_too_much_together_are_ended(tmp_path):
    caps = Caps(memory_bytes=400_000_000)
    hold = "import os, time\nos.fork(); os.fork()\nheld = os.urandom(150_000_000)\ntime.sleep(600)"
    assert guarded(hold, caps, tmp_path) == "its processes held more than 0.4 GB of memory together"


def test_pages_that_forks_share_count_once(tmp_path):
    caps = Caps(memory_bytes=400_000_000)
    share = "import os, time\nheld = os.urandom(150_000_000)\nos.fork(); os.fork()\ntime.sleep(1)"
    assert guarded(share, caps, tmp_path) == ""


def test_files_that_hold_too_much_together_are_noticed(tmp_path):
    fill = "import time\nopen('file', 'wb').write(bytes(30_000_000))\ntime.sleep(600)"
    assert guarded(fill, Caps(disk_bytes=20_000_000), tmp_path) == "its files held more than 20 MB together"
