"""Starts workers, asks them, and ends them with everything below them when they do not answer in time."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import psutil

from dpcourse.ranks.processes import kill_descendants

_START_SECONDS = 120.0
_STOP_SECONDS = 10.0


class WorkerLost(Exception):
    """The worker ended or did not answer in time; the text says which."""


class Worker:
    """One worker process; `ask` gives its reply or ends it."""

    # Workers of this process; whatever else stands below it is left over from one that ended.
    _alive: frozenset[int] = frozenset()
    _lock = threading.Lock()

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="dpcourse-grade-")
        with Worker._lock:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dpcourse.grade.worker", self.folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            Worker._alive |= {self.process.pid}
        self.buffer, self.is_idle = b"", False
        self._reply(_START_SECONDS)

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The reply to a request.

        Raises:
            WorkerLost: no reply within the time; the worker and everything below it are gone.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            self._lose("the grader's worker was ended")
        return self._reply(seconds)

    def _reply(self, seconds: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        self.is_idle = False
        deadline = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self.process.stdout.fileno(), 1 << 20) if ready else b""
            if not ready:
                self._lose(f"stopped: no result within {seconds:g} s")
            if not data:
                self._lose("the grader's worker was ended")
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        self.is_idle = True
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _lose(self, reason: str) -> None:
        self.kill()
        raise WorkerLost(reason)

    def stop(self) -> None:
        """End the worker in good order, or kill it."""
        with contextlib.suppress(subprocess.TimeoutExpired, OSError, ValueError):
            self.process.communicate(timeout=_STOP_SECONDS)  # it ends when its input closes
        self.kill()

    def kill(self) -> None:
        """End the worker and everything below it, what it orphaned included."""
        with Worker._lock:
            try:
                below = psutil.Process(self.process.pid).children(recursive=True)
            except psutil.NoSuchProcess:
                below = []
            for process in [*below, self.process]:
                with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                    process.kill()
            self.process.wait()
            Worker._alive -= {self.process.pid}
            kill_descendants(keep=Worker._alive)
            psutil.wait_procs(below, timeout=5)
        shutil.rmtree(self.folder, ignore_errors=True)


class Stopped(Exception):
    """The batch was interrupted; nothing that is under way counts."""


class Desk:
    """One worker at a time, started when first needed and replaced when it is lost or worn."""

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.is_closed = False

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The reply to a request.

        Raises:
            WorkerLost: the request ended the worker or took too long; the next request gets a new one.
            Stopped: the desk was closed.
        """
        if self.is_closed:
            raise Stopped
        try:
            self.worker = self.worker or Worker()
            reply = self.worker.ask(request, seconds)
        except WorkerLost as lost:
            self.worker = None
            if self.is_closed:
                raise Stopped from lost
            raise
        if reply["is_worn"]:
            self.worker.stop()
            self.worker = None
        return reply

    def close(self) -> None:
        """End the worker, now."""
        self.is_closed = True
        if (worker := self.worker) is not None:
            worker.stop() if worker.is_idle else worker.kill()
