"""The environment in .venv: made once from requirements.lock, recognised at once, never half done."""

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import downloads
from installing import say
from packages import bring_pip_that_plans, install, pip, plan
from problems import NoRoom, NotInstalled, NoVenvModule, Problem, one_line

ROOT = Path(__file__).resolve().parent.parent


# ---- is there an environment already? ----


def inputs_hash(root: Path) -> str:
    """A hash of what the environment is made from: the lock, and what pyproject.toml says of the project."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    declared = json.dumps([project["build-system"], project["project"]], sort_keys=True)
    return hashlib.sha256((root / "requirements.lock").read_bytes() + declared.encode()).hexdigest()


def expected_stamp(root: Path) -> dict[str, str]:
    """What a finished environment for this folder and this Python carries. A moved folder needs a new one."""
    return {
        "inputs": inputs_hash(root),
        "root": str(root),
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
    }


def read_stamp(venv: Path) -> dict[str, str]:
    """What a finished environment says of itself; nothing where it says none."""
    try:
        return json.loads((venv / "made.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def what_to_do(venv: Path, expected: dict[str, str]) -> str:
    """ "nothing", "update" (bring what stands there up to the lock) or "fresh" (make it anew)."""
    found = read_stamp(venv)
    if found == expected and not (venv / "unfinished").exists():
        return "nothing"
    if not venv.exists() or (venv / "unfinished").exists():
        return "fresh"
    if found:
        return "update" if {**found, "inputs": ""} == {**expected, "inputs": ""} else "fresh"
    if python_of(venv) != expected["python"]:
        raise Problem(
            f"{venv} was not made by this script and holds Python {python_of(venv) or 'none'}, "
            f"not {expected['python']}: move it away, or remove it with `make clean`."
        )
    return "update"


def python_of(venv: Path) -> str:
    """The Python of a virtual environment as "3.11", or "" where it has none that runs."""
    command = [str(venv / "bin" / "python"), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


# ---- checks before anything is downloaded ----


def check_venv_module() -> None:
    """Refuse a Python that lacks venv or ensurepip, as on Debian without python3-venv."""
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise NoVenvModule(
            f"A virtual environment is needed, but {sys.executable} has no {missing[0]} module: "
            f"install it (on Debian and Ubuntu: apt install python{version}-venv)."
        )


def check_room(needed_bytes: int, folder: Path, free_bytes: int | None = None) -> None:
    """Refuse to download what the disk has no room for. `free_bytes` stands in for the real disk."""
    free = shutil.disk_usage(folder).free if free_bytes is None else free_bytes
    if needed_bytes > free:
        raise NoRoom(
            f"The environment needs about {downloads.bytes_text(needed_bytes)} in {folder}, but only "
            f"{downloads.bytes_text(free)} are free: make room, or clone the course on a larger disk."
        )


# ---- the work ----


def install_course(venv: Path, root: Path) -> None:
    """Install this clone so that edits take effect, and see that torch and dpcourse can be imported."""
    pip(venv, "install", "--no-deps", "--no-build-isolation", "-e", str(root), asked="install dpcourse")
    command = [str(venv / "bin" / "python"), "-c", "import torch, dpcourse"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if found.returncode:
        last = one_line((found.stderr.strip().splitlines() or ["nothing"])[-1])
        raise NotInstalled(f"Everything was installed, but `import torch, dpcourse` said: {last}")


def make_venv(venv: Path) -> None:
    """Make an empty virtual environment, from the base Python even when called inside another one."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    found = subprocess.run([base, "-m", "venv", str(venv)], capture_output=True, text=True)
    if found.returncode:
        last = one_line((found.stderr + found.stdout).strip())[-300:]
        raise NoVenvModule(f"{base} could not make a virtual environment in {venv} and said: {last}")


def planned(venv: Path, lock: Path, torch_index: str) -> list[downloads.Wheel]:
    """What an environment lacks of a lock, announced, and with room for it on the disk."""
    (venv / "tmp").mkdir(exist_ok=True)
    say("Asking the package index what is needed (nothing is downloaded yet) ...")
    bring_pip_that_plans(venv)
    wheels = plan(venv, lock, torch_index)
    say(downloads.announcement(wheels))
    check_room(downloads.disk_bytes(wheels), venv)
    return wheels


def build(root: Path, venv: Path, torch_index: str, is_fresh: bool) -> None:
    """Make the environment, or bring it up to the lock; it is marked unfinished until all is done."""
    started = time.monotonic()
    unfinished = venv / "unfinished"
    if is_fresh:
        check_venv_module()
        shutil.rmtree(venv, ignore_errors=True)
        venv.mkdir(exist_ok=True)
        unfinished.touch()
        make_venv(venv)
    wheels = planned(venv, root / "requirements.lock", torch_index)
    unfinished.touch()
    install(venv, wheels)
    install_course(venv, root)
    (venv / "made.json").write_text(json.dumps(expected_stamp(root)), encoding="utf-8")
    unfinished.unlink()
    say(f"The environment is ready ({time.monotonic() - started:.0f} s).")


@contextlib.contextmanager
def only_one(root: Path) -> Iterator[None]:
    """Two `make` at once: the second waits for the first. The lock file is requirements.lock itself."""
    with (root / "requirements.lock").open() as handle:
        # pip inherits the lock: should this process be killed, the next call waits until pip has ended too.
        os.set_inheritable(handle.fileno(), True)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("Another make is busy with the environment; waiting for it (Ctrl-C stops waiting) ...")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def ensure(root: Path, torch_index: str) -> None:
    """Make the environment in root/.venv unless it stands."""
    venv, expected = root / ".venv", expected_stamp(root)
    if what_to_do(venv, expected) == "nothing":
        return
    with only_one(root):
        work = what_to_do(venv, expected)
        if work == "nothing":
            return
        say(f"Making the environment in {venv} with Python {expected['python']}.")
        try:
            build(root, venv, torch_index, is_fresh=work == "fresh")
        finally:
            shutil.rmtree(venv / "tmp", ignore_errors=True)


def main(root: Path = ROOT) -> int:
    """Make the environment unless it stands; the exit status tells the kind of problem."""
    return told(lambda: ensure(root, os.environ.get("TORCH_INDEX", "")))


def told(work: Callable[[], int | None]) -> int:
    """The exit status of what makes an environment, a line for what kept it from that."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an ended make ends pip too
    try:
        return work() or 0
    except Problem as problem:
        print(problem, file=sys.stderr)
        return problem.exit_code
    except KeyboardInterrupt:
        print("Stopped; what was half made is made anew at the next call.", file=sys.stderr)
        return 130
