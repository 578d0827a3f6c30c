"""One run, seen from the notebook: starts the ranks, shows what they print, collects what they return.

All of it in the caller's thread, in one loop over sockets and pipes, so that an interrupt is noticed at
once, no thread is left over, and one deadline bounds everything.
"""

import contextlib
import functools
import os
import select
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict

from dpcourse.ranks import channel, hang, service
from dpcourse.ranks.errors import Failure, Interrupted, RankError, first_cause
from dpcourse.ranks.links import Links
from dpcourse.ranks.output import Console
from dpcourse.ranks.progress import Progress
from dpcourse.ranks.rank import Task
from dpcourse.ranks.remote import Rank, calls, has_forgotten, send_task, standing

_ASK_SECONDS = 0.5
# How long to listen for the first cause after a failure: an error raised by all ranks at once, and one
# that only tells of a peer's end, whose own news may still be on its way.
_GATHER_SECONDS, _GATHER_CAUSE_SECONDS = 0.1, 1.5
_DRAIN_SECONDS = 2.0
_CHUNK_BYTES = 1 << 18


class Session:
    """A run of `tasks`, one a rank, that ends by `deadline_seconds`."""

    def __init__(self, tasks: list[Task], deadline_seconds: float, everything: bool) -> None:
        self.tasks = tasks
        self.network = Links(**tasks[0].network) if tasks[0].network else None
        self.everything = everything
        self.deadline_seconds = deadline_seconds
        self.ranks = [Rank(task.rank) for task in tasks]
        self.leader, self.their_leader = socket.socketpair()
        self.directory = os.path.dirname(tasks[0].store_path)
        self.console = Console(len(tasks))
        self.progress = Progress(len(tasks))
        self.failures: list[Failure] = []
        self.rounds: list[dict[int, hang.Standing]] = []
        self.answers: dict[int, hang.Standing] = {}
        self.next_question = self.deadline = self.give_up = float("inf")
        self.verdict: str | None = None

    def run(self) -> list[channel.Message]:
        """The result message of each rank, in order of rank; raises `RankError`."""
        try:
            self._start()
            while not self._is_over():
                self.progress.tick()
                self._listen(min(self.next_question, self.deadline, self.give_up) - time.monotonic())
                self._ask()
            self._raise_what_failed()
            return [rank.result for rank in self.ranks if rank.result]
        except KeyboardInterrupt:
            raise Interrupted(len(self.ranks)) from None
        finally:
            self._end()

    # -- starting ------------------------------------------------------------------------------------

    def _start(self) -> None:
        with self.their_leader:
            starting = functools.partial(
                self.progress.tick, "start (torch is being imported, once a notebook)"
            )
            service.request(self.their_leader, self.everything, starting)
        self.deadline = time.monotonic() + self.deadline_seconds
        try:
            self._have_ranks_forked()
        except ConnectionError:
            self._lose_leader()
        for rank, task in zip(self.ranks, self.tasks, strict=True):
            send_task(rank, task, self.deadline_seconds)
        self.next_question = time.monotonic() + 2 * _ASK_SECONDS

    def _have_ranks_forked(self) -> None:
        channel.send(self.leader, "directory", path=self.directory)
        if self.network and self.network.kind == "kernel":
            self._make_hosts(self.network)
        for rank in self.ranks:
            host = self.network.host_of(rank.number) if self.network else 0
            channel.send(self.leader, "rank", rank=rank.number, host=host)
            socket.send_fds(self.leader, [b"."], rank.their_fds)
            rank.close_theirs()

    def _make_hosts(self, links: Links) -> None:
        channel.send(self.leader, "hosts", links=asdict(links))
        self.leader.settimeout(max(0.001, self.deadline - time.monotonic()))
        try:
            problem = channel.receive(self.leader).fields["problem"]
        except TimeoutError:
            passed = f"the run passed its deadline of {self.deadline_seconds:g} s"
            raise self._error("deadline", f"{passed}, while the hosts of {links} were being made") from None
        self.leader.settimeout(None)
        if problem:
            raise RuntimeError(
                f"the hosts of {links} could not be made: {problem}; run it again, or ask for "
                'dc.Cluster(..., links="paced")'
            )

    # -- listening -----------------------------------------------------------------------------------

    def _listen(self, seconds: float) -> None:
        """Handle whatever has come within `seconds`."""
        handlers = self._handlers()
        poll = select.poll()
        for fd in handlers:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(max(0.0, seconds) * 1000):
            handlers[fd]()

    def _handlers(self) -> dict[int, Callable[[], None]]:
        handlers: dict[int, Callable[[], None]] = {}
        if self.leader.fileno() >= 0:
            handlers[self.leader.fileno()] = self._hear_leader
        for rank in self.ranks:
            if rank.control.fileno() >= 0:
                handlers[rank.control.fileno()] = functools.partial(self._hear_rank, rank)
            for name, fd in rank.streams.items():
                handlers[fd] = functools.partial(self._hear_stream, rank, name)
        return handlers

    def _hear_leader(self) -> None:
        try:
            message = channel.receive(self.leader)
        except ConnectionError:
            self._lose_leader()
            return
        if message.kind == "ended":
            rank = self.ranks[message.fields["rank"]]
            self._drain(rank)
            if all(failure.rank != rank.number for failure in self.failures):
                words = self.console.last_words(rank.number)
                self._fail(Failure.from_ended(rank.number, time.time(), message.fields["exit_code"], words))

    def _lose_leader(self) -> None:
        self.leader.close()
        self._fail(Failure(0, "died", time.time(), "was ended: the process that keeps the ranks has gone"))

    def _hear_rank(self, rank: Rank) -> None:
        if rank.control.fileno() < 0:
            return
        try:
            data = rank.control.recv(min(max(rank.decoder.num_missing_bytes, 1), _CHUNK_BYTES))
        except OSError:
            data = b""
        if not data:
            rank.control.close()  # the leader tells how it ended
            return
        for message in rank.decoder.feed(data):
            self._take(rank, message)

    def _take(self, rank: Rank, message: channel.Message) -> None:
        if message.kind == "returned":
            rank.result = message
            rank.calls, rank.has_forgotten = calls(message.fields), has_forgotten(message.fields)
            self.rounds, self.answers = [], {}  # they were given before this rank returned
        elif message.kind == "raised":
            self._fail(Failure.from_raised(rank.number, message.fields["time"], message.fields["error"]))
        elif message.kind == "stands":
            if rank.asked_at == self._num_returned():
                self.answers[rank.number] = standing(rank.number, message.fields)
            rank.asked_at = None

    def _hear_stream(self, rank: Rank, name: str) -> None:
        if name not in rank.streams:
            return  # taken already, when the rank ended
        data = os.read(rank.streams[name], _CHUNK_BYTES)
        self.console.feed(rank.number, name, data)
        if not data:
            os.close(rank.streams.pop(name))

    def _drain(self, rank: Rank) -> None:
        """Take all that a rank that has ended had still sent."""
        # Not to the end of the stream: a child that the rank has left holds the other end as well.
        while rank.control.fileno() >= 0 and select.select([rank.control], [], [], 0)[0]:
            self._hear_rank(rank)
        for name, fd in list(rank.streams.items()):
            while name in rank.streams and select.select([fd], [], [], 0)[0]:
                self._hear_stream(rank, name)

    # -- judging -------------------------------------------------------------------------------------

    def _fail(self, failure: Failure) -> None:
        self.failures.append(failure)
        is_told = not all(failure.is_consequence for failure in self.failures)
        give_up = time.monotonic() + (_GATHER_SECONDS if is_told else _GATHER_CAUSE_SECONDS)
        self.give_up = min(self.give_up, give_up)

    def _is_over(self) -> bool:
        now = time.monotonic()
        num_reported = len({failure.rank for failure in self.failures}) + self._num_returned()
        if self.failures:
            return now >= self.give_up or num_reported >= len(self.ranks)
        return num_reported == len(self.ranks) or self.verdict is not None or now >= self.deadline

    def _num_returned(self) -> int:
        return sum(rank.result is not None for rank in self.ranks)

    def _ask(self) -> None:
        """Every half second: where does each rank stand? Judge the round before, and ask again."""
        if time.monotonic() < self.next_question or self.failures:
            return
        self._close_round()
        for rank in self.ranks:
            # One question at a time: a rank that is stopped reads none, and would not empty the socket.
            if rank.result is None and rank.control.fileno() >= 0 and rank.asked_at is None:
                rank.asked_at = self._num_returned()
                with contextlib.suppress(OSError):
                    channel.send(rank.control, "stands?")
        self.next_question = time.monotonic() + _ASK_SECONDS

    def _close_round(self) -> None:
        now = dict(self.answers)
        for rank in self.ranks:
            if rank.result is not None:
                now[rank.number] = hang.Standing(
                    rank.number, True, rank.calls, has_forgotten=rank.has_forgotten
                )
        if now:
            self.verdict = hang.never_ends(now, self.rounds)
            self.rounds = [*self.rounds[-3:], now]
        self.answers = {}

    def _raise_what_failed(self) -> None:
        if self.failures:
            failure, num_alike = first_cause(self.failures)
            raise failure.error(len(self.ranks), num_alike)
        if self.verdict:
            raise self._error("hang", f"the run can never end: {self.verdict}")
        if not all(rank.result for rank in self.ranks):
            raise self._error("deadline", f"the run passed its deadline of {self.deadline_seconds:g} s")
        self._compare_calls()

    def _error(self, kind: str, summary: str) -> RankError:
        standings = self.rounds[-1] if self.rounds else {}
        places = [f"  {standings.get(r.number, hang.Standing(r.number))}" for r in self.ranks]
        waiting = [s.rank for s in standings.values() if not s.is_returned]
        return RankError(
            summary,
            kind=kind,
            world_size=len(self.ranks),
            rank=waiting[0] if len(waiting) == 1 else None,
            detail="\n".join(places),
        )

    def _compare_calls(self) -> None:
        clash = hang.first_disagreement({rank.number: list(rank.calls) for rank in self.ranks})
        if clash:
            raise RankError(
                f"the ranks called different collectives, so the numbers are wrong: {clash}",
                kind="mismatch",
                world_size=len(self.ranks),
            )

    # -- ending --------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Let ranks that returned leave, end the others, and wait until no process of the run is left."""
        self.tasks.clear()
        for rank in self.ranks:
            rank.close_theirs()  # still open if the start was cut short
        if self.failures or self.verdict or not all(rank.result for rank in self.ranks):
            self._tell_leader("end")
        else:
            self._dismiss()
        deadline = time.monotonic() + _DRAIN_SECONDS
        while self._is_open() and time.monotonic() < deadline:
            self._listen(deadline - time.monotonic())
        self.progress.close()
        self.console.finish()
        for rank in self.ranks:
            rank.close()
        self.leader.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _dismiss(self) -> None:
        for rank in self.ranks:
            with contextlib.suppress(OSError):
                channel.send(rank.control, "leave")
        self._tell_leader("end soon")

    def _tell_leader(self, kind: str) -> None:
        with contextlib.suppress(OSError):
            channel.send(self.leader, kind)

    def _is_open(self) -> bool:
        return self.leader.fileno() >= 0 or any(rank.streams for rank in self.ranks)


def directory_name() -> str:
    """A name for a folder of this run's own, where its ranks meet; the leader makes and removes it."""
    return os.path.join(tempfile.gettempdir(), f"dpcourse-{uuid.uuid4().hex}")
