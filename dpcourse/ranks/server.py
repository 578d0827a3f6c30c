"""The fork server: a process with torch already imported, from which every rank is forked.

Three levels, so that each can end what stands below it: the server (one a notebook) forks a leader for
each run; the leader forks the ranks, reports how they ended, and ends all that they started.
"""

import contextlib
import fcntl
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import time
import traceback
from collections.abc import Iterable
from typing import Any

import psutil

from dpcourse.network import namespaces
from dpcourse.ranks import channel, processes
from dpcourse.ranks.links import Links

# The first are enough for a plain launch. The rest is imported while nobody asks, or when a run wants it:
# DDP's constructor alone would import torch._dynamo in every rank, at over a second each.
FIRST = ("numpy", "torch", "torch.distributed")
REST = (
    "torch.nn.parallel",
    "torch.profiler",
    "torch.distributed.fsdp",
    "torch._dynamo",
    "torch.distributed.tensor",
    "torch.distributed.optim",
    "dpcourse.trainer",
    "pyroute2",
)
_LEADERS_END_SECONDS = 3.0
_LEAVE_SECONDS = 1.0
_KILL_POLL_SECONDS = 0.02


def main(file_descriptor: int, is_hidden: bool = False, modules: Iterable[str] = ()) -> None:
    """Serve the process at the other end of the socket until it goes.

    is_hidden: no process of the same user may look into this one or its forks, or trace them.
    modules: what to import beside torch's own.
    """
    if is_hidden:
        processes.hide()
    sock = socket.socket(fileno=file_descriptor)
    processes.adopt_orphans()
    interrupt_when_closed(sock)
    try:
        load(FIRST)
    except channel.Closed:
        return
    except BaseException:
        channel.send(sock, "broken", traceback=traceback.format_exc())
        return
    Server(sock, missing=(*REST, *modules)).start()


def interrupt_when_closed(sock: socket.socket) -> None:
    """Raise `Closed` as soon as the other end has gone, also in the middle of a long import."""

    def look(*_: object) -> None:
        poll = select.poll()
        poll.register(sock, 0)  # nothing but its end
        if poll.poll(0):
            signal.signal(signal.SIGIO, signal.SIG_IGN)
            raise channel.Closed("the notebook has gone")

    signal.signal(signal.SIGIO, look)
    fcntl.fcntl(sock, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(sock, fcntl.F_SETFL, fcntl.fcntl(sock, fcntl.F_GETFL) | os.O_ASYNC)


def load(modules: Iterable[str]) -> None:
    """Import `modules`; those already there cost nothing."""
    for name in modules:
        importlib.import_module(name)


class Server:
    """Forks a leader for each request, and imports what is still missing while nobody asks."""

    def __init__(self, sock: socket.socket, missing: Iterable[str]) -> None:
        self.sock = sock
        self.watch = processes.ChildWatch()
        self.leaders: set[int] = set()
        self.missing = list(missing)

    def start(self) -> None:
        """Say that requests are welcome, and serve them until the notebook has gone."""
        channel.send(self.sock, "ready")
        with contextlib.suppress(channel.Closed, ConnectionError):
            while True:
                ready = wait_for(self.sock, self.watch, timeout=0 if self.missing else None)
                self._collect()
                if self.sock in ready:
                    self._answer(channel.receive(self.sock))
                elif self.missing:
                    self._load_next()
        self._finish()

    def _load_next(self) -> None:
        with contextlib.suppress(ImportError):  # an older torch may lack one; ranks that want it will say so
            importlib.import_module(self.missing.pop(0))
        if not self.missing:
            gc.collect()
            gc.freeze()  # a collection in a rank would touch, and so copy, all these pages

    def _answer(self, message: channel.Message) -> None:
        while message.fields["everything"] and self.missing:
            self._load_next()
        _, fds, _, _ = socket.recv_fds(self.sock, 1, 1)
        leader_end = socket.socket(fileno=fds[0])
        server_pid = os.getpid()

        def lead() -> None:
            self.watch.close()
            self.sock.close()
            Leader(leader_end, server_pid).lead()

        self.leaders.add(processes.fork(lead).pid)
        leader_end.close()

    def _collect(self) -> None:
        ended = {pid for pid, _ in processes.reap()[0]}
        if ended & self.leaders:
            self.leaders -= ended
            processes.kill_descendants(keep=frozenset(self.leaders))

    def _finish(self) -> None:
        """The leaders see the same end of the notebook, and clear up; what they leave is killed here."""
        deadline = time.monotonic() + _LEADERS_END_SECONDS
        while self.leaders and time.monotonic() < deadline:
            wait_for(self.watch, timeout=_KILL_POLL_SECONDS)
            self._collect()
        processes.kill_descendants()


class Leader:
    """Forks the ranks of one run, reports how each ended, and leaves no process behind."""

    def __init__(self, sock: socket.socket, server_pid: int) -> None:
        processes.adopt_orphans()
        self.sock = sock
        self.watch = processes.ChildWatch()
        self.rank_of: dict[int, int] = {}
        self.directory = ""
        self.server_pid = server_pid
        self.hosts: list[int] = []  # the namespaces of emulated hosts, as open files

    def lead(self) -> None:
        with contextlib.suppress(channel.Closed, ConnectionError):
            while True:
                ready = wait_for(self.sock, self.watch)
                self._report_ends()
                if self.sock in ready and not self._answer(channel.receive(self.sock)):
                    break
        self._end_everything()

    def _answer(self, message: channel.Message) -> bool:
        """Do what is asked; False when the run is over."""
        if message.kind == "directory":
            self.directory = message.fields["path"]
            os.mkdir(self.directory, 0o700)
        elif message.kind == "hosts":
            self._make_hosts(Links(**message.fields["links"]))
        elif message.kind == "rank":
            self._fork_rank(message.fields["rank"], message.fields["host"])
        elif message.kind == "program":
            self._fork_program(**message.fields)
        elif message.kind == "stop":
            self._stop_programs()
        elif message.kind == "end soon":
            self._let_ranks_leave()
        return message.kind not in ("end", "end soon")

    def _make_hosts(self, links: Links) -> None:
        """Make the emulated hosts; they end with the processes of this run, whoever ends those."""
        problem = ""
        try:
            self.hosts = namespaces.make_hosts(links)
        except namespaces.NoHostsError as error:
            problem = str(error)
        processes.die_with_parent(self.server_pid)  # new credentials may have cancelled it
        channel.send(self.sock, "hosts", problem=problem)

    def _fork_rank(self, number: int, host: int) -> None:
        _, fds, _, _ = socket.recv_fds(self.sock, 1, 3)
        leader_pid, pid = os.getpid(), os.fork()
        if pid == 0:
            self.watch.close()
            self.sock.close()
            if self.hosts:
                namespaces.enter(self.hosts[host])
            processes.run_and_exit(lambda: become_rank(leader_pid, *fds))
        for fd in fds:
            os.close(fd)
        self.rank_of[pid] = number

    def _fork_program(self, module: str, arguments: list[Any]) -> None:
        def become() -> None:
            self.watch.close()
            self.sock.close()
            become_program(module, arguments)

        self.rank_of[processes.fork(become).pid] = 0

    def _stop_programs(self) -> None:
        """Kill what was forked, and say how many processes of its own it has left behind."""
        for pid in self.rank_of:
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + _LEAVE_SECONDS
        while processes.reap()[1] and time.monotonic() < deadline:
            wait_for(self.watch, timeout=_KILL_POLL_SECONDS)
        channel.send(self.sock, "stopped", num_left=len(psutil.Process().children(recursive=True)))

    def _let_ranks_leave(self) -> None:
        """Ranks that have been told to leave get a moment to close their files."""
        deadline = time.monotonic() + _LEAVE_SECONDS
        while self.rank_of and time.monotonic() < deadline:
            wait_for(self.watch, timeout=deadline - time.monotonic())
            for pid, _ in processes.reap()[0]:
                self.rank_of.pop(pid, None)

    def _report_ends(self) -> None:
        for pid, code in processes.reap()[0]:
            if pid in self.rank_of:
                channel.send(self.sock, "ended", rank=self.rank_of.pop(pid), exit_code=code)

    def _end_everything(self) -> None:
        while processes.reap()[1]:
            processes.kill_descendants()
            wait_for(self.watch, timeout=_KILL_POLL_SECONDS)
        shutil.rmtree(self.directory, ignore_errors=True)


def become_rank(leader_pid: int, control_fd: int, out_fd: int, err_fd: int) -> None:
    """Turn this fork into a rank: a process group of its own, no standard input, output into the pipes."""
    os.setpgid(0, 0)  # in the leader's session: Linux shares cores out among sessions, one to a run
    processes.die_with_parent(leader_pid)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (out_fd, 1), (err_fd, 2)):
        os.dup2(source, target)
        os.close(source)
    from dpcourse.ranks import rank

    with socket.socket(fileno=control_fd) as control:
        rank.main(control)


def become_program(module: str, arguments: list[Any]) -> None:
    """Turn this fork into a program of the course's own: `main(*arguments)` of `module`, without output."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(nothing, target)
    os.close(nothing)
    importlib.import_module(module).main(*arguments)


def wait_for(*files: socket.socket | processes.ChildWatch, timeout: float | None = None) -> list:
    """Wait until one of `files` can be read; returns those that can (child watches are drained)."""
    poll = select.poll()
    by_fd = {file.fileno(): file for file in files}
    for fd in by_fd:
        poll.register(fd, select.POLLIN)
    ready = [by_fd[fd] for fd, _ in poll.poll(None if timeout is None else timeout * 1000)]
    for file in ready:
        if isinstance(file, processes.ChildWatch):
            file.drain()
    return ready
