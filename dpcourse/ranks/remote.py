"""One rank as the notebook sees it: its control socket, its output, what it has said."""

import contextlib
import dataclasses
import os
import socket
from typing import Any

from dpcourse.ranks import channel, hang
from dpcourse.ranks.places import Place
from dpcourse.ranks.rank import Task


class Rank:
    """The notebook's ends of one rank's control socket and output pipes."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.control, self.their_control = socket.socketpair()
        self.decoder = channel.Decoder()
        pipes = [os.pipe(), os.pipe()]
        self.streams = {"stdout": pipes[0][0], "stderr": pipes[1][0]}
        self.their_fds = [self.their_control.fileno(), pipes[0][1], pipes[1][1]]
        self.result: channel.Message | None = None
        self.asked_at: int | None = None  # how many ranks had returned when it was asked; None: not asked
        self.has_forgotten = False
        self.calls: tuple[hang.Call, ...] = ()

    def close_theirs(self) -> None:
        if self.their_fds:
            self.their_control.close()
            for fd in self.their_fds[1:]:
                os.close(fd)
            self.their_fds = []

    def close(self) -> None:
        self.close_theirs()
        self.control.close()
        for fd in self.streams.values():
            os.close(fd)
        self.streams = {}


def send_task(rank: Rank, task: Task, seconds: float) -> None:
    """Hand a rank its work, and then its own arguments."""
    fields = {f.name: getattr(task, f.name) for f in dataclasses.fields(task)}
    work, own = fields.pop("work"), fields.pop("own_arguments")
    rank.control.settimeout(seconds)
    with contextlib.suppress(OSError):  # a rank that is gone already: the leader tells how
        channel.send(rank.control, "task", work, **fields)
        channel.send(rank.control, "own", own)
    rank.control.settimeout(None)


def calls(fields: dict[str, Any]) -> tuple[hang.Call, ...]:
    """The collectives in a rank's message."""
    return tuple(hang.Call.from_json(call) for call in fields["calls"])


def has_forgotten(fields: dict[str, Any]) -> bool:
    """Whether the recorder of the rank has dropped its oldest calls."""
    return bool(fields["calls"]) and fields["calls"][0]["record"] > 0


def standing(number: int, fields: dict[str, Any]) -> hang.Standing:
    """Where a rank that is still at work says that it stands."""
    return hang.Standing(
        number,
        calls=calls(fields),
        stack=tuple(Place(*frame) for frame in fields["stack"]),
        cpu_seconds=fields["cpu_seconds"],
        is_alone=fields["is_alone"],
        has_forgotten=has_forgotten(fields),
    )
