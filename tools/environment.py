"""The environment in .venv: made once from requirements.lock, recognised at once, never half done."""

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import downloads
from installing import run_logged
from problems import NoIndex, NoRoom, NotInstalled, NoVenvModule, Problem, one_line

ROOT = Path(__file__).resolve().parent.parent
# From this version on pip reads a wheel's metadata without downloading the wheel.
PIP_THAT_PLANS = (23, 2)


def say(text: str) -> None:
    """Print at once, so that it stands there while the work goes on."""
    print(text, flush=True)


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


NO_ANSWER = re.compile(
    r"Connection refused|NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|timed out"
    r"|Temporary failure|ProxyError|SSLError|Network is unreachable|Connection broken|Max retries"
)


def pip_problem(output: str, asked: str, log: Path) -> Problem:
    """The one line for a pip that failed, from what it printed."""
    if "No space left on device" in output:
        return NoRoom(f"The disk became full while pip was to {asked}: make room, then call again.")
    if NO_ANSWER.search(output):
        return NoIndex(
            f"The package index did not answer when pip was to {asked}: check the network (or proxy, or "
            f"PIP_INDEX_URL), then call again; pip's own words are in {log}."
        )
    errors = re.findall(r"^ERROR: (.*)$", output, re.MULTILINE) or output.strip().splitlines()[-1:]
    found = one_line(errors[-1]) if errors else "nothing"
    return NotInstalled(f"pip could not {asked} and said: {found}; the whole of it is in {log}.")


# ---- the plan ----


def pip(venv: Path, *arguments: str, asked: str, watch: Callable[[], str] | None = None) -> None:
    """One pip command inside the environment; its output goes to the log, its failure becomes one line."""
    log = venv / "install.log"
    start = log.stat().st_size if log.exists() else 0
    command = [str(venv / "bin" / "python"), "-m", "pip", *arguments]
    if run_logged(command, log, venv / "tmp", watch):
        output = log.read_bytes()[start:].decode("utf-8", "replace")
        raise pip_problem(output, asked, log)


def bring_pip_that_plans(venv: Path) -> None:
    """Update a pip that is older than PIP_THAT_PLANS, and say so."""
    found = subprocess.run(
        [str(venv / "bin" / "python"), "-c", "import pip; print(pip.__version__)"],
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    if tuple(int(part) for part in re.findall(r"\d+", found)[:2]) < PIP_THAT_PLANS:
        say("First a newer pip (about 2 MB): this one can't tell sizes before it downloads.")
        pip(venv, "install", "--upgrade", "--retries", "1", "pip>=23.2", asked="fetch a newer pip")


def plan_of(venv: Path, name: str, *arguments: str) -> tuple[list[downloads.Wheel], dict[str, list[str]]]:
    """What pip would install, and what each of these packages requires; pip downloads none of it."""
    report = venv / "tmp" / f"{name}.json"
    quick = ["--dry-run", "--report", str(report), "--retries", "1", "--timeout", "30"]
    pip(venv, "install", *quick, *arguments, asked="find out what is needed", watch=lambda: "still asking")
    return downloads.read_report(report)


def plan(venv: Path, lock: Path, torch_index: str) -> list[downloads.Wheel]:
    """Every file that is missing, sizes included; torch from its own index where one is named."""
    if not torch_index:
        return downloads.with_sizes(plan_of(venv, "plan", "-r", str(lock))[0])
    lines = lock.read_text(encoding="utf-8").splitlines()
    pin = next(line for line in lines if line.startswith("torch=="))
    torch, needs = plan_of(venv, "torch", "--no-deps", "--index-url", torch_index, pin)
    required = [need for need in needs.get("torch", []) if "extra ==" not in need]
    rest = venv / "tmp" / "rest.txt"
    rest.write_text("\n".join([*(line for line in lines if line != pin), *required]), encoding="utf-8")
    return downloads.with_sizes(torch + plan_of(venv, "plan", "-r", str(rest))[0])


# ---- the work ----


def watcher(venv: Path, wheels: list[downloads.Wheel]) -> Callable[[], str]:
    """A function that says, whenever asked, how far the installation is."""
    total = downloads.download_bytes(wheels)
    had = num_installed(venv)
    most = 0

    def look() -> str:
        nonlocal most
        most = max(most, min(total, folder_bytes(venv / "tmp")))
        fetched = f"{downloads.bytes_text(most)} of {downloads.bytes_text(total)} fetched, " if total else ""
        return f"{fetched}{num_installed(venv) - had} of {len(wheels)} packages installed"

    return look


def num_installed(venv: Path) -> int:
    """How many packages stand in the environment."""
    return sum(1 for _ in venv.glob("lib/python*/site-packages/*.dist-info"))


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder; it may change meanwhile."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # pip removes files while we look
                total += os.stat(os.path.join(path, name)).st_size
    return total


def install(venv: Path, wheels: list[downloads.Wheel]) -> None:
    """Exactly the files of the plan, with nothing left for pip to choose."""
    pins = venv / "tmp" / "pins.txt"
    pins.write_text("".join(f"{wheel.requirement}\n" for wheel in wheels), encoding="utf-8")
    if wheels:
        pip(
            venv,
            *("install", "--no-deps", "--no-compile", "--progress-bar", "off", "-r", str(pins)),
            asked="install the packages",
            watch=watcher(venv, wheels),
        )
        compile_all(venv)


def compile_all(venv: Path) -> None:
    """Bytecode on all cores: pip makes it on one, and without it torch takes 30 s to import."""
    say("Compiling what was installed ...")
    folders = [str(folder) for folder in venv.glob("lib/python*/site-packages")]
    command = [str(venv / "bin" / "python"), "-m", "compileall", "-qq", "-j", "0", "-x", "/tests/", *folders]
    # The exit status is left alone: some packages carry files that are no Python at all.
    run_logged(command, venv / "install.log", venv / "tmp", lambda: "compiling")


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
    (venv / "tmp").mkdir(exist_ok=True)
    say("Asking the package index what is needed (nothing is downloaded yet) ...")
    bring_pip_that_plans(venv)
    wheels = plan(venv, root / "requirements.lock", torch_index)
    say(downloads.announcement(wheels))
    check_room(downloads.disk_bytes(wheels), venv)
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
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an ended make ends pip too
    try:
        ensure(root, os.environ.get("TORCH_INDEX", ""))
    except Problem as problem:
        print(problem, file=sys.stderr)
        return problem.exit_code
    except KeyboardInterrupt:
        print("Stopped; what was half made is made anew at the next call.", file=sys.stderr)
        return 130
    return 0
