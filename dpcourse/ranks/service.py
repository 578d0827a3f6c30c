"""The notebook's end of its fork server: started once, in the background, and started anew if it dies."""

import contextlib
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Protocol

from dpcourse.ranks import channel, processes

_START_SECONDS = 180.0
_TICK_SECONDS = 0.5
_END_SECONDS = 5.0
# A module that asks while it is imported whether there is a GPU would begin to use CUDA, and no fork could
# then: with this the driver's library answers. Source: torch's notes on multiprocessing, "poison fork".
_CUDA_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"


def _environment() -> dict[str, str]:
    """Give the server its environment: with no threads of its own, which would make its forks unsafe.

    A rank's threads wait asleep. By default they spin while they wait for each other, and on a busy machine
    for a core that another process has: one rank with two threads then took over ten times as long.
    """
    own = {"OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", _CUDA_CHECK: "1"}
    return {"OMP_WAIT_POLICY": "PASSIVE", **os.environ, **own}


_enclosing: tuple[str, ...] = ()
_modules: tuple[str, ...] = ()


def prepare(command: Sequence[str], modules: Sequence[str]) -> None:
    """Start fork servers from now on through `command`, with `modules` imported beside torch's own.

    The command shuts in what is named after it: open files and the folder of temporary files must be the
    same inside. What runs there is hidden from its own user too: a rank can't change the server that the
    next ones are forked from.
    """
    global _enclosing, _modules
    _enclosing, _modules = tuple(command), tuple(modules)


class _Process(Protocol):
    """What a service needs of its server's process, as `subprocess.Popen` has it."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


class ServerLost(RuntimeError):
    """The fork server has ended, as when something killed it; another can be started."""


class Service:
    """One fork server and the socket to it."""

    def __init__(self, sock: socket.socket, process: _Process, errors: IO[bytes]) -> None:
        self._sock, self._process, self._errors = sock, process, errors
        self._is_ready = False
        self._one_at_a_time = threading.Lock()  # a request is two messages
        self.pid = process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def request(self, leader_end: socket.socket, everything: bool, tick: Callable[[], None]) -> None:
        """Have a leader forked that talks on `leader_end`.

        everything: with all modules imported. tick: called twice a second while the server starts.
        """
        with self._one_at_a_time:
            self.wait_until_ready(tick)
            with self._or_lost():
                channel.send(self._sock, "run", everything=everything)
                socket.send_fds(self._sock, [b"."], [leader_end.fileno()])

    def wait_until_ready(self, tick: Callable[[], None] = lambda: None) -> None:
        """Return once the server would answer; it has forked nothing until then."""
        with self._or_lost():
            self._hear_that_it_is_ready(tick)

    @contextlib.contextmanager
    def _or_lost(self) -> Iterator[None]:
        """What fails here fails because the server has ended."""
        try:
            yield
        except OSError:
            raise ServerLost(f"the fork server has ended:\n{self._last_words()}") from None

    def _hear_that_it_is_ready(self, tick: Callable[[], None]) -> None:
        if self._is_ready:
            return
        deadline = time.monotonic() + _START_SECONDS
        while not select.select([self._sock], [], [], _TICK_SECONDS)[0] and time.monotonic() < deadline:
            tick()
        if time.monotonic() >= deadline:
            raise RuntimeError(f"the fork server did not import torch within {_START_SECONDS:.0f} s")
        message = channel.receive(self._sock)
        if message.kind == "broken":
            raise RuntimeError(f"the fork server could not import torch:\n{message.fields['traceback']}")
        self._is_ready = True

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-2000:]

    def close(self) -> None:
        """End the server and all that it has forked."""
        self._sock.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        if self.is_alive():
            self._process.kill()
            self._process.wait()
        self._errors.close()


def _start() -> Service:
    """A fork server in a process of its own, which imports torch before it answers."""
    sock, theirs = socket.socketpair()
    errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  kept as long as the process
    asked = f"{theirs.fileno()}, {bool(_enclosing)}, {_modules!r}"
    code = f"import sys; sys.path[:] = {sys.path!r}; from dpcourse.ranks.server import main; main({asked})"
    with theirs:
        process = subprocess.Popen(
            [*_enclosing, sys.executable, "-c", code],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            # An interrupt in the notebook goes to its process group: the server is not in it.
            start_new_session=True,
            env=_environment(),
        )
    return Service(sock, process, errors)


def inherit() -> None:
    """Have the launches of this fork of a fork server served by a fork of its own: nothing is imported.

    Call it before this process has started a thread.
    """
    global _current
    sock, theirs = socket.socketpair()
    process = processes.fork(lambda: _serve_on(theirs, sock))
    theirs.close()
    _current = (os.getpid(), Service(sock, process, tempfile.TemporaryFile()))  # noqa: SIM115


def _serve_on(sock: socket.socket, others_end: socket.socket) -> None:
    from dpcourse.ranks import server

    others_end.close()
    processes.adopt_orphans()
    server.Server(sock, missing=()).start()


_lock = threading.Lock()
_current: tuple[int, Service] | None = None  # with the process that started it: a fork must not share it


def current() -> Service:
    """This process's service, started if there is none or it has died."""
    global _current
    with _lock:
        if _current is None or _current[0] != os.getpid() or not _current[1].is_alive():
            _current = (os.getpid(), _start())
        return _current[1]


def request(leader_end: socket.socket, everything: bool, tick: Callable[[], None]) -> None:
    """Have a leader forked, as `Service.request` does; a server that was lost meanwhile is replaced, once."""
    try:
        current().request(leader_end, everything, tick)
    except ServerLost:
        current().request(leader_end, everything, tick)


def close() -> None:
    """End this process's fork server; the next launch starts another."""
    global _current
    with _lock:
        if _current is not None and _current[0] == os.getpid():
            _current[1].close()
        _current = None
