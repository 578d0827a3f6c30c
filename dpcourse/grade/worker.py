"""A worker: a process of the grader that runs notebooks and judges answers, one request at a time.

Students' code runs below it, in kernels and ranks, never in it. Requests and replies are lines of JSON on a
pipe of its own; after each request whatever that code started and left is killed, orphans included.
"""

import json
import os
import queue
import resource
import sys
import tempfile
import threading
from typing import Any

import psutil

from dpcourse.grade.limits import Limits
from dpcourse.ranks.processes import adopt_orphans, kill_descendants

_GRACE_SECONDS = 1.0
_MAX_FILE_BYTES = 2 * 10**9  # a file that a submission may write


def main() -> int:
    """Serve the requests that come in on standard input until it closes."""
    replies = _private_output()
    adopt_orphans()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    with tempfile.TemporaryDirectory(prefix="dpcourse-grade-", ignore_cleanup_errors=True) as folder:
        os.environ["IPYTHONDIR"] = folder  # kernels side by side would lock one another's history
        requests = _requests()
        server = Server()
        _send(replies, {"ready": True})
        while (request := requests.get()) is not None:
            _send(replies, server.answer(request))
    return 0


def _private_output() -> int:
    """The pipe to the grader; everything printed from here on goes nowhere."""
    replies = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    return replies


def _send(fd: int, reply: dict[str, Any]) -> None:
    data = json.dumps(reply).encode() + b"\n"
    while data:
        data = data[os.write(fd, data) :]


def _requests() -> "queue.Queue[dict[str, Any] | None]":
    """Requests as they arrive; when the grader is gone, this process and all below it end at once."""
    requests: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def read() -> None:
        for line in sys.stdin.buffer:
            request = json.loads(line)
            requests.put(request if request["do"] != "stop" else None)
        kill_descendants()
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    return requests


class Server:
    """Answers requests; keeps the fork server of its ranks and nothing else between them."""

    def __init__(self) -> None:
        from dpcourse.ranks.launch import launch

        # Started, and with everything imported, before any student's code runs and before its time counts.
        launch(os.getpid, ranks=1, everything=True)
        self.kept = frozenset(child.pid for child in psutil.Process().children())

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        limits = Limits(**request["limits"])
        try:
            reply = (
                self.execute(request, limits) if request["do"] == "execute" else self.judge(request, limits)
            )
        finally:
            left = self.clean()
        return {**reply, "num_left": left, "is_worn": not self.is_whole()}

    def execute(self, request: dict[str, Any], limits: Limits) -> dict[str, Any]:
        from dpcourse.grade.execute import execute

        done = execute(request["notebook"], limits, {"deadline_seconds": limits.case_seconds})
        return {"notebook": done.notebook, "problem": done.problem, "cells_not_run": list(done.cells_not_run)}

    def judge(self, request: dict[str, Any], limits: Limits) -> dict[str, Any]:
        from dpcourse.labs import load
        from dpcourse.labs.check import check
        from dpcourse.labs.inside import Source

        question = load(request["lab"]).question(request["question"])
        verdict = check(
            question,
            Source(**request["source"]),
            seed=request["seed"],
            sizes=tuple(request["sizes"]),
            deadline_seconds=limits.case_seconds,
        )
        return {"verdict": verdict.as_dict()}

    def clean(self) -> int:
        """Kill and collect what the request left behind; returns how many processes that were."""
        started = [child for child in psutil.Process().children() if child.pid not in self.kept]
        _, left = psutil.wait_procs(started, timeout=_GRACE_SECONDS)  # a kernel's fork server follows it
        kill_descendants(keep=self.kept)
        psutil.wait_procs(left, timeout=5)
        return len(left)

    def is_whole(self) -> bool:
        """Whether the fork server still lives; without it a new worker is needed."""
        alive = {child.pid for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE}
        return self.kept <= alive


if __name__ == "__main__":
    sys.exit(main())
