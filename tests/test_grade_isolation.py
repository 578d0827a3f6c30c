"""What isolation is refused, and why; and a class graded by an ordinary user, who is no root anywhere."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpcourse
from dpcourse.grade import isolation, room
from tests.submissions import LAB, LABS, one_answer
from tests.test_grade_escape import passage, why_not

USER = 65432


@pytest.fixture
def works(monkeypatch):
    """Let every trial succeed, whatever this machine allows."""
    monkeypatch.setattr(isolation, "_missing", lambda kind: "")
    monkeypatch.setattr(isolation, "_trial", lambda kept_apart, seconds: "")


def refusal(kind: str, private: tuple[Path, ...] = ()) -> str:
    with pytest.raises(ValueError, match=r"isolation|students' code") as refused:
        isolation.find(kind, private)
    return str(refused.value)


def test_an_unknown_kind_is_answered_with_those_there_are():
    assert refusal("jail") == "there is no isolation 'jail'; there is: bwrap, user, none"


def test_none_asks_for_nothing_and_says_so():
    found = isolation.find("none")
    assert found == isolation.NO_ISOLATION
    assert found.as_dict() == {"kind": "none", "meaning": isolation.MEANINGS["none"], "limits": {}}


@pytest.mark.parametrize("kind", ["bwrap", "user"])
def test_only_linux_has_namespaces_and_such_users(kind, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert f"isolation {kind!r} does not work here: it needs Linux; on other systems grade in" in refusal(
        kind
    )


def test_only_root_can_change_to_another_user(monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert "only root can change to another user; run the grader as root, or ask for bwrap" in refusal("user")


def test_an_environment_that_the_rooms_own_tmp_would_hide_is_named(tmp_path, monkeypatch):
    new = program(tmp_path, "echo '--disable-userns --size'")
    monkeypatch.setattr(room, "program", lambda: new)
    monkeypatch.setattr(room, "needed_paths", lambda: [Path("/opt/python"), Path("/tmp/course/.venv")])
    assert "/tmp/course/.venv stands in /tmp" in refusal("bwrap")


def test_a_missing_bubblewrap_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setattr(room, "program", lambda: "")
    assert "bubblewrap is not installed (Debian, Ubuntu: apt-get install bubblewrap)" in refusal("bwrap")


def program(folder: Path, text: str) -> str:
    path = folder / "bwrap"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_an_old_bubblewrap_is_named(tmp_path, monkeypatch):
    old = program(tmp_path, "echo '--unshare-all --tmpfs'")
    monkeypatch.setattr(room, "program", lambda: old)
    assert "bubblewrap is too old; it needs version 0.8 or newer" in refusal("bwrap")


REFUSED = "bwrap: setting up uid map: Permission denied"


def test_a_bubblewrap_that_the_system_refuses_is_an_error_with_the_reason_and_what_to_do(
    tmp_path, monkeypatch
):
    text = f"[ $1 = --help ] && echo '--disable-userns --size' && exit 0\necho '{REFUSED}' >&2; exit 1"
    refused = program(tmp_path, text)
    monkeypatch.setattr(room, "program", lambda: refused)
    monkeypatch.setattr(room, "needed_paths", list)
    said = refusal("bwrap")
    assert f"isolation 'bwrap' does not work here: {REFUSED}; this system does not let bubblewrap" in said
    assert "kernel.apparmor_restrict_unprivileged_userns=0" in said
    assert "--isolation user" in said


def test_another_user_who_cannot_start_python_is_an_error_with_what_to_do(works, monkeypatch):
    monkeypatch.setattr(isolation, "_trial", lambda kept_apart, seconds: "PermissionError: python")
    assert "isolation 'user' does not work here: PermissionError: python; if Python stands" in refusal("user")


def test_another_user_with_the_network_open_is_taken_and_said(works, monkeypatch):
    monkeypatch.setattr(
        isolation, "_trial", lambda kept_apart, seconds: "refused" if kept_apart.is_offline else ""
    )
    found = isolation.find("user")
    assert not found.is_offline
    assert found.as_dict()["meaning"].endswith("; the network was NOT kept out")
    assert found.as_dict()["limits"]["num_processes"] == 400


def test_a_trial_that_does_not_end_is_ended(monkeypatch, tmp_path):
    sleeping = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(isolation, "_TRIAL", sleeping)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    kept_apart = isolation.Isolation("user", "")
    assert isolation._trial(kept_apart, 0.2) == "a trial did not end within 0.2 s"


def test_what_every_user_may_read_is_refused_for_another_user(works, tmp_path):
    (tmp_path / "submissions").mkdir(mode=0o700)
    assert isolation.find("user", [tmp_path / "submissions", tmp_path / "not there"]).kind == "user"
    assert isolation.is_open(Path("/etc/passwd"))
    assert refusal("user", (Path("/etc/passwd"),)) == (
        "/etc/passwd can be read by every user, so by students' code too: chmod -R go= /etc/passwd"
    )


def test_what_a_room_shows_must_hold_nothing_private(works):
    inside = Path(dpcourse.__file__)
    assert refusal("bwrap", (inside,)) == (
        f"{inside} stands in {inside.parent}, which students' code sees; move it out of there"
    )


def test_a_room_shows_the_package_and_not_the_checkout():
    shown = room.needed_paths()
    assert Path(dpcourse.__file__).parent in shown
    assert not any(path in (LABS, LABS.parent) or LABS.is_relative_to(path) for path in shown)


def test_a_worker_gets_none_of_the_graders_variables(monkeypatch):
    monkeypatch.setenv("GRADER_TOKEN", "secret")
    for kind in ("bwrap", "user"):
        assert "GRADER_TOKEN" not in isolation.Isolation(kind).environment()
    assert isolation.NO_ISOLATION.environment()["GRADER_TOKEN"] == "secret"


def test_results_are_shut_to_other_users_before_their_code_runs(monkeypatch, tmp_path):
    from dpcourse.grade import main

    modes = []

    def grade_all(submissions, plan, book, graders, on_done):
        modes.append(oct((tmp_path / "out").stat().st_mode & 0o777))

    monkeypatch.setattr("dpcourse.grade.find", lambda kind, private: isolation.Isolation(kind, "", True))
    monkeypatch.setattr("dpcourse.grade.batch.grade_all", grade_all)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "ann.ipynb").write_text(json.dumps(one_answer()))
    asked = [LAB.name, str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--isolation", "user", "--json"]
    assert main(asked) == 0
    assert modes == ["0o700"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can change to another user")
def test_the_other_user_is_nobody_elses():
    found = {isolation.unused_uid() for _ in range(5)}
    assert all(uid > 50_000 for uid in found)
    assert len(found) > 1


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder of the ordinary user's."""
    with tempfile.TemporaryDirectory() as folder:
        if os.getuid() == 0:
            os.chown(folder, USER, USER)
        yield Path(folder)


def as_ordinary_user(command: list[str]) -> list[str]:
    """The command, run by a user that is not root."""
    if os.getuid() != 0:
        return command
    change = (
        "import os, sys; os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1])); "
        "os.execv(sys.argv[2], sys.argv[2:])"
    )
    return [*passage(), sys.executable, "-I", "-S", "-c", change, str(USER), *command]


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(why_not("bwrap")), reason=why_not("bwrap") or "there is bubblewrap")
def test_an_ordinary_user_grades_in_a_room_too(home):
    look = "import os\nraise RuntimeError(f'uid {os.getuid()} sees {os.listdir(\"/\")}')"
    (home / "in").mkdir()
    (home / "in" / "ann.ipynb").write_text(json.dumps(one_answer(shard_batch=look)))
    command = [sys.executable, "-m", "dpcourse", "grade", LAB.name, "in", "--out", "out", "--verdicts-only"]
    environment = {**os.environ, "HOME": str(home), "TMPDIR": str(home)}
    done = subprocess.run(
        as_ordinary_user(command), cwd=home, capture_output=True, text=True, timeout=250, env=environment
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((home / "out" / "records" / "ann.json").read_text())
    verdicts = {verdict["question"]: verdict for verdict in record["questions"]}
    assert (record["isolation"]["kind"], verdicts["learning_rate"]["status"]) == ("bwrap", "right")
    uid, _, seen = verdicts["shard_batch"]["where"].partition("uid ")[2].partition(" sees ")
    assert uid == str(os.getuid() or USER)
    assert "'grading'" in seen
    ways = {path.parts[1] for path in room.needed_paths()}  # to Python and the course, wherever they stand
    assert not [name for name in {"home", "var", "opt", "boot"} - ways if f"'{name}'" in seen]
    assert not [path for path in home.iterdir() if path.name.startswith(("dpcourse", "tmp"))]
