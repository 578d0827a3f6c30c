"""Runs pip (and the like) with its output in a log file, and shows how far it is."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

GRACE_SECONDS = 10


def say(text: str) -> None:
    """Print at once, so that it stands there while the work goes on."""
    print(text, flush=True)


class Meter:
    """One line that says how far things are: rewritten on a terminal, now and then repeated elsewhere."""

    def __init__(self, is_terminal: bool, every_seconds: float = 15):
        self.is_terminal = is_terminal
        self.every_seconds = 1 if is_terminal else every_seconds
        self.started = self.shown = time.monotonic()

    def show(self, text: str) -> None:
        now = time.monotonic()
        if now - self.shown < self.every_seconds:
            return
        self.shown = now
        before, after = ("\r", "\033[K") if self.is_terminal else ("", "\n")
        print(f"{before}  {text} ({now - self.started:.0f} s)", end=after, flush=True)

    def close(self) -> None:
        if self.is_terminal and self.shown > self.started:
            print(flush=True)


def pip_environment(tmp: Path) -> dict[str, str]:
    """The caller's environment with pip's settings kept, but without another Python's paths."""
    dropped = {"PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, "TMPDIR": str(tmp), "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def run_logged(command: list[str], log: Path, tmp: Path, watch: Callable[[], str] | None) -> int:
    """The exit status of one command. Downloads lie in `tmp` while they grow, so that they can be watched."""
    meter = Meter(sys.stdout.isatty())
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=pip_environment(tmp),
            close_fds=False,
        )
        try:
            while True:
                try:
                    return process.wait(timeout=0.5)
                except subprocess.TimeoutExpired:
                    if watch:
                        meter.show(watch())
        finally:
            end(process)
            meter.close()


def end(process: subprocess.Popen) -> None:
    """End a process that still runs: asked first, killed after GRACE_SECONDS."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
