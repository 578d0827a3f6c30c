"""DDP's backward at one bucket size after the other, on ranks that stay between two sizes.

Starting ranks, importing torch and measuring the link takes longer than the steps themselves: ranks that stay
answer within two or three seconds. They end when they are stopped, when nobody asks for a minute, and with
the notebook's process.
"""

import contextlib
import select
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from dpcourse.experiments import all_reduce, buckets
from dpcourse.experiments.base import emulated, slowest
from dpcourse.experiments.buckets import Backward
from dpcourse.quantities import read_seconds
from dpcourse.ranks import channel
from dpcourse.ranks.cluster import Cluster
from dpcourse.ranks.launch import launch
from dpcourse.ranks.links import Links
from dpcourse.theory.links import Link

REPEATS = 3
_LINK_REPEATS = 2
_LOOK_SECONDS = 0.1
_IDLE_SECONDS = 60.0
_DEADLINE_SECONDS = 900.0  # of ranks that go on being asked
_MOVE_SECONDS = 60.0  # of one answer, the ranks' start included
_ENDS_KIB = (1, 1024)  # of the model's curve
_POINTS_OF_A_DOUBLING = 2


class Stopped(Exception):
    """The measurement was stopped before it had an answer."""


@dataclass(frozen=True)
class LivePoints:
    """What has been measured so far beside the model's curve.

    link: what the model has; `is_fitted` says whether it was measured, or is the one that was asked for.
    curve: size in MiB and predicted seconds.
    """

    links: Links
    gradient_bytes: int
    pace_compute: str
    compute_seconds: float
    link: Link
    is_fitted: bool
    times: tuple[Backward, ...]
    curve: tuple[tuple[float, float], ...]


class LiveBuckets:
    """Two ranks on a slow link that time backward with one bucket size after the other."""

    def __init__(self, cluster: Cluster | None = None) -> None:
        self.cluster, self.links = emulated(cluster or buckets.slow_hosts())
        self.times: list[Backward] = []
        self.link, self.is_fitted = self.links.inter, False
        self.compute_seconds = 2 * read_seconds("pace", buckets.PACE) * buckets.MODEL.depth
        self._alone: list[float] = []  # one a move, so that a busy moment does not last
        self._ranks: _Ranks | None = None
        self._is_stopped, self._is_measuring = threading.Event(), False

    def points(self) -> LivePoints:
        """Give what is known; before the first measurement the model's curve for the link as asked for."""
        size = self._request(1.0).setting.layout.gradient_bytes
        return LivePoints(
            self.links, size, buckets.PACE, self.compute_seconds, self.link, self.is_fitted,
            tuple(self.times), tuple(self._curve()),
        )  # fmt: skip

    def _curve(self) -> list[tuple[float, float]]:
        low, high = _ENDS_KIB
        num_points = _POINTS_OF_A_DOUBLING * (high // low).bit_length()
        caps = [low / 1024 * (high / low) ** (place / num_points) for place in range(num_points + 1)]
        return [(cap, self._predicted(cap)) for cap in caps]

    def _request(self, cap_mb: float) -> Any:
        return buckets.request_of(self.cluster, buckets.MODEL, buckets.PACE, cap_mb)

    def _predicted(self, cap_mb: float) -> float:
        return buckets.predicted_seconds(self._request(cap_mb), self.compute_seconds, self.link)

    def measure(self, cap_mb: float, hear: Callable[[str], None] = lambda words: None) -> Backward:
        """Time backward with buckets of `cap_mb` MiB.

        hear: is told what goes on. Raises Stopped once `stop` was called, RankError for ranks that failed.
        """
        self._is_stopped.clear()
        if self._ranks is None or not self._ranks.is_alive():
            hear("starting two ranks and measuring their link")
            self._ranks = _Ranks(self.cluster)
        self._is_measuring = True
        try:
            answers = self._ranks.ask(cap_mb, self._is_stopped, hear)
        except BaseException:
            self._ranks.close()
            raise
        finally:
            self._is_measuring = False
        return self._take(cap_mb, answers)

    def _take(self, cap_mb: float, answers: list[dict[str, Any]]) -> Backward:
        self._alone += slowest([answer["alone"] for answer in answers])
        self.compute_seconds = median(self._alone)
        if answers[0]["link"]:
            by_size = zip(*(answer["link"] for answer in answers), strict=True)
            times = [median(slowest(own)) for own in by_size]
            sizes = buckets.SWEEP_SIZES
            self.link = all_reduce.fit_link(dict(zip(sizes, times, strict=True)), self.cluster.num_ranks)
            self.is_fitted = True
        self.times = [self._row(row.bucket_cap_mb, row.seconds) for row in self.times]
        before = next((row for row in self.times if row.bucket_cap_mb == cap_mb), None)
        seconds = slowest([answer["seconds"] for answer in answers])
        found = self._row(cap_mb, (before.seconds if before else ()) + seconds)
        self.times = [row for row in self.times if row is not before] + [found]
        return found

    def _row(self, cap_mb: float, seconds: tuple[float, ...]) -> Backward:
        request = self._request(cap_mb)
        return Backward(cap_mb, buckets.num_buckets_of(request), seconds, self._predicted(cap_mb))

    def stop(self) -> None:
        """Stop what is being measured, from any thread, and end the ranks."""
        self._is_stopped.set()
        if self._ranks and not self._is_measuring:  # else the one who measures ends them
            self._ranks.close()


class _Ranks:
    """The ranks' end of a socket each, and the thread that keeps their run."""

    def __init__(self, cluster: Cluster) -> None:
        self.folder = tempfile.mkdtemp(prefix="dpcourse-live-")
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(Path(self.folder, "ranks")))
        self.server.listen()
        self.cluster = cluster
        self.error: Exception | None = None
        self.socks: list[socket.socket] = []
        self.thread = threading.Thread(target=self._keep, name="live buckets", daemon=True)
        self.thread.start()

    def _keep(self) -> None:
        address = str(Path(self.folder, "ranks"))
        try:
            launch(
                _serve, address, buckets.MODEL, buckets.PACE, self.cluster,
                cluster=self.cluster, deadline_seconds=_DEADLINE_SECONDS, everything=True,
            )  # fmt: skip
        except Exception as error:
            self.error = error

    def is_alive(self) -> bool:
        return self.thread.is_alive() and self.server.fileno() >= 0

    def ask(self, cap_mb: float, is_stopped: threading.Event, hear: Callable[[str], None]) -> list[Any]:
        """Have all ranks time one size; gives their answers, in order of rank."""
        deadline = time.monotonic() + _MOVE_SECONDS
        while len(self.socks) < self.cluster.num_ranks:
            self._look([self.server], is_stopped, deadline)
            self.socks.append(self.server.accept()[0])
        shutil.rmtree(self.folder, ignore_errors=True)  # all are here: nothing is left, however this ends
        try:
            return self._asked(cap_mb, is_stopped, deadline, hear)
        except ConnectionError:
            self.thread.join(_MOVE_SECONDS)  # the run ends soon, and knows why
            raise self.error or RuntimeError("the ranks have ended; run it again") from None

    def _asked(
        self, cap_mb: float, is_stopped: threading.Event, deadline: float, hear: Callable[[str], None]
    ) -> list[Any]:
        for sock in self.socks:
            channel.send(sock, "measure", cap_mb=cap_mb)
        answers: dict[int, Any] = {}
        while len(answers) < len(self.socks):
            for sock in self._look(self.socks, is_stopped, deadline):
                message = channel.receive(sock)
                if message.kind == "step":
                    hear(message.fields["words"])
                else:
                    answers[message.fields["rank"]] = message.fields
        return [answers[rank] for rank in sorted(answers)]

    def _look(
        self, socks: list[socket.socket], is_stopped: threading.Event, deadline: float
    ) -> list[socket.socket]:
        """Wait until one of them can be read; notice in time that it never will."""
        while True:
            if is_stopped.is_set():
                raise Stopped
            ready = select.select(socks, [], [], _LOOK_SECONDS)[0]
            if ready:
                return ready
            if not self.thread.is_alive():
                raise self.error or RuntimeError("the ranks have ended; run it again")
            if time.monotonic() > deadline:
                raise TimeoutError(f"no answer within {_MOVE_SECONDS:.0f} s; run it again")

    def close(self) -> None:
        """Leave the ranks, which end when they notice, and take the folder away."""
        for sock in (self.server, *self.socks):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        shutil.rmtree(self.folder, ignore_errors=True)


# -- in each rank


def _serve(address: str, model: Any, pace: str, cluster: Cluster) -> None:
    """Time what is asked for, until nobody asks any more."""
    import torch.distributed as dist

    rank = dist.get_rank()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(address)
        sock.settimeout(_IDLE_SECONDS)
        link: list[list[float]] = []
        with contextlib.suppress(ConnectionError, TimeoutError):
            while True:
                cap_mb = channel.receive(sock).fields["cap_mb"]
                is_first, tell = not link, _teller(sock, rank)
                if is_first:
                    tell("measuring the link")
                    link = all_reduce.time_all_reduces(list(buckets.SWEEP_SIZES), _LINK_REPEATS, True)
                request = buckets.request_of(cluster, model, pace, cap_mb)
                seconds, alone = _time_size(request, REPEATS if is_first else 1, tell)
                own: dict[str, Any] = {"rank": rank, "seconds": seconds, "alone": alone}
                channel.send(sock, "answer", **own, link=link if is_first else [])


def _teller(sock: socket.socket, rank: int) -> Callable[[str], None]:
    """Tell the notebook what goes on, from one rank; in any, end at once when it has left."""
    import os

    def tell(words: str) -> None:
        if select.select([sock], [], [], 0)[0] and not sock.recv(1, socket.MSG_PEEK):
            os._exit(0)  # another rank may wait in a collective by now: its run ends with this rank
        if rank == 0:
            channel.send(sock, "step", words=words)

    return tell


def _time_size(request: Any, num_alone: int, tell: Callable[[str], None]) -> tuple[list, list]:
    """Time backward with one size, and `num_alone` times without any all-reduce."""
    from dpcourse.trainer import Trainer  # imports torch: in the rank, not here

    trainer = Trainer(request)
    wrapped: Any = trainer.wrapped
    seconds, alone = [], []
    num_steps = buckets.WARM_UP_STEPS + REPEATS
    for step in range(num_steps):
        tell(f"step {step + 1} of {num_steps}")
        own = buckets.backward_seconds(trainer)
        seconds += [own] if step >= buckets.WARM_UP_STEPS else []
    with wrapped.no_sync():
        for _ in range(num_alone):
            alone.append(buckets.backward_seconds(trainer))
    return seconds, alone
