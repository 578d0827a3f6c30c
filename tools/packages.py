"""The packages of the environment: what pip would fetch, then exactly that; each failure becomes one line."""

import contextlib
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import downloads
from installing import run_logged, say
from problems import NoIndex, NoRoom, NotInstalled, Problem, one_line

# From this version on pip reads a wheel's metadata without downloading the wheel.
PIP_THAT_PLANS = (23, 2)
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


# ---- the installation ----


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
    # The course's own with them: a sandbox of the grader's, or another user's copy, cannot write it.
    course = Path(__file__).parents[1] / "dpcourse"
    folders = [str(folder) for folder in (*venv.glob("lib/python*/site-packages"), course)]
    command = [str(venv / "bin" / "python"), "-m", "compileall", "-qq", "-j", "0", "-x", "/tests/", *folders]
    # The exit status is left alone: some packages carry files that are no Python at all.
    run_logged(command, venv / "install.log", venv / "tmp", lambda: "compiling")
