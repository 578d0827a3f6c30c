"""Starts workers, asks them, and ends them with everything below them when they fail to answer."""

import contextlib
import json
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import psutil

from dpcourse.grade.folders import remove_folder
from dpcourse.grade.isolation import NO_ISOLATION, Isolation
from dpcourse.grade.limits import START_SECONDS
from dpcourse.grade.replies import BadReply, read_reply
from dpcourse.ranks.processes import kill_descendants

_COMMAND = (sys.executable, "-P", "-m", "dpcourse.grade.worker")
_STOP_SECONDS = 10.0


Answer = TypeVar("Answer")


class WorkerLost(Exception):
    """The worker ended, did not answer in time, or not as a worker does; the text says which."""


class NotStarted(ValueError):
    """No worker could be started in the isolation asked for; nothing is graded in a weaker one."""


class Worker:
    """One worker process; `ask` gives its reply or ends it."""

    # Workers of this process; whatever else stands below it is left over from one that ended.
    _alive: frozenset[int] = frozenset()
    _lock = threading.Lock()

    def __init__(self, isolation: Isolation = NO_ISOLATION) -> None:
        # The worker makes the folder: were the grader killed before there is a worker, it would stay.
        self.folder = isolation.folder(f"dpcourse-grade-{secrets.token_hex(8)}")
        self.channel, theirs = socket.socketpair()
        with Worker._lock, theirs:
            self.process = isolation.start(
                _COMMAND,
                self.folder,
                theirs.fileno(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            Worker._alive |= {self.process.pid}
        self.buffer, self.is_idle, self.is_own_room = b"", False, isolation.kind == "bwrap"
        self._start(isolation)

    def _start(self, isolation: Isolation) -> None:
        try:
            if problem := self.ask({"do": "start"}, START_SECONDS).get("problem"):
                self._lose(str(problem))
        except WorkerLost as lost:
            if isolation.kind == "none":
                raise
            raise NotStarted(f"no worker could be started in isolation {isolation.kind!r}: {lost}") from None

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The reply to a request.

        Raises:
            WorkerLost: no reply within the time, or one that is none; the worker and everything below it
                are gone.
        """
        self.is_idle, nonce = False, secrets.token_hex(16)
        try:
            line = self._exchange(json.dumps({**request, "nonce": nonce}).encode() + b"\n", seconds)
            reply = read_reply(line, nonce)
        except TimeoutError:
            self._lose(f"stopped: no result within {seconds:g} s")
        except OSError:
            self._lose("the grader's worker was ended")
        except BadReply as error:
            self._lose(str(error))
        self.is_idle = True
        return reply

    def _exchange(self, line: bytes, seconds: float) -> bytes:
        """Send a line; returns the line that comes back."""
        deadline = time.monotonic() + seconds
        self.channel.settimeout(seconds)
        self.channel.sendall(line)
        while b"\n" not in self.buffer:
            self.channel.settimeout(max(0.001, deadline - time.monotonic()))
            data = self.channel.recv(1 << 20)
            if not data:
                raise ConnectionError
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def _lose(self, reason: str) -> NoReturn:
        self.kill()
        raise WorkerLost(reason)

    def stop(self) -> None:
        """End the worker in good order, or kill it."""
        self.channel.close()  # the worker ends when it sees this
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOP_SECONDS)
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
        self.channel.close()
        if not self.is_own_room:  # which ends with its processes
            remove_folder(self.folder)


class Stopped(Exception):
    """The batch was interrupted; nothing that is under way counts."""


class Desk:
    """One worker at a time, started when first needed and replaced when it is lost or worn."""

    def __init__(self, isolation: Isolation = NO_ISOLATION) -> None:
        self.isolation = isolation
        self.worker: Worker | None = None
        self.is_closed = False

    def ask(
        self, request: dict[str, Any], seconds: float, read: Callable[[dict[str, Any]], Answer]
    ) -> Answer:
        """What `read` makes of the reply to a request.

        Raises:
            WorkerLost: the request ended the worker, took too long, or came back as nothing that `read`
                takes; the next request gets a new worker.
            Stopped: the desk was closed.
        """
        try:
            return read(self._ask(request, seconds))
        except BadReply as error:
            self._dismiss()
            raise WorkerLost(str(error)) from None
        except WorkerLost as lost:
            self.worker = None
            if self.is_closed:
                raise Stopped from lost
            raise

    def _ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        if not self.is_closed:
            self.worker = self.worker or Worker(self.isolation)
        if self.is_closed or self.worker is None:  # closed before, or while the worker started
            self._dismiss()
            raise Stopped
        reply = self.worker.ask(request, seconds)
        if reply["is_worn"]:
            self._dismiss()
        return reply

    def _dismiss(self) -> None:
        if self.worker is not None:
            self.worker.stop()
            self.worker = None

    def close(self) -> None:
        """End the worker, now."""
        self.is_closed = True
        if (worker := self.worker) is not None:
            worker.stop() if worker.is_idle else worker.kill()
