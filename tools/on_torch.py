"""The course's tests on another torch than the locked one: `make versions TORCH=2.11.0`.

In an environment of its own, build/torch-2.11.0/, made once from requirements.lock with that version in it.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from environment import ROOT, check_venv_module, install_course, make_venv, planned, told
from installing import say
from packages import install
from problems import Problem

TESTS = ("tests", "-n", "2", "--dist", "loadscope", "-m", "not long and not browser")


def declared(root: Path) -> tuple[tuple[int, int], tuple[int, int]]:
    """The oldest torch that pyproject.toml allows, and the first that it no longer does."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    line = next(line for line in project["dependencies"] if re.match(r"torch\b", line))
    oldest, beyond = re.fullmatch(r"torch>=(\d+\.\d+),<(\d+\.\d+)", line).groups()
    return as_numbers(oldest), as_numbers(beyond)


def as_numbers(version: str) -> tuple[int, int]:
    """The first two numbers of a version."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def check_version(version: str, root: Path) -> None:
    """Refuse what is no version, or none that pyproject.toml allows."""
    oldest, beyond = declared(root)
    allowed = f"{oldest[0]}.{oldest[1]} up to, but not, {beyond[0]}.{beyond[1]}"
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise Problem(f"TORCH={version!r} is no version: name one from {allowed}, as in TORCH=2.11.0.")
    if not oldest <= as_numbers(version) < beyond:
        raise Problem(f"torch {version} is outside of what pyproject.toml allows: {allowed}.")


def lock_with(version: str, root: Path) -> str:
    """requirements.lock with another torch, and any setuptools, of which each torch has its own bound."""
    text = (root / "requirements.lock").read_text(encoding="utf-8")
    # From setuptools 70.1 on the course can be installed with nothing beside it.
    changed = {r"^torch==.*$": f"torch=={version}", r"^setuptools==.*$": "setuptools>=70.1"}
    for line, other in changed.items():
        text = re.sub(line, other, text, flags=re.MULTILINE)
    return text


def make(version: str, root: Path, torch_index: str) -> Path:
    """The Python of the environment for this torch; made unless it stands there for the same lock."""
    folder, lock = root / "build" / f"torch-{version}", lock_with(version, root)
    venv, made = folder / "venv", folder / "requirements.lock"
    if made.exists() and made.read_text(encoding="utf-8") == lock:
        return venv / "bin" / "python"
    check_venv_module()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make_venv(venv)
    wanted = folder / "wanted.txt"
    wanted.write_text(lock, encoding="utf-8")
    install(venv, planned(venv, wanted, torch_index))
    install_course(venv, root)
    wanted.rename(made)  # last: it says that the rest is there
    return venv / "bin" / "python"


def run(root: Path) -> int:
    """Make the environment that TORCH names, and run the tests in it, or the pytest arguments given."""
    version = os.environ.get("TORCH", "")
    check_version(version, root)
    python = make(version, root, os.environ.get("TORCH_INDEX", ""))
    say(f"Tests on torch {version}:")
    return subprocess.run([str(python), "-m", "pytest", *(sys.argv[1:] or TESTS)], cwd=root).returncode


def main(root: Path = ROOT) -> int:
    """The tests' exit status, or that of a problem, in one line."""
    return told(lambda: run(root))


if __name__ == "__main__":
    sys.exit(main())
