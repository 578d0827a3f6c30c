"""A worker: a process of the grader that runs notebooks and judges answers, one request at a time.

Students' code runs below it, in kernels and ranks, never in it. Requests and replies are lines of JSON on a
socket, which no other process can open through /proc as it could a pipe; each reply carries the request's
nonce, which only this process and the grader know. After each request whatever that code started and left is
killed, orphans included.
"""

import contextlib
import json
import os
import queue
import resource
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import psutil

from dpcourse.grade.enclosure import Enclosure, from_words
from dpcourse.grade.folders import remove_folder
from dpcourse.grade.guard import Guard
from dpcourse.grade.limits import START_SECONDS, Caps, Limits
from dpcourse.grade.wholeness import Wholeness
from dpcourse.ranks.processes import adopt_orphans, kill_descendants

_GRACE_SECONDS = 1.0
_OOM_SCORE = "500"
_STARTED = {"num_left": 0, "is_worn": False, "problem": ""}
_MAX_FILE_BYTES = 2 * 10**9  # a file that a submission may write


def main() -> NoReturn:
    """Serve the requests that come over the socket given; what they need on disk is in the folder given.

    The command line says more where students' code is kept apart: the isolation's kind, the user of that
    code, and whether its network is taken away.
    """
    channel = socket.socket(fileno=int(sys.argv[2]))
    channel.set_inheritable(False)  # whoever holds it can reply: kernels and the fork server must not
    enclosure = from_words(sys.argv[1], *sys.argv[3:])
    leave = Leaving(enclosure)
    try:
        _serve(enclosure, channel, leave)
    finally:
        leave()


def _serve(enclosure: Enclosure, channel: socket.socket, leave: Callable[[], NoReturn]) -> NoReturn:
    folder = enclosure.folder
    adopt_orphans()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    with contextlib.suppress(OSError):  # short of memory, the system ends students' code before the grader
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    enclosure.enter()
    requests = _requests(channel, leave)
    if enclosure.kind != "none":  # an answer's reply is bounded by what this process may hold
        resource.setrlimit(
            resource.RLIMIT_AS, (Caps().memory_bytes, resource.getrlimit(resource.RLIMIT_AS)[1])
        )
    os.chdir(folder)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)  # what answers leave there goes with it
    if enclosure.kind != "none":
        os.environ["HOME"] = str(folder)
    # What a submission predicts is neither the grader's progress nor a guess of the grader's room.
    os.environ |= {"DPCOURSE_PROGRESS": "off", "DPCOURSE_ROOM": ""}
    os.environ["IPYTHONDIR"] = str(folder)  # kernels side by side would lock one another's history
    reply, server = _STARTED, None
    try:
        server = Server(enclosure)
    except (OSError, RuntimeError, ValueError) as error:
        reply = {**_STARTED, "problem": f"{type(error).__name__}: {error}"[-2000:]}
    while True:
        request = requests.get()
        nonce = request.pop("nonce")
        if request["do"] != "start" and server:
            reply = server.answer(request)
        channel.sendall(json.dumps({**reply, "nonce": nonce}).encode() + b"\n")


def _requests(channel: socket.socket, leave: Callable[[], NoReturn]) -> "queue.Queue[dict[str, Any]]":
    """Requests as they arrive; when the grader closes the socket or is gone, all this ends at once."""
    requests: queue.Queue[dict[str, Any]] = queue.Queue()

    def read() -> None:
        try:
            for line in channel.makefile("rb"):
                requests.put(json.loads(line))
        finally:
            leave()

    threading.Thread(target=read, daemon=True).start()
    return requests


class Leaving:
    """Ends this process and all below it, and removes its folder; once, whichever thread is first."""

    def __init__(self, enclosure: Enclosure) -> None:
        self.enclosure, self.lock = enclosure, threading.Lock()

    def __call__(self) -> NoReturn:
        self.lock.acquire()  # never released: the second thread waits here for the end
        kill_descendants()
        self.enclosure.leave()
        kill_descendants()  # what the other thread may have started meanwhile
        os._exit(0)


class Server:
    """Answers requests; keeps the fork server of its ranks and nothing else between them."""

    def __init__(self, enclosure: Enclosure) -> None:
        from dpcourse.grade.kernel import MODULES
        from dpcourse.ranks import service
        from dpcourse.ranks.launch import launch

        self.enclosure, self.folder = enclosure, enclosure.folder
        last = () if enclosure.kind == "none" else ("dpcourse.grade.capped",)
        service.prepare(enclosure.command(), (*MODULES, *last))
        service.current().wait_until_ready()
        self.kept = frozenset(child.pid for child in psutil.Process().children())
        self.wholeness = Wholeness(self.kept)  # as the server is alone, without a run's leader that is ending
        # With everything imported before any student's code runs and before its time counts.
        launch(os.getpid, ranks=1, everything=True, deadline_seconds=START_SECONDS)
        self.wholeness.look_again()  # the last that is imported sets the server's limits

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked in a folder of its own, and leave neither a process nor a file behind."""
        limits = Limits(**request["limits"])
        work = tempfile.mkdtemp(dir=self.folder)
        os.chdir(work)  # what answers write under a relative name goes here, and is gone afterwards
        try:
            do = self.execute if request["do"] == "execute" else self.judge
            reply = do(request, limits)
        finally:
            left = self.clean()
            os.chdir(self.folder)
            remove_folder(Path(work))
            self.enclosure.wipe()
        return {
            **reply,
            "num_left": left + reply.get("num_left", 0),
            "is_worn": not self.wholeness.is_whole(),
        }

    def execute(self, request: dict[str, Any], limits: Limits) -> dict[str, Any]:
        """Run a notebook, for the report."""
        from dpcourse.grade.execute import execute
        from dpcourse.grade.kernel import Judged

        judged = Judged(request["lab"], request["verdicts"])
        parameters = {"deadline_seconds": limits.case_seconds}
        transport = "tcp" if self.enclosure.kind == "none" else "ipc"
        with self.guard() as guard:
            done = execute(request["notebook"], limits, parameters, transport, judged)
        problem = f"stopped: {guard.reason}" if guard.reason else done.problem
        cells = list(done.cells_not_run)
        return {
            "notebook": done.notebook,
            "problem": problem,
            "cells_not_run": cells,
            "num_left": done.num_left,
        }

    def judge(self, request: dict[str, Any], limits: Limits) -> dict[str, Any]:
        """Run one answer on fresh ranks and judge what they send."""
        from dpcourse.labs import load
        from dpcourse.labs.check import check
        from dpcourse.labs.inside import Source

        question = load(request["lab"]).question(request["question"])
        with self.guard() as guard:
            verdict = check(
                question,
                Source(**request["source"]),
                seed=request["seed"],
                sizes=tuple(request["sizes"]),
                deadline_seconds=limits.case_seconds,
            )
        if guard.reason:
            verdict = replace(verdict, status="died", points=0, message=f"Stopped: {guard.reason}.")
        return {"verdict": verdict.as_dict()}

    def guard(self) -> contextlib.AbstractContextManager[Any]:
        """What watches over a request."""
        if self.enclosure.kind == "none":
            return contextlib.nullcontext(Unguarded())
        return Guard(Caps(), self.folder if self.enclosure.kind == "user" else None)

    def clean(self) -> int:
        """Kill and collect what the request left behind; returns how many processes that were."""
        started = [child for child in psutil.Process().children() if child.pid not in self.kept]
        _, left = psutil.wait_procs(started, timeout=_GRACE_SECONDS)  # a kernel's fork server follows it
        kill_descendants(keep=self.kept)
        psutil.wait_procs(left, timeout=5)
        return len(left)


class Unguarded:
    """Nothing is watched, so nothing is passed."""

    reason = ""


if __name__ == "__main__":
    main()
