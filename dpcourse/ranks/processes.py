"""Process trees: nothing that a run has started outlives it."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable

import psutil

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_TIMERSLACK, _PR_SET_CHILD_SUBREAPER = 1, 4, 29, 36
_SLACK_NANOSECONDS = 1000
_LONGEST_SLEEP_SECONDS = 1e7
_POLL_SECONDS = 0.02


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent ends (Linux)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int) -> None:
    """End this process when its parent ends, even if the parent is killed (Linux)."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # the parent ended before the line above
        os._exit(1)


def hide() -> None:
    """Let no process of this user trace this one or its forks, or read their memory and files (Linux)."""
    _prctl(_PR_SET_DUMPABLE, 0)


def show() -> None:
    """Undo `hide` for this process."""
    _prctl(_PR_SET_DUMPABLE, 1)


def sleep_exactly() -> None:
    """Have this thread, and those it starts, wake within some 20 microseconds, where Linux takes 50 more."""
    _prctl(_PR_SET_TIMERSLACK, _SLACK_NANOSECONDS)


def sleep_until(seconds: float) -> None:
    """Sleep until a time of time.monotonic. Whoever stands here goes on by itself: no hang is seen in it.

    A time that is further away than any run's end is cut short: the system sleeps no hundred years.
    """
    if (left := seconds - time.monotonic()) > 0:
        time.sleep(min(left, _LONGEST_SLEEP_SECONDS))


def reap() -> tuple[list[tuple[int, int]], bool]:
    """Collect the children that have ended, (pid, exit code or minus the signal), and whether any is left."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended.append((pid, os.waitstatus_to_exitcode(status)))


def kill_descendants(keep: frozenset[int] = frozenset()) -> None:
    """Kill every descendant of this process but the trees of the children in `keep`."""
    # Stopped first, so that a process that forks for ever cannot outrun the listing.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in _descendants(keep):
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)


def _descendants(keep: frozenset[int]) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for child in psutil.Process().children():
        if child.pid not in keep:
            with contextlib.suppress(psutil.Error):
                found += [child, *child.children(recursive=True)]
    return found


def run_and_exit(function: Callable[[], None]) -> None:
    """Call `function` in a fork, and leave without running what its parent would do at its own exit."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        function()
        code = 0
    except BaseException:
        with contextlib.suppress(Exception):
            traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):  # which the function may have closed or replaced
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


class Forked:
    """A child that this process has forked; `subprocess.Popen` has the same words."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it runs."""
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else has collected it
                pid, status = self.pid, 0
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code once it has ended; raises `subprocess.TimeoutExpired`."""
        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            time.sleep(_POLL_SECONDS)
        return code

    def kill(self) -> None:
        """End it at once."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def fork(function: Callable[[], None]) -> Forked:
    """Run `function` in a fork, which ends with this process."""
    parent_pid, pid = os.getpid(), os.fork()
    if pid == 0:
        os.setsid()
        die_with_parent(parent_pid)
        run_and_exit(function)
    return Forked(pid)


class ChildWatch:
    """A file that becomes readable when a child of this process ends; one a process, in its main thread."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        for fd in (self._reading, self._writing):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)

    def fileno(self) -> int:
        return self._reading

    def drain(self) -> None:
        """Forget the ends seen so far; collect the children after this, not before."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._reading, 4096):
                pass

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._reading)
        os.close(self._writing)
