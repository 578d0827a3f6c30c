"""The command line teaches, hands commands on, and says errors in one line."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from dpcourse import cli
from dpcourse.workspace import course_files, course_root


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "dpcourse.cli", *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=50,
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "labs").mkdir()
    (tmp_path / "notebooks" / "03_ddp.ipynb").write_text("{}")
    (tmp_path / "labs" / "03_ddp.ipynb").write_text("{}")
    return tmp_path


def test_help_shows_every_command_examples_and_exit_codes():
    found = run("--help")
    assert found.returncode == 0
    for word in (
        "lab",
        "reset",
        "course",
        "doctor",
        "grade",
        "examples:",
        "exit codes:",
        "dpcourse reset 03",
    ):
        assert word in found.stdout


@pytest.mark.parametrize("command", ["lab", "reset", "course"])
def test_each_command_explains_itself(command):
    found = run(command, "--help")
    assert found.returncode == 0
    assert f"usage: dpcourse {command}" in found.stdout


@pytest.mark.parametrize("arguments", [[], ["labb"], ["reset"]])
def test_wrong_use_ends_with_exit_code_2(arguments):
    found = run(*arguments)
    assert found.returncode == 2
    assert "Traceback" not in found.stderr


def test_the_copies_are_made_and_named(home):
    found = run("lab", "--copies-only", DPCOURSE_HOME=str(home))
    assert found.stdout.splitlines() == ["labs/03_ddp.ipynb: new", "notebooks/03_ddp.ipynb: new"]
    assert run("lab", "--copies-only", DPCOURSE_HOME=str(home)).stdout == ""


def test_reset_brings_back_and_says_where_the_learners_version_is(home):
    run("lab", "--copies-only", DPCOURSE_HOME=str(home))
    (home / "my" / "labs" / "03_ddp.ipynb").write_text("mine")
    found = run("reset", "labs/03", DPCOURSE_HOME=str(home))
    assert found.stdout == (
        "labs/03_ddp.ipynb: as the course has it again; your version is labs/03_ddp.mine.ipynb\n"
    )


def test_a_wrong_name_resets_nothing_and_is_one_line(home):
    run("lab", "--copies-only", DPCOURSE_HOME=str(home))
    (home / "my" / "notebooks" / "03_ddp.ipynb").write_text("mine")
    found = run("reset", "03", "99", DPCOURSE_HOME=str(home))
    assert found.returncode == 2
    assert found.stderr.startswith("dpcourse reset: '99' is not in the course, which has:")
    assert len(found.stderr.splitlines()) == 1
    assert (home / "my" / "notebooks" / "03_ddp.ipynb").read_text() == "mine"


def test_outside_a_clone_one_line_says_what_to_do(tmp_path):
    found = run("lab", "--copies-only", DPCOURSE_HOME=str(tmp_path / "nowhere"))
    assert found.returncode == 2
    assert "has no notebooks folder: set DPCOURSE_HOME to a clone of the course." in found.stderr


@pytest.mark.parametrize(("name", "module"), [("doctor", "doctor"), ("grade", "grade"), ("course", "course")])
def test_commands_with_arguments_of_their_own_get_them_as_typed(monkeypatch, name, module):
    seen = []
    stand_in = types.ModuleType(f"dpcourse.{module}")
    stand_in.main = lambda argv: seen.append(argv) or 1
    monkeypatch.setitem(sys.modules, f"dpcourse.{module}", stand_in)
    assert cli.main([name, "01", "-p", "ranks", "2", "--help"]) == 1
    assert seen == [["01", "-p", "ranks", "2", "--help"]]


def test_jupyterlab_starts_in_my_with_this_environment_first(home, monkeypatch):
    started = []
    monkeypatch.setenv("DPCOURSE_HOME", str(home))
    monkeypatch.setattr(cli.os, "execve", lambda *call: started.append(call))
    monkeypatch.setattr(cli.os, "geteuid", lambda: 0)
    cli.main(["lab", "--no-browser", "--port", "8890"])
    ((python, command, environ),) = started
    assert python == sys.executable
    assert command[1:4] == ["-m", "jupyterlab", f"--ServerApp.root_dir={home / 'my'}"]
    assert command[4] == "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb"
    assert command[5:] == ["--allow-root", "--no-browser", "--port", "8890"]
    assert environ["PATH"].startswith(str(Path(sys.executable).parent))
    assert environ["JUPYTER_PREFER_ENV_PATH"] == "1"


def test_the_notebook_that_opens_first_is_one_of_the_course():
    assert cli.FIRST_NOTEBOOK in course_files(course_root())


def test_an_ordinary_user_needs_no_leave_for_root(monkeypatch):
    monkeypatch.setattr(cli.os, "geteuid", lambda: 1000)
    assert cli._as_root() == []


def test_an_interrupt_is_one_line(home, monkeypatch, capsys):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setenv("DPCOURSE_HOME", str(home))
    monkeypatch.setattr("dpcourse.workspace.Workspace.update", interrupted)
    assert cli.main(["lab", "--copies-only"]) == 130
    assert capsys.readouterr().err == "dpcourse lab: interrupted\n"


def test_a_full_disk_is_one_line(home, monkeypatch, capsys):
    def full(self):
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("DPCOURSE_HOME", str(home))
    monkeypatch.setattr("dpcourse.workspace.Workspace.update", full)
    assert cli.main(["lab", "--copies-only"]) == 2
    assert capsys.readouterr().err == "dpcourse lab: [Errno 28] No space left on device\n"


def test_the_command_line_itself_loads_without_torch():
    code = "import sys, dpcourse.cli; print('torch' in sys.modules, 'papermill' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert found.stdout == "False False\n"
