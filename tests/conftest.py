"""What the tests share: a look at the processes, and kernels as a notebook has them."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

import dpcourse as dc


def processes_below(pid: int) -> list[psutil.Process]:
    """All descendants of a process."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def processes_marked(mark: str) -> list[psutil.Process]:
    """All processes whose environment or command line holds `mark`, whoever their parent is."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            environment = process.environ()
            if process.status() != psutil.STATUS_ZOMBIE and mark in " ".join(
                [*process.cmdline(), *environment.values()]
            ):
                found.append(process)
    return found


def is_alive(pid: int) -> bool:
    """Whether there is such a process; one that has ended may wait as a zombie for whoever adopted it."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(is_true: Callable[[], object], seconds: float = 10.0) -> bool:
    """Look again and again until `is_true()` or the time is up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if is_true():
            return True
        time.sleep(0.02)
    return bool(is_true())


class Kernel:
    """A real Jupyter kernel: runs cells and gives back what they show."""

    def __init__(self, **environment: str) -> None:
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(
            startup_timeout=60, stderr=subprocess.DEVNULL, env={**os.environ, **environment}
        )

    def run(self, code: str, seconds: float = 50.0) -> "Cell":
        return self.collect(self.client.execute(code), seconds)

    def collect(self, request: str, seconds: float = 50.0) -> "Cell":
        cell, deadline = Cell(), time.monotonic() + seconds
        while not cell.is_idle:
            message = self.client.get_iopub_msg(timeout=max(0.1, deadline - time.monotonic()))
            if message["parent_header"].get("msg_id") == request:
                cell.take(message["msg_type"], message["content"])
        return cell

    @property
    def pid(self) -> int:
        return self.manager.provisioner.pid

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


class Cell:
    """What one cell has shown."""

    def __init__(self) -> None:
        self.text = self.error = ""
        self.streams = {"stdout": "", "stderr": ""}
        self.is_idle = False

    def take(self, kind: str, content: dict) -> None:
        if kind == "stream":
            self.streams[content["name"]] += content["text"]
        elif kind == "execute_result":
            self.text = content["data"]["text/plain"]
        elif kind == "error":
            self.error = "\n".join(content["traceback"])
        elif kind == "status":
            self.is_idle = content["execution_state"] == "idle"


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    kernel.close()


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test of a refusal in which a process is started all the same."""

    assert dc.launch  # the package keeps what it has given once: not the one below

    def never(*args: object, **keywords: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("dpcourse.ranks.launch.launch", never)


@pytest.fixture(scope="module")
def warm_ranks() -> None:
    """The first ranks of a session load torch, which on a busy machine can take longer than a check may."""
    from dpcourse.ranks.launch import launch

    launch(list, ranks=1, device="cpu", deadline_seconds=120)
