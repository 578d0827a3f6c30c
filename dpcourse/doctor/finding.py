"""One thing looked at on this machine, and the way of looking: bounded in time, never a traceback."""

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Finding:
    """What was found about one topic.

    `is_there`: True, False, or None where it could not be found out. `advice`: what to do where something is
    missing. `figures`: the same in numbers, for the report. `is_needed`: the course cannot run without it.
    """

    topic: str
    text: str
    is_there: bool | None = True
    advice: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    is_needed: bool = False


@dataclass(frozen=True)
class Probe:
    """A way to find out about one topic; `look` gives a Finding for each line of the report."""

    topic: str
    look: Callable[[], list[Finding]]
    deadline_seconds: float = 10.0
    is_needed: bool = False


Progress = Callable[[str, float], None]


def look(probe: Probe, progress: Progress = lambda topic, seconds: None) -> list[Finding]:
    """Run a probe in a thread, so that not even a hung file system holds up the others."""
    answers: list[list[Finding]] = []
    thread = threading.Thread(target=lambda: answers.append(_look_safely(probe)), daemon=True)
    thread.start()
    started = time.monotonic()
    while thread.is_alive() and (waited := time.monotonic() - started) < probe.deadline_seconds:
        progress(probe.topic, waited)
        thread.join(_POLL_SECONDS)
    return answers[0] if answers else [unknown(probe, f"no answer within {probe.deadline_seconds:.0f} s")]


def _look_safely(probe: Probe) -> list[Finding]:
    try:
        return probe.look()
    except subprocess.TimeoutExpired as error:
        return [unknown(probe, f"{error.cmd[0]} gave no answer within {error.timeout:.0f} s")]
    except BaseException as error:
        return [unknown(probe, f"{type(error).__name__}: {error}".strip(": "))]


def unknown(probe: Probe, reason: str) -> Finding:
    """The finding of a probe that failed itself."""
    advice = "Without it nobody can tell whether the course runs here." if probe.is_needed else ""
    return Finding(
        probe.topic,
        f"could not be found out: {reason}",
        is_there=None,
        advice=advice,
        is_needed=probe.is_needed,
    )


def ask(*command: str, seconds: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with nothing on its standard input."""
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, **options
    )


def last_line(*texts: str) -> str:
    """The last line that says something, in the first of `texts` that has one."""
    lines = (line.strip() for text in texts for line in reversed(text.splitlines()))
    return next(filter(None, lines), "no reason was given")


@contextlib.contextmanager
def progress_line(stream: Any) -> Iterator[Progress]:
    """A line that tells what is waited for, from the third second on; on a terminal only."""
    if not stream.isatty():
        yield lambda topic, seconds: None
        return

    def show(topic: str, seconds: float) -> None:
        if seconds > 2:
            print(f"\r\x1b[K{topic} ... {seconds:.0f} s", end="", file=stream, flush=True)

    try:
        yield show
    finally:
        print("\r\x1b[K", end="", file=stream, flush=True)
