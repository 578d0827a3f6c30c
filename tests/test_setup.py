"""The set-up that `make` runs: what it says first, when it does nothing, one line for each failure."""

import fcntl
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "tools"
sys.path.insert(0, str(TOOLS))

import downloads  # noqa: E402
import environment  # noqa: E402
import installing  # noqa: E402
import on_torch  # noqa: E402
import packages  # noqa: E402
from problems import NoIndex, NoRoom, NotInstalled, NoVenvModule, Problem  # noqa: E402
from size_limit import too_large  # noqa: E402

DEADLINE_SECONDS = 50
# An address that refuses at once, and no pip settings of this machine beside it.
NO_INDEX = {"PIP_INDEX_URL": "http://127.0.0.1:9", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder that the scripts take for a clone: their own files and a lock of one package."""
    (tmp_path / "tools").mkdir()
    for path in TOOLS.iterdir():
        if path.is_file():
            (tmp_path / "tools" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    (tmp_path / "requirements.lock").write_text("torch==2.13.0\nnot-installed-anywhere==1\n")
    return tmp_path


# Stands in for `python -m venv`, which takes 7 s: a python that has pip.
QUICK_VENV = """
import environment
def make_venv(venv):
    (venv / "bin").mkdir()
    (venv / "bin" / "python").write_text(f'#!/bin/sh\\nexec {sys.executable} "$@"\\n')
    (venv / "bin" / "python").chmod(0o755)
environment.make_venv = make_venv
"""


def command(clone: Path, before: str = "") -> list[str]:
    """tools/make_env.py of the clone, after some other code in the same process."""
    code = f"import runpy, sys\nsys.path.insert(0, {str(clone / 'tools')!r})\n{before}\n"
    code += f"runpy.run_path({str(clone / 'tools' / 'make_env.py')!r}, run_name='__main__')"
    return [sys.executable, "-c", code]


def make_env(clone: Path, before: str = "") -> subprocess.CompletedProcess:
    environ = {**os.environ, **NO_INDEX}
    return subprocess.run(
        command(clone, before), env=environ, capture_output=True, text=True, timeout=DEADLINE_SECONDS
    )


# ---- each failure is one line, with what was asked, what was found, what to do ----


def test_too_old_a_python_is_one_line(clone):
    found = make_env(clone, before="sys.version_info = (3, 9, 18, 'final', 0)")
    assert found.returncode == 2
    assert found.stdout == ""
    assert found.stderr == (
        f"Python 3.11 to 3.13 is needed, but {sys.executable} is Python 3.9: install one of these, "
        "or name it, as in `make lab PYTHON=/path/to/python3.12`.\n"
    )


@pytest.mark.parametrize(
    ("version", "fits"), [((3, 10), False), ((3, 11), True), ((3, 13), True), ((3, 14), False)]
)
def test_python_3_11_to_3_13_fits(version, fits):
    problem = runpy.run_path(str(TOOLS / "make_env.py"))["python_problem"]((*version, 1))
    assert (problem is None) is fits


def test_the_first_file_can_be_read_by_any_old_python():
    text = (TOOLS / "make_env.py").read_text()
    assert not any(new in text for new in ('f"', "f'", ":=", "->", "match "))


def test_no_venv_module_is_one_line_and_leaves_nothing(clone):
    found = make_env(
        clone, before="import environment\nenvironment.importlib.util.find_spec = lambda name: None"
    )
    assert found.returncode == NoVenvModule.exit_code
    assert "has no venv module: install it (on Debian and Ubuntu: apt install python3." in found.stderr
    assert len(found.stderr.splitlines()) == 1
    assert not (clone / ".venv").exists()


def test_an_index_that_does_not_answer_is_one_line_and_the_next_call_starts_anew(clone):
    found = make_env(clone, QUICK_VENV)
    assert found.returncode == NoIndex.exit_code
    assert "The package index did not answer when pip was to find out what is needed" in found.stderr
    assert len(found.stderr.splitlines()) == 1
    assert (clone / ".venv" / "unfinished").exists()
    assert not (clone / ".venv" / "tmp").exists()
    assert environment.what_to_do(clone / ".venv", environment.expected_stamp(clone)) == "fresh"


def test_a_venv_module_that_fails_is_one_line_with_its_own_words(tmp_path, monkeypatch):
    (tmp_path / "python").write_text("#!/bin/sh\necho 'ensurepip is\nnot available' >&2\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "_base_executable", str(tmp_path / "python"))
    with pytest.raises(NoVenvModule) as caught:
        environment.make_venv(tmp_path / ".venv")
    assert str(caught.value) == (
        f"{tmp_path / 'python'} could not make a virtual environment in {tmp_path / '.venv'} "
        "and said: ensurepip is not available"
    )


def test_too_small_a_disk_is_said_before_anything_is_downloaded():
    with pytest.raises(NoRoom, match=r"needs about 2.5 GB in .*, but only 300 MB are free: make room"):
        environment.check_room(2_500_000_000, Path("/"), free_bytes=300_000_000)
    environment.check_room(1, Path("/"))


@pytest.mark.parametrize(
    ("output", "kind", "said"),
    [
        (
            "OSError: [Errno 28] No space left on device",
            NoRoom,
            "The disk became full while pip was to fetch",
        ),
        ("WARNING: Retrying after NameResolutionError", NoIndex, "The package index did not answer"),
        (
            "ERROR: No matching distribution found for torch==9",
            NotInstalled,
            "said: No matching distribution found",
        ),
        ("", NotInstalled, "said: nothing"),
    ],
)
def test_what_pip_printed_becomes_one_line(output, kind, said):
    problem = packages.pip_problem(output, "fetch", Path("log"))
    assert type(problem) is kind
    assert said in str(problem)
    assert "\n" not in str(problem)


def test_a_hand_made_environment_of_another_python_is_not_touched(tmp_path):
    bin_folder = tmp_path / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "python").write_text("#!/bin/sh\necho 3.9\n")
    (bin_folder / "python").chmod(0o755)
    with pytest.raises(Problem, match=r"holds Python 3\.9, not 3\.11: move it away"):
        environment.what_to_do(tmp_path / ".venv", {"python": "3.11"})


# ---- a second call ----


@pytest.fixture
def finished(clone: Path) -> Path:
    """A clone whose environment looks finished."""
    (clone / ".venv").mkdir()
    (clone / ".venv" / "made.json").write_text(json.dumps(environment.expected_stamp(clone)))
    return clone


def work(clone: Path) -> str:
    return environment.what_to_do(clone / ".venv", environment.expected_stamp(clone))


def test_a_finished_environment_is_recognised_without_a_word(finished):
    found = make_env(finished)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_a_changed_lock_or_dependency_is_brought_up_to_date_in_place(finished):
    assert work(finished) == "nothing"
    for name, old, new in (
        ("requirements.lock", "anywhere==1", "anywhere==2"),
        ("pyproject.toml", '"tqdm>=4.66"', '"tqdm>=4.67"'),
    ):
        path = finished / name
        text = path.read_text()
        path.write_text(text.replace(old, new))
        assert work(finished) == "update"
        path.write_text(text)


def test_a_setting_of_a_tool_changes_nothing(finished):
    path = finished / "pyproject.toml"
    path.write_text(path.read_text().replace("line-length = 110", "line-length = 100"))
    assert work(finished) == "nothing"


def test_half_an_environment_is_never_taken_for_whole(finished):
    (finished / ".venv" / "unfinished").touch()
    assert work(finished) == "fresh"


def test_a_folder_that_was_moved_or_another_python_needs_a_new_environment(finished):
    expected = environment.expected_stamp(finished)
    assert environment.what_to_do(finished / ".venv", {**expected, "root": "/elsewhere"}) == "fresh"
    assert environment.what_to_do(finished / ".venv", {**expected, "python": "3.99"}) == "fresh"


def test_an_interrupted_installation_is_made_anew_and_leaves_no_pip_behind(clone):
    # The signal comes while pip waits for an index that never answers.
    with socket.create_server(("127.0.0.1", 0)) as index:
        index.settimeout(DEADLINE_SECONDS)
        url = f"http://127.0.0.1:{index.getsockname()[1]}"
        process = subprocess.Popen(
            command(clone, QUICK_VENV),
            env={**os.environ, **NO_INDEX, "PIP_INDEX_URL": url},
            stderr=subprocess.PIPE,
            text=True,
        )
        connection, _ = index.accept()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == 130
        assert said == "Stopped; what was half made is made anew at the next call.\n"
        connection.settimeout(DEADLINE_SECONDS)
        while connection.recv(4096):  # ends when pip's side is closed: pip is gone
            pass
        connection.close()
    assert work(clone) == "fresh"


def test_of_two_calls_at_once_the_second_waits_for_the_first(clone):
    with environment.only_one(clone):
        code = "import environment, sys, pathlib\nwith environment.only_one(pathlib.Path(sys.argv[1])): pass"
        second = subprocess.Popen(
            [sys.executable, "-c", code, str(clone)], cwd=TOOLS, stdout=subprocess.PIPE, text=True
        )
        assert second.stdout.readline().startswith("Another make is busy with the environment; waiting")
        assert second.poll() is None
    assert second.wait(timeout=DEADLINE_SECONDS) == 0


def test_after_a_kill_the_next_call_waits_until_pip_has_ended_too(clone):
    child = "import os, time; print(os.getpid(), flush=True); time.sleep(50)"
    code = (
        "import environment, installing, sys, pathlib\n"
        "clone = pathlib.Path(sys.argv[1])\n"
        "with environment.only_one(clone):\n"
        f"    installing.run_logged([sys.executable, '-c', {child!r}], clone / 'log', clone, None)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(clone)], cwd=TOOLS)
    log, deadline = clone / "log", time.monotonic() + DEADLINE_SECONDS
    while not (log.exists() and log.read_text().endswith("\n")) and time.monotonic() < deadline:
        time.sleep(0.02)
    pip = int(log.read_text())
    parent.kill()
    parent.wait(timeout=DEADLINE_SECONDS)
    with (clone / "requirements.lock").open() as handle:
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.kill(pip, signal.SIGKILL)
        fcntl.flock(handle, fcntl.LOCK_EX)  # comes as soon as it is gone


# ---- what is said first ----


def wheel(name: str, num_bytes: int | None, url: str = "https://index/x.whl") -> downloads.Wheel:
    return downloads.Wheel(name, "1", url, num_bytes)


def test_the_size_is_said_and_files_on_this_machine_are_not_downloads():
    wheels = [wheel("a", 10_000_000), wheel("b", 190_000_000, "file:///b.whl"), wheel("c", None)]
    assert downloads.announcement(wheels) == (
        "To download: 10 MB in 2 of 3 packages (the others are on this machine), and 1 of unknown size; "
        "on disk: about 840 MB."
    )


def test_the_gpu_build_of_torch_is_named_with_its_way_out():
    said = downloads.announcement([wheel("torch", 900_000_000), wheel("nvidia-nccl-cu13", 1_800_000_000)])
    assert "Of these, 2.7 GB are torch for NVIDIA GPUs" in said
    assert "make lab TORCH_INDEX=<address>" in said
    assert "on disk: about 4.9 GB." in said
    assert "TORCH_INDEX" not in downloads.announcement([wheel("torch", 180_000_000)])


def test_sizes_are_looked_up_and_an_unknown_one_is_no_failure(tmp_path):
    (tmp_path / "x y.whl").write_bytes(b"12345")
    assert downloads.size_of((tmp_path / "x y.whl").as_uri()) == 5
    assert downloads.size_of("http://127.0.0.1:9/x.whl") is None
    found = downloads.with_sizes([wheel("a", None, (tmp_path / "x y.whl").as_uri())])
    assert [w.num_bytes for w in found] == [5]


def test_the_files_of_a_pip_report_are_installed_by_address_and_checksum():
    item = {
        "metadata": {"name": "tqdm", "version": "4.70.1"},
        "download_info": {"url": "https://index/tqdm.whl", "archive_info": {"hash": "sha256=abc"}},
    }
    (found,) = downloads.wheels_of_report({"install": [item]})
    assert found.requirement == "tqdm @ https://index/tqdm.whl#sha256=abc"


def test_torch_alone_is_taken_from_the_index_that_a_learner_names(clone, monkeypatch):
    (clone / ".venv" / "tmp").mkdir(parents=True)
    asked = []

    def plan_of(folder, name, *arguments):
        asked.append(arguments)
        needs = {"torch": ["sympy>=1.13", 'opt-einsum>=3; extra == "opt-einsum"']}
        return [wheel(name, None, "file:///nowhere")], needs

    monkeypatch.setattr(packages, "plan_of", plan_of)
    packages.plan(clone / ".venv", clone / "requirements.lock", "https://small")
    assert asked[0] == ("--no-deps", "--index-url", "https://small", "torch==2.13.0")
    assert "https://small" not in asked[1]
    assert (clone / ".venv" / "tmp" / "rest.txt").read_text().split() == [
        "not-installed-anywhere==1",
        "sympy>=1.13",
    ]


def test_the_meter_says_how_far_things_are(capsys):
    meter = installing.Meter(is_terminal=False, every_seconds=0)
    meter.show("3 of 140 packages installed")
    assert "  3 of 140 packages installed (0 s)\n" in capsys.readouterr().out


def test_progress_counts_bytes_that_have_come_and_packages_that_stand(tmp_path):
    look = packages.watcher(tmp_path, [wheel("a", 4_000_000), wheel("b", 6_000_000)])
    assert look() == "0 kB of 10 MB fetched, 0 of 2 packages installed"
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "a.whl").write_bytes(b"0" * 4_000_000)
    (tmp_path / "lib" / "python3.11" / "site-packages" / "a-1.dist-info").mkdir(parents=True)
    assert look() == "4 MB of 10 MB fetched, 1 of 2 packages installed"


# ---- Makefile ----


def test_make_alone_says_what_there_is():
    found = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    targets = [line.split()[1] for line in found.stdout.splitlines() if line.startswith("make ")]
    tested = "test test-long test-labs browser-test soak versions bench gpu-check"
    assert " ".join(targets) == f"lab course slides {tested} lock wheelhouse clean"


def test_ci_runs_what_a_person_runs():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = [line for line in lines if line.startswith("make ")]
    assert commands == ["make test", "make test-long", "make browser-test", "make soak"]


def test_the_python_that_stands_in_the_environment_is_found_first(tmp_path):
    find = str(TOOLS / "find_python.sh")
    venv.create(tmp_path / ".venv", with_pip=False)
    here = subprocess.run([find], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert here.stdout.strip() == ".venv/bin/python"
    (tmp_path / "none").mkdir()
    nowhere = {"PATH": str(tmp_path / "none")}
    none = subprocess.run(
        ["/bin/sh", find], cwd=tmp_path / "none", env=nowhere, capture_output=True, text=True, timeout=30
    )
    assert none.stdout.strip() == "python3"  # make then says that there is none


# ---- before each commit ----


def test_a_file_over_the_size_limit_is_refused(tmp_path):
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(b"0" * 500_000)
    large.write_bytes(b"0" * 500_001)
    assert [line.split(" has ")[0] for line in too_large([str(small), str(large), "gone"])] == [str(large)]


def test_every_hook_runs_a_tool_of_the_environment_so_that_a_commit_needs_no_network():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repository["repo"] for repository in config["repos"]] == ["local"]
    entries = [hook["entry"].split() for hook in config["repos"][0]["hooks"]]
    assert all(entry[0] == ".venv/bin/python" for entry in entries)
    assert all((ROOT / entry[1]).is_file() for entry in entries if entry[1] != "-m")


# --- another torch ---


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("", "TORCH='' is no version: name one from 2.11 up to, but not, 2.16, as in TORCH=2.11.0"),
        ("newest", "TORCH='newest' is no version"),
        ("2.11", "TORCH='2.11' is no version"),
        ("2.13.0; rm -r /", "is no version"),
        ("2.10.1", "torch 2.10.1 is outside of what pyproject.toml allows: 2.11 up to, but not, 2.16"),
        ("2.16.0", "torch 2.16.0 is outside"),
        ("3.12.0", "torch 3.12.0 is outside"),
    ],
)
def test_another_torch_is_refused_before_anything_is_made(version, why, clone, monkeypatch, capsys):
    monkeypatch.setenv("TORCH", version)
    assert on_torch.main(clone) == 1
    assert why in capsys.readouterr().err
    assert not (clone / "build").exists()


def test_the_lock_of_another_torch_is_this_one_but_for_torch_and_what_bounds_it():
    ours = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    other = on_torch.lock_with("2.11.0", ROOT).splitlines()
    changed = [(one, two) for one, two in zip(ours, other, strict=True) if one != two]
    assert [two for _, two in changed] == ["setuptools>=70.1", "torch==2.11.0"]
    assert all("==" in one for one, _ in changed)
