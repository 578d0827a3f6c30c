"""A rank's end of the switch: a process group whose every message passes through the judge's process.

`join` puts it in the place of gloo, so that `torch.distributed` in an answer means this group. Collectives
that the lab allows are the course's own ring, made of messages too; those that it does not raise Forbidden.
"""

# torch's stubs describe the C++ class, whose overloads no Python method can have.
# mypy: disable-error-code="override, assignment, call-arg, attr-defined"

import itertools
import socket
import threading
from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.distributed as dist

from dpcourse.labs import frames
from dpcourse.labs.frames import Frame
from dpcourse.labs.switch import CALL, Plug
from dpcourse.network.in_order import THREAD_NAME, InOrder
from dpcourse.network.ring import RingProcessGroup, Tensors

NAME = "switch"
_THREAD = "dpcourse-plug"
_OWN = "dpcourse-"


class Forbidden(RuntimeError):
    """The answer called something that the task rules out."""


class Deadlock(RuntimeError):
    """Every rank waits for a message, and nobody is left who could send one."""


class Message(dist._Work):
    """A message under way; `wait` returns once it has been handed over."""

    def __init__(self, line: "Line", number: int, target: torch.Tensor | None) -> None:
        super().__init__()
        self._line, self.number, self.target = line, number, target
        self._over = threading.Lock()
        self._over.acquire()
        self.error: BaseException | None = None

    def wait(self, timeout: Any = None) -> bool:
        if self._over.locked():
            if threading.current_thread().name == THREAD_NAME:
                self._line.collective_stands_at(self.number)
            elif _may_speak_for_the_rank():
                self._line.send(Frame(frames.WAIT, self.number))
        with self._over:
            pass
        self._line.forgotten.discard(self.number)
        if self.error:
            raise self.error
        return True

    def is_completed(self) -> bool:
        if self._over.locked():
            return False
        self._line.forgotten.discard(self.number)
        return True

    def finish(self, error: BaseException | None = None) -> None:
        self.error = error
        self._over.release()


class Collective(dist._Work):
    """A collective under way on its thread; who waits for it stands where that thread stands."""

    def __init__(self, line: "Line", number: int, job: dist.Work) -> None:
        super().__init__()
        self._line, self._number, self._job = line, number, job

    def wait(self, timeout: Any = None) -> bool:
        is_heard = _may_speak_for_the_rank()
        if is_heard:
            self._line.rank_waits_for(self._number)
        try:
            return self._job.wait()
        finally:
            if is_heard:
                self._line.rank_waits_for(0)

    def get_future(self) -> torch.futures.Future:
        return self._job.get_future()

    def is_completed(self) -> bool:
        return self._job.is_completed()

    def is_success(self) -> bool:
        return self._job.is_success()


def _may_speak_for_the_rank() -> bool:
    """Whether the rank waits when the caller does: the main thread, with no other of the learner's."""
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and all(thread.name.startswith(_OWN) for thread in others)


class Line:
    """The connection, and a thread that takes what comes."""

    def __init__(self, plug: Plug) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(plug.path)
        self.sock.sendall(plug.token.encode())
        self._numbers, self._under_way = itertools.count(1), dict[int, Message]()
        self.forgotten: set[int] = set()  # messages that nobody has waited for yet
        self._mutex, self._stand = threading.Lock(), threading.Lock()
        self.collective, self._message, self._awaited = 0, 0, 0
        threading.Thread(target=self._listen, name=_THREAD, daemon=True).start()

    def send(self, frame: Frame) -> None:
        with self._mutex:
            for part in frame.encode():
                self.sock.sendall(part)

    def start(self, kind: bytes, tensor: torch.Tensor, peer: int, tag: int) -> Message:
        """Send a tensor, or be ready for one."""
        number = next(self._numbers)
        message = Message(self, number, None if kind == frames.SEND else tensor)
        self._under_way[number] = message
        self.forgotten.add(number)
        self.send(Frame(kind, number, peer, tag, _bytes_of(tensor) if kind == frames.SEND else b""))
        return message

    def collective_stands_at(self, message: int) -> None:
        """The thread of collectives waits for a message."""
        with self._stand:
            self._message = message
            self._say_where_the_rank_stands()

    def rank_waits_for(self, collective: int) -> None:
        """The main thread waits for a collective; 0 when it no longer does."""
        with self._stand:
            self._awaited = collective
            self._say_where_the_rank_stands()

    def _say_where_the_rank_stands(self) -> None:
        # The thread is past what is awaited as soon as it carries out a later one: then nobody stands here.
        if self._message and self.collective <= self._awaited:
            self.send(Frame(frames.WAIT, self._message))

    def _listen(self) -> None:
        with self.sock.makefile("rb") as stream:
            while head := stream.read(frames.HEAD_BYTES):
                frame, num_bytes = frames.decode(head)
                self._take(frame, stream.read(num_bytes))
        self._give_up(ConnectionError("the switch has closed this rank's line"))

    def _give_up(self, error: BaseException) -> None:
        """Let whoever waits for a message know that it will not come."""
        for message in list(self._under_way.values()):
            message.finish(error)
        self._under_way.clear()

    def _take(self, frame: Frame, payload: bytes) -> None:
        if frame.kind == frames.STOP:
            self._give_up(Deadlock(f"nobody can go on: {payload.decode()}"))
            return
        if frame.number in self._under_way:  # else nobody waits for it any more: all were told to stop
            message = self._under_way.pop(frame.number)
            message.finish(_fill(message.target, payload, frame.peer) if frame.kind == frames.DATA else None)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    row = tensor.detach().contiguous().view(-1)
    return row.view(torch.uint8).numpy().data if row.numel() else memoryview(b"")


def _fill(target: torch.Tensor | None, payload: bytes, source: int) -> ValueError | None:
    """Copy what came into the receiver's tensor; the error where it is not as long."""
    assert target is not None
    if len(payload) != target.nbytes:
        return ValueError(
            f"rank {source} sent {len(payload)} bytes, and the tensor to receive them in has {target.nbytes};"
            " make both of one size and dtype"
        )
    if payload:
        came = torch.frombuffer(bytearray(payload), dtype=target.dtype)
        with torch.no_grad():
            target.detach().copy_(came.view(target.shape))
    return None


class SwitchProcessGroup(RingProcessGroup):
    """The course's ring over the switch. What the task rules out is noted for the judge, and raises."""

    def __init__(self, options: Any, line: Line, allowed: Collection[str]) -> None:
        dist.ProcessGroup.__init__(self, options.group_rank, options.group_size)
        self._line, self._allowed = line, allowed
        self._ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
        self._in_order, self._under_way = InOrder(), 0
        self._call_numbers, self._collectives = itertools.count(1), itertools.count(1)

    def getBackendName(self) -> str:
        return NAME

    def _get_backend(self, device: Any) -> "SwitchProcessGroup":  # type: ignore[override]
        return self  # no gloo is below it

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> dist.Work:
        return self._line.start(frames.SEND, tensors[0], self._ranks[dst], self._tag(tag))

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> dist.Work:
        return self._line.start(frames.READY, tensors[0], self._ranks[src], self._tag(tag))

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        self._ask("recv_anysource", 0)
        raise AssertionError("no lab allows it")

    def _tell(self, collective: str, num_bytes: int, tensor: torch.Tensor) -> None:
        self._ask(collective, num_bytes)
        super()._tell(collective, num_bytes, tensor)

    def barrier(self, opts: Any = None) -> dist.Work:
        self._ask("barrier", 0)
        return super().barrier(opts)

    def _start(self, name: str, shown: Tensors, function: Callable[[], None], results: Tensors) -> dist.Work:
        number = next(self._collectives)

        def carry_out() -> None:
            self._line.collective = number
            function()

        return Collective(self._line, number, super()._start(name, shown, carry_out, results))

    def _ask(self, collective: str, num_bytes: int) -> None:
        self._line.send(Frame(frames.NOTE, payload=f"{CALL}{collective} {num_bytes}".encode()))
        if collective not in self._allowed:
            raise Forbidden(f"the task rules out {collective}: make it of send and receive")


_joined: list[Line] = []


def note(words: str) -> None:
    """Have the judge's log say something, from the lab's own code in a rank."""
    _joined[-1].send(Frame(frames.NOTE, payload=words.encode()))


def num_forgotten() -> int:
    """How many messages were started and not waited for, since this was asked last."""
    num = len(_joined[-1].forgotten)
    _joined[-1].forgotten.clear()
    return num


def settle() -> None:
    """Have the thread that carried out collectives let go of their tensors: it does so before the next."""
    group = dist.distributed_c10d._get_default_group()
    group._in_order.start(lambda: None, []).wait()


def join(plug: Plug, allowed: Collection[str]) -> Line:
    """Leave gloo, and make the switch this process's default group; returns the line to the switch.

    allowed: the collectives that an answer may call, such as "all_reduce".
    """
    line = Line(plug)
    _joined.append(line)

    def create(options: Any, own_options: Any) -> SwitchProcessGroup:
        return SwitchProcessGroup(options, line, allowed)

    dist.barrier()  # who closes gloo's connections while another rank still makes its own fails that rank
    dist.destroy_process_group()
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
    dist.init_process_group(NAME, store=dist.HashStore(), rank=plug.rank, world_size=plug.world_size)
    return line


def leave() -> None:
    """Tell the switch that this rank sends nothing more."""
    _joined[-1].send(Frame(frames.DONE))
