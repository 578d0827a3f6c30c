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
from pathlib import Path
from typing import Any, NoReturn

import psutil

from dpcourse.grade.folders import remove_folder
from dpcourse.grade.limits import Limits
from dpcourse.ranks.processes import adopt_orphans, kill_descendants

_GRACE_SECONDS = 1.0
_OOM_SCORE = "500"
_MAX_FILE_BYTES = 2 * 10**9  # a file that a submission may write


def main() -> NoReturn:
    """Serve the requests that come over the socket given; what they need on disk is in the folder given."""
    folder, channel = Path(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))
    channel.set_inheritable(False)  # whoever holds it can reply: kernels and the fork server must not
    folder.mkdir(mode=0o700)
    leave = Leaving(folder)
    try:
        _serve(folder, channel, leave)
    finally:
        leave()


def _serve(folder: Path, channel: socket.socket, leave: Callable[[], NoReturn]) -> NoReturn:
    requests = _requests(channel, leave)
    adopt_orphans()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    with contextlib.suppress(OSError):  # short of memory, the system ends students' code before the grader
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    os.chdir(folder)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)  # what answers leave there goes with it
    # What a submission predicts is neither the grader's progress nor a guess of the grader's room.
    os.environ |= {"DPCOURSE_PROGRESS": "off", "DPCOURSE_ROOM": ""}
    os.environ["IPYTHONDIR"] = str(folder)  # kernels side by side would lock one another's history
    server = Server(folder)
    while True:
        request = requests.get()
        nonce = request.pop("nonce")
        reply = {"num_left": 0, "is_worn": False} if request["do"] == "start" else server.answer(request)
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

    def __init__(self, folder: Path) -> None:
        self.folder, self.lock = folder, threading.Lock()

    def __call__(self) -> NoReturn:
        self.lock.acquire()  # never released: the second thread waits here for the end
        kill_descendants()
        remove_folder(self.folder)
        kill_descendants()  # what the other thread may have started meanwhile
        os._exit(0)


class Server:
    """Answers requests; keeps the fork server of its ranks and nothing else between them."""

    def __init__(self, folder: Path) -> None:
        from dpcourse.ranks.launch import launch

        self.folder = folder
        # Started, and with everything imported, before any student's code runs and before its time counts.
        launch(os.getpid, ranks=1, everything=True)
        self.kept = frozenset(child.pid for child in psutil.Process().children())

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
        return {**reply, "num_left": left, "is_worn": not self.is_whole()}

    def execute(self, request: dict[str, Any], limits: Limits) -> dict[str, Any]:
        """Run a notebook, for the report."""
        from dpcourse.grade.execute import execute

        done = execute(request["notebook"], limits, {"deadline_seconds": limits.case_seconds})
        return {"notebook": done.notebook, "problem": done.problem, "cells_not_run": list(done.cells_not_run)}

    def judge(self, request: dict[str, Any], limits: Limits) -> dict[str, Any]:
        """Run one answer on fresh ranks and judge what they send."""
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
    main()
